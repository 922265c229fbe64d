"""Names of GPU types: in requests of jobs, and in drivers and cluster files."""

from __future__ import annotations

import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.models.gpu_types import asked_type, in_common, stands_for
from rlsched.workload.load import runnable_mask
from rlsched.workload.trace import Trace


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("h100", "NVIDIA H100 NVL"),
        ("h100-80gb", "NVIDIA H100 80GB HBM3"),
        ("nvidia_a100_80gb", "NVIDIA A100-SXM4-80GB"),
        ("A100", "NVIDIA A100-PCIE-40GB"),
        ("V100", "Tesla V100-SXM2-32GB"),
        ("rtx6000", "Quadro RTX 6000"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("l40s", "NVIDIA L40S"),
        ("G2", "G2"),
        ("A100-40GB/3g.20gb", "A100-40GB/3g.20gb"),
        ("H100-80GB/1g.10gb", "NVIDIA H100 80GB HBM3/1g.10gb"),
        ("h100/1g.10gb", "NVIDIA H100 80GB HBM3/1g.10gb"),
        ("A40+T4", "A40+T4"),
    ],
)
def test_request_matches_these_types(asked: str, name: str) -> None:
    assert stands_for(asked, name)
    assert Demand(gpus=1, gpu_types=("nothing", asked)).accepts(name)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("A10", "NVIDIA A100-SXM4-80GB"),
        ("A100", "NVIDIA A10"),
        ("A40", "NVIDIA RTX A6000"),
        ("H100", "NVIDIA GH200 480GB"),
        ("H200", "NVIDIA GH200 480GB"),
        ("RTX6000", "NVIDIA RTX 6000 Ada Generation"),
        ("A100-80GB", "NVIDIA A100-PCIE-40GB"),
        ("V100", "V100M32"),
        ("A100", "A100-40GB/3g.20gb"),
        ("A100-40GB/3g.20gb", "A100-40GB"),
        ("A100/3g.20gb", "A100-40GB/2g.10gb"),
        ("A100/1g.10gb", "NVIDIA H100 80GB HBM3/1g.10gb"),
        ("1g.10gb", "H100-80GB/1g.10gb"),
        ("/1g.10gb", "H100-80GB/1g.10gb"),
        ("A40", "A40+T4"),
        ("nvidia", "NVIDIA A40"),
        ("", "NVIDIA A40"),
        ("80GB H100", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_request_matches_no_other_types(asked: str, name: str) -> None:
    assert not stands_for(asked, name)
    assert not Demand(gpus=1, gpu_types=(asked,)).accepts(name)


@pytest.mark.parametrize(
    ("types", "others", "common"),
    [
        (["A100"], ["h100", "a100-80gb"], True),
        (["H100-80GB"], ["H100"], True),
        (["A100"], ["H100"], False),
        (["A100"], ["A100/1g.10gb"], False),
        ([], ["H100"], True),
        (["H100"], [], True),
    ],
)
def test_lists_with_a_type_in_common(types: list[str], others: list[str], common: bool) -> None:
    assert in_common(types, others) == in_common(others, types) == common


def test_type_of_the_table_has_its_spelling() -> None:
    assert [asked_type(one) for one in (" h100 ", "nvidia_a100", "rtx-6000", "h100-80gb", "G2")] == [
        "H100", "A100", "RTX6000", "h100-80gb", "G2",
    ]  # fmt: skip


def test_trace_may_name_types_as_jobs_do() -> None:
    spec = ClusterSpec(name="x", nodes=(NodeGroup(count=1, gpus=4, gpu_type="NVIDIA H100 80GB HBM3"),))
    asked = ["H100", "h100-80gb", "A100|H100", "A100", ""]
    trace = Trace.from_columns(
        name="x", submit_s=[0.0] * 5, duration_s=[1.0] * 5, num_gpus=[1.0] * 5, gpu_type=asked
    )
    found = runnable_mask(trace, spec)
    assert found.mask.tolist() == [True, True, True, False, True]
    assert found.reasons[3] == "asks for GPU type A100, and there are NVIDIA H100 80GB HBM3 only"
