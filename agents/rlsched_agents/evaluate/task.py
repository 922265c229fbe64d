"""Tasks of an evaluation (one policy with one seed on one workload), and compilation of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.compile.ahead import compile_pieces
from rlsched.compile.compiling import COMPILING
from rlsched.compile.kernel_cache import is_kept
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.attempt_log import RunRules, needs_log
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models


@dataclass(frozen=True)
class Task:
    """One policy with one seed on one workload.

    Attributes:
        policy: The policy.
        seed: Seed of the policy.
        trace: The jobs of the replay, from the start of the warm-up on.
        spec: The cluster.
        window: Defines which jobs are measured.
        predictions: Predictions for the jobs of `trace`; policies with the true run times do not use them.
        records: Folder of the store of decisions; None: decisions are not kept.
        logdir: Folder for a TensorBoard log of the records; None: no log.
        rules: Restart costs, retries and node events.
        models: Models of speed and power; None: jobs run as recorded in the trace.
        rule: The loaded scheduler if it is a compiled rule, else None. It is not sent to other processes.
    """

    policy: Policy
    seed: int
    trace: Trace
    spec: ClusterSpec
    window: MeasuredWindow
    predictions: PredictedTimes
    records: Path | None = None
    logdir: Path | None = None
    rules: RunRules = field(default_factory=RunRules)
    models: Models | None = None
    rule: Scheduler | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rule": None}

    def scheduler(self) -> Scheduler:
        """Return the scheduler for a replay.

        A compiled rule is loaded once and shared by all replays. Other schedulers are loaded for each replay.

        Raises:
            CheckpointError: the policy's checkpoint cannot be used.
            InputError: the scheduler cannot be loaded.
        """
        return self.rule or load_scheduler(self.policy, seed=self.seed)

    @property
    def until_started(self) -> NDArray[np.bool_]:
        """(J,) whether the replay must run until the job has started."""
        wanted: NDArray[np.bool_] = self.trace.submit_s < self.window.until_s
        return wanted


@dataclass(frozen=True)
class Outcome:
    """Outcome of one replay.

    Attributes:
        policy: The policy.
        seed: Seed of the policy.
        table: Results of the jobs of the warm-up and the window.
        wall_s: Wall time of the replay, seconds.
        is_fed: Whether the decisions of the policy depend on predicted run times.
    """

    policy: Policy
    seed: int
    table: JobTable
    wall_s: float
    is_fed: bool


def engine_of(task: Task, scheduler: Scheduler) -> Engine:
    """Return a new simulation of a task, for a scheduler of the task's policy."""
    predictions = task.predictions
    if scheduler.oracle:
        predictions = predict_trace(task.trace, task.spec, oracle=True)
    return Engine(
        task.trace,
        task.spec,
        order=scheduler.order,
        predictions=predictions,
        rules=task.rules,
        models=task.models,
    )


def first_jobs(task: Task) -> Task:
    """Return a copy of a task with its first two jobs. Its replay compiles all kernels of the task."""
    return replace(
        task,
        trace=task.trace.select(slice(0, 2)),
        predictions=PredictedTimes(*(prediction[:2] for prediction in task.predictions)),
        rules=replace(task.rules, always=needs_log(task.trace, task.rules)),
    )


def compile_together(tasks: Sequence[Task], workers: int, replay: Callable[[Task], object]) -> int:
    """Compile the kernels that tasks need and that are not cached, in `workers` processes at the same time.

    If only one kernel is missing, or with one process, the replay compiles it. Outside of an `rlsched`
    command, this function does nothing (`rlsched.compile.ahead`).

    Args:
        tasks: Replays of compiled rules.
        workers: Number of processes.
        replay: Replays a task in a worker process; it must be picklable.

    Returns:
        Number of missing kernels; 0 outside of an `rlsched` command.
    """
    missing: dict[Any, Task] = {}
    if not COMPILING.by_verb:
        return 0
    for task in map(first_jobs, tasks):
        scheduler = task.scheduler()
        if scheduler.rule is not None:
            kernel = engine_of(task, scheduler).begun_by(scheduler.rule)
            if not is_kept(kernel.py_func):
                missing.setdefault(kernel, task)
    compile_pieces([partial(replay, task) for task in missing.values()], workers)
    return len(missing)
