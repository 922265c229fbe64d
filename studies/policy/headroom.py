"""Possible reduction of queueing without preemption: rules, look-ahead and bounds on shortened cases.

    .venv/bin/python -m studies.policy.headroom --predictions good --policy clairvoyant
    .venv/bin/python -m studies.policy.headroom --part train3 --policy rollout --set samples=4

The cases come from the comparison (`cases.workload_of`), but only the first `--jobs` measured jobs are
measured, and half as many follow: look-ahead takes too long for whole ones. Best QSSF is of the
same shortened case. A rule with `--set predictions=oracle` uses true run times, also for its
order. Each policy and case is a file in OUT; existing files are not made again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched_agents.evaluate.pairs import geometric_mean
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import PredictedTimes
from studies.policy.cases import PARTS, TRACES, TUNING_LOADS, Case, Workload, cases, workload_of
from studies.policy.opponents import REFERENCES, policy_id
from studies.policy.options import add_common, add_policy, policies_of, reported
from studies.policy.predictions import stamps_of

GANG_GPUS: Final = 8
LEAST_S: Final = 100.0
"""A case in which best QSSF waits less than this on average is uninformative: it is left out of the means."""


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one shortened case.

    Attributes:
        jobs: Jobs that were measured.
        queue_mean_s: Their mean queueing delay.
        gangs_mean_s: That of gangs of `GANG_GPUS` and more; None without any.
        others_mean_s: That of the others.
        wall_s: Wall time of the replay.
    """

    jobs: int
    queue_mean_s: float
    gangs_mean_s: float | None
    others_mean_s: float | None
    wall_s: float


def shortened(work: Workload, predictions: PredictedTimes, jobs: int) -> tuple[Workload, PredictedTimes]:
    """The same case with at most this many measured jobs, and half as many after them."""
    measured = np.flatnonzero(work.window.measured(work.trace))
    if len(measured) <= jobs:
        return work, predictions
    last = min(len(work.trace), int(measured[jobs]) + jobs // 2)
    window = MeasuredWindow(work.window.since_s, float(work.trace.submit_s[measured[jobs]]))
    short = replace(work, trace=work.trace.select(slice(0, last)), window=window)
    return short, PredictedTimes(predictions.predicted_s[:last], predictions.spread[:last])


def waited(work: Workload, predictions: PredictedTimes, policy: Policy) -> Waited:
    """Replay a policy with seed 0."""
    tasks = replay_tasks(work.trace, work.spec, work.window, predictions, [policy], [0])
    (outcome,) = run_tasks(tasks, workers=1)
    trace = outcome.table.trace
    queue_s = outcome.table.start_s - trace.submit_s
    started = work.window.measured(trace) & ~np.isnan(queue_s)
    gangs = trace.num_gpus >= GANG_GPUS

    def mean_s(some: np.ndarray) -> float | None:
        return float(queue_s[some].mean()) if some.any() else None

    return Waited(
        jobs=int(started.sum()),
        queue_mean_s=mean_s(started) or 0.0,
        gangs_mean_s=mean_s(started & gangs),
        others_mean_s=mean_s(started & ~gangs),
        wall_s=outcome.wall_s,
    )


def result_file(folder: Path, case: Case, jobs: int, policy: Policy) -> Path:
    """Path of a result."""
    return folder / f"{case.name}-{jobs}-{policy_id(policy)}.json"


def best_of(found: dict[str, Waited]) -> str:
    """The reference that waits less."""
    return min(REFERENCES, key=lambda name: found[name].queue_mean_s)


def ratio_text(mine: float | None, other: float | None) -> str:
    """A ratio; empty if no job waits, or there is no such job."""
    return "" if mine is None or not other else f"{mine / other:.2f}"


def table(found: dict[Case, dict[str, Waited]], policies: Sequence[str]) -> str:
    """Markdown: mean queueing over that of best QSSF, followed by that of gangs and of the others."""
    lines = [
        "| case | jobs | best QSSF, s | " + " | ".join(f"`{name}`" for name in policies) + " |",
        "|---|---:|---:|" + "---:|" * len(policies),
    ]
    ratios: dict[str, list[float]] = {name: [] for name in policies}
    for case, here in found.items():
        best = here[best_of(here)]
        cells = []
        for name in policies:
            mine = here.get(name)
            if mine is None:
                cells.append("")
                continue
            parts = [
                ratio_text(mine.gangs_mean_s, best.gangs_mean_s),
                ratio_text(mine.others_mean_s, best.others_mean_s),
            ]
            cells.append(f"{ratio_text(mine.queue_mean_s, best.queue_mean_s)} ({', '.join(parts)})")
            if best.queue_mean_s >= LEAST_S:
                ratios[name].append(max(mine.queue_mean_s / best.queue_mean_s, 0.01))
        case_title = f"{case.trace}, {case.load:g} | {best.jobs:,} | {best.queue_mean_s:,.0f}"
        lines.append(f"| {case_title} (`{best_of(here)}`) | {' | '.join(cells)} |")
    cells = []
    for name in policies:
        mean = geometric_mean(np.array(ratios[name]))
        cells.append(f"{mean.ratio:.3f} ({len(ratios[name])})" if mean else "")
    lines.append("| geometric mean (cases) | | | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.part == "test":
        raise InputError("this is for the training and validation parts; compare and bar read the test split")
    asked = policies_of(arguments) or [Policy("clairvoyant")]
    policies = {one.name: one for one in (*map(Policy, REFERENCES), *asked)}
    todo = cases(
        arguments.trace or TRACES,
        [arguments.part],
        arguments.load or TUNING_LOADS,
        predictions=arguments.predictions,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.budget_s
    found: dict[Case, dict[str, Waited]] = {}
    for case in todo:
        paths = {
            name: result_file(arguments.out, case, arguments.jobs, one) for name, one in policies.items()
        }
        missing = [name for name, path in paths.items() if not path.exists()]
        if missing and time.monotonic() < deadline:
            work = workload_of(arguments.traces, case)
            work, predictions = shortened(work, stamps_of(case, work), arguments.jobs)
            for name in missing:
                if time.monotonic() < deadline:
                    encoded = msgspec.json.encode(waited(work, predictions, policies[name]))
                    half_written = paths[name].with_suffix(".part")
                    half_written.write_bytes(encoded)
                    half_written.replace(paths[name])
        here = {
            name: msgspec.json.decode(path.read_bytes(), type=Waited)
            for name, path in paths.items()
            if path.exists()
        }
        if all(name in here for name in REFERENCES):
            found[case] = here
    print(table(found, [name for name in policies if name not in REFERENCES]))
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing results, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="headroom", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy/headroom"))
    parser.add_argument("--part", choices=PARTS, default="validation")
    parser.add_argument("--load", type=float, action="append", help="default: 0.85, 0.95 and 1.05")
    parser.add_argument("--predictions", choices=("causal", "good"), default="good")
    parser.add_argument("--jobs", type=int, default=1500, help="most measured jobs of a case")
    add_policy(parser, default="clairvoyant")
    return reported(_run, parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
