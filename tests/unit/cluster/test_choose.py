"""The placement rules, each on a cluster where it differs from the others."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.arrays import PLACEMENT_CODES
from rlsched.cluster.choose import choose
from rlsched.cluster.demand import Demand
from rlsched.cluster.fragmentation import added_by_gpus, added_by_share, typical_classes
from rlsched.cluster.placement import fits_slot
from rlsched.cluster.spec import ClusterSpec, Placement
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue


def cluster(nodes: int, gpus: int, placement: Placement) -> ClusterState:
    spec = ClusterSpec.uniform(nodes, gpus, placement=placement)
    return ClusterState.from_spec(spec, OrderedQueue(Order(by="area")))


def state_of(placement: Placement, taken: list[int], gpus: int = 4) -> ClusterState:
    """Equal nodes, with this many GPUs of each taken by whole-GPU jobs."""
    state = cluster(len(taken), gpus, placement)
    for node, count in enumerate(taken):
        for g in range(gpus * node, gpus * node + count):
            state.start(add(state, Demand.from_request(1)), [g], 0.0)
    return state


def add(state: ClusterState, demand: Demand) -> int:
    return state.add_job(demand=demand, submit_s=0.0, predicted_s=1.0, spread=1.0)


def chosen(state: ClusterState, demand: Demand) -> list[int] | None:
    """GPUs that the rule gives a new job; None where it does not fit."""
    slot = state.slot_of(add(state, demand))
    out = np.full(max(demand.gpus, 1), -1, np.int32)
    host = choose(state.arrays, 0, slot, -1, out)
    assert (host >= 0) == fits_slot(state.arrays, 0, slot)
    if host >= 0:
        state.check_start(int(state.arrays.job.seq[slot]), out[: demand.gpus].tolist(), node=host)
    return out[: demand.gpus].tolist() if host >= 0 else None


@pytest.mark.parametrize(
    ("placement", "one", "pair"),
    [
        ("consolidate", [7], [10, 11]),
        ("best-fit", [7], [10, 11]),
        ("worst-fit", [0], [0, 1]),
        ("spread", [0], [0, 10]),
    ],
)
def test_one_gpu_and_two(placement: Placement, one: list[int], pair: list[int]) -> None:
    assert chosen(state_of(placement, [0, 3, 2]), Demand.from_request(1)) == one
    if placement == "spread":
        assert chosen(state_of(placement, [1, 3, 1]), Demand.from_request(2)) == [1, 9]
        assert chosen(state_of(placement, [0, 3, 2]), Demand.from_request(2)) == [0, 1], (
            "four are free there, then three"
        )
    else:
        assert chosen(state_of(placement, [0, 3, 2]), Demand.from_request(2)) == pair


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("consolidate", [0, 1, 2, 3, 8]),
        ("worst-fit", [0, 1, 2, 3, 8]),
        ("best-fit", [0, 1, 2, 3, 7]),
        ("fgd", [0, 1, 2, 3, 7]),
        ("spread", [0, 1, 2, 8, 9]),
    ],
)
def test_gang_of_five_on_nodes_of_four(placement: Placement, expected: list[int]) -> None:
    """Free: all of node 0, one GPU of node 1, four of node 2 less one taken."""
    state = state_of(placement, [0, 3, 1])
    if placement == "spread":
        expected = [0, 1, 2, 9, 10]
    elif expected[-1] == 8:
        expected = [0, 1, 2, 3, 9]
    assert chosen(state, Demand.from_request(5)) == expected


def test_only_spread_splits_a_gang_that_fits_one_node() -> None:
    for placement in PLACEMENT_CODES:
        state = state_of(placement, [2, 2])
        assert chosen(state, Demand.from_request(3)) == ([2, 3, 6] if placement == "spread" else None)


@pytest.mark.parametrize(
    ("placement", "gpu"), [("consolidate", 1), ("best-fit", 1), ("worst-fit", 0), ("spread", 0)]
)
def test_shared_gpu(placement: Placement, gpu: int) -> None:
    """GPU 1 has 600 milli left, GPU 0 all."""
    state = state_of(placement, [0], gpus=2)
    state.start(add(state, Demand.from_request(0.4)), [1], 0.0)
    assert chosen(state, Demand.from_request(0.5)) == [gpu]
    assert chosen(state, Demand.from_request(0.7)) == [0]


class TestFragmentationGradient:
    def test_measure_by_hand(self) -> None:
        """A node of 2 GPUs with 600 and 1000 milli left; earlier jobs: 3 shares of 0.5 and 1 of two GPUs."""
        state = cluster(1, 2, "fgd")
        state.start(add(state, Demand.from_request(0.4)), [0], 0.0)
        for demand in [Demand.from_request(0.5)] * 3 + [Demand.from_request(2)]:
            add(state, demand)
        arrays, out = state.arrays, np.zeros(8, np.int64)
        classes = out[: typical_classes(arrays, out)]
        assert arrays.demand.arrived[classes].tolist() == [1, 3, 1]
        half = state.demand_number(Demand.from_request(0.5))
        # Before: 0.4 and 0.5 fit both GPUs; the gang does not, so all 1,600 milli are useless to it.
        # 0.5 on GPU 0 leaves 100: useless to 0.4 (x1) and 0.5 (x3); the gang: 1,100 instead of 1,600.
        assert added_by_share(arrays, 0, half, 0, classes) == 100 * 1 + 100 * 3 + (1100 - 1600) * 1
        # On GPU 1 it leaves 600 and 500: nothing useless to the shares; the gang again 1,100.
        assert added_by_share(arrays, 0, half, 1, classes) == (1100 - 1600) * 1
        one = state.demand_number(Demand.from_request(1))
        assert added_by_gpus(arrays, 0, one, classes) == (600 - 1600) * 1

    def test_keeps_whole_nodes_for_frequent_requests(self) -> None:
        """One GPU: the node with two free would be lost to the frequent pairs; the other has three free."""
        state = state_of("fgd", [2, 1])
        for _ in range(20):
            add(state, Demand.from_request(2))
        assert chosen(state, Demand.from_request(1)) == [5], (
            "3 free become 2, still a pair; best-fit takes GPU 2"
        )
        assert chosen(state_of("best-fit", [2, 1]), Demand.from_request(1)) == [2]

    def test_shares_are_placed_where_they_leave_no_useless_rest(self) -> None:
        """GPU 0 has 500 left, GPU 1 all; halves are frequent: a job of 0.4 would leave a useless 100 on GPU
        0.
        """
        state = cluster(1, 2, "fgd")
        state.start(add(state, Demand.from_request(0.5)), [0], 0.0)
        for _ in range(20):
            add(state, Demand.from_request(0.5))
        assert chosen(state, Demand.from_request(0.4)) == [1]
        assert chosen(state, Demand.from_request(0.5)) == [0]
