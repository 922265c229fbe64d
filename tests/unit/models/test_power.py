"""The table of GPU types, their alternative names, and the power of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.models.arrays import GPU_MODEL
from rlsched.models.clocks import MIN_CLOCK_FRAC
from rlsched.models.gpu_types import (
    ASSUMED,
    FITTED,
    GENERIC,
    GPU_FIGURES,
    MEASURED,
    canonical_kind,
    named_memory_mib,
)
from rlsched.models.power import NodePower, gpu_models


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("V100", "V100"),
        ("v100", "V100"),
        ("V100-32GB", "V100"),
        ("V100M16", "V100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("nvidia_v100_sxm2", "V100"),
        ("P100", "P100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla T4", "T4"),
        ("Tesla K80", "K80"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA RTX A6000", "A40"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA RTX 6000 Ada Generation", GENERIC),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("a100", "A100"),
        ("A800-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GH200 480GB", "H100"),
        ("NVIDIA H200", "H200"),
        ("A1000", GENERIC),
        ("T400", GENERIC),
        ("A4000", GENERIC),
        ("G2", GENERIC),
        ("A10", GENERIC),
        ("generic", GENERIC),
        ("", GENERIC),
    ],
)
def test_names_as_traces_and_drivers_write_them(name: str, kind: str) -> None:
    assert canonical_kind(name) == kind


def test_every_type_is_found_by_its_name() -> None:
    assert [canonical_kind(name) for name in GPU_FIGURES] == list(GPU_FIGURES)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("A100-SXM4-80GB", 80),
        ("V100M32", 32),
        ("a100_80gb", 80),
        ("V100 16 GB", None),
        ("V100", None),
        ("G2", None),
    ],
)
def test_memory_in_a_name(name: str, gib: int | None) -> None:
    assert named_memory_mib(name) == (None if gib is None else gib * 1024)


def test_models_follow_the_order_of_the_names_and_the_memory_in_them() -> None:
    gpu = gpu_models(["G2", "A100-SXM4-80GB", "A100-SXM4-40GB", "V100M32", "V100"])
    assert gpu.dtype == GPU_MODEL
    assert gpu["tdp_w"].tolist() == [300.0, 400.0, 400.0, 300.0, 300.0]
    assert gpu["memory_mib"].tolist() == [16160.0, 81920.0, 40536.0, 32768.0, 16160.0]
    assert len(gpu_models([])) == 0


def test_every_model_is_sound() -> None:
    gpu = gpu_models(tuple(GPU_FIGURES))
    for name in set(GPU_MODEL.names or ()) - {"sliced"}:
        assert np.all(gpu[name] > 0), name
    assert not gpu["sliced"].any()
    assert np.all(gpu["static_w"] < gpu["tdp_w"])
    assert np.all(gpu["idle_w"] < gpu["tdp_w"])
    assert np.all((gpu["knee_frac"] < 1) & (gpu["theta"] < 1))
    assert np.all(gpu["levels_frac"][:, 0] == 1.0)
    assert np.all(np.diff(gpu["levels_frac"]) < 0)
    assert np.all(gpu["levels_frac"] >= MIN_CLOCK_FRAC)


def test_every_figure_has_a_source() -> None:
    fields = set(GPU_MODEL.names or ()) - {"levels_frac", "sliced", "cap_w", "usual_speed"}
    for kind, figures in GPU_FIGURES.items():
        assert set(figures) == fields
        for figure in figures.values():
            assert figure.source
            assert figure.status in (MEASURED, FITTED, ASSUMED)
            assert kind != GENERIC or figure.status == ASSUMED
    for kind in ("V100", "P100", "RTX6000", "A40"):
        assert GPU_FIGURES[kind]["theta"].status == FITTED
    assert GPU_FIGURES["H100"]["theta"].status == ASSUMED


def test_idle_node_of_eight_v100() -> None:
    """0.6 to 0.8 kW: the reported range of such nodes."""
    node = NodePower()
    idle_w = node.idle_w(40, 8, 41.0)
    assert idle_w == pytest.approx(300 + 40 * 2 + 8 * 41)
    assert 600 <= idle_w <= 800
    assert node.idle_w(0, 8, 41.0) == idle_w  # cores unknown: as many as are usual
    assert node.booting_w(40, 8, 41.0) == idle_w
    assert NodePower(boot_w=900.0).booting_w(40, 8, 41.0) == 900.0
    assert 300 <= node.boot_s <= 600
    assert node.asleep_w < 0.05 * idle_w


def test_busy_core_adds_its_difference_to_an_idle_one() -> None:
    assert NodePower(cpu_idle_w_per_core=2.0, cpu_active_w_per_core=6.75).busy_core_w == 4.75
