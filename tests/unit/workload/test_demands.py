"""Requests of jobs other than whole GPUs: types, shares, cores, memory, and no GPU; solved by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec, Placement
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.errors import AllocationError
from rlsched.workload.load import NO_CPU, NO_GPU, nodes_for_load, offered_load, runnable_mask
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable

NAN = math.nan


def trace_of(jobs: list[tuple[float, ...]], **columns: Any) -> Trace:
    """Jobs as (submit, duration, GPUs), and further columns by attribute."""
    submit, duration, gpus = ([job[k] for job in jobs] for k in range(3))
    return Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus, **columns)


def play(
    trace: Trace, spec: ClusterSpec, name: str = "fifo-backfill", placement: Placement = "consolidate"
) -> JobTable:
    """The compiled loop, checked against the interface."""
    policy, spec = Policy(name), msgspec.structs.replace(spec, placement=placement)
    predictions = PredictedTimes(trace.duration_s, np.ones(len(trace)))
    tables = []
    for compiled in (True, False):
        engine = Engine(trace, spec, order=policy.rule.order, predictions=predictions)
        tables.append(engine.run_rule(policy.rule) if compiled else engine.run(RuleScheduler(policy)))
    np.testing.assert_array_equal(tables[0].start_s, tables[1].start_s)
    assert tables[0].gpus == tables[1].gpus
    return tables[0]


def spec_of(*groups: tuple[int, int, str, int, int]) -> ClusterSpec:
    """Groups of (count, gpus, type, cores, MiB)."""
    return ClusterSpec(
        name="c",
        nodes=tuple(
            NodeGroup(count=count, gpus=gpus, gpu_type=kind, cpus=cpus, memory_mib=mib)
            for count, gpus, kind, cpus, mib in groups
        ),
    )


def state_of(spec: ClusterSpec) -> ClusterState:
    return ClusterState.from_spec(spec, OrderedQueue(Order(by="area")))


class TestTypes:
    SPEC = spec_of((1, 2, "T4", 0, 0), (1, 2, "V100", 0, 0))

    def test_job_waits_for_its_type_and_others_pass_it(self) -> None:
        trace = trace_of(
            [(0, 10, 2), (0, 5, 1), (1, 5, 1), (1, 5, 1)], gpu_type=["V100", "V100", "T4|V100", "T4"]
        )
        table = play(trace, self.SPEC)
        assert table.start_s.tolist() == [0, 10, 1, 1]
        assert table.gpus[:] == [(2, 3), (2,), (0,), (1,)]

    def test_blocking_rule_waits_for_the_type(self) -> None:
        trace = trace_of([(0, 10, 2), (0, 5, 1), (1, 5, 1)], gpu_type=["V100", "V100", "T4"])
        assert play(trace, self.SPEC, "fifo").start_s.tolist() == [0, 10, 10]

    def test_job_starts_on_the_type_that_it_prefers_or_at_once_on_another(self) -> None:
        prefer = ["V100", "V100", "T4|V100", "any", ""]
        trace = trace_of(
            [(0, 10, 1), (1, 5, 2), (2, 5, 1), (3, 1, 1), (9, 1, 1)],
            gpu_type=["any", "", "V100", "", ""],
            extra={"prefer": prefer},
        )
        table = play(trace, self.SPEC)
        assert table.start_s.tolist() == [0, 1, 2, 6, 9]
        assert table.gpus[:] == [(2,), (0, 1), (3,), (0,), (3,)]

    def test_missing_type_is_rejected_by_name(self) -> None:
        trace = trace_of([(0, 5, 1), (0, 5, 4)], gpu_type=["A100", "T4"])
        runnable = runnable_mask(trace, self.SPEC)
        assert runnable.reasons.tolist() == [
            "asks for GPU type A100, and there are T4, V100 only",
            "no nodes of the cluster have all that it asks for: 4 GPUs, T4",
        ]

    def test_gang_on_nodes_of_one_type(self) -> None:
        spec = spec_of((2, 2, "T4", 0, 0), (2, 2, "V100", 0, 0))
        table = play(trace_of([(0, 5, 3), (0, 5, 4)], gpu_type=["V100", "T4"]), spec)
        assert table.gpus[:] == [(4, 5, 6), (0, 1, 2, 3)]

    def test_all_types_of_the_cluster_equal_any_type(self) -> None:
        state = state_of(self.SPEC)
        both, one = (
            state.demand_number(Demand.from_request(1, gpu_type=kind)) for kind in ("V100|T4", "V100")
        )
        assert state.arrays.demand.plain[[both, one]].tolist() == [1, 0]
        state.add_node(NodeSpec(name="new", gpus=1, gpu_type="A100"))
        assert state.arrays.demand.plain[[both, one]].tolist() == [0, 0]


class TestShares:
    def test_shares_fill_one_gpu_before_the_next(self) -> None:
        trace = trace_of([(0, 10, 0.5), (0, 10, 0.3), (0, 10, 0.3), (0, 10, 0.2), (1, 10, 1)])
        table = play(trace, spec_of((1, 3, "T4", 0, 0)))
        assert table.gpus[:] == [(0,), (0,), (1,), (0,), (2,)]
        assert table.start_s.tolist() == [0, 0, 0, 0, 1]

    def test_share_waits_until_one_gpu_has_room(self) -> None:
        trace = trace_of([(0, 10, 0.6), (0, 20, 0.6), (1, 5, 0.7), (1, 5, 0.4)])
        table = play(trace, spec_of((1, 2, "T4", 0, 0)))
        assert table.start_s.tolist() == [0, 0, 10, 1]
        assert table.gpus[2] == (0,)

    def test_whole_gpu_must_have_no_shares(self) -> None:
        table = play(trace_of([(0, 10, 0.1), (1, 5, 1)]), spec_of((1, 1, "T4", 0, 0)))
        assert table.start_s.tolist() == [0, 10]

    def test_gpu_takes_at_most_eight_jobs(self) -> None:
        table = play(trace_of([(0, 10, 0.05)] * 9), spec_of((1, 1, "T4", 0, 0)))
        assert table.start_s.tolist() == [0] * 8 + [10]

    def test_thousandths_are_exact(self) -> None:
        assert Demand.from_request(0.3).share_milli == 300
        assert Demand.from_request(0.0001).share_milli == 1
        assert Demand.from_request(1.0).share_milli == 1000
        with pytest.raises(AllocationError, match=r"whole GPUs or a share of one, got 1\.5"):
            Demand.from_request(1.5)

    def test_work_and_load_count_the_share(self) -> None:
        trace = trace_of([(0, 100, 0.5), (100, 100, 0.25)])
        assert offered_load(trace, spec_of((1, 1, "T4", 0, 0))) == pytest.approx(0.75)


class TestCoresAndMemory:
    def test_cores_can_be_short(self) -> None:
        trace = trace_of([(0, 10, 1), (0, 10, 1), (1, 5, 1)], num_cpus=[6, 4, 2])
        table = play(trace, spec_of((1, 4, "T4", 8, 0)))
        assert table.start_s.tolist() == [0, 10, 1]

    def test_memory_can_be_short(self) -> None:
        trace = trace_of([(0, 10, 1), (0, 10, 1)], extra={"memory_mib": [700, 400]})
        assert play(trace, spec_of((1, 4, "T4", 0, 1000))).start_s.tolist() == [0, 10]
        assert play(trace, spec_of((1, 4, "T4", 0, 0))).start_s.tolist() == [0, 0], "unknown: not counted"

    def test_gang_takes_its_cores_with_its_gpus(self) -> None:
        """6 GPUs with 2 cores each: 4 on one node, 2 on the other, which has 4 cores left for another."""
        trace = trace_of([(0, 10, 6), (0, 10, 1), (0, 10, 1)], num_cpus=[12, 4, 1])
        table = play(trace, spec_of((2, 4, "T4", 8, 0)))
        assert table.start_s.tolist() == [0, 0, 10]
        assert table.gpus[0] == (0, 1, 2, 3, 4, 5)

    def test_fair_shares_are_answered_from_counts(self) -> None:
        """As long as no job takes more cores per GPU than nodes have, cores are never short."""
        state = state_of(spec_of((2, 4, "T4", 8, 0)))
        fair = state.demand_number(Demand.from_request(1, num_cpus=2))
        assert state.arrays.demand.plain[fair]
        state.demand_number(Demand.from_request(1, num_cpus=3))
        assert not state.arrays.demand.plain[fair], "one greedy class, and all have to be checked"

    def test_cores_are_returned(self) -> None:
        state = state_of(spec_of((1, 4, "T4", 8, 100)))
        seq = state.add_job(
            demand=Demand.from_request(2, num_cpus=7, memory_mib=50),
            submit_s=0.0,
            predicted_s=1.0,
            spread=1.0,
        )
        state.start(seq, [0, 1], 0.0)
        assert state.arrays.node.cpu_free_milli.tolist() == [1000]
        assert state.arrays.node.memory_free_mib.tolist() == [50]
        state.release(seq, 1.0)
        assert state.arrays.node.cpu_free_milli.tolist() == [8000]
        assert state.arrays.node.memory_free_mib.tolist() == [100]

    def test_more_than_a_node_has_is_rejected_by_name(self) -> None:
        trace = trace_of([(0, 5, 1), (0, 5, 1)], num_cpus=[9, NAN], extra={"memory_mib": [NAN, 2000]})
        reasons = runnable_mask(trace, spec_of((2, 4, "T4", 8, 1000))).reasons.tolist()
        assert reasons == [
            "no nodes of the cluster have all that it asks for: 1 GPUs, 9 cores",
            "no nodes of the cluster have all that it asks for: 1 GPUs, 2000 MiB",
        ]


class TestNoGpus:
    def test_cpu_jobs_prefer_nodes_without_gpus(self) -> None:
        trace = trace_of([(0, 10, 0), (0, 10, 0), (1, 5, 0), (1, 5, 1)], num_cpus=[4, 4, 8, 1])
        table = play(trace, spec_of((1, 1, "T4", 8, 0), (1, 0, "none", 8, 0)))
        assert table.start_s.tolist() == [0, 0, 1, 6]
        assert table.gpus[:] == [(), (), (), (0,)]

    def test_without_known_cores_they_are_rejected(self) -> None:
        trace = trace_of([(0, 5, 0), (0, 5, 0), (0, 5, 1)], num_cpus=[NAN, 2, NAN])
        reasons = runnable_mask(trace, spec_of((1, 1, "T4", 0, 0))).reasons.tolist()
        assert reasons == [NO_GPU, NO_CPU, ""]

    def test_nodes_without_gpus_are_kept_when_a_cluster_is_scaled(self) -> None:
        trace = trace_of([(0, 1000, 1), (500, 1000, 0), (1000, 1000, 1)], num_cpus=[1, 4, 1])
        spec = nodes_for_load(trace, spec_of((4, 1, "T4", 8, 0), (4, 0, "none", 8, 0)), 1.0)
        assert [(group.count, group.gpus) for group in spec.nodes] == [(2, 1), (2, 0)]


class TestTheLedgerRefuses:
    def state(self) -> ClusterState:
        return state_of(spec_of((1, 2, "T4", 4, 0), (1, 2, "V100", 4, 0), (1, 0, "none", 2, 0)))

    def add(self, state: ClusterState, demand: Demand) -> int:
        return state.add_job(demand=demand, submit_s=0.0, predicted_s=1.0, spread=1.0)

    def test_another_type(self) -> None:
        state = self.state()
        seq = self.add(state, Demand.from_request(1, gpu_type="V100"))
        with pytest.raises(AllocationError, match="node n0 has too few resources for the job"):
            state.start(seq, [0], 0.0)
        state.start(seq, [2], 0.0)

    def test_unavailable_cores(self) -> None:
        state = self.state()
        state.start(self.add(state, Demand.from_request(1, num_cpus=3)), [0], 0.0)
        with pytest.raises(AllocationError, match="n0 has too few resources"):
            state.start(self.add(state, Demand.from_request(1, num_cpus=2)), [1], 0.0)

    def test_another_share_or_a_full_gpu(self) -> None:
        state = self.state()
        half = self.add(state, Demand.from_request(0.5))
        with pytest.raises(
            AllocationError, match="expected 500 thousandths of each GPU, as requested, got 1000"
        ):
            state.start(half, [0], 0.0, share_milli=1000)
        state.start(half, [0], 0.0)
        with pytest.raises(AllocationError, match="GPU 0 on node n0 is taken"):
            state.start(self.add(state, Demand.from_request(0.6)), [0], 0.0)

    def test_job_without_gpus_needs_a_node(self) -> None:
        state = self.state()
        seq = self.add(state, Demand.from_request(0, num_cpus=2))
        with pytest.raises(AllocationError, match="there is no node number -1"):
            state.start(seq, [], 0.0)
        state.start(seq, [], 0.0, node=2)
        assert state.jobs_on(2) == [seq]
        with pytest.raises(AllocationError, match="n2 has too few resources"):
            state.start(self.add(state, Demand.from_request(0, num_cpus=1)), [], 0.0, node=2)
