"""Compiled functions free the memory that they allocate: a broker decides for months in one process.

A function that is compiled without reference counts never frees an array that it receives from another
(`rlsched.compile.jit.kernel`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import msgspec
import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.synth import synthesize
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from tests.quick import quick

NETWORK = Policy("ppo", checkpoint="untrained")
REVISING = NetworkConfig(order="predicted_size", revises=True)


def network(permissions: Permissions) -> PpoScheduler:
    """An untrained network with these abilities, even if jobs forbid preemption."""
    return PpoScheduler(initial_weights(NetworkConfig(), 0), NetworkConfig(), permissions=permissions)


SCHEDULERS = {
    "ppo": load_scheduler(NETWORK),
    "ppo, neither reserving nor preempting": network(Permissions()),
    "ppo, preempting": network(Permissions(preemption=True)),
    "ppo, revising": PpoScheduler(initial_weights(REVISING, 0), REVISING),
    "ppo, searching": load_scheduler(NETWORK.with_settings(search={"samples": 2})),
    "easy": load_scheduler(Policy("easy", order="area^0.7", reserve_after="1h")),
    "reserve": load_scheduler(Policy("reserve", leave_free={"longer_than": "1h"})),
    "gittins": load_scheduler("gittins"),
    "tiresias": load_scheduler("tiresias"),
}


def _ones(count: int) -> float:
    return float(np.ones(count).sum())


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    """Enable numba's counters of allocations and frees."""
    numba.njit(_ones)(1)  # the runtime exists from the first compiled function on
    _nrt_python.memsys_enable_stats()
    yield
    _nrt_python.memsys_disable_stats()


def not_freed() -> int:
    """Live arrays of compiled code."""
    gc.collect()
    stats = rtsys.get_allocation_stats()
    return int(stats.mi_alloc - stats.mi_free)


@pytest.mark.parametrize("name", quick(SCHEDULERS, lambda name: name in ("fifo", "gittins")))
def test_run_frees_all_arrays(name: str) -> None:
    trace, spec = synthesize("helios", jobs=150, load=1.5, gpus=32, seed=2)

    def play(jobs: int) -> int:
        scheduler = SCHEDULERS[name]
        few = trace.select(slice(0, jobs))
        decisions = Engine(few, spec, order=scheduler.order).run(scheduler).decisions
        return int(decisions)

    play(20)
    before = not_freed()
    assert play(150) >= 150
    assert not_freed() - before <= 2


@pytest.mark.parametrize(
    "shares",
    quick(
        [{}, {"reserving_frac": 1.0}, {"preempting_frac": 1.0}, {"modelled_frac": 1.0}], lambda one: not one
    ),
)
def test_episodes_free_all_arrays(shares: dict[str, float]) -> None:
    trace, spec = synthesize("helios", jobs=600, load=1.1, gpus=32, seed=1)
    config = EpisodeConfig(
        warmup_jobs=40, agent_jobs=80, tail_jobs=20, nodes_low=3, nodes_high=3, load_low=1.5, load_high=1.5
    )
    config = msgspec.structs.replace(config, **shares)
    fleet, rows = Fleet([EpisodeSource.from_trace(trace, spec)], 2, config, 0), np.zeros(2, np.int64)
    for k in range(2):
        fleet.begin(k)

    def steps(count: int) -> None:
        for _ in range(count):
            fleet.sample_rows(rows)
            fleet.step(rows)

    steps(150)
    before = not_freed()
    steps(300)
    assert not_freed() - before <= 2
