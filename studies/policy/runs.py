"""Runs policies on cases, in processes, and keeps each result in a separate file."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.signals import exit_with_parent
from rlsched.workload.load import offered_load
from rlsched_agents.evaluate.build import paired_runs
from rlsched_agents.evaluate.metrics import Metrics, mean_over_seeds, schedule_metrics
from rlsched_agents.evaluate.pairs import Comparison, compare
from rlsched_agents.evaluate.run import Outcome, replay_tasks, run_tasks
from rlsched_agents.workers.threads import one_thread_each
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import PredictedTimes
from studies.policy.cases import SYNTHETIC, Case, Workload, workload_of
from studies.policy.measures import GPUS_ALONE, Measures, measures_of
from studies.policy.opponents import REFERENCES, policy_id
from studies.policy.predictions import stamps_of
from studies.policy.synthetic import synthetic_workload

DRAW_SEEDS: Final = (0, 1, 2)
"""Seeds of the draws of policies that draw; numbers are means over them."""
RESTART_S: Final = 60.0
"""Restart cost of every preempted job, independent of its size and policy."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one case.

    Attributes:
        case: The case.
        policy: The policy.
        models: Whether it runs under models (`GPUS_ALONE`).
    """

    case: Case
    policy: Policy
    models: bool = False

    def path(self, folder: Path) -> Path:
        """Return the path of the job's result, which depends on the case and the content of the policy."""
        return folder / f"{self.case.name}-{policy_id(self.policy)}{'-models' if self.models else ''}.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one policy on one case.

    Attributes:
        case: The case.
        policy: Name of the policy.
        policy_id: Its identity.
        settings: All of its settings, TOML.
        models: Whether it ran under models.
        nodes: Nodes of the cluster.
        gpus: GPUs of the cluster.
        load_frac: Offered load of the measured jobs.
        stretch: Factor on submission times.
        days: From the first second of the window to its last, stretched.
        metrics: Means over the seeds; without VCs, and without values over time.
        against: By reference: this policy against it, on the same jobs under the same models.
        measures: Measures of the rows of the bar; None in results of an older version.
    """

    case: Case
    policy: str
    policy_id: str
    settings: str = ""
    models: bool
    nodes: int
    gpus: int
    load_frac: float
    stretch: float
    days: float
    metrics: Metrics
    against: dict[str, Comparison]
    measures: Measures | None = None

    @property
    def measured(self) -> Measures:
        """`measures` of a result that has them.

        Raises:
            InputError: an older version has written the result.
        """
        if self.measures is None:
            raise InputError(
                f"{self.case.name}, {self.policy}: a result of an older version, which measured less; "
                "expected one of this: remove it, or give another --out"
            )
        return self.measures


@dataclass(frozen=True)
class Prepared:
    """A case read by this process, and its references' runs."""

    work: Workload
    predictions: PredictedTimes
    references: dict[str, list[Outcome]]

    def run(self, policy: Policy, *, models: bool) -> list[Outcome]:
        """Replay a policy, once a seed if seeds make a difference; references have been replayed."""
        for name, there in self.references.items():
            if policy == Policy(name):
                return there
        return _replay(self.work, self.predictions, policy, models=models)


def _replay(work: Workload, predictions: PredictedTimes, policy: Policy, *, models: bool) -> list[Outcome]:
    tasks = replay_tasks(
        work.trace,
        work.spec,
        work.window,
        predictions,
        [policy],
        list(DRAW_SEEDS),
        rules=RunRules(costs=PreemptionCosts(restart_s=RESTART_S, restart_large_s=RESTART_S)),
        models=GPUS_ALONE if models else None,
    )
    return run_tasks(tasks, workers=1)


@lru_cache(maxsize=2)
def prepare(traces: Path, case: Case, models: bool, kept: Path | None = None) -> Prepared:
    """Read a case, predict its durations and run its references; `kept`: see `stamps_of`."""
    work = synthetic_workload(case) if case.part == SYNTHETIC else workload_of(traces, case)
    predictions = stamps_of(case, work, kept)
    references = {name: _replay(work, predictions, Policy(name), models=models) for name in REFERENCES}
    return Prepared(work, predictions, references)


def run_job(job: Job, traces: Path, folder: Path) -> Path:
    """Run one policy on one case and write its file atomically."""
    ready = prepare(traces, job.case, job.models, folder.parent / "hedge")
    outcomes = ready.run(job.policy, models=job.models)
    spec, window = ready.work.spec, ready.work.window
    measured = window.measured(outcomes[0].table.trace)
    tables = [one.table for one in outcomes]
    references = {name: [one.table for one in runs] for name, runs in ready.references.items()}
    metrics = mean_over_seeds(
        [schedule_metrics(one.table, spec.num_gpus, measured, wall_s=one.wall_s) for one in outcomes]
    )
    result = Result(
        case=job.case,
        policy=job.policy.name,
        policy_id=policy_id(job.policy),
        settings=job.policy.toml,
        models=job.models,
        nodes=spec.num_nodes,
        gpus=spec.num_gpus,
        load_frac=offered_load(outcomes[0].table.trace.select(measured), spec),
        stretch=ready.work.stretch,
        days=(window.until_s - window.since_s) / 86400.0,
        metrics=msgspec.structs.replace(metrics, by_vc={}, over_time=None),
        against={
            name: compare(*paired_runs(tables, theirs), measured) for name, theirs in references.items()
        },
        measures=measures_of(tables, references, measured, _replayed(ready, len(measured)), spec),
    )
    path = job.path(folder)
    half_written = path.with_suffix(".part")
    half_written.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    half_written.replace(path)
    return path


def _replayed(ready: Prepared, jobs: int) -> PredictedTimes:
    """Return the predictions of the jobs in the tables of the replays."""
    kept = ready.work.trace.submit_s >= ready.work.window.replay_from_s
    return PredictedTimes(ready.predictions.predicted_s[kept][:jobs], ready.predictions.spread[kept][:jobs])


def read_result(path: Path) -> Result:
    """A stored result."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def result_of(job: Job, folder: Path) -> Result:
    """Return the result of a job, with the job's name of the policy.

    The stored result can have another name for the same settings.
    """
    return msgspec.structs.replace(read_result(job.path(folder)), policy=job.policy.name)


def missing(jobs: list[Job], folder: Path) -> list[Job]:
    """Jobs without a result yet, each once; cases stay together."""
    return [job for job in dict.fromkeys(jobs) if not job.path(folder).exists()]


def run_missing(jobs: list[Job], arguments: argparse.Namespace, folder: Path) -> int:
    """Run the missing jobs of a study, and report their number.

    Args:
        jobs: All jobs of the study.
        arguments: Command line of the study (`options.add_common`).
        folder: Folder of the results.

    Returns:
        0 if all results are available now, 1 if some are missing, 130 if it was stopped.
    """
    done, stopped = run_all(
        missing(jobs, folder),
        arguments.traces,
        folder,
        workers=arguments.workers,
        budget_s=arguments.budget_s,
    )
    left = len(missing(jobs, folder))
    print(f"{done} results run, {left} missing", file=sys.stderr)
    return 130 if stopped else int(left > 0)


def run_all(
    jobs: list[Job], traces: Path, folder: Path, *, workers: int, budget_s: float = math.inf
) -> tuple[int, bool]:
    """Run jobs until all are done, the budget is spent or Ctrl-C; finished results stay.

    Args:
        jobs: The jobs.
        traces: Folder of the traces.
        folder: Folder of the results.
        workers: Processes; 1: only this one.
        budget_s: No job is started after this many seconds.

    Returns:
        The number of runs, and whether Ctrl-C ended it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline, done = time.monotonic() + budget_s, 0
    with _bar(len(jobs)) as advance:
        ends = _here(jobs, traces, folder, deadline) if workers == 1 else None
        try:
            for path in ends or _in_processes(jobs, traces, folder, deadline, workers):
                done += 1
                advance(path.stem)
        except KeyboardInterrupt:
            return done, True
    return done, False


def _here(jobs: list[Job], traces: Path, folder: Path, deadline: float) -> Iterator[Path]:
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        yield run_job(job, traces, folder)


def _in_processes(
    jobs: list[Job], traces: Path, folder: Path, deadline: float, workers: int
) -> Iterator[Path]:
    """Each worker takes jobs of one case as long as there are any, as it has already read that case."""
    waiting: dict[tuple[str, bool], list[Job]] = {}
    for job in jobs:
        waiting.setdefault((job.case.name, job.models), []).append(job)
    groups, running = list(waiting.values()), dict[Future[Path], list[Job]]()
    pools = [
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), exit_with_parent) for _ in range(workers)
    ]
    free = list(pools)
    pool_of: dict[Future[Path], ProcessPoolExecutor] = {}
    try:
        with one_thread_each():
            while True:
                while free and groups and time.monotonic() < deadline:
                    group, pool = groups.pop(0), free.pop()
                    future = pool.submit(run_job, group.pop(0), traces, folder)
                    running[future], pool_of[future] = group, pool
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    group, pool = running.pop(future), pool_of.pop(future)
                    if group and time.monotonic() < deadline:
                        after = pool.submit(run_job, group.pop(0), traces, folder)
                        running[after], pool_of[after] = group, pool
                    else:
                        free.append(pool)
                    yield future.result()
    finally:
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task("", total=total)
        yield lambda said: bars.update(bar, advance=1, description=said)
