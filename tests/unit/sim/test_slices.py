"""Runs on MIG slices: speeds and ends by hand, assignment of slices, clocks, sharing and energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.errors import AllocationError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.models.mig import MEASURED_A100, PROFILES, slice_speed
from rlsched.workload.load import runnable_mask
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

CATALOGUE = load_catalogue()
FIFO = Policy("fifo-backfill")
THREES = "A100-40GB/3g.20gb"
ONES = "A100-40GB/1g.5gb"
SMALL, LARGE = "gnn-b64", "bert-base-squad-b8"
"""Measured on every slice; not measured, and too large for 1g."""


def cluster(*nodes: NodeGroup) -> ClusterSpec:
    return ClusterSpec(name="c", nodes=nodes)


def threes(**more: int) -> NodeGroup:
    return NodeGroup.sliced(("3g.20gb",) * 2, gpus=1, gpu_type="A100-40GB", **more)


def ones(**more: int) -> NodeGroup:
    return NodeGroup.sliced(("1g.5gb",) * 7, gpus=1, gpu_type="A100-40GB", **more)


def jobs(
    workloads: Sequence[str], *, gpus: Sequence[float] = (), types: Sequence[str] = (), after: str = ""
) -> Trace:
    count = len(workloads)
    return Trace.from_columns(
        name="t",
        submit_s=np.zeros(count),
        duration_s=np.full(count, 1000.0),
        num_gpus=list(gpus) or [1.0] * count,
        gpu_type=list(types) or [""] * count,
        extra={"workload": list(workloads)} | ({"depends_on": [""] * (count - 1) + [after]} if after else {}),
    )


def run(trace: Trace, spec: ClusterSpec, policy: Policy = FIFO, *, models: bool = True) -> JobTable:
    used, rule = Models(noise=False) if models else None, policy.rule
    return Engine(trace, spec, order=rule.order, oracle=True, models=used).run_rule(rule)


def kinds_of(table: JobTable) -> list[str]:
    """GPU type of each job, "" for none."""
    nodes = table.spec.expand()
    return [nodes[table.gpu_node[gpus[0]]].gpu_type if gpus else "" for gpus in table.gpus]


def test_two_jobs_on_two_slices_of_one_gpu() -> None:
    """Each at its own speed, measured or by the formula, regardless of the job on the other."""
    table = run(jobs([SMALL, LARGE]), cluster(threes()))
    assert table.start_s.tolist() == [0.0, 0.0]
    util_frac = CATALOGUE.cells[LARGE, "A100", "util_frac"].value
    assert MEASURED_A100["gnn", 64][2] == 0.7748
    wanted = [1000 / 0.7748, 1000 / slice_speed(util_frac, 3)]
    np.testing.assert_allclose(table.end_s, wanted, rtol=1e-12)


def test_run_times_are_of_the_whole_gpu() -> None:
    """Not of a slice, even where most GPUs are slices; but if a job requests a slice, of that slice."""
    whole = NodeGroup(gpus=1, gpu_type="A100-40GB")
    old = NodeGroup(count=3, gpus=1, gpu_type="V100")
    asked = ["A100-40GB", "V100", "", THREES]
    table = run(jobs([SMALL] * 4, types=asked), cluster(threes(), whole, old))
    row = CATALOGUE.number(SMALL)
    on = dict(
        zip(("A100-40GB", "V100", THREES), CATALOGUE.traits(["A100", "V100", THREES]).speed[row], strict=True)
    )
    assert kinds_of(table)[:2] == asked[:2]
    assert table.end_s[[0, 1, 3]].tolist() == [1000.0, 1000.0, 1000.0]
    assert table.end_s[2] == pytest.approx(1000 * on["V100"] / on[kinds_of(table)[2]], rel=1e-12)


def test_whole_gpu_and_slice_are_requested_by_name() -> None:
    spec = cluster(threes(), NodeGroup(gpus=2, gpu_type="A100-40GB"))
    table = run(jobs([SMALL] * 4, types=["A100-40GB", THREES, THREES, "A100-40GB"]), spec)
    assert kinds_of(table) == ["A100-40GB", THREES, THREES, "A100-40GB"]
    assert (table.start_s == 0.0).all()


@pytest.mark.parametrize("models", [False, True])
def test_gangs_and_shares_get_no_slices(models: bool) -> None:
    trace = jobs([SMALL] * 4, gpus=[2, 1, 0.5, 2], types=["", "", "", THREES])
    table = run(trace, cluster(threes()), models=models)
    assert table.rejected.tolist() == [True, False, True, True]
    assert table.reject_reason[[0, 2, 3]].tolist() == [
        "asks for a gang of 2 GPUs, and there are only MIG slices, which only jobs of one GPU can use",
        "asks for a share of a GPU, and there are only MIG slices, which only jobs of one GPU can use",
        "asks for a gang of 2 GPUs, and there are only MIG slices, which only jobs of one GPU can use",
    ]
    both = cluster(ones(count=2), NodeGroup(gpus=2, gpu_type="A100-40GB"))
    table = run(jobs([SMALL] * 6, gpus=[2, 0.5, 2, 1, 1, 1]), both, models=models)
    kinds = kinds_of(table)
    assert not table.rejected.any()
    assert [kinds[k] for k in (0, 1, 2)] == ["A100-40GB"] * 3
    assert table.start_s[2] >= 1000.0
    assert ONES in kinds[3:]


def test_ledger_gives_no_slice_to_a_gang() -> None:
    spec = cluster(threes(), NodeGroup(gpus=2, gpu_type="V100"))
    state = ClusterState.from_spec(spec, OrderedQueue(Order()))
    gang = state.add_job(num_gpus=2, submit_s=0.0, predicted_s=1.0, spread=0.0)
    with pytest.raises(AllocationError, match="node n0 has too few resources for the job"):
        state.start(gang, [0, 1], 0.0)
    state.start(gang, [2, 3], 0.0)
    assert not state.can_ever_run("", Demand(gpus=3))
    assert state.can_ever_run("", Demand(gpus=1, gpu_types=(THREES,)))


def test_node_that_joins_with_slices_changes_the_meaning_of_any_type() -> None:
    state = ClusterState([NodeSpec(name="a", gpus=1, gpu_type="V100")], OrderedQueue(Order()))
    gang = state.add_job(num_gpus=2, submit_s=0.0, predicted_s=1.0, spread=0.0)
    state.add_node(NodeSpec(name="b", gpus=2, gpu_type=THREES, slices=2))
    with pytest.raises(AllocationError, match="node b has too few resources"):
        state.start(gang, [1, 2], 0.0)


class TestMemory:
    """bert-base-squad-b8 does not fit 1g.5gb; a job may use 90 % of a slice that it did not request."""

    def test_job_that_does_not_fit_waits_for_a_larger_slice(self) -> None:
        row = CATALOGUE.number(LARGE)
        memory_mib = CATALOGUE.traits(["A100"]).memory_mib[row, 0]
        assert memory_mib > PROFILES["A100-40GB"][0].memory_mib
        table = run(
            jobs([LARGE, LARGE, SMALL, SMALL]), cluster(ones(), NodeGroup(gpus=1, gpu_type="A100-40GB"))
        )
        assert kinds_of(table)[:2] == ["A100-40GB"] * 2
        assert table.start_s.tolist() == [0.0, 1000.0, 0.0, 0.0]
        assert kinds_of(table)[2:] == [ONES] * 2

    def test_job_too_large_for_all_has_a_reason(self) -> None:
        trace = jobs([LARGE, SMALL, SMALL], types=["", ONES, ""], after="0")
        table = run(trace, cluster(ones()))
        assert table.rejected.tolist() == [True, False, True]
        memory_mib = CATALOGUE.cells[LARGE, "A100", "memory_mib"].value
        assert table.reject_reason[0] == (
            f"its workload needs {memory_mib:,.0f} MiB of GPU memory, more than a job may use of {ONES}"
        )
        assert table.reject_reason[2] == "depends on job 0, which can never run"
        assert runnable_mask(trace, cluster(ones())).mask.all()

    def test_margin_applies_only_without_a_request(self) -> None:
        near, slice_mib = "resnet50-imagenet-b32", PROFILES["A100-40GB"][0].memory_mib
        assert 0.9 * slice_mib < CATALOGUE.cells[near, "A100", "memory_mib"].value <= slice_mib
        table = run(jobs([near, near], types=["", ONES]), cluster(ones()))
        assert table.rejected.tolist() == [True, False]

    def test_memory_of_the_trace_counts_in_place_of_the_workloads(self) -> None:
        trace = jobs([LARGE, SMALL])
        own_mib = np.array([1_000.0, 40_000.0])
        table = run(replace(trace, extra={**trace.extra, "gpu_need_mib": own_mib}), cluster(ones()))
        assert table.rejected.tolist() == [False, True]

    def test_without_models_memory_is_unknown(self) -> None:
        table = run(jobs([LARGE] * 7), cluster(ones()), models=False)
        assert table.end_s.tolist() == [1000.0] * 7


@pytest.mark.parametrize(
    "settings",
    [
        {"share": {}},
        {"share": {"min_speed": 0.1}, "cores": True},
        {"clock": {"rule": "fixed", "at": 0.6}},
        {"clock": {"rule": "slowdown", "slowdown": 0.5}},
        {"clock": {"rule": "weighed", "energy_weight": 1.0}},
        {"clock": {"rule": "lull", "slowdown": 0.5}},
    ],
)
def test_slices_are_not_shared_and_have_the_full_clock(settings: dict[str, Any]) -> None:
    table = run(jobs([SMALL] * 5), cluster(threes()), Policy("fifo-backfill", **settings))
    assert table.log is not None
    assert table.log.books is not None
    length_s = table.end_s - table.start_s
    np.testing.assert_allclose(length_s, 1000 / 0.7748, rtol=1e-12)
    np.testing.assert_allclose(table.log.books.clock_s, length_s, rtol=1e-12)
    np.testing.assert_allclose(table.log.books.share_s, length_s, rtol=1e-12)


def test_ledger_refuses_a_lower_clock_and_a_second_job() -> None:
    state = ClusterState.from_spec(cluster(threes()), OrderedQueue(Order()))
    state.use_models(CATALOGUE.arrays(state.kind_names))
    one, two = (state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=0.0) for _ in range(2))
    with pytest.raises(AllocationError, match=r"MIG slices, which share the clock of their GPU: .*got 0\.9"):
        state.start(one, [0], 0.0, sm_clock_frac=0.9)
    state.start(one, [0], 0.0)
    with pytest.raises(AllocationError, match="no MIG slices"):
        state.check_start(two, (0,), 1000, 1.0, -1, one, -1)


def test_energy_of_a_cut_gpu() -> None:
    """Seven slices 1g: each an eighth of the idle power, the last is the node's; A follows the work."""
    table = run(jobs([SMALL]), cluster(ones()))
    end_s, figures = float(table.end_s[0]), GPU_FIGURES["A100"]
    speed = MEASURED_A100["gnn", 64][0]
    assert end_s == pytest.approx(1000 / speed, rel=1e-12)
    dynamic_w = CATALOGUE.cells[SMALL, "A100", "dynamic_w"].value * speed
    idle_w = figures["idle_w"].value
    assert table.energy is not None
    assert dynamic_w < (figures["tdp_w"].value - idle_w) / 7
    assert table.energy.job_j[0] == pytest.approx(end_s * (idle_w / 8 + dynamic_w), rel=1e-12)
    node_w = 300 + 2 * 5
    assert table.energy.idle_j == pytest.approx(end_s * (node_w + idle_w * 7 / 8), rel=1e-12)
    assert table.energy.cluster_j == pytest.approx(end_s * (node_w + idle_w + dynamic_w), rel=1e-12)


def test_slices_change_nothing_elsewhere() -> None:
    """A job on a whole GPU runs the same with and without slices on other nodes."""
    whole = NodeGroup(gpus=2, gpu_type="A100-40GB")
    trace = jobs([LARGE, SMALL], types=["A100-40GB"] * 2)
    alone, beside = run(trace, cluster(whole)), run(trace, cluster(whole, ones()))
    np.testing.assert_array_equal(alone.end_s, beside.end_s)
    assert alone.energy is not None
    assert beside.energy is not None
    np.testing.assert_array_equal(alone.energy.job_j, beside.energy.job_j)
    assert not math.isnan(alone.end_s[0])
