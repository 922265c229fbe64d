"""The placement rule *consolidate*: cases by hand, and against the rule in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster import placement
from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.loop import fitting_jobs, has_fitting
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.start import start_action
from rlsched.workload.load import runnable_mask
from rlsched.workload.trace import Trace


@dataclass
class Node:
    """A node of the plain model: its free GPUs."""

    free: list[int]
    gpus: int
    up: bool = True


def consolidate(nodes: list[Node], gpus: int) -> list[int] | None:
    """GPUs of a gang by the rule, None where it does not fit. Down nodes count only for the largest size."""
    order = list(enumerate(nodes))
    if gpus <= max((node.gpus for node in nodes), default=0):
        holding = [(len(node.free), n) for n, node in order if node.up and len(node.free) >= gpus]
        return nodes[min(holding)[1]].free[:gpus] if holding else None
    out: list[int] = []
    used: set[int] = set()
    for _, n in sorted((-node.gpus, n) for n, node in order if node.up and 0 < len(node.free) == node.gpus):
        if nodes[n].gpus <= gpus - len(out):
            out += nodes[n].free
            used.add(n)
    left = gpus - len(out)
    if left:
        others = [(-len(node.free), n) for n, node in order if node.up and n not in used]
        if not others or -min(others)[0] < left:
            return None
        out += nodes[min(others)[1]].free[:left]
    return out


def cluster(*nodes: tuple[int, int]) -> ClusterState:
    """A cluster of one partition; each node (GPUs, GPUs taken), the lowest numbered ones taken."""
    state = ClusterState(
        [NodeSpec(name=f"n{n}", gpus=gpus) for n, (gpus, _) in enumerate(nodes)],
        OrderedQueue(Order(by="area")),
    )
    for n, (_, taken) in enumerate(nodes):
        first = int(state.arrays.node.first_gpu[n])
        if taken:
            start(state, taken, list(range(first, first + taken)))
    return state


def add(state: ClusterState, gpus: int) -> int:
    return state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=1.0, spread=1.0)


def start(state: ClusterState, gpus: int, where: list[int]) -> None:
    state.start(add(state, gpus), where, 0.0)


def placed(state: ClusterState, gpus: int) -> list[int] | None:
    """GPUs chosen by the kernels; None where the gang does not fit by their answer."""
    out = np.full(max(gpus, 1), -1, np.int32)
    host = placement.consolidate(state.arrays, 0, gpus, out)
    return out.tolist() if host >= 0 else None


class TestOneNode:
    def test_fewest_free_gpus_that_fit(self) -> None:
        state = cluster((4, 0), (4, 1), (4, 2), (4, 3))
        assert placed(state, 1) == [15]
        assert placed(state, 2) == [10, 11]
        assert placed(state, 3) == [5, 6, 7]
        assert placed(state, 4) == [0, 1, 2, 3]

    def test_ties_go_to_the_lowest_node(self) -> None:
        assert placed(cluster((4, 2), (4, 1), (4, 1)), 3) == [5, 6, 7]
        assert placed(cluster((4, 0), (4, 0)), 1) == [0]

    def test_free_counts_decide_when_sizes_differ(self) -> None:
        assert placed(cluster((8, 5), (2, 0)), 2) == [8, 9], "2 free before 3 free, though it is a whole node"

    def test_lowest_free_gpus_of_the_node(self) -> None:
        state = cluster((4, 0))
        start(state, 2, [0, 2])
        assert placed(state, 2) == [1, 3]

    def test_gang_that_fits_one_node_is_never_split(self) -> None:
        assert placed(cluster((4, 1), (4, 1)), 4) is None
        assert placed(cluster((4, 1), (2, 0), (2, 0)), 4) is None

    def test_nodes_that_are_not_up_are_skipped(self) -> None:
        state = cluster((4, 2), (4, 0))
        state.drain_node(0)
        assert placed(state, 2) == [4, 5]
        state.fail_node(1)
        assert placed(state, 2) is None
        state.resume_node(0)
        assert placed(state, 2) == [2, 3]


class TestSeveralNodes:
    def test_multiple_takes_wholly_free_nodes(self) -> None:
        assert placed(cluster((2, 1), (2, 0), (2, 0)), 4) == [2, 3, 4, 5]
        assert placed(cluster((2, 1), (2, 1), (2, 0)), 4) is None

    def test_remainder_takes_the_node_with_most_free(self) -> None:
        assert placed(cluster((4, 3), (4, 1), (4, 0), (4, 2)), 5) == [8, 9, 10, 11, 5]
        assert placed(cluster((4, 3), (4, 1), (4, 0), (4, 2)), 8) is None

    def test_remainder_prefers_an_untouched_node(self) -> None:
        assert placed(cluster((4, 1), (4, 0), (4, 0)), 5) == [4, 5, 6, 7, 8]

    def test_ties_for_the_remainder_go_to_the_lowest_node(self) -> None:
        assert placed(cluster((4, 2), (4, 0), (4, 2)), 6) == [4, 5, 6, 7, 2, 3]

    def test_remainder_has_to_fit_one_node(self) -> None:
        assert placed(cluster((4, 2), (4, 0), (4, 2)), 7) is None

    def test_largest_nodes_first(self) -> None:
        state = cluster((2, 0), (4, 0), (2, 0), (4, 0))
        assert placed(state, 8) == [2, 3, 4, 5, 8, 9, 10, 11]
        assert placed(state, 6) == [2, 3, 4, 5, 0, 1], "4 + 2: no third node"
        assert placed(state, 5) == [2, 3, 4, 5, 8], "the remainder of 1 where 4 are free"
        assert placed(state, 12) == [2, 3, 4, 5, 8, 9, 10, 11, 0, 1, 6, 7]
        assert placed(state, 13) is None

    def test_drained_nodes_are_not_whole(self) -> None:
        state = cluster((2, 0), (2, 0), (2, 0))
        state.drain_node(1)
        assert placed(state, 4) == [0, 1, 4, 5]
        assert placed(state, 5) is None


BUSY = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=5)


def drawn(shape: list[tuple[int, int, bool]]) -> tuple[ClusterState, list[Node]]:
    state = cluster(*((gpus, min(gpus, taken)) for gpus, taken, _ in shape))
    nodes = []
    for n, (gpus, taken, up) in enumerate(shape):
        first = int(state.arrays.node.first_gpu[n])
        nodes.append(Node(list(range(first + min(gpus, taken), first + gpus)), gpus, up))
        if not up:
            state.drain_node(n)
    return state, nodes


@settings(max_examples=150, deadline=None)
@given(BUSY)
def test_kernels_follow_the_rule(shape: list[tuple[int, int, bool]]) -> None:
    state, nodes = drawn(shape)
    for gpus in range(1, sum(node.gpus for node in nodes) + 3):
        expected = consolidate(nodes, gpus)
        assert placed(state, gpus) == expected
        assert placement.fits(state.arrays, 0, gpus) == (expected is not None)
        fitting = add(state, gpus)
        assert (placement.first_fitting(state.arrays, 0, 0) == 0) == (expected is not None)
        if expected is not None:
            state.check_start(fitting, start_action(state, 0, fitting).gpus)
        state.remove_waiting(fitting)


@settings(max_examples=100, deadline=None)
@given(BUSY)
def test_fits_in_against_brute_force(shape: list[tuple[int, int, bool]]) -> None:
    state, nodes = drawn(shape)
    derived = state.arrays.derived
    largest = max(node.gpus for node in nodes)
    for gpus in range(1, sum(node.gpus for node in nodes) + 3):
        fits = placement.fits_in(derived.holes[0], derived.whole[0], largest, gpus)
        assert fits == (consolidate(nodes, gpus) is not None)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 5), st.sampled_from([None, "a", "b"])),
        min_size=1,
        max_size=5,
    )
)
def test_runnable_jobs_equal_the_jobs_allowed_in_a_trace(groups: list[tuple[int, int, str | None]]) -> None:
    spec = ClusterSpec(name="c", nodes=tuple(NodeGroup(count=c, gpus=g, vc=vc) for c, g, vc in groups))
    state = ClusterState.from_spec(spec, OrderedQueue(Order(by="area")))
    asks = [(vc, gpus) for vc in ("", "a", "z") for gpus in range(1, spec.num_gpus + 2)]
    trace = Trace.from_columns(
        name="asks",
        submit_s=[0] * len(asks),
        duration_s=[1] * len(asks),
        num_gpus=[gpus for _, gpus in asks],
        vc=[vc for vc, _ in asks],
    )
    assert runnable_mask(trace, spec).mask.tolist() == [state.can_ever_run(vc, gpus) for vc, gpus in asks]


@settings(max_examples=200, deadline=None)
@given(BUSY, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_jobs_that_fit_are_listed_in_queue_order(shape: list[tuple[int, int, bool]], jobs: list[int]) -> None:
    state, nodes = drawn(shape)
    sizes = {add(state, gpus): gpus for gpus in jobs}
    expected = [seq for seq in state.waiting(0) if consolidate(nodes, sizes[seq]) is not None]
    assert fitting_jobs(state, 0) == expected
    assert has_fitting(state, 0) == bool(expected)


def test_nothing_fits_from_an_empty_queue() -> None:
    state = cluster((2, 1))
    assert placement.first_fitting(state.arrays, 0, 0) == -1
    assert fitting_jobs(state, 0) == []
    assert not has_fitting(state, 0)


@pytest.mark.parametrize("node", [0, 1])
def test_job_may_request_a_node(node: int) -> None:
    state = cluster((4, 1), (4, 2))
    seq = add(state, 2)
    assert start_action(state, 0, seq, node).gpus == ((1, 2) if node == 0 else (6, 7))
