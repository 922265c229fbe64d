"""Number of nodes that the waiting jobs would fill, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster import kernels
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.power_down.need import NodeNeed, node_sets, nodes_filled
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine

EIGHT = NodeSpec(name="n", gpus=8, gpu_type="V100", cpus=48, memory_mib=64_000)


@pytest.mark.parametrize(
    ("demand", "nodes"),
    [
        (Demand(gpus=1), 1 / 8),
        (Demand(gpus=3), 1 / 2),
        (Demand(gpus=5), 1.0),
        (Demand(gpus=8), 1.0),
        (Demand(gpus=9), 2.0),
        (Demand(gpus=32), 4.0),
        (Demand(gpus=1, gpu_types=("A100",)), 0.0),
        (Demand(gpus=8, cpu_milli=96_000), 2.0),
        (Demand(gpus=1, share_milli=300), 1 / 24),
        (Demand(gpus=1, share_milli=300, memory_mib=16_000), 1 / 4),
        (Demand(gpus=0, cpu_milli=4_000), 1 / 12),
        (Demand(gpus=0, cpu_milli=60_000), 0.0),
    ],
)
def test_nodes_filled_by_one_job(demand: Demand, nodes: float) -> None:
    assert nodes_filled(demand, EIGHT) == pytest.approx(nodes)


SPEC = ClusterSpec(
    name="mixed",
    nodes=(
        NodeGroup(count=4, gpus=8, gpu_type="V100", vc="a"),
        NodeGroup(count=3, gpus=2, gpu_type="V100", vc="a"),
        NodeGroup(count=2, gpus=8, gpu_type="V100"),
        NodeGroup(count=1, gpus=8, gpu_type="A100"),
    ),
)
"""Sets in this order: nodes of 8 GPUs of VC a, of 2 GPUs of VC a, shared V100, shared A100."""


def needed(jobs: list[tuple[float, str, str]], busy: tuple[int, int, int, int] = (0, 0, 0, 0)) -> list[int]:
    """Jobs as (GPUs, VC, type), all waiting."""
    trace = Trace.from_columns(
        name="hand",
        submit_s=[0.0] * len(jobs),
        duration_s=[10.0] * len(jobs),
        num_gpus=[job[0] for job in jobs],
        vc=[job[1] for job in jobs],
        gpu_type=[job[2] for job in jobs],
    )
    engine = Engine(trace, SPEC, order=Order(), oracle=True)
    assert engine.advance() == bool(jobs)  # all are submitted, none is decided
    need = NodeNeed(node_sets(engine.state))
    return need.waiting_nodes(engine.state.arrays, engine.state.demands, np.array(busy)).tolist()


def test_nodes_of_preferred_types_are_counted_first() -> None:
    types = [("T4", 2), ("H100", 8), ("A100", 4), ("H100", 4)]
    nodes = [NodeSpec(name=f"n{k}", gpus=gpus, gpu_type=kind) for k, (kind, gpus) in enumerate(types)]
    state = ClusterState(nodes, OrderedQueue(Order()))
    need = NodeNeed(node_sets(state))
    for preferred, gpus, expected in (((), 2, 0), (("H100",), 2, 3), (("H100",), 5, 1), (("A100",), 1, 2)):
        demand = Demand(gpus=gpus, preferred_types=preferred)
        seq = state.add_job(demand=demand, submit_s=0.0, predicted_s=9.0, spread=1.0)
        counts = need.waiting_nodes(state.arrays, state.demands, np.zeros(4, np.int64)).tolist()
        assert [k for k, count in enumerate(counts) if count] == [expected]
        state.remove_waiting(seq)


def test_only_jobs_that_have_run_count_as_paused() -> None:
    state = ClusterState([NodeSpec(name=f"n{number}", gpus=4) for number in range(5)], OrderedQueue(Order()))
    for job, gpus in enumerate((4, 8, 4, 1)):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=100.0, spread=1.0)
        if job < 3:
            kernels.defer(state.arrays, state.slot_of(job))
        state.arrays.job.attained_gpu_s[state.slot_of(job)] = 0.0 if job == 0 else 60.0
    need = NodeNeed(node_sets(state))
    counts = np.zeros(1, np.int64)
    assert need.paused_nodes(state.arrays, state.demands, counts).tolist() == [3], "jobs 1 and 2"
    assert need.paused_nodes(state.arrays, state.demands, counts + 3).tolist() == [2], "of idle nodes"
    assert need.waiting_nodes(state.arrays, state.demands, counts).tolist() == [1], "job 3"


def test_sets_are_equal_nodes() -> None:
    trace = Trace.from_columns(name="one", submit_s=[0.0], duration_s=[1.0], num_gpus=[1.0])
    sets = node_sets(Engine(trace, SPEC, oracle=True).state)
    assert [one.nodes.tolist() for one in sets] == [[0, 1, 2, 3], [4, 5, 6], [7, 8], [9]]


@pytest.mark.parametrize(
    ("jobs", "busy", "nodes"),
    [
        ([], (0, 0, 0, 0), [0, 0, 0, 0]),
        ([(1.0, "a", "")], (0, 0, 0, 0), [0, 1, 0, 0]),  # the smallest nodes that hold it
        ([(1.0, "", "")], (0, 0, 0, 0), [0, 0, 1, 0]),  # no VC: only shared nodes
        ([(1.0, "", "A100")], (0, 0, 0, 0), [0, 0, 0, 1]),
        (
            [(4.0, "a", "")] * 2,
            (0, 0, 0, 0),
            [1, 0, 0, 0],
        ),  # one node of 8 GPUs holds both jobs
        ([(5.0, "a", "")] * 2, (0, 0, 0, 0), [2, 0, 0, 0]),
        ([(5.0, "a", "")] * 2, (3, 0, 0, 0), [1, 0, 1, 0]),  # one next to the busy nodes, one elsewhere
        ([(16.0, "a", "")], (0, 0, 0, 0), [2, 0, 0, 0]),  # a gang: largest nodes first
        ([(1.0, "a", "")] * 7, (0, 0, 0, 0), [1, 3, 0, 0]),  # six in pairs, the seventh on a third node
        ([(8.0, "a", "")] * 99, (4, 3, 2, 1), [0, 0, 0, 0]),  # no more than exist
        ([(8.0, "a", "")] * 99, (0, 0, 0, 0), [4, 0, 2, 1]),
    ],
)
def test_sets_where_waiting_jobs_are_counted(
    jobs: list[tuple[float, str, str]], busy: tuple[int, int, int, int], nodes: list[int]
) -> None:
    assert needed(jobs, busy) == nodes
