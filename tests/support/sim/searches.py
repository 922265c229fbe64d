"""Crowded clusters for look-ahead."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Scheduler
from rlsched.decide.settings import SearchSettings as Amount
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable

CONFIG = NetworkConfig(width=16, critic_width=8)
ONE_NODE = ClusterSpec(name="c", nodes=(NodeGroup(count=1, gpus=4),))
BLOCKED_GANG = ((0, 300, 3), (10, 600, 4), (20, 36_000, 1))
"""Three GPUs are free in five minutes; the fourth is better kept than given away for ten hours."""


EIGHT = Amount(samples=8)
PLAIN = Permissions()


def lively(seed: int = 4, *, search: Amount | None = None, permissions: Permissions = PLAIN) -> PpoScheduler:
    """A network that follows no rule."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in CONFIG.shapes().items()}
    return PpoScheduler(weights, CONFIG, seed=seed, search=search, permissions=permissions)


def untrained(
    prior: float = 3.5, *, search: Amount | None = None, permissions: Permissions = PLAIN
) -> PpoScheduler:
    """The reference rule; a negative prior makes it avoid the rule's choice."""
    config = NetworkConfig(width=16, critic_width=8, prior_job=prior)
    return PpoScheduler(initial_weights(config, 0), config, search=search, permissions=permissions)


def free(policy: PpoScheduler) -> PpoScheduler:
    """A search that looks ahead even with uninformative predictions."""
    assert policy._search is not None
    policy._search.max_spread = math.inf
    return policy


def replay(
    jobs: tuple[tuple[float, float, int], ...], scheduler: Scheduler, spreads: tuple[float, ...] = ()
) -> tuple[JobTable, list[DecisionRecord]]:
    """Jobs as (submission, duration, GPUs) on one node of four GPUs, predicted well."""
    submit, duration, gpus = zip(*jobs, strict=True)
    trace = Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus)
    predictions = PredictedTimes(trace.duration_s.copy(), np.array(spreads or [0.2] * len(trace)))
    records: list[DecisionRecord] = []
    engine = Engine(trace, ONE_NODE, order=scheduler.order, predictions=predictions)
    table = engine.run(scheduler, on_record=records.append)
    return table, records


def crowd(jobs: int = 150) -> Callable[[Scheduler], JobTable]:
    """Runs a scheduler on the same contended jobs."""
    trace, spec = synthesize("helios", jobs=jobs, load=1.1, gpus=16, seed=4, predictability="informative")
    predictions = predict_trace(trace, spec)
    return lambda scheduler: Engine(trace, spec, order=scheduler.order, predictions=predictions).run(
        scheduler
    )
