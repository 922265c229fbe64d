"""A task of an evaluation: one policy and seed on one workload, and the engine that replays it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.windows import Window
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, Predictions, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models


@dataclass(frozen=True)
class Task:
    """One policy and seed on one workload.

    Attributes:
        policy: Who decides.
        seed: Seed of its draws.
        trace: The jobs from the warm-up on.
        spec: The cluster.
        window: Which of them are measured.
        predictions: The predictions of `trace`, the same for every policy that is fed causal predictions.
        records: Folder of the store of decisions; None: nobody keeps them.
        logdir: Folder for TensorBoard, which shows the records; None: nothing is written.
        rules: Restart costs, retries and node events.
        models: How fast jobs run and what they draw; None: they run as the trace says.
    """

    policy: Policy
    seed: int
    trace: Trace
    spec: ClusterSpec
    window: Window
    predictions: Predictions
    records: Path | None = None
    logdir: Path | None = None
    rules: RunRules = field(default_factory=RunRules)
    models: Models | None = None

    @property
    def until_started(self) -> NDArray[np.bool_]:
        """(J,) jobs that a replay goes on for: those of the warm-up, and those that are measured."""
        wanted: NDArray[np.bool_] = self.trace.submit_s < self.window.until_s
        return wanted


@dataclass(frozen=True)
class Outcome:
    """One replay: warm-up and measured jobs, and the wall time that it took, seconds."""

    policy: Policy
    seed: int
    table: JobTable
    wall_s: float


def engine_of(task: Task, scheduler: Scheduler) -> Engine:
    """A run of a task that is about to begin, for a scheduler of its policy."""
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
