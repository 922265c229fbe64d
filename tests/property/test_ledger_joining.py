"""A cluster whose nodes join one by one equals a cluster that had them from the start."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue

DEMANDS = [
    Demand(gpus=1),
    Demand(gpus=2, gpu_types=("a100",)),
    Demand(gpus=1, gpu_memory_mib=20_000),
    Demand(gpus=1, cpu_milli=9_000),
    Demand(gpus=2, memory_mib=3_000),
]
NODES = st.lists(
    st.builds(
        NodeSpec,
        name=st.just(""),
        gpus=st.integers(0, 4),
        gpu_type=st.sampled_from(["generic", "a100", "v100"]),
        cpus=st.sampled_from([0, 8, 64]),
        memory_mib=st.sampled_from([0, 2_000, 500_000]),
        vc=st.sampled_from([None, "a", "b"]),
        gpu_memory_mib=st.sampled_from([0, 16_000, 40_000]),
    ),
    min_size=1,
    max_size=8,
)
REFITS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([0, 16]), st.sampled_from(["generic", "a100", "h100"])),
    max_size=3,
)


def empty() -> ClusterState:
    """A cluster without nodes that knows some requests."""
    state = ClusterState.empty(OrderedQueue(Order()))
    state.reserve_demands(DEMANDS)
    return state


@settings(deadline=None)
@given(NODES, REFITS)
def test_nodes_that_join_one_by_one_equal_nodes_from_the_start(
    drawn: list[NodeSpec], refits: list[tuple[int, int, str]]
) -> None:
    named = [msgspec.structs.replace(node, name=f"n{n}") for n, node in enumerate(drawn)]
    joined = empty()
    for node in named:
        joined.add_node(node)
        for n, cpus, kind in refits:
            if n == len(joined.nodes) - 1:
                joined.refit_node(n, cpus=cpus, memory_mib=1_000, gpu_type=kind)
    at_once = empty()
    at_once.kind_names[:] = joined.kind_names
    at_once.add_nodes(joined.nodes)
    assert joined.nodes == at_once.nodes
    assert joined.node_names == at_once.node_names
    assert joined.partition_names == at_once.partition_names
    for name in ("node", "gpu", "demand"):
        ours, theirs = getattr(joined.arrays, name), getattr(at_once.arrays, name)
        for field in ours.dtype.names:
            assert np.array_equal(ours[field], theirs[field]), (name, field)
    for vc in ("", "a", "b"):
        for demand in DEMANDS:
            assert joined.can_ever_run(vc, demand) == at_once.can_ever_run(vc, demand)
