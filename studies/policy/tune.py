"""Tune the rules on the training part of every trace, and record tried and chosen values.

    nice -n 5 .venv/bin/python -m studies.policy.tune --out runs/policy/tune
    nice -n 5 .venv/bin/python -m studies.policy.tune --budget-s 480        # as much as fits; call again

Each value of each grid (`opponents.GRIDS`) runs on three windows of the training part, as long as the test
part, at three loads. The value with the least geometric mean of its ratios to `qssf-backfill` is chosen, once
for all traces and once for each. Results are kept, one file each, and not run again.
For the rules whose grid is complete, the choice goes to `tuned.json` next to this file, and all tried
values to OUT/tried.json. Commit `tuned.json` before the test split is read; after that it is not written
any more: `--tuned FILE` names another one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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
    read_tuned,
    write_tuned,
)
from studies.policy.options import add_common, reported
from studies.policy.runs import DRAW_SEEDS, Job, Result, missing, result_of, run_all
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
    """Geometric mean of the available ratios; 1 without any."""
    known = [max(one, LEAST_RATIO) for one in ratios if one is not None]
    found = geometric_mean(np.array(known, dtype=np.float64))
    return 1.0 if found is None else round(found.ratio, 4)


def least(scores: dict[str, float]) -> str:
    """Return the name of the value with the least score; of equal scores, the first in the grid."""
    return min(scores, key=lambda value: scores[value])


def ratio_of(result: Result, grid: Grid) -> float | None:
    """Result of a value on a case, against `qssf-backfill`."""
    against = result.against[TUNING_REFERENCE]
    found = against.queue_mean_ratio if grid.measure == "queue" else against.jct_mean_ratio
    return None if found is None else round(found.ratio, 4)


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Every value of one rule's grid.

    Attributes:
        settings: Settings of each value, as in a TOML file, by name of the value.
        scores: Score by value: geometric mean over all cases of its mean / the mean of `qssf-backfill`.
        scores_by_trace: Score over the cases of one trace, by trace and value.
        ratios: Ratio by value and case; null if no job waited.
    """

    settings: dict[str, dict[str, Any]]
    scores: dict[str, float]
    scores_by_trace: dict[str, dict[str, float]]
    ratios: dict[str, dict[str, float | None]]

    @property
    def choice(self) -> Tuned:
        """The values with the least scores."""
        chosen = least(self.scores)
        return Tuned(
            grid=self.settings,
            chosen=chosen,
            score=self.scores[chosen],
            chosen_by_trace={trace: least(some) for trace, some in self.scores_by_trace.items()},
        )


class TriedFile(msgspec.Struct, frozen=True, kw_only=True):
    """`tried.json`.

    Attributes:
        traces: Traces used for tuning.
        parts: Parts of their time, all before the end of the training part.
        loads: Offered loads.
        seeds: Seeds of the policies' draws.
        reference: Reference of the scores.
        cases: Jobs measured in each case.
        left_out: Cases that were not run, with reasons.
        settings: Tried values by setting, then by rule.
    """

    traces: list[str]
    parts: list[str]
    loads: list[float]
    seeds: list[int]
    reference: str
    cases: dict[str, int]
    left_out: dict[str, str]
    settings: dict[str, dict[str, Tried]]


def tried_rule(grid: Grid, results: Sequence[Result]) -> Tried:
    """The scores of a complete grid."""
    traces = list(dict.fromkeys(one.case.trace for one in results))
    ratios: dict[str, dict[str, float | None]] = {name: {} for name in grid.names}
    by_trace: dict[str, dict[str, list[float | None]]] = {
        trace: {name: [] for name in grid.names} for trace in traces
    }
    for one in results:
        ratio = ratio_of(one, grid)
        ratios[one.policy][one.case.name] = ratio
        by_trace[one.case.trace][one.policy].append(ratio)
    return Tried(
        settings=grid.settings,
        scores={value: score(found.values()) for value, found in ratios.items()},
        scores_by_trace={
            trace: {value: score(found) for value, found in some.items()} for trace, some in by_trace.items()
        },
        ratios=ratios,
    )


def known_values(tuned: Path, log: Path) -> TunedFile | None:
    """Present content of a file of chosen values.

    Raises:
        InputError: The test split has been read, with these values or by a run in the log.
    """
    known = read_tuned(tuned) if tuned.exists() else None
    if read_log(log) or (known is not None and known.test_split_read):
        raise InputError(
            f"{tuned}: the test split has been read; values that are tuned now would know of it (--tuned "
            "and --log name other files)"
        )
    return known


def tuning_cases(
    folder: Path, traces: Sequence[str], least_jobs: int
) -> tuple[list[Case], dict[str, int], dict[str, str]]:
    """Cases of the training part, their jobs, and left-out cases with the reason."""
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
    """Read the command line, run the missing cases, write complete results; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy/tune"))
    names = tuple(dict.fromkeys(rule for _, rule, _ in all_grids()))
    parser.add_argument("--rule", action="append", choices=names, help="default: all")
    parser.add_argument(
        "--setting",
        action="append",
        choices=(BASE, *MORE_GRIDS),
        help="permissions and information; default: all",
    )
    parser.add_argument("--tuned", type=Path, default=TUNED_FILE, help="file to write")
    parser.add_argument("--log", type=Path, default=LOG_FILE, help="log of runs on the test split")
    parser.add_argument(
        "--least-jobs", type=int, default=MIN_TUNING_JOBS, help="a window with fewer jobs is no case"
    )
    return reported(_tune, parser.parse_args(words))


def with_choice(known: TunedFile, setting: str, rule: str, choice: Tuned) -> TunedFile:
    """The file with one rule's values inserted."""
    if setting == BASE:
        return msgspec.structs.replace(known, rules=known.rules | {rule: choice})
    there = known.settings.get(setting, {}) | {rule: choice}
    return msgspec.structs.replace(known, settings=known.settings | {setting: there})


def in_order(case: Case) -> tuple[str, float, str]:
    """Sort key of jobs: cases of one setting after each other, so that each is read once."""
    return case.predictions, -case.preemptible_frac, case.name


def _tune(arguments: argparse.Namespace) -> int:
    known = known_values(arguments.tuned, arguments.log)
    wanted = [
        grid
        for setting, rule, grid in all_grids()
        if rule in (arguments.rule or (rule,)) and setting in (arguments.setting or (setting,))
    ]
    traces = arguments.trace or list(TRACES)
    todo, counts, left_out = tuning_cases(arguments.traces, traces, arguments.least_jobs)
    folder = arguments.out / "cases"
    jobs = [job for grid in wanted for job in grid_jobs(grid, todo)]
    jobs = missing(sorted(jobs, key=lambda job: (job.models, in_order(job.case))), folder)
    _, stopped = run_all(
        jobs, arguments.traces, folder, workers=arguments.workers, budget_s=arguments.budget_s
    )
    complete: dict[str, dict[str, Tried]] = {}
    for setting, rule, grid in all_grids():
        all_jobs = grid_jobs(grid, todo)
        there = [job for job in all_jobs if job.path(folder).exists()]
        if todo and len(there) == len(all_jobs):
            found_of = [result_of(job, folder) for job in all_jobs]
            complete.setdefault(setting, {})[rule] = tried_rule(grid, found_of)
        print(f"{setting}: {rule}: {len(there)} of {len(all_jobs)} there", file=sys.stderr)
    if complete:
        tried = TriedFile(
            traces=list(traces),
            parts=list(TUNING_PARTS),
            loads=list(TUNING_LOADS),
            seeds=list(DRAW_SEEDS),
            reference=TUNING_REFERENCE,
            cases=counts,
            left_out=left_out,
            settings=complete,
        )
        log = msgspec.json.format(msgspec.json.encode(tried), indent=1)
        (arguments.out / "tried.json").write_bytes(log + b"\n")
        found = TunedFile(traces=list(traces)) if known is None else known
        for setting, rules in complete.items():
            for rule, one in rules.items():
                found = with_choice(found, setting, rule, one.choice)
                chosen = one.choice
                print(f"{setting}: {rule}: {chosen.chosen} ({chosen.score:.3f}); {chosen.chosen_by_trace}")
        write_tuned(arguments.tuned, found)
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
