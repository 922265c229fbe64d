"""A task of an evaluation: one policy and seed on one workload, and its simulation engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models


@dataclass(frozen=True)
class Task:
    """One policy and seed on one workload.

    Attributes:
        policy: The policy.
        seed: Seed of the policy.
        trace: The jobs from the warm-up on.
        spec: The cluster.
        window: Defines which jobs are measured.
        predictions: Predictions of `trace`, shared by all policies that use causal predictions.
        records: Folder of the store of decisions; None: decisions are not kept.
        logdir: Folder for a TensorBoard log of the records; None: no log.
        rules: Restart costs, retries and node events.
        models: Models of speed and power; None: jobs run as recorded in the trace.
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

    @property
    def until_started(self) -> NDArray[np.bool_]:
        """(J,) jobs that the replay waits for: jobs of the warm-up and measured jobs."""
        wanted: NDArray[np.bool_] = self.trace.submit_s < self.window.until_s
        return wanted


@dataclass(frozen=True)
class Outcome:
    """One replay: jobs of the warm-up and the window, and wall time in seconds."""

    policy: Policy
    seed: int
    table: JobTable
    wall_s: float


def engine_of(task: Task, scheduler: Scheduler) -> Engine:
    """A new simulation of a task, for a scheduler of its policy."""
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
