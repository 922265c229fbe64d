"""Distributions on the grid: quantiles against samples, ages against conditional samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.workload.predict.distribution import (
    BINS,
    EDGES_S,
    THRESHOLDS_S,
    Floats,
    Forecast,
    bin_of,
    given_age,
    lognormal,
    mean_ln,
    mean_s,
    p_longer,
    quantile_s,
    remaining_median_s,
    remaining_s,
    shortfall,
    spread_around,
)

RNG = np.random.default_rng(3)
SHAPE = RNG.dirichlet(np.ones(BINS))


def drawn(probabilities: Floats, count: int) -> Floats:
    """Samples: a bin, then a uniform logarithm in it."""
    rng = np.random.default_rng(4)
    bins = rng.choice(BINS, size=count, p=probabilities)
    low, high = np.log(EDGES_S[bins]), np.log(EDGES_S[bins + 1])
    return np.asarray(np.exp(low + (high - low) * rng.random(count)))


SAMPLES = drawn(SHAPE, 400_000)


def test_thresholds_are_edges() -> None:
    assert set(THRESHOLDS_S) <= set(EDGES_S.tolist())


@pytest.mark.parametrize(
    ("duration_s", "expected"),
    [(0.0, 0), (1.0, 0), (19.9, 0), (20.0, 1), (600.0, 4), (599.9, 3), (1e9, BINS - 1)],
)
def test_edge_belongs_to_the_bin_above_it(duration_s: float, expected: int) -> None:
    assert bin_of(duration_s) == expected


def test_quantiles_agree_with_samples() -> None:
    row = SHAPE[None, :]
    assert mean_s(row)[0] == pytest.approx(SAMPLES.mean(), rel=0.01)
    assert mean_ln(row)[0] == pytest.approx(np.log(SAMPLES).mean(), abs=0.02)
    for at in (0.1, 0.5, 0.9):
        assert quantile_s(row, at)[0] == pytest.approx(np.quantile(SAMPLES, at), rel=0.1)
    shares = [np.greater_equal(SAMPLES, than_s).mean() for than_s in THRESHOLDS_S]
    assert p_longer(row)[0].tolist() == pytest.approx(shares, abs=0.005)
    point = np.array([1000.0])
    around = math.sqrt(np.mean(np.log(SAMPLES / 1000.0) ** 2))
    assert spread_around(row, point)[0] == pytest.approx(around, rel=0.01)


def test_shortfall_of_its_own_samples_is_uniform() -> None:
    below = np.sort(shortfall(np.repeat(SHAPE[None, :], 20_000, axis=0), SAMPLES[:20_000]))
    assert np.abs(below - np.linspace(0, 1, len(below))).max() < 0.015


def test_lognormal_has_its_median_and_its_tail() -> None:
    row = lognormal(3600.0, 1.5)[None, :]
    assert quantile_s(row, 0.5)[0] == pytest.approx(3600.0, rel=0.01)
    assert p_longer(row)[0].tolist() == pytest.approx([0.884, 0.5, 0.178, 0.017], abs=0.001)


@pytest.mark.parametrize("age_s", [5.0, 700.0, 50_000.0, 500_000.0])
def test_age_conditions_a_distribution(age_s: float) -> None:
    older = SAMPLES[np.greater(SAMPLES, age_s)]
    assert remaining_s(SHAPE, age_s) == pytest.approx(older.mean() - age_s, rel=0.02)
    left = given_age(SHAPE, age_s)
    assert left.sum() == pytest.approx(1.0)
    assert left[: bin_of(age_s)].sum() == 0.0
    assert left[-1] == pytest.approx((older >= EDGES_S[-2]).mean(), abs=0.01)


def test_job_beyond_its_distribution_still_has_one() -> None:
    certain = np.eye(BINS)[2]
    assert given_age(certain, 4000.0).tolist() == np.eye(BINS)[bin_of(4000.0)].tolist()
    assert 0 < remaining_s(certain, 4000.0) < EDGES_S[bin_of(4000.0) + 1]
    assert remaining_s(certain, 10 * EDGES_S[-1]) >= 0


def test_forecast_reads_its_row() -> None:
    forecast = Forecast.from_probabilities(SHAPE)
    assert forecast.mean_s == mean_s(SHAPE[None, :])[0]
    assert forecast.p_longer == tuple(p_longer(SHAPE[None, :])[0])
    assert forecast.remaining_s(700.0) == remaining_s(SHAPE, 700.0)


def test_remaining_median_halves_the_remaining_probability() -> None:
    probabilities = lognormal(1000.0, 1.0)
    assert remaining_median_s(probabilities, 0.0) == pytest.approx(quantile_s(probabilities[None, :], 0.5)[0])
    for age_s in (5.0, 100.0, 900.0, 1500.0, 7000.0):
        end_s = age_s + remaining_median_s(probabilities, age_s)
        assert end_s > age_s
        above = float(probabilities @ [_above(k, end_s) for k in range(BINS)])
        of = float(probabilities @ [_above(k, age_s) for k in range(BINS)])
        assert above / of == pytest.approx(0.5, abs=1e-6)


def _above(bin_: int, at_s: float) -> float:
    """The share of a bin, uniform in ln, that lies above a time."""
    low, high = np.log(EDGES_S[bin_]), np.log(EDGES_S[bin_ + 1])
    return float(np.clip((high - np.log(at_s)) / (high - low), 0.0, 1.0)) if at_s > 1.0 else 1.0
