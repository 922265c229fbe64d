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


def add(
    state: ClusterState, gpus: int, free_mib: int = 0, *, exclusive: bool = False, share_milli: int = 1000
) -> int:
    demand = Demand(
        gpus=gpus,
        gpu_memory_mib=free_mib,
        gpu_free_mib=free_mib,
        exclusive=exclusive,
        share_milli=share_milli,
    )
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
        AllocationError,
        match="GPU 1 on node n0 has 6000 MiB free for one more job, and the job requests 6001",
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


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parts_of_a_gpu_together_get_no_more_than_its_free_memory(placement: str) -> None:
    state = cluster(2, placement=placement)
    state.limit_gpu_memory(0, {0: 6_000, 1: 9_000})

    def part(free_mib: int, share_milli: int = 300) -> int:
        return add(state, 1, free_mib, share_milli=share_milli)

    assert chosen(state, part(9_001)) is None
    assert chosen(state, part(6_001)) == [1]
    state.start(part(6_001), [1], 1.0)
    assert chosen(state, part(3_000)) is not None
    state.start(part(4_000), [0], 1.0)
    assert chosen(state, part(3_000)) is None, "2,000 and 2,999 MiB are left"
    assert chosen(state, part(2_999)) == [1]
    refusal = "GPU 0 on node n0 has 2000 MiB free for one more job, and the job requests 2001"
    with pytest.raises(AllocationError, match=refusal):
        state.start(part(2_001), [0], 1.0)
    assert chosen(state, part(0)) is not None, "it requests no memory"
    assert chosen(state, part(2_000, share_milli=701)) is None, "it has the memory, but not the share"
    state.limit_gpu_memory(0, {0: 7_000, 1: 9_000})
    assert chosen(state, part(3_000)) == [0]


def test_part_counts_with_the_memory_that_it_is_known_to_use() -> None:
    state = cluster(1)
    state.limit_gpu_memory(0, {0: 9_000})
    seq = add(state, 1, 2_000, share_milli=500)
    state.start(seq, [0], 1.0)
    waiting = add(state, 1, 5_000, share_milli=500)
    assert chosen(state, waiting) == [0]
    state.raise_gpu_need(seq, 4_001)
    assert chosen(state, waiting) is None


def test_part_respects_the_limit_of_joins() -> None:
    state = cluster(1)
    first = add(state, 1, share_milli=500)
    small, large = (add(state, 1, mib, share_milli=500) for mib in (5_000, 5_001))
    state.start(first, [0], 1.0)
    assert chosen(state, small) == chosen(state, large) == [0]
    state.limit_joins(0, {0: 5_000})
    assert (chosen(state, small), chosen(state, large)) == ([0], None)
    state.limit_joins(0, {0: -1})
    assert (chosen(state, small), chosen(state, add(state, 1, share_milli=500))) == (None, None)
    state.release(first, 2.0)
    assert chosen(state, large) == [0]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_mig_instance_with_too_little_free_memory_is_skipped(placement: str) -> None:
    nodes = [NodeSpec(name="n0", gpus=3, gpu_type="H100/1g.10gb", gpu_memory_mib=10_000)]
    state = ClusterState(nodes, OrderedQueue(Order()), placement=placement)
    state.limit_gpu_memory(0, {0: 6_000, 2: 7_000})
    assert chosen(state, add(state, 1, 7_001)) == [1]
    state.start(add(state, 1), [1], 1.0)
    assert chosen(state, add(state, 1, 7_001)) is None
    assert chosen(state, add(state, 1, 7_000)) == [2]
