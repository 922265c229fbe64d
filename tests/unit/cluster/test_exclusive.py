"""Jobs with whole nodes in the ledger: legal starts, and the nodes before, during and after them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.demand import Demand, holds, nodes_of_gang, plain_demands
from rlsched.cluster.placement import class_fits
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.start import start_action
from rlsched.errors import AllocationError, TraceError
from rlsched.workload.load import trace_demands
from rlsched.workload.trace import Trace

PLACEMENTS = ("consolidate", "best-fit", "worst-fit", "spread", "fgd")


def cluster(*sizes: int, cpus: int = 0, placement: str = "consolidate") -> ClusterState:
    """A cluster of one partition, with a node for each number of GPUs."""
    nodes = [NodeSpec(name=f"n{k}", gpus=gpus, cpus=cpus) for k, gpus in enumerate(sizes)]
    return ClusterState(nodes, OrderedQueue(Order()), placement=placement)


def add(state: ClusterState, gpus: int, *, exclusive: bool = False, cores: int = 0) -> int:
    demand = Demand(gpus=gpus, exclusive=exclusive, cpu_milli=cores * 1000)
    return state.add_job(demand=demand, submit_s=0.0, predicted_s=10.0, spread=1.0)


def fits(state: ClusterState, gpus: int, *, exclusive: bool = False, cores: int = 0) -> bool:
    demand = Demand(gpus=gpus, exclusive=exclusive, cpu_milli=cores * 1000)
    number = state.demand_number(demand)
    return bool(class_fits(state.arrays, 0, number))


def start(state: ClusterState, seq: int) -> list[int]:
    """Start a job where the placement rule puts it. Returns its nodes."""
    action = start_action(state, 0, seq)
    assert isinstance(action, Start)
    state.start(seq, action.gpus, 1.0, node=action.node)
    return sorted({int(state.arrays.gpu.node[g]) for g in action.gpus})


def free(state: ClusterState) -> list[int]:
    assert int(state.arrays.derived.part.free_gpus[0]) == int(state.arrays.node.free.sum())
    return [int(count) for count in state.arrays.node.free]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_job_gets_a_node_without_jobs_and_no_other_job_starts_there(placement: str) -> None:
    state = cluster(4, 2, 8, placement=placement)
    state.start(add(state, 1), [0], 1.0)
    alone = add(state, 2, exclusive=True)
    n = start(state, alone)[0]
    assert n != 0, "node 0 has a job"
    assert free(state)[n] == 0
    taken = int(state.arrays.node.first_gpu[n]) + 1
    with pytest.raises(AllocationError, match="is taken"):
        state.start(add(state, 1), [taken], 2.0)
    before = state.digest()
    state.release(alone, 3.0)
    assert free(state) == [3, 2, 8]
    assert (state.arrays.gpu.free_milli[taken:] == 1000).all()
    assert state.digest() != before


def test_the_smallest_of_unequal_nodes_that_holds_the_job_is_taken() -> None:
    state = cluster(8, 2, 4)
    assert start(state, add(state, 3, exclusive=True)) == [2]
    assert start(state, add(state, 3, exclusive=True)) == [0]
    assert not fits(state, 3, exclusive=True)
    assert fits(state, 1, exclusive=True), "node 1 is free"
    assert start(state, add(state, 1)) == [1]
    assert not fits(state, 1, exclusive=True), "node 1 has a job"
    assert fits(state, 1)
    assert not fits(state, 2)


def test_gang_gets_whole_nodes_and_one_more_for_the_remainder() -> None:
    state = cluster(4, 4, 2, 4)
    beside = add(state, 1)
    state.start(beside, [0], 1.0)
    assert fits(state, 9)
    assert not fits(state, 11, exclusive=True), "12 GPUs, without node 0 10"
    gang = add(state, 9, exclusive=True)
    assert start(state, gang) == [1, 2, 3]
    assert free(state) == [3, 0, 0, 0]
    state.release(beside, 2.0)
    assert free(state) == [4, 0, 0, 0]
    state.preempt(gang, 3.0)
    assert free(state) == [4, 4, 2, 4]


def test_a_job_on_a_node_that_is_partly_used_is_not_legal() -> None:
    state = cluster(4, 4)
    state.start(add(state, 1), [0], 1.0)
    alone = add(state, 2, exclusive=True)
    with pytest.raises(AllocationError, match="too few resources"):
        state.start(alone, [1, 2], 1.0)
    with pytest.raises(AllocationError, match="too few resources"):
        state.start(alone, [3, 4], 1.0)
    state.start(alone, [5, 6], 1.0)


def test_jobs_without_gpus_and_jobs_with_whole_nodes_keep_apart() -> None:
    state = cluster(2, 2, cpus=8)
    small = add(state, 0, cores=1)
    state.start(small, [], 1.0, node=0)
    assert start(state, add(state, 1, exclusive=True)) == [1], "node 0 has a job without GPUs"
    assert not fits(state, 1, exclusive=True)
    assert fits(state, 0, cores=7)
    assert not fits(state, 0, cores=8)
    state.release(small, 2.0)
    whole = add(state, 0, cores=1, exclusive=True)
    state.start(whole, [], 2.0, node=0)
    assert free(state) == [0, 0]
    assert not fits(state, 0, cores=1)
    assert not fits(state, 1)
    state.release(whole, 3.0)
    assert fits(state, 2)
    assert int(state.arrays.node.cpu_free_milli[0]) == 8000


def test_a_share_of_a_gpu_takes_the_whole_node() -> None:
    state = cluster(2)
    demand = Demand.from_request(0.3, exclusive=True)
    seq = state.add_job(demand=demand, submit_s=0.0, predicted_s=10.0, spread=1.0)
    start(state, seq)
    assert not fits(state, 1)
    share = state.demand_number(Demand.from_request(0.3))  # first: a new class may replace the arrays
    assert not class_fits(state.arrays, 0, share)
    state.release(seq, 2.0)
    assert (state.arrays.gpu.free_milli == 1000).all()


def test_a_node_that_changes_while_it_is_taken_stays_taken_and_is_whole_again_afterwards() -> None:
    state = cluster(2)
    alone = add(state, 1, exclusive=True)
    start(state, alone)
    state.refit_node(0, cpus=16, memory_mib=1000)
    assert not fits(state, 0, cores=1)
    state.release(alone, 2.0)
    assert fits(state, 0, cores=16)
    assert int(state.arrays.node.memory_free_mib[0]) == 1000


def test_index_and_growth_keep_nodes_taken() -> None:
    state = cluster(4, 4)
    alone = add(state, 1, exclusive=True)
    start(state, alone)
    state.add_node(NodeSpec(name="n2", gpus=2))
    state.grow()
    assert free(state) == [0, 4, 2]
    state.release(alone, 2.0)
    assert free(state) == [4, 4, 2]


def test_job_with_whole_nodes_never_shares() -> None:
    state = cluster(2)
    alone, other = add(state, 1, exclusive=True), add(state, 1)
    slots = [state.slot_of(seq) for seq in (alone, other)]
    assert state.arrays.job.unshared[slots].tolist() == [1, 0]
    for seq in (alone, other):
        state.share_job(seq, shares=True, gpu_need_mib=-1)
    assert state.arrays.job.unshared[slots].tolist() == [1, 0]


def test_request_says_whether_it_can_ever_start() -> None:
    state = cluster(4, 2)
    for gpus, can in ((4, True), (6, True), (5, True), (7, False)):
        assert state.can_ever_run("", Demand(gpus=gpus, exclusive=True)) == can, gpus


def test_counts_of_free_gpus_decide_only_for_other_jobs() -> None:
    nodes = [NodeSpec(name="n0", gpus=4)]
    assert plain_demands([Demand(gpus=1), Demand(gpus=1, exclusive=True)], nodes) == [True, False]


def test_number_of_nodes_is_that_of_the_placement() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        sizes = rng.integers(1, 6, int(rng.integers(1, 5))).tolist()
        places = int(rng.integers(1, 14))
        state = cluster(*sizes)
        number = nodes_of_gang(Counter(sizes), places)
        assert (number > 0) == holds(Counter(sizes), places) == fits(state, places, exclusive=True)
        if number:
            assert len(start(state, add(state, places, exclusive=True))) == number
    assert nodes_of_gang(Counter(), 1) == 0


def test_column_of_a_trace_gives_the_demand(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "job_id,submit_time,duration,num_gpus,exclusive\n"
    path.write_text(head + "a,0,1,2,true\nb,0,1,2,\nc,0,1,2,0\nd,0,1,2,1\n", encoding="utf-8")
    demands, which = trace_demands(Trace.read(path))
    assert [demands[number].exclusive for number in which.tolist()] == [True, False, False, True]
    path.write_text(head + "a,0,1,2,user\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"row 2, column 'exclusive': expected true or false, .*'user'"):
        Trace.read(path)
