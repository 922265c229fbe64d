"""MIG slices: existing layouts, and speeds against the measured ones."""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.models import mig

untimed = settings(deadline=None)
"""The first call of a kernel compiles it."""

SIZES = (1, 2, 3, 4)
demand = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("model", "batch", "sevens", "threes", "twos"),
    [
        ("mobilenet", 64, 5.67, 2.71, 1.95),
        ("mobilenet", 512, 2.77, 2.00, 1.76),
        ("resnet", 64, 4.05, 2.68, 2.01),
        ("embedding", 64, 4.29, 2.43, 1.88),
        ("gnn", 256, 1.67, 1.29, 1.24),
        ("transformer", 16, 1.26, 1.03, 1.12),
        ("bert", 2, math.nan, 1.17, 1.25),
        ("cyclegan", 4, math.nan, math.nan, 0.99),
    ],
)
def test_combined_throughput_as_measured(
    model: str, batch: int, sevens: float, threes: float, twos: float
) -> None:
    """7 x 1g, 3 x 2g and 2 x 3g of one A100: above 3 for small jobs, about 1 for transformers."""
    ours = [mig.combined_throughput(model, batch, compute) for compute in (1, 2, 3)]
    assert ours == pytest.approx([sevens, threes, twos], abs=0.006, nan_ok=True)


def test_seven_slices_triple_the_work_of_a_third_of_the_cases() -> None:
    sevens = [mig.combined_throughput(*case, 1) for case in mig.MEASURED_A100]
    made = [value for value in sevens if not math.isnan(value)]
    assert (len(made), sum(value >= 3 for value in made)) == (21, 7)
    assert np.median(made) == pytest.approx(2.16, abs=0.005)


def test_unmeasured_speeds_are_unknown() -> None:
    assert math.isnan(mig.measured_speed("no such model", 1, 1))
    assert math.isnan(mig.measured_speed("no such model", 1, 7))
    assert mig.measured_speed("bert", 8, 7) == 1.0


def test_table_equals_the_publication(shared_data: Path) -> None:
    columns = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb")
    with (shared_data / "facts" / "mig_slice_speed_a100.csv").open() as file:
        published = {
            (row["model"], int(row["batch"])): tuple(float(row[c] or "nan") for c in columns)
            for row in csv.DictReader(file)
        }
    assert published.keys() == mig.MEASURED_A100.keys()
    for case, speeds in published.items():
        assert mig.MEASURED_A100[case] == pytest.approx(speeds, abs=0, nan_ok=True)


def slice_demand(speed: float, compute: int) -> float:
    """Inverse of `mig.slice_speed`."""
    product = max(speed**-mig.BEND - 1.0, 0.0) / (mig.SIZE_FRAC[compute] ** -mig.BEND - 1.0)
    return min(product ** (1.0 / mig.BEND), 1.0)


def test_formula_follows_the_measured_speeds() -> None:
    """One demand a row, from all its slices but the tested one: mean error .03 for all rows."""
    errors = []
    for (model, _), speeds in mig.MEASURED_A100.items():
        known = [(c, s) for c, s in zip(SIZES, speeds, strict=True) if not math.isnan(s)]
        if model == "deepspeech2" or len(known) < 2:
            continue
        for compute, speed in known:
            needs = np.mean([slice_demand(s, c) for c, s in known if c != compute])
            errors.append(abs(mig.slice_speed(needs, compute) - speed))
    assert np.mean(errors) < 0.03
    assert len(errors) > 80


@untimed
@given(demand)
def test_whole_gpu_has_exactly_full_speed(needs: float) -> None:
    assert mig.slice_speed(needs, 7) == 1.0


@pytest.mark.parametrize("compute", SIZES)
def test_job_of_no_demand_is_fast_anywhere_and_one_of_full_demand_runs_by_size(compute: int) -> None:
    assert mig.slice_speed(0.0, compute) == 1.0
    assert mig.slice_speed(1.0, compute) == pytest.approx(mig.SIZE_FRAC[compute])


@untimed
@given(demand)
def test_larger_slice_is_never_slower(needs: float) -> None:
    speeds = [mig.slice_speed(needs, compute) for compute in (*SIZES, 7)]
    assert all(0 < small <= large <= 1 for small, large in pairwise(speeds))


@untimed
@given(demand, demand, st.sampled_from(SIZES))
def test_higher_demand_is_never_faster(one: float, other: float, compute: int) -> None:
    low, high = sorted((one, other))
    assert mig.slice_speed(high, compute) <= mig.slice_speed(low, compute) + 1e-12


@pytest.mark.parametrize(
    ("layout", "fits"),
    [
        ((7,), True),
        ((4, 3), True),
        ((4, 4), False),
        ((3, 3), True),
        ((3, 3, 1), False),  # compute suffices, but both halves of the memory are taken
        ((4, 2, 1), True),
        ((2, 2, 2, 1), True),
        ((2, 2, 2, 2), False),
        ((3, 2, 1, 1), True),
        ((1,) * 7, True),
        ((1,) * 8, False),
        ((7, 1), False),
    ],
)
def test_existing_layouts(layout: tuple[int, ...], fits: bool) -> None:
    assert mig.layout_fits(layout) is fits


@pytest.mark.parametrize("gpu", mig.PROFILES)
def test_profiles_agree_with_the_layouts(gpu: str) -> None:
    for profile in mig.PROFILES[gpu]:
        assert mig.layout_fits((profile.compute,) * profile.at_most)
        assert not mig.layout_fits((profile.compute,) * (profile.at_most + 1))
        assert profile.at_most * profile.memory <= mig.MEMORY_SLICES
        assert profile.name.startswith(f"{profile.compute}g.")
        label_gb = int(profile.name.split(".")[1].removesuffix("gb"))
        assert 0.85 * label_gb * 1e9 / 2**20 < profile.memory_mib < label_gb * 1024
