"""Compiled functions free the memory that they allocate: a broker decides for months in one process.

A function that is compiled without reference counts never frees an array that it receives from another
(`rlsched.compile.jit.kernel`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv
from tests.quick import quick

SCHEDULERS = {
    "ppo": load_scheduler("ppo"),
    "random": load_scheduler("random"),
    "easy": load_scheduler(Policy("easy", order="area^0.7", reserve_after="1h", predictions="revised")),
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


def test_episodes_free_all_arrays() -> None:
    trace, spec = synthesize("helios", jobs=600, load=1.1, gpus=32, seed=1)
    drawn = Drawn(jobs=60, nodes_low=2, nodes_high=3)
    clusters = ClusterVecEnv([EpisodeSource.from_trace(trace, spec)], 2, seed=0, drawn=drawn)
    rng = np.random.default_rng(0)
    clusters.reset()

    def steps(count: int) -> None:
        for _ in range(count):
            clusters.step(rng.uniform(-1.0, 1.0, (2, NUM_DIALS)))

    steps(150)
    before = not_freed()
    steps(300)
    assert not_freed() - before <= 2
