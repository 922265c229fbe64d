"""Improvement of predictions of waiting jobs by the time they start, with revised predictions.

    .venv/bin/python -m studies.policy.revised --predictions causal
    .venv/bin/python -m studies.policy.revised --predictions good --part validation --policy easy

Each case is replayed by a rule with revised predictions. For every measured job that starts after
waiting for more than `LEAST_WAIT_S`, the original and the revised prediction are compared with the true run
time. With `--time` the compiled replays by the rule, with revision and without, are timed instead. The test
split is not offered.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.errors import InputError
from rlsched.workload.describe import spearman
from rlsched_agents.evaluate.run import load_policies, replay_tasks, run_tasks
from rlsched_envs.sim.engine import Engine, PredictedTimes
from studies.policy.abilities import REVISED, able
from studies.policy.cases import PARTS, TRACES, Foresight, Workload, cases, workload_of
from studies.policy.options import add_policy, add_trace, add_traces, policies_of, reported
from studies.policy.predictions import stamps_of
from studies.policy.tables import header

DEFAULT: Final = Policy("easy", name="easy area^0.7 1h", order="area^0.7", reserve_after="1h")
TIMED_RUNS: Final = 3
LEAST_WAIT_S: Final = 60.0
"""Jobs that start sooner have hardly been in a queue."""
SHOWN_PARTS: Final = tuple(part for part in PARTS if part != "test")


class Started(NamedTuple):
    """W jobs that had waited when they started."""

    first_predicted_s: NDArray[np.float64]  # (W,) prediction when submitted
    revised_s: NDArray[np.float64]  # (W,) prediction when started
    run_s: NDArray[np.float64]  # (W,) true run times


class Row(NamedTuple):
    """One line of the table; None for uninformative figures."""

    name: str
    jobs: int
    revised_frac: float | None  # share of the jobs whose prediction had changed by then
    rank: tuple[float | None, float | None]  # Spearman with the true run time, as predicted and as revised
    error: tuple[float | None, float | None]  # median of abs ln(true / prediction), likewise


class NotesStarts(Scheduler):
    """Scheduler that wraps another scheduler, and records the predictions of each job when it starts.

    Attributes:
        noted: By number of the job: (original prediction, revised prediction), seconds.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.name, self.policy_id = scheduler.name, scheduler.policy_id
        self.order, self.abilities = scheduler.order, scheduler.abilities
        self.noted: dict[int, tuple[float, float]] = {}
        self._scheduler = scheduler

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The decision of the wrapped scheduler."""
        decision = self._scheduler.decide(state, partition, now_s, record=record)
        if isinstance(decision.action, Start):
            job, slot = state.arrays.job, state.slot_of(decision.action.seq)
            self.noted[decision.action.seq] = float(job.first_predicted_s[slot]), float(job.predicted_s[slot])
        return decision


def started(work: Workload, predictions: PredictedTimes, rule: Policy) -> Started:
    """Replay a case by a rule that starts jobs once, with revision.

    Raises:
        InputError: the settings of the rule do not permit revision.
    """
    scheduler = NotesStarts(load_scheduler(able(rule, REVISED)))
    kept = work.trace.submit_s >= work.window.replay_from_s
    trace = work.trace.select(kept)
    fed = PredictedTimes(predictions.predicted_s[kept], predictions.spread[kept])
    engine = Engine(trace, work.spec, order=scheduler.order, predictions=fed, keep_placements=False)
    engine.run(scheduler, until_started=trace.submit_s < work.window.until_s)
    truth, start_s = engine.arrays.truth, engine.arrays.progress.outcome.start_s
    measured = (truth.submit_s >= work.window.since_s) & (truth.submit_s < work.window.until_s)
    waited = np.flatnonzero(measured & (start_s - truth.submit_s > LEAST_WAIT_S))
    noted = np.array([scheduler.noted[number] for number in waited.tolist()]).reshape(-1, 2)
    return Started(noted[:, 0], noted[:, 1], truth.duration_s[waited])


def row_of(name: str, jobs: Started) -> Row:
    """Result of one case."""
    if not len(jobs.run_s):
        return Row(name, 0, None, (None, None), (None, None))

    def error(predicted_s: NDArray[np.float64]) -> float:
        return float(np.median(np.abs(np.log(np.fmax(jobs.run_s, 1.0) / np.fmax(predicted_s, 1.0)))))

    return Row(
        name,
        len(jobs.run_s),
        float(np.mean(jobs.revised_s != jobs.first_predicted_s)),
        (spearman(jobs.first_predicted_s, jobs.run_s), spearman(jobs.revised_s, jobs.run_s)),
        (error(jobs.first_predicted_s), error(jobs.revised_s)),
    )


def pooled(rows: Sequence[Row]) -> Row:
    """Return a row with the number of all jobs, and with means over the cases, each with equal weight."""

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    return Row(
        "all, means of the cases",
        sum(row.jobs for row in rows),
        mean(row.revised_frac for row in rows),
        (mean(row.rank[0] for row in rows), mean(row.rank[1] for row in rows)),
        (mean(row.error[0] for row in rows), mean(row.error[1] for row in rows)),
    )


# «error» is the median of abs ln(true / prediction)
HEADER: Final = """\
| case | jobs that waited | revised | Spearman, predicted | revised | error, predicted | revised |
|---|---:|---:|---:|---:|---:|---:|"""


def line(row: Row) -> str:
    """A line of the table, Markdown."""
    share = "-" if row.revised_frac is None else f"{row.revised_frac:.0%}".replace("%", " %")
    figures = ("-" if value is None else f"{value:.2f}" for value in (*row.rank, *row.error))
    return f"| {row.name} | {row.jobs:,} | {share} | {' | '.join(figures)} |"


def replay_cpu_s(work: Workload, predictions: PredictedTimes, policy: Policy) -> float:
    """Return the CPU seconds of a compiled replay: the minimum of `TIMED_RUNS` runs."""
    tasks = replay_tasks(work.trace, work.spec, work.window, predictions, [policy], [0])
    took_s = []
    for _ in range(TIMED_RUNS):
        began_s = time.process_time()
        run_tasks(tasks, workers=1)
        took_s.append(time.process_time() - began_s)
    return min(took_s)


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, replay, print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="revised", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_traces(parser)
    add_trace(parser)
    parser.add_argument("--predictions", choices=get_args(Foresight), default="causal")
    parser.add_argument(
        "--part", action="append", choices=SHOWN_PARTS, help="default: train3 and validation; never test"
    )
    parser.add_argument("--load", type=float, default=0.95, help="offered load [default: %(default)s]")
    add_policy(parser, default=f"{DEFAULT.name}; always revised")
    parser.add_argument("--time", action="store_true", help="time the replays, with revision and without")
    return reported(_show, parser.parse_args(words))


def _show(arguments: argparse.Namespace) -> int:
    rule = (policies_of(arguments) or [DEFAULT])[0]
    if rule.oracle:
        raise InputError(f"--policy {rule.name}: it is fed true run times, which nothing revises")
    both = (rule, able(rule, REVISED))
    load_policies(both, None)
    if load_scheduler(rule).abilities.preempts:
        raise InputError(f"--policy {rule.name}: expected a rule that does not preempt, such as easy")
    parts = arguments.part or ["train3", "validation"]
    todo = cases(arguments.trace or TRACES, parts, [arguments.load], predictions=arguments.predictions)
    if arguments.time:
        print("\n".join(header("case", "jobs replayed", *(f"`{one.name}`, CPU s" for one in both))))
    else:
        print(HEADER, flush=True)
    rows = []
    for case in todo:
        work = workload_of(arguments.traces, case)
        predictions, title = stamps_of(case, work), f"{case.trace}, {case.part}, {case.load:g}"
        if arguments.time:
            jobs = int(np.count_nonzero(work.trace.submit_s >= work.window.replay_from_s))
            took_s = [replay_cpu_s(work, predictions, one) for one in both]
            print(f"| {title} | {jobs:,} | {took_s[0]:.2f} | {took_s[1]:.2f} |", flush=True)
            continue
        rows.append(row_of(title, started(work, predictions, rule)))
        print(line(rows[-1]), flush=True)
    if rows:
        print(line(pooled(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
