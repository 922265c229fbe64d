"""Replays a trace under each policy and seed: compiled rules in this process, others in worker processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.compile.compiling import COMPILING
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rules.steps import RULES
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError
from rlsched.signals import exit_with_parent
from rlsched.workload.predict import PRIOR_S, PRIOR_SPREAD
from rlsched.workload.predict.kinds import RUNNING_MEAN
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.jobs_out import seed_stem
from rlsched_agents.evaluate.recording import RunStore
from rlsched_agents.evaluate.task import Outcome as Outcome
from rlsched_agents.evaluate.task import Task as Task
from rlsched_agents.evaluate.task import compile_together, engine_of, first_jobs
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_agents.workers.threads import one_thread_each
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

REPORT_EVERY_S: Final = 0.2
Progress = Callable[[str, int, float], None]
"""Callback that gets a policy's name, a seed, and the progress of this replay (0 to 1)."""
Loaded = dict[Policy, dict[int, Scheduler]]
"""Schedulers by policy and seed. Only the first seed is a key if decisions do not depend on the seed."""


def distinct(policies: Iterable[Policy]) -> list[Policy]:
    """Return the policies without duplicates. Different policies with the same name get a number appended.

    >>> [one.name for one in distinct([Policy("easy", order="area"), Policy("easy", order="predicted")])]
    ['easy*', 'easy*2']
    """
    named: dict[str, list[Policy]] = {}
    for policy in policies:
        alike = named.setdefault(policy.name, [])
        if policy not in alike:
            alike.append(policy)
    return [
        policy.named(f"{name}{number}") if number > 1 else policy
        for name, alike in named.items()
        for number, policy in enumerate(alike, start=1)
    ]


def load_policies(policies: Iterable[Policy], models: Models | None, seeds: Sequence[int] = (0,)) -> Loaded:
    """Load the schedulers of policies, and check that they can run.

    Raises:
        CheckpointError: a policy's checkpoint cannot be used.
        InputError: a policy shares GPUs, sets clocks or moves cores, and no models are given.
    """
    loaded = {}
    for policy in policies:
        loaded[policy] = schedulers = _by_seed(policy, seeds)
        if models is None and any(one.abilities.needs_models for one in schedulers.values()):
            raise InputError(
                f"policy {policy.name!r} shares GPUs, sets clocks or moves cores: that needs models of speed "
                "and power; add --models"
            )
    return loaded


def _by_seed(policy: Policy, seeds: Sequence[int]) -> dict[int, Scheduler]:
    """Return the schedulers of a policy by seed; if seeds have no effect, only one, for the first seed."""
    first = load_scheduler(policy, seed=seeds[0])
    if first.rule is not None:
        return {seeds[0]: first}
    loaded = {seeds[0]: first} | {seed: load_scheduler(policy, seed=seed) for seed in seeds[1:]}
    stochastic = any(one.abilities.stochastic for one in loaded.values())
    depends = stochastic or len({one.policy_id for one in loaded.values()}) > 1
    return loaded if depends else {seeds[0]: first}


def replay_tasks(
    trace: Trace,
    spec: ClusterSpec,
    window: MeasuredWindow,
    predictions: PredictedTimes,
    policies: list[Policy],
    seeds: list[int],
    *,
    records: Path | None = None,
    logdir: Path | None = None,
    rules: RunRules | None = None,
    models: Models | None = None,
    loaded: Loaded | None = None,
) -> list[Task]:
    """Return one task per policy and seed, or a single task for a policy that does not depend on the seed.

    `loaded`: result of `load_policies` for these policies, models and seeds; None: this function calls it.

    Raises:
        CheckpointError: a policy's checkpoint cannot be used.
        InputError: a policy needs models, and none are given.
    """
    loaded = load_policies(policies, models, seeds) if loaded is None else loaded
    kept = trace.submit_s >= window.replay_from_s
    replayed = trace.select(kept)
    predictions = PredictedTimes(predictions.predicted_s[kept], predictions.spread[kept])
    tasks = []
    for policy in policies:
        for seed, scheduler in loaded[policy].items():
            stem = seed_stem(policy.name, seed, seeds)
            tasks.append(
                Task(
                    policy,
                    seed,
                    replayed,
                    spec,
                    window,
                    predictions,
                    _record_path(stem, records, logdir),
                    logdir / stem if logdir else None,
                    rules or RunRules(),
                    models,
                    scheduler if scheduler.rule is not None else None,
                )
            )
    return tasks


def _record_path(stem: str, records: Path | None, logdir: Path | None) -> Path | None:
    """Return the folder in which a run's decisions are stored: the subfolder `stem` of `records`.

    If `records` is None, it is the subfolder of `logdir`. None if both are None.
    """
    folder = records or logdir
    return None if folder is None else folder / stem


def predictions_for(
    loaded: Loaded,
    trace: Trace,
    spec: ClusterSpec,
    window: MeasuredWindow,
    *,
    looked_at: bool = False,
    kind: str = RUNNING_MEAN,
    progress: Callable[[float], None] | None = None,
) -> PredictedTimes:
    """Return the predictions of a trace. If no prediction is needed, all jobs get the same one.

    Predictions require a replay of the history, which takes longer than a replay under a rule without
    predictions.

    Args:
        loaded: The policies to run.
        trace: The whole trace.
        spec: The cluster.
        window: Defines which jobs are measured, and when the replay begins. The predictor uses the recorded
            ends of earlier jobs.
        looked_at: Whether predictions are needed for models or for records of decisions.
        kind: Predictor for jobs whose run time the trace does not predict (`rlsched.workload.predict.kinds`).
        progress: Called with the progress of the predictor.
    """
    if looked_at or any(is_fed(one) for schedulers in loaded.values() for one in schedulers.values()):
        return predict_trace(trace, spec, recorded_until_s=window.replay_from_s, kind=kind, progress=progress)
    return PredictedTimes(np.full(len(trace), PRIOR_S), np.full(len(trace), PRIOR_SPREAD))


def is_fed(scheduler: Scheduler) -> bool:
    """Return whether predicted run times can change the decisions of a scheduler."""
    rule = scheduler.rule
    if scheduler.oracle or rule is None:
        return not scheduler.oracle
    plain = rule.steps is RULES["greedy"] and rule.order == Order()
    return not plain or scheduler.abilities.needs_models


def run_tasks(tasks: list[Task], *, workers: int, progress: Progress | None = None) -> list[Outcome]:
    """Run all tasks, and return their outcomes in the order of the tasks.

    Compiled rules run in this process, because they take less time than the start of a process. The other
    tasks run in `workers` processes, if there are two or more.
    """
    say = progress or say_nothing
    slow = [task for task in tasks if not is_compiled(task)]
    outcomes: dict[int, Outcome] = {}
    compile_together([task for task in tasks if is_compiled(task)], workers, _replay_first)
    for task in tasks:
        if is_compiled(task) or min(workers, len(slow)) < 2:
            outcomes[id(task)] = run_task(task, partial(say, task.policy.name, task.seed))
    left = [task for task in slow if id(task) not in outcomes]
    for task, outcome in zip(left, _in_processes(left, min(workers, len(left)), say), strict=True):
        outcomes[id(task)] = outcome
    return [outcomes[id(task)] for task in tasks]


def _replay_first(task: Task) -> None:
    _replay(task, task.scheduler(), None, None)


def say_nothing(policy: str, seed: int, done: float) -> None:
    """Progress callback that does nothing."""


def run_task(task: Task, progress: Callable[[float], None]) -> Outcome:
    """Replay one task, and store its decisions if requested.

    A short replay first compiles the kernels, which the measured time does not include.
    """
    progress(0.0)
    few, scheduler = first_jobs(task), task.scheduler()
    _replay(few, scheduler if scheduler.rule is not None else few.scheduler(), None, None)
    of = f"{task.policy.name} on {task.trace.name}"
    with RunStore(task.records, of) if task.records else nullcontext() as store:
        if store is not None:
            store.made_with(task)
        began, compiled_s = time.perf_counter(), COMPILING.took_s
        table = _replay(task, scheduler, store, progress)
        wall_s = time.perf_counter() - began - (COMPILING.took_s - compiled_s)
        if store is not None:
            store.outcome(table, task.predictions.predicted_s)
    draw_curves(task)
    progress(1.0)
    rows = int(np.searchsorted(task.trace.submit_s, task.window.until_s))
    return Outcome(task.policy, task.seed, table.first_rows(rows), wall_s, is_fed(scheduler))


def draw_curves(task: Task) -> None:
    """Write TensorBoard curves from the stored decisions of a task, if its `logdir` is set."""
    if task.logdir is not None and task.records is not None:
        from rlsched.board.convert import draw_run

        draw_run(task.records, task.logdir)


def _replay(
    task: Task,
    scheduler: Scheduler,
    records: RunStore | None,
    progress: Callable[[float], None] | None,
) -> JobTable:
    """Replay the trace until the jobs of the warm-up and the window have started.

    Jobs that have not arrived by then cannot change these starts. If jobs can be interrupted, the replay
    continues until the jobs of the warm-up and the window have ended.
    """
    engine, until_started = engine_of(task, scheduler), task.until_started
    if scheduler.rule is not None and records is None:
        return engine.run_rule(scheduler.rule, until_started=until_started)
    tick = _ticker(task.trace.submit_s[until_started], progress) if progress else None
    return engine.run(scheduler, until_started=until_started, on_record=records, on_instant=tick)


def _ticker(submit_s: NDArray[np.float64], progress: Callable[[float], None]) -> Callable[[float], None]:
    """Return a function that reports simulated time as progress, at most once per `REPORT_EVERY_S`."""
    first_s, span_s = float(submit_s[0]), max(float(submit_s[-1] - submit_s[0]), 1.0)
    said = time.perf_counter()

    def tick(now_s: float) -> None:
        nonlocal said
        if time.perf_counter() - said > REPORT_EVERY_S:
            said = time.perf_counter()
            progress(min((now_s - first_s) / span_s, 0.99))

    return tick


def is_compiled(task: Task) -> bool:
    """Return whether a task only runs a compiled rule."""
    return task.records is None and not task.policy.scheduler


_reports: Any = None  # in a worker process: queue to which the process sends its progress


def _set_up_worker(reports: Any, says_what_it_compiles: bool) -> None:
    global _reports
    exit_with_parent()
    _reports, COMPILING.told = reports, says_what_it_compiles


def _run_in_worker(number: int, task: Task) -> Outcome:
    return run_task(task, lambda done: _reports.put((number, done)))


def _in_processes(tasks: list[Task], workers: int, say: Progress) -> list[Outcome]:
    if not tasks:
        return []
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    of_worker = (reports, COMPILING.told)
    with one_thread_each(), ProcessPoolExecutor(workers, context, _set_up_worker, of_worker) as pool:
        futures = [pool.submit(_run_in_worker, number, task) for number, task in enumerate(tasks)]
        running = set(futures)
        while running:
            ended, running = wait(running, timeout=REPORT_EVERY_S)
            for future in ended:
                future.result()  # one failure ends the evaluation
            for number, done in _drain(reports):
                say(tasks[number].policy.name, tasks[number].seed, done)
        outcomes = [future.result() for future in futures]
    for number, done in _drain(reports):
        say(tasks[number].policy.name, tasks[number].seed, done)
    reports.close()
    return outcomes


def _drain(reports: Any) -> Iterator[tuple[int, float]]:
    while True:
        try:
            yield reports.get_nowait()
        except Empty:
            return
