"""GPUs of which other processes use memory: where the ledger places jobs that request free memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.choose import choose
from rlsched.cluster.demand import Demand
from rlsched.cluster.placement import BY_RULE, class_fits
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import AllocationError

PLACEMENTS = ("consolidate", "best-fit", "worst-fit", "spread", "fgd")
TOTAL_MIB = 16_000


def cluster(*sizes: int, placement: str = "consolidate") -> ClusterState:
    nodes = [NodeSpec(name=f"n{k}", gpus=gpus, gpu_memory_mib=TOTAL_MIB) for k, gpus in enumerate(sizes)]
    return ClusterState(nodes, OrderedQueue(Order()), placement=placement)


def add(state: ClusterState, gpus: int, free_mib: int = 0, *, exclusive: bool = False) -> int:
    demand = Demand(gpus=gpus, gpu_memory_mib=free_mib, gpu_free_mib=free_mib, exclusive=exclusive)
    return state.add_job(demand=demand, submit_s=0.0, predicted_s=10.0, spread=1.0)


def chosen(state: ClusterState, seq: int) -> list[int] | None:
    """GPUs that the placement rule chooses; None if the job does not fit."""
    slot = state.slot_of(seq)
    out = np.empty(int(state.arrays.job.gpus[slot]), np.int32)
    fits = bool(class_fits(state.arrays, 0, int(state.arrays.job.demand[slot])))
    host = int(choose(state.arrays, 0, slot, BY_RULE, out))
    assert (host >= 0) == fits
    return sorted(out.tolist()) if fits else None


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_job_gets_no_gpu_with_less_free_memory_than_it_requests(placement: str) -> None:
    state = cluster(4, placement=placement)
    state.limit_gpu_memory(0, {0: 6_000, 2: 8_000})
    assert chosen(state, add(state, 2, 8_000)) == [1, 2]
    assert chosen(state, add(state, 3, 8_000)) == [1, 2, 3]
    assert chosen(state, add(state, 4, 8_000)) is None
    assert chosen(state, add(state, 4, 6_000)) == chosen(state, add(state, 4)) == [0, 1, 2, 3]
    assert chosen(state, add(state, 3, 8_001)) is None
    state.limit_gpu_memory(0, {2: 8_000})
    assert chosen(state, add(state, 4, 8_000)) == [0, 1, 2, 3]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gang_on_several_nodes_skips_such_gpus(placement: str) -> None:
    state = cluster(2, 2, 2, placement=placement)
    state.limit_gpu_memory(0, {0: 100})
    assert chosen(state, add(state, 5, 200)) == [1, 2, 3, 4, 5]
    assert chosen(state, add(state, 6, 200)) is None
    state.start(add(state, 1), [2], 1.0)
    if placement == "spread":
        assert chosen(state, add(state, 4, 200)) == [1, 3, 4, 5]
    else:
        assert chosen(state, add(state, 3, 200)) in ([1, 4, 5], [3, 4, 5])
        assert chosen(state, add(state, 4, 200)) is None


def test_only_jobs_that_request_more_lose_the_fast_checks() -> None:
    """Counts of free GPUs suffice for all others (`demand.plain`)."""
    state = cluster(4)
    numbers = [state.demand_number(Demand(gpus=1, gpu_free_mib=mib)) for mib in (0, 5_000, 7_000)]
    assert state.arrays.demand.plain[numbers].tolist() == [1, 1, 1]
    state.limit_gpu_memory(0, {3: 6_000})
    assert state.arrays.demand.plain[numbers].tolist() == [1, 1, 0]
    assert state.arrays.demand.plain[state.demand_number(Demand(gpus=2, gpu_free_mib=6_001))] == 0
    state.limit_gpu_memory(0, {})
    assert state.arrays.demand.plain[numbers].tolist() == [1, 1, 1]


def test_start_on_such_a_gpu_is_illegal() -> None:
    state = cluster(2)
    state.limit_gpu_memory(0, {1: 6_000})
    with pytest.raises(
        AllocationError, match="GPU 1 on node n0 has 6000 MiB free, and the job requests 6001"
    ):
        state.start(add(state, 1, 6_001), [1], 1.0)
    state.start(add(state, 1, 6_000), [1], 1.0)


def test_limits_stay_when_nodes_and_jobs_join_and_end_with_their_node() -> None:
    state = cluster(2)
    before = state.digest()
    state.limit_gpu_memory(0, {1: 6_000})
    assert state.digest() != before, "decisions depend on them"
    state.add_node(NodeSpec(name="more", gpus=2, gpu_memory_mib=TOTAL_MIB))
    while state.arrays.job.shape[0] < 1_000:
        state.grow()
    assert [state.usable_gpu_memory(n) for n in (0, 1)] == [{1: 6_000}, {}]
    assert chosen(state, add(state, 2, 7_000)) == [2, 3]
    state.retire_node(0)
    assert state.usable_gpu_memory(0) == {}


def test_limit_of_joins_ends_with_any_job_on_the_gpu() -> None:
    state = cluster(2)
    state.limit_joins(0, {0: 5_000})
    assert state.join_limits(0) == {}, "no job runs there"
    for gpu, most_mib in itertools.product((0, 1), (5_000, -1)):
        seq = add(state, 1)
        state.start(seq, [gpu], 1.0)
        assert state.has_jobs(0, gpu)
        state.limit_joins(0, {gpu: most_mib})
        assert state.join_limits(0) == {gpu: most_mib}
        state.limit_joins(0, {gpu: None})
        assert state.join_limits(0) == {}
        state.limit_joins(0, {gpu: most_mib})
        state.release(seq, 2.0)
        assert state.join_limits(0) == {}
    assert int(state.arrays.gpu.tenant.max()) < 0 < MAX_TENANTS
