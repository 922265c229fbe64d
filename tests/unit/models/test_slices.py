"""MIG slices as GPU types: names, layouts, power, and the traits of workloads on them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.models.catalogue import load_catalogue
from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.models.mig import MEASURED_A100, MEASURED_AS, PROFILES, layout_fault, slice_of, slice_speed
from rlsched.models.power import gpu_models
from rlsched.models.slice_name import is_slice, slice_name, whole_type

CATALOGUE = load_catalogue()
LAYOUTS = (("1g.5gb", 7, 7), ("2g.10gb", 3, 6), ("3g.20gb", 2, 8), ("4g.20gb", 1, 4), ("7g.40gb", 1, 8))
"""Profile of an A100-40GB, how many fit, and their memory slices together (NVIDIA's MIG guide)."""


def test_names_of_slices() -> None:
    assert slice_name("A100-40GB/3g.20gb") == ("A100-40GB", "3g.20gb")
    assert whole_type("A100-40GB/3g.20gb") == "A100-40GB"
    assert is_slice("NVIDIA H100 80GB HBM3/1g.10gb")
    for whole in ("A100-40GB", "V100", "G2", "A100/3g", "/1g.5gb", "A100-40GB/3g.20gb/x"):
        assert not is_slice(whole)
        assert whole_type(whole) == whole


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("A100", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("H100", "H100-80GB"),
        ("H200", "H200-141GB"),
    ],
)
def test_gpu_types_that_support_mig(name: str, known: str) -> None:
    smallest = PROFILES[known][0]
    assert slice_of(f"{name}/{smallest.name}") == (known, smallest)
    assert layout_fault(name, (smallest.name,) * 7) == ""


def test_invalid_layouts() -> None:
    assert layout_fault("V100", ("1g.5gb",)) == (
        "no slices are known for GPU type 'V100'; they are known for A100-40GB, A100-80GB, "
        "H100-80GB, H200-141GB"
    )
    assert layout_fault("A100", ("3g.40gb",)) == (
        "expected slices of A100-40GB (1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb), got '3g.40gb'"
    )
    assert layout_fault("A100", ("4g.20gb", "2g.10gb")) == (
        "expected slices of one size on a node, got 4g.20gb, 2g.10gb; "
        "give nodes of each size a [[nodes]] of their own"
    )
    for name, most, _ in LAYOUTS:
        assert layout_fault("A100", (name,) * most) == ""
        assert layout_fault("A100", (name,) * (most + 1)) == (
            f"{most + 1} slices {name} cannot be made on one GPU at once, {most} can"
        )


@pytest.mark.parametrize(("name", "most", "memory"), LAYOUTS)
def test_slices_divide_the_power_of_the_gpu(name: str, most: int, memory: int) -> None:
    """Idle power by memory slices, the limit above it by compute slices; together no more than the GPU."""
    whole, cut = gpu_models(["A100-40GB", f"A100-40GB/{name}"])
    for field in ("idle_w", "static_w"):
        assert most * cut[field] == pytest.approx(whole[field] * memory / 8, rel=1e-12)
    compute = most * int(name[0])
    room_w = whole.tdp_w - whole.static_w
    assert most * (cut.tdp_w - cut.static_w) == pytest.approx(room_w * compute / 7, rel=1e-12)
    assert most * cut.tdp_w <= whole.tdp_w + 1e-9
    assert (whole.sliced, cut.sliced) == (0, 1)
    assert cut.levels_frac.tolist() == [1.0] * 4
    assert whole.levels_frac[1] < 1.0
    assert cut.memory_mib < whole.memory_mib or name == "7g.40gb"
    assert cut.memory_mib == next(one.memory_mib for one in PROFILES["A100-40GB"] if one.name == name)
    assert whole.idle_w == GPU_FIGURES["A100"]["idle_w"].value


def test_measured_speeds_are_used_where_available() -> None:
    whole, cut = CATALOGUE.traits(["A100-40GB", "A100-40GB/3g.20gb"]).T
    for workload, row in MEASURED_AS.items():
        k = CATALOGUE.number(workload)
        assert cut.speed[k] / whole.speed[k] == pytest.approx(MEASURED_A100[row][2], rel=1e-12)


def test_traits_of_a_slice_follow_the_work_done() -> None:
    kinds = ["A100-40GB", *(f"A100-40GB/{name}" for name, _, _ in LAYOUTS)]
    whole, *cuts = CATALOGUE.traits(kinds).T
    k = CATALOGUE.number("bert-base-squad-b8")
    for (_, compute), cut in zip(((5, 1), (10, 2), (20, 3), (20, 4), (40, 7)), cuts, strict=True):
        speed = slice_speed(whole.util_frac[k], compute)
        assert cut.speed[k] == pytest.approx(whole.speed[k] * speed, rel=1e-12)
        assert cut.dynamic_w[k] == pytest.approx(whole.dynamic_w[k] * speed, rel=1e-12)
        assert cut.cores_each[k] == pytest.approx(whole.cores_each[k] * speed, rel=1e-12)
        assert cut.memory_mib[k] == whole.memory_mib[k]
        assert whole.util_frac[k] - 1e-12 <= cut.util_frac[k] <= 1.0
    np.testing.assert_array_equal(cuts[-1].speed, whole.speed)
    ones, sevens = cuts[0], cuts[-1]
    assert (ones.util_frac <= 1.0).all()
    assert (ones.speed < sevens.speed).all()


def test_assumed_demand_is_scaled_with_the_assumed_figures() -> None:
    """Where no speed was measured the utilisation is an assumption, and with it the speed on a slice."""
    for gpu_type in ("A100", "H100"):
        for name in {*CATALOGUE.names} - {*MEASURED_AS}:
            assert CATALOGUE.cells[name, gpu_type, "util_frac"].status == "assumed"
    name, speeds = "gpt2-b4", []
    for scale in (0.7, 1.0, 1.3):
        some = load_catalogue(assumed_scale=scale)
        whole, cut = some.traits(["A100", "A100/1g.5gb"])[some.number(name)]
        speeds.append(cut.speed / whole.speed)
        assert speeds[-1] == pytest.approx(slice_speed(whole.util_frac, 1), rel=1e-12)
    assert speeds[0] > speeds[1] > speeds[2]


def test_cells_that_follow_an_unmeasured_speed_are_assumed() -> None:
    def share(workload: str, kind: str, field: str) -> float:
        return CATALOGUE.measured_share([CATALOGUE.number(workload)], [kind], [field])

    assert share("gnn-b64", "A100-40GB/1g.5gb", "util_frac") == 1.0
    assert share("gnn-b64", "A100-80GB/1g.10gb", "util_frac") == 0.0
    fitted = "resnet50-imagenet-b64"
    assert CATALOGUE.cells[fitted, "A100", "speed"].status == "fitted"
    assert share(fitted, "A100-40GB", "speed") == 1.0
    assert share(fitted, "A100-40GB/1g.5gb", "speed") == 0.0
    assert math.isclose(
        share(fitted, "A100-40GB/1g.5gb", "memory_mib"), share(fitted, "A100-40GB", "memory_mib")
    )
