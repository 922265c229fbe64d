"""Speeds on a shared GPU: exact at the limits, right where measured, never faster for one more neighbour."""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rlsched.models import sharing
from rlsched.models.arrays import TRAIT, ModelArrays, no_models

untimed = settings(deadline=None)
"""The first call of a kernel compiles it."""

UNKNOWN, TABLED, LATENT, LATENT_TOO, STRANGER = 0, 1, 2, 3, 4
util = st.floats(0.0, 1.0)


def models() -> ModelArrays:
    """One GPU type; 1 was measured next to 2, 1 to 3 have latent factors, 0 and 4 only a utilisation."""
    trait = np.zeros((5, 1), TRAIT)
    trait["util_frac"] = [[0.5], [0.4], [0.9], [0.7], [0.6]]
    trait["sensitivity"] = [[math.nan], [1.1], [0.8], [0.5], [math.nan]]
    trait["pressure"] = [[math.nan], [0.3], [0.6], [0.7], [math.nan]]
    pair = np.full((1, 5, 5), math.nan)
    pair[0, 1, 2], pair[0, 2, 1] = 0.71, 1.02
    return no_models()._replace(trait=trait.view(np.recarray), pair=pair)


def speed(workload: int, *others: int) -> float:
    return sharing.shared_speed(models(), 0, workload, np.array([*others, -1], np.int32), len(others))


@pytest.mark.parametrize("workload", range(5))
def test_unshared_job_has_exactly_full_speed(workload: int) -> None:
    assert speed(workload) == 1.0


@untimed
@given(util)
def test_formula_is_exactly_one_without_others(mine: float) -> None:
    assert sharing.stranger_speed(mine, 0.0) == 1.0
    assert sharing.latent_speed(mine, 0.0) == 1.0


def test_measured_pair_is_returned_unchanged() -> None:
    assert speed(TABLED, LATENT) == 0.71
    assert speed(LATENT, TABLED) == 1.02  # a little above 1: measured so


def test_latent_factors_are_used_where_both_jobs_have_them() -> None:
    assert speed(LATENT, LATENT_TOO) == pytest.approx(1 / (1 + 0.8 * 0.7))
    assert speed(LATENT_TOO, LATENT) == pytest.approx(1 / (1 + 0.5 * 0.6))


@pytest.mark.parametrize(("mine", "other"), [(UNKNOWN, UNKNOWN), (STRANGER, TABLED), (TABLED, STRANGER)])
def test_formula_for_strangers(mine: int, other: int) -> None:
    utils = models().trait["util_frac"][:, 0]
    assert speed(mine, other) == pytest.approx(sharing.stranger_speed(utils[mine], utils[other]))


def test_utilisations_of_several_partners_add_up() -> None:
    assert speed(STRANGER, TABLED, LATENT, UNKNOWN) == pytest.approx(
        sharing.stranger_speed(0.6, 0.4 + 0.9 + 0.5)
    )


def test_pressures_of_several_partners_add_up() -> None:
    assert speed(LATENT, LATENT_TOO, LATENT) == pytest.approx(sharing.latent_speed(0.8, 0.7 + 0.6))


def test_measured_slowdowns_of_several_partners_add_up() -> None:
    assert 1 / speed(TABLED, LATENT, LATENT) - 1 == pytest.approx(2 * (1 / 0.71 - 1))


@untimed
@given(st.integers(0, 4), st.lists(st.sampled_from([0, 1, 3, 4]), max_size=4), st.integers(1, 4))
def test_one_more_partner_never_makes_a_job_faster(mine: int, others: list[int], more: int) -> None:
    if mine == LATENT:  # its measured speed next to workload 1 is above 1
        others, more = [o for o in others if o != TABLED], max(more, LATENT)
    assert 0 < speed(mine, *others, more) <= speed(mine, *others) <= 1


def test_order_of_partners_does_not_matter() -> None:
    assert speed(TABLED, LATENT, UNKNOWN, STRANGER) == pytest.approx(speed(TABLED, STRANGER, LATENT, UNKNOWN))


@untimed
@given(util, st.lists(st.floats(0.0, 4.0), min_size=2, max_size=8))
def test_formula_falls_with_the_others_utilisation(mine: float, loads: list[float]) -> None:
    speeds = [sharing.stranger_speed(mine, load) for load in sorted(loads)]
    assert all(0 < b <= a <= 1 for a, b in pairwise(speeds))


@untimed
@given(util, util, util)
def test_busier_job_slows_down_more(one: float, other: float, load: float) -> None:
    low, high = sorted((one, other))
    assert sharing.stranger_speed(high, load) <= sharing.stranger_speed(low, load) + 1e-12


def test_formula_agrees_with_the_older_fit() -> None:
    """The solo-normalised fit of Lucid's pairs (RTX 3090) wherever that is measured: 0.05 to 1, both jobs."""
    u, v = np.meshgrid(np.linspace(0.05, 1, 20), np.linspace(0.05, 1, 20))
    original = 1 / (1 + 0.83 * np.logaddexp(0, 4.4 * (u + v - 1.37)) / 4.4 + 0.11 * v)
    ours = np.vectorize(sharing.stranger_speed)(u, v)
    assert math.sqrt(np.mean((ours - original) ** 2)) < 0.014
    assert np.abs(ours - original).max() < 0.032


def test_formula_stays_in_the_measured_bands() -> None:
    """Mean combined throughput of the measured pairs by u1 + u2, pairs spread evenly over each band."""
    centre = (np.arange(60) + 0.5) / 60
    u, v = np.meshgrid(centre, centre)
    both = np.vectorize(sharing.stranger_speed)(u, v)
    both = both + both.T
    bounds = [0, 0.5, 0.75, 1, 1.25, 1.5, 2]
    measured = [2.00, 2.00, 1.93, 1.83, 1.69, 1.48]
    for (low, high), throughput in zip(pairwise(bounds), measured, strict=True):
        inside = (low < u + v) & (u + v <= high)
        assert both[inside].mean() == pytest.approx(throughput, abs=0.055)


def test_four_small_jobs_make_three_and_a_half() -> None:
    """Results of the replaced formula by extrapolation: 3.4 for u = .3; u = .5 never beyond 2.4."""
    assert 4 * sharing.stranger_speed(0.3, 0.9) == pytest.approx(3.4, abs=0.1)
    assert max(n * sharing.stranger_speed(0.5, (n - 1) * 0.5) for n in (2, 3, 4)) < 2.4


def test_formula_is_nearly_a_product_of_factors() -> None:
    utils = np.linspace(0.05, 1, 20)
    factors = [sharing.factors_of_util(float(u)) for u in utils]
    for u, (sensitivity, _) in zip(utils, factors, strict=True):
        for v, (_, pressure) in zip(utils, factors, strict=True):
            assert sharing.latent_speed(sensitivity, pressure) == pytest.approx(
                sharing.stranger_speed(u, v), abs=0.04
            )


def test_every_feasible_pair_of_the_published_tables_is_reproduced(shared_data: Path) -> None:
    """Gavel's pairs on one GPU, as the catalogue's table holds them: 1,881 directed pairs, speeds as
    published."""
    with (shared_data / "facts" / "pair_speeds_gavel.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpus1"] == row["gpus2"] == "1"]
    names = ["", *sorted({row["job1"] for row in rows})]
    gpus = sorted({row["gpu"] for row in rows})
    pair = np.full((len(gpus), len(names), len(names)), math.nan)
    told: dict[tuple[int, int, int], float] = {}
    for row in rows:
        if float(row["co1"]) > 0 and float(row["co2"]) > 0:
            place = gpus.index(row["gpu"]), names.index(row["job1"]), names.index(row["job2"])
            pair[place] = told[place] = float(row["rel1"])
    trait = np.zeros((len(names), len(gpus)), TRAIT)
    trait["sensitivity"] = trait["pressure"] = 0.7
    m = no_models()._replace(trait=trait.view(np.recarray), pair=pair)
    beside = np.zeros(1, np.int32)
    for (kind, workload, partner), published in told.items():
        beside[0] = partner
        assert sharing.shared_speed(m, kind, workload, beside, 1) == published
    assert len(told) == 1881
    by_gpu = {
        gpu: [told[place] + told[k, b, a] for place in told for k, a, b in [place] if gpus[k] == gpu]
        for gpu in gpus
    }
    assert {gpu: round(len(sums) / 676, 2) for gpu, sums in by_gpu.items()} == {
        "k80": 0.87,
        "p100": 0.97,
        "v100": 0.94,
    }  # feasible of 26 x 26
    assert {gpu: round(float(np.mean(sums)), 2) for gpu, sums in by_gpu.items()} == {
        "k80": 1.07,
        "p100": 1.20,
        "v100": 1.31,
    }  # combined throughput of feasible pairs


key = st.integers(0, 2**64 - 1)


@untimed
@given(key, key)
def test_noise_depends_on_the_pair_not_on_its_order(a: int, b: int) -> None:
    first = sharing.pair_noise(np.uint64(a), np.uint64(b))
    assert first == sharing.pair_noise(np.uint64(b), np.uint64(a))
    assert math.isfinite(first)


def test_noise_is_standard_normal_and_uncorrelated() -> None:
    """Consecutive small numbers as keys."""
    count = 150
    table = np.array(
        [
            [sharing.pair_noise(np.uint64(a), np.uint64(b)) for b in range(a + 1, a + 1 + count)]
            for a in range(0, 1000 * count, 1000)
        ]
    )
    noise = table.ravel()
    assert abs(noise.mean()) < 4 / math.sqrt(noise.size)
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    assert stats.kstest(noise, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 4 / math.sqrt(noise.size)


def test_noise_is_the_same_in_every_process() -> None:
    assert sharing.pair_noise(np.uint64(3), np.uint64(4)) == pytest.approx(-0.657110755098998, abs=1e-15)


@untimed
@given(st.floats(0.01, 1.0), st.floats(-9, 9))
def test_noisy_speeds_stay_in_bounds(clean: float, deviate: float) -> None:
    noisy = sharing.with_noise(clean, deviate)
    assert min(clean, sharing.NOISE_FLOOR) <= noisy <= 1
    assert sharing.with_noise(clean, 0.0) == clean


def test_noise_has_the_stated_spread() -> None:
    deviates = np.random.default_rng(1).standard_normal(4000)
    logs = np.log([sharing.with_noise(0.5, z) / 0.5 for z in deviates])
    assert logs.std() == pytest.approx(sharing.RESIDUAL_SD, rel=0.05)


def test_deviates_of_pairs_are_standard_normal_and_mostly_of_their_workloads() -> None:
    """For the same workloads in many jobs, for all workloads, and with other luck."""
    rng = np.random.default_rng(3)
    jobs = rng.standard_normal((2, 40, 40))

    def deviates(of_jobs: np.ndarray, luck: int, kind: int = 0) -> np.ndarray:
        return np.array(
            [
                [
                    sharing.share_deviate(np.uint64(luck), kind, a, b, of_jobs[a - 1, b - 1])
                    for b in range(1, 41)
                ]
                for a in range(1, 41)
            ]
        )

    many = np.array([deviates(jobs[0], luck) for luck in range(12)])
    assert many.std() == pytest.approx(1.0, abs=0.05)
    assert abs(many.mean()) < 0.12
    first, again, other = many[0], deviates(jobs[1], 0), many[1]
    same = sharing.OF_SINGLES**2 + sharing.OF_PAIRS**2
    assert same == pytest.approx(1 - (0.03 / sharing.RESIDUAL_SD) ** 2)
    assert np.corrcoef(first.ravel(), again.ravel())[0, 1] == pytest.approx(same, abs=0.04)
    for unlike in (other, deviates(jobs[1], 0, kind=1)):
        assert abs(np.corrcoef((first - sharing.OF_JOBS * jobs[0]).ravel(), unlike.ravel())[0, 1]) < 0.3
    rows = first - first.mean()  # slowdown and pressure of each workload
    by_singles = rows.mean(1)[:, None] + rows.mean(0)[None]
    assert 1 - (rows - by_singles).var() / rows.var() == pytest.approx(sharing.OF_SINGLES**2, abs=0.15)


def test_deviates_of_unknown_workloads_depend_only_on_the_jobs() -> None:
    assert sharing.share_deviate(np.uint64(5), 0, 0, 3, 0.7) == 0.7
    assert sharing.share_deviate(np.uint64(5), 0, 3, 0, 0.7) == 0.7
    assert sharing.share_deviate(np.uint64(5), 0, 3, 3, 0.7) != 0.7
