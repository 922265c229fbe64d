"""Tune `rollout` on short stretches of the training part: on whole windows it would take hours.

    nice -n 5 .venv/bin/python -m studies.policy.tune_rollout --budget-s 1200    # call again for the rest

The cases come from `tune`. Of each, `--jobs` successive measured jobs are measured and half as many
follow; `qssf-backfill` has placed all earlier jobs, so that every value begins in the same state.
The jobs: of the stretches of this length in which the reference keeps them waiting for 100 s on average or
more, the stretch with the median wait, over the whole window; a replay begins seven days before the stretch,
so that jobs may wait less there. Every value runs on every stretch, once (seed 0).

Each stretch is a file in OUT. When all are available, the entry of `rollout` in `studies/policy/tuned.json`
is written, and no other one; not after the test split has been read.
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
from numpy.typing import NDArray

from rlsched.cluster.state import ClusterState
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.errors import InputError
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_agents.heuristics.rollout import Rollout
from rlsched_envs.sim.engine import Engine, PredictedTimes
from studies.policy.cases import (
    MIN_TUNING_JOBS,
    TRACES,
    TUNING_LOADS,
    Case,
    Workload,
    workload_of,
)
from studies.policy.headroom import LEAST_S
from studies.policy.journal import LOG_FILE
from studies.policy.opponents import (
    BASE,
    GRIDS,
    TUNED_FILE,
    TUNING_REFERENCE,
    TunedFile,
    write_tuned,
)
from studies.policy.options import add_folders, add_trace, reported
from studies.policy.predictions import stamps_of
from studies.policy.tune import Tried, known_values, score, tuning_cases, with_choice

RULE: Final = "rollout"
_REFERENCE: Final = Policy(TUNING_REFERENCE)


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the values on one stretch.

    Attributes:
        jobs: Jobs that were measured.
        queue_mean_s: Their mean queueing delay, by value of the grid and under `qssf-backfill`.
        wall_s: Wall times of the replays, likewise.
    """

    jobs: int
    queue_mean_s: dict[str, float]
    wall_s: dict[str, float]

    def ratio(self, value: str) -> float | None:
        """Mean queueing under a value over that under `qssf-backfill`; None if no job waits."""
        reference_s = self.queue_mean_s[TUNING_REFERENCE]
        return round(self.queue_mean_s[value] / reference_s, 4) if reference_s > 0 else None


class AfterWarmUp(Scheduler):
    """`rollout` from one time on; before it `qssf-backfill` decides, and `rollout` observes."""

    order = Permissions().order()

    def __init__(self, policy: Rollout, from_s: float) -> None:
        self.name, self.policy_id = policy.name, policy.policy_id
        self._policy, self._before, self._from_s = policy, load_scheduler(TUNING_REFERENCE), from_s

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The decision of the scheduler in charge at this time."""
        if now_s >= self._from_s:
            return self._policy.decide(state, partition, now_s, record=record)
        self._policy.remember(state)
        return self._before.decide(state, partition, now_s, record=record)


def median_stretch(queue_s: NDArray[np.float64], jobs: int) -> int:
    """First of the successive jobs of a stretch.

    Args:
        queue_s: (J,) queueing delays under the reference, seconds.
        jobs: Jobs of a stretch.

    Raises:
        InputError: In no stretch do jobs wait for `LEAST_S` on average.
    """
    firsts = np.arange(0, max(len(queue_s) - jobs, 0) + 1, jobs)
    means = np.array([queue_s[first : first + jobs].mean() for first in firsts])
    crowded = firsts[means >= LEAST_S][np.argsort(means[means >= LEAST_S], kind="stable")]
    if not crowded.size:
        raise InputError(f"no {jobs} successive jobs wait for {LEAST_S:g} s on average")
    return int(crowded[crowded.size // 2])


def cut(work: Workload, predictions: PredictedTimes, jobs: int) -> tuple[Workload, PredictedTimes]:
    """The stretch of a case: its jobs are measured, half as many follow, all earlier ones are replayed."""
    measured = np.flatnonzero(work.window.measured(work.trace))
    table = _engine(work, predictions).run_rule(_REFERENCE.rule)
    queue_s = (table.start_s - table.trace.submit_s)[-len(measured) :]
    first = median_stretch(queue_s, jobs)
    inside = measured[first : first + jobs]
    end = min(len(work.trace), int(inside[-1]) + 1 + jobs // 2)
    after = float(work.trace.submit_s[inside[-1] + 1]) if inside[-1] + 1 < len(work.trace) else np.inf
    window = MeasuredWindow(float(work.trace.submit_s[inside[0]]), after)
    return replace(work, trace=work.trace.select(slice(0, end)), window=window), PredictedTimes(
        predictions.predicted_s[:end], predictions.spread[:end]
    )


def _engine(work: Workload, predictions: PredictedTimes) -> Engine:
    """The replay of a case from its warm-up on."""
    kept = work.trace.submit_s >= work.window.replay_from_s
    predictions = PredictedTimes(predictions.predicted_s[kept], predictions.spread[kept])
    return Engine(work.trace.select(kept), work.spec, order=AfterWarmUp.order, predictions=predictions)


def run_stretch(work: Workload, predictions: PredictedTimes, values: Sequence[Policy]) -> Stretch:
    """Every value and the reference on one stretch."""
    submit_s = work.trace.submit_s[work.trace.submit_s >= work.window.replay_from_s]
    until_started, waited, took = submit_s < work.window.until_s, dict[str, float](), dict[str, float]()
    for policy in (_REFERENCE, *values):
        engine, scheduler, began = _engine(work, predictions), load_scheduler(policy), time.perf_counter()
        if isinstance(scheduler, Rollout):
            table = engine.run(AfterWarmUp(scheduler, work.window.since_s), until_started=until_started)
        else:
            table = engine.run_rule(policy.rule, until_started=until_started)
        took[policy.name] = time.perf_counter() - began
        measured = work.window.measured(table.trace)
        waited[policy.name] = float((table.start_s - submit_s)[measured].mean())
    return Stretch(jobs=int(measured.sum()), queue_mean_s=waited, wall_s=took)


def tried_of(found: dict[Case, Stretch], jobs: int) -> Tried:
    """The scores of every value."""
    values = GRIDS[RULE].names
    traces = list(dict.fromkeys(case.trace for case in found))
    ratios: dict[str, dict[str, float | None]] = {
        value: {f"{case.name}-{jobs}": one.ratio(value) for case, one in found.items()} for value in values
    }
    here = {
        trace: {
            value: score(ratios[value][f"{case.name}-{jobs}"] for case in found if case.trace == trace)
            for value in values
        }
        for trace in traces
    }
    scores = {value: score(ratios[value].values()) for value in values}
    return Tried(settings=GRIDS[RULE].settings, scores=scores, scores_by_trace=here, ratios=ratios)


def _tune(arguments: argparse.Namespace) -> int:
    known_values(arguments.tuned, arguments.log)
    traces = arguments.trace or list(TRACES)
    wanted, _, _ = tuning_cases(arguments.traces, traces, arguments.least_jobs)
    wanted = [case for case in wanted if case.load in (arguments.load or TUNING_LOADS)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.budget_s
    found: dict[Case, Stretch] = {}
    for case in wanted:
        path = arguments.out / f"{case.name}-{arguments.jobs}.json"
        if not path.exists() and time.monotonic() < deadline:
            work = workload_of(arguments.traces, case)
            work, predictions = cut(work, stamps_of(case, work), arguments.jobs)
            half_written = path.with_suffix(".part")
            half_written.write_bytes(msgspec.json.encode(run_stretch(work, predictions, GRIDS[RULE].values)))
            half_written.replace(path)
        if path.exists():
            found[case] = one = msgspec.json.decode(path.read_bytes(), type=Stretch)
            reference_s = one.queue_mean_s[TUNING_REFERENCE]
            each = (f"{value} {one.ratio(value)} ({one.wall_s[value]:.0f} s)" for value in GRIDS[RULE].names)
            print(f"{case.name}: {one.jobs} jobs, {reference_s:,.0f} s: {', '.join(each)}", flush=True)
    if not wanted or len(found) < len(wanted):
        print(f"{len(found)} of {len(wanted)} stretches available; call again", file=sys.stderr)
        return 0
    tried = tried_of(found, arguments.jobs)
    log = msgspec.json.format(msgspec.json.encode(tried), indent=1)
    (arguments.out / "tried.json").write_bytes(log + b"\n")
    known = known_values(arguments.tuned, arguments.log)  # again: the file may have changed meanwhile
    chosen = tried.choice
    file = TunedFile(traces=traces) if known is None else known
    write_tuned(arguments.tuned, with_choice(file, BASE, RULE, chosen))
    print(f"{chosen.chosen} ({chosen.score:.3f}); {tried.scores}; {chosen.chosen_by_trace}")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing stretches, write the entry if complete; the exit code."""
    parser = argparse.ArgumentParser(
        prog="tune_rollout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folders(parser, out=Path("runs/policy/tune_rollout"))
    add_trace(parser)
    parser.add_argument("--load", type=float, action="append", help="default: 0.85, 0.95 and 1.05")
    parser.add_argument("--jobs", type=int, default=200, help="measured jobs of a stretch")
    parser.add_argument(
        "--least-jobs", type=int, default=MIN_TUNING_JOBS, help="a window with fewer jobs is no case"
    )
    parser.add_argument("--tuned", type=Path, default=TUNED_FILE, help="file whose entry is written")
    parser.add_argument("--log", type=Path, default=LOG_FILE, help="log of runs on the test split")
    return reported(_tune, parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
