"""Tune the rules on the training part of every trace, and write down what was tried and chosen.

    nice -n 5 .venv/bin/python -m studies.policy.tune --out runs/policy/tune
    nice -n 5 .venv/bin/python -m studies.policy.tune --budget-s 480        # as much as fits; call again

Each value of each grid (`opponents.GRIDS`) runs on three windows of the training part, as long as the test
part, at three loads. The value with the least geometric mean of its ratios to `qssf-backfill` is chosen, once
for all traces and once for each. Results are kept, one file each, and not run again.
`studies/policy/tuned.json` has the rules whose grid is complete; it is to be committed before the test
split is read, and is not written any more once `test_runs.jsonl` has a line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from rlsched.errors import InputError
from rlsched_agents.evaluate.pairs import geometric_mean
from studies.policy.cases import (
    MIN_TUNING_JOBS,
    TRACES,
    TUNING_LOADS,
    TUNING_PARTS,
    Case,
    cases,
    measured_jobs,
)
from studies.policy.journal import LOG_FILE, read_log
from studies.policy.opponents import (
    BASE,
    MORE_GRIDS,
    TUNED_FILE,
    TUNING_REFERENCE,
    Grid,
    Tuned,
    TunedFile,
    all_grids,
)
from studies.policy.options import add_common, reported
from studies.policy.runs import DRAW_SEEDS, Job, Result, missing, read_result, run_all
from studies.policy.tables import LEAST_RATIO


def grid_jobs(grid: Grid, todo: Sequence[Case]) -> list[Job]:
    """Every value of a grid on every case, in the grid's setting, case by case."""
    return [
        Job(
            case=msgspec.structs.replace(
                case, preemptible_frac=grid.preemptible_frac, predictions=grid.predictions
            ),
            policy=value,
            models=grid.models,
        )
        for case in todo
        for value in grid.values
    ]


def score(ratios: Iterable[float | None]) -> float:
    """Geometric mean of the ratios that there are; 1 of none."""
    known = [max(one, LEAST_RATIO) for one in ratios if one is not None]
    found = geometric_mean(np.array(known, dtype=np.float64))
    return 1.0 if found is None else round(found.ratio, 4)


def least(scores: dict[str, float]) -> str:
    """The value with the least score; of values that are alike the first in the grid."""
    return min(scores, key=lambda value: scores[value])


def ratio_of(result: Result, grid: Grid) -> float | None:
    """What a value came to on a case, against `qssf-backfill`."""
    against = result.against[TUNING_REFERENCE]
    found = against.queue_mean_ratio if grid.measure == "queue" else against.jct_mean_ratio
    return None if found is None else round(found.ratio, 4)


def tuned_rule(grid: Grid, results: Sequence[Result]) -> Tuned:
    """Choose from a complete grid."""
    traces = list(dict.fromkeys(one.case.trace for one in results))
    ratios: dict[str, dict[str, float | None]] = {value: {} for value in grid.values}
    by_trace: dict[str, dict[str, list[float | None]]] = {
        trace: {value: [] for value in grid.values} for trace in traces
    }
    for one in results:
        ratio = ratio_of(one, grid)
        ratios[one.policy][one.case.name] = ratio
        by_trace[one.case.trace][one.policy].append(ratio)
    scores = {value: score(found.values()) for value, found in ratios.items()}
    here = {trace: {value: score(found) for value, found in some.items()} for trace, some in by_trace.items()}
    return Tuned(
        grid=list(grid.values),
        measure=grid.measure,
        models=grid.models,
        chosen=least(scores),
        chosen_by_trace={trace: least(some) for trace, some in here.items()},
        scores=scores,
        scores_by_trace=here,
        ratios=ratios,
    )


def tuning_cases(
    folder: Path, traces: Sequence[str], least_jobs: int
) -> tuple[list[Case], dict[str, int], dict[str, str]]:
    """Cases of the training part, their jobs, and those that are left out with the reason."""
    found, counts, left_out = [], {}, {}
    for case in cases(traces, TUNING_PARTS, TUNING_LOADS):
        jobs = measured_jobs(folder, case)
        if jobs < least_jobs:
            left_out[case.name] = f"{jobs} jobs, fewer than {least_jobs}"
        else:
            found.append(case)
            counts[case.name] = jobs
    return found, counts, left_out


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run what is missing, write what is complete; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy/tune"))
    names = tuple(dict.fromkeys(rule for _, rule, _ in all_grids()))
    parser.add_argument("--rule", action="append", choices=names, help="default: all but rollout")
    parser.add_argument(
        "--setting",
        action="append",
        choices=(BASE, *MORE_GRIDS),
        help="what is allowed and known; default: all",
    )
    parser.add_argument("--tuned", type=Path, default=TUNED_FILE, help="file to write")
    parser.add_argument("--log", type=Path, default=LOG_FILE, help="log of runs on the test split")
    parser.add_argument(
        "--least-jobs", type=int, default=MIN_TUNING_JOBS, help="a window with fewer jobs is no case"
    )
    return reported(_tune, parser.parse_args(words))


def in_order(case: Case) -> tuple[str, float, str]:
    """What jobs are sorted by: cases of one setting after each other, so that each is read once."""
    return case.predictions, -case.preemptible_frac, case.name


def _tune(arguments: argparse.Namespace) -> int:
    if read_log(arguments.log):
        raise InputError(
            f"{arguments.log}: the test split has been read; values that are tuned now would know of it"
        )
    wanted = [
        grid
        for setting, rule, grid in all_grids()
        if (rule in arguments.rule if arguments.rule else not grid.slow)
        and setting in (arguments.setting or (setting,))
    ]
    traces = arguments.trace or list(TRACES)
    todo, counts, left_out = tuning_cases(arguments.traces, traces, arguments.least_jobs)
    folder = arguments.out / "cases"
    jobs = [job for grid in wanted for job in grid_jobs(grid, todo)]
    jobs = missing(sorted(jobs, key=lambda job: (job.models, in_order(job.case))), folder)
    _, stopped = run_all(
        jobs, arguments.traces, folder, workers=arguments.workers, budget_s=arguments.budget_s
    )
    complete: dict[str, dict[str, Tuned]] = {}
    for setting, rule, grid in all_grids():
        paths = [job.path(folder) for job in grid_jobs(grid, todo)]
        there = [path for path in paths if path.exists()]
        if todo and len(there) == len(paths):
            complete.setdefault(setting, {})[rule] = tuned_rule(grid, [read_result(path) for path in paths])
        print(f"{setting}: {rule}: {len(there)} of {len(paths)} there", file=sys.stderr)
    if complete:
        found = TunedFile(
            traces=list(traces),
            parts=list(TUNING_PARTS),
            loads=list(TUNING_LOADS),
            seeds=list(DRAW_SEEDS),
            reference=TUNING_REFERENCE,
            cases=counts,
            left_out=left_out,
            rules=complete.pop(BASE, {}),
            settings=complete,
        )
        arguments.tuned.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        for setting, rules in {BASE: found.rules, **found.settings}.items():
            for rule, one in rules.items():
                score = one.scores[one.chosen]
                print(f"{setting}: {rule}: {one.chosen} ({score:.3f}); {one.chosen_by_trace}")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
