"""Offered load by hand, which jobs can ever run, and clusters scaled to a load or a size."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.errors import InputError
from rlsched.workload.load import (
    NO_GPU,
    holds,
    nodes_for_load,
    offered_load,
    runnable_mask,
    scaled_to_nodes,
)
from rlsched.workload.trace import Trace


def spec_of(*groups: tuple[int, int, str | None]) -> ClusterSpec:
    return ClusterSpec(
        name="c", nodes=tuple(NodeGroup(count=count, gpus=gpus, vc=vc) for count, gpus, vc in groups)
    )


def trace_of(gpus: list[float], *, duration_s: float = 100.0, vc: list[str] | None = None) -> Trace:
    jobs = len(gpus)
    return Trace.from_columns(
        name="t",
        submit_s=np.linspace(0, 1000, jobs),
        duration_s=np.full(jobs, duration_s),
        num_gpus=gpus,
        vc=vc or [""] * jobs,
    )


def test_load_by_hand_counts_only_what_can_run() -> None:
    trace = trace_of([1, 2, 8, 16, 0.5, 0, 1])
    spec = spec_of((1, 8, None))
    # (1 + 2 + 8 + 0.5 + 1) GPUs x 100 s over 8 GPUs x 1000 s; the gang of 16 and the CPU job cannot run.
    assert offered_load(trace, spec) == pytest.approx(1250 / 8000)
    runnable = runnable_mask(trace, spec)
    assert runnable.mask.tolist() == [True, True, True, False, True, False, True]
    too_large = "gang of 16 GPUs is larger than the cluster holds"
    assert runnable.counts == {too_large: 1, NO_GPU: 1}
    assert runnable.reasons[0] == ""


def test_load_of_a_single_instant_is_unknown() -> None:
    trace = Trace.from_columns(name="t", submit_s=[5, 5], duration_s=[1, 1], num_gpus=[1, 1])
    assert np.isnan(offered_load(trace, spec_of((1, 8, None))))


@pytest.mark.parametrize(
    ("sizes", "gpus", "fits"),
    [
        ({8: 2}, 8, True),
        ({8: 2}, 12, True),  # one whole node, and 4 on the other
        ({8: 2}, 17, False),
        ({8: 1, 4: 1}, 12, True),
        ({8: 1, 4: 1}, 5, True),
        ({8: 1, 4: 2}, 15, True),  # 8 + 4, and 3 on the second small node
        ({8: 1, 2: 3}, 11, True),  # 8 + 2, and 1 on another node of 2
        ({8: 1, 2: 1}, 11, False),
        ({4: 1}, 5, False),
        ({}, 1, False),
    ],
)
def test_capacity_of_a_partition(sizes: dict[int, int], gpus: int, fits: bool) -> None:
    from collections import Counter

    assert holds(Counter(sizes), gpus) is fits


def test_vcs_are_hard_partitions() -> None:
    spec = spec_of((2, 8, "red"), (1, 4, None))
    trace = trace_of([16, 17, 4, 8, 4, 5], vc=["red", "red", "blue", "blue", "", ""])
    assert runnable_mask(trace, spec).reasons.tolist() == [
        "",
        "gang of 17 GPUs is larger than VC 'red' holds",
        "",
        "gang of 8 GPUs is larger than VC 'blue' holds",
        "",
        "gang of 5 GPUs is larger than the cluster holds",
    ]


def test_gang_does_not_span_its_vc_and_the_shared_nodes() -> None:
    spec = spec_of((1, 8, "red"), (1, 8, None))
    assert runnable_mask(trace_of([16, 8], vc=["red", "red"]), spec).mask.tolist() == [False, True]


def test_vc_without_nodes_and_a_job_without_vc() -> None:
    reasons = runnable_mask(trace_of([1, 1], vc=["blue", ""]), spec_of((1, 8, "red"))).reasons
    assert reasons.tolist() == ["VC 'blue' has no nodes", "has no VC, and every node belongs to one"]


def test_nodes_without_gpus_hold_nothing() -> None:
    spec = spec_of((4, 0, "cpu"), (1, 8, "x"))
    assert not runnable_mask(trace_of([1, 1], vc=["cpu", "cpu"]), spec).mask.any()


def test_nodes_for_load_one_pool() -> None:
    trace, spec = trace_of([4] * 101, duration_s=200.0), spec_of((100, 8, None))
    # 101 x 4 x 200 GPU-seconds over 1000 s: 80.8 GPUs in demand, at load 0.9 that is 11.2 nodes of 8.
    scaled = nodes_for_load(trace, spec, 0.9)
    assert [group.count for group in scaled.nodes] == [11]
    assert offered_load(trace, scaled) == pytest.approx(80.8 / 88)
    assert nodes_for_load(trace, spec_of((1, 8, None)), 0.9).num_nodes == 11


def test_nodes_for_load_keeps_room_for_the_largest_gang_of_each_vc() -> None:
    trace = trace_of([32, 1, 1, 1], duration_s=1.0, vc=["red", "red", "blue", "blue"])
    scaled = nodes_for_load(trace, spec_of((16, 8, "red"), (16, 8, "blue")), 1.0)
    assert [(group.vc, group.count) for group in scaled.nodes] == [("red", 4), ("blue", 1)]
    assert runnable_mask(trace, scaled).mask.all()


def test_nodes_for_load_gives_each_vc_its_own_load() -> None:
    gpus, vc = [8.0] * 200, ["red", "red", "red", "blue"] * 50
    trace = trace_of(gpus, duration_s=50.0, vc=vc)
    scaled = nodes_for_load(trace, spec_of((50, 8, "red"), (50, 8, "blue")), 0.5)
    assert [(group.vc, group.count) for group in scaled.nodes] == [("red", 15), ("blue", 5)]
    assert offered_load(trace, scaled) == pytest.approx(0.5)


def test_nodes_for_load_counts_work_for_the_shared_nodes_where_the_vc_is_too_small() -> None:
    trace = trace_of([16.0] * 11, duration_s=1000.0, vc=["red"] * 11)
    scaled = nodes_for_load(trace, spec_of((1, 8, "red"), (10, 8, None)), 1.0)
    # 16 x 11 GPUs in demand, none of them for red's own node.
    assert [(group.vc, group.count) for group in scaled.nodes] == [("red", 1), (None, 22)]


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_nodes_for_load_refuses_invalid_loads(load: float) -> None:
    with pytest.raises(InputError, match="a load above 0"):
        nodes_for_load(trace_of([1, 1]), spec_of((1, 8, None)), load)


def test_nodes_for_load_needs_runnable_jobs() -> None:
    with pytest.raises(InputError, match="needs jobs that can run and are submitted at two or more"):
        nodes_for_load(trace_of([9, 0]), spec_of((1, 8, None)), 1.0)


def test_scaled_to_nodes() -> None:
    assert scaled_to_nodes(spec_of((64, 8, None)), 12).nodes[0].count == 12
    assert scaled_to_nodes(spec_of((2, 8, None)), 12).num_gpus == 96
    mixed = scaled_to_nodes(spec_of((30, 8, "a"), (10, 4, "b"), (10, 0, "b")), 10)
    got = [(group.vc, group.gpus, group.count) for group in mixed.nodes]
    assert got == [("a", 8, 6), ("b", 4, 2), ("b", 0, 2)]


def test_scaled_to_nodes_leaves_every_vc_a_node_with_gpus() -> None:
    tiny = scaled_to_nodes(spec_of((100, 8, "a"), (1, 8, "b"), (1, 8, None)), 3)
    assert sorted((group.vc or "", group.count) for group in tiny.nodes) == [("", 1), ("a", 1), ("b", 1)]
    with pytest.raises(InputError, match="at least 3 nodes"):
        scaled_to_nodes(spec_of((100, 8, "a"), (1, 8, "b"), (1, 8, None)), 2)


def test_philly_on_its_cluster(shared_data: object) -> None:
    from pathlib import Path

    folder = Path(str(shared_data)) / "traces"
    trace, spec = Trace.read(folder / "philly.csv.gz"), ClusterSpec.read(folder / "philly.cluster.toml")
    runnable = runnable_mask(trace, spec)
    assert sum(runnable.counts.values()) == 77
    assert all(reason.endswith("has no nodes") for reason in runnable.counts)
    for load in (0.85, 1.0):
        scaled = nodes_for_load(trace, spec, load)
        assert runnable_mask(trace, scaled).counts == runnable.counts
        assert load - 0.08 < offered_load(trace, scaled) < load + 0.05
