"""Run times in the recent distribution of jobs: known cases exactly, and cases without data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.forecast.lengths import FEWEST, Lengths
from rlsched.forecast.run_time_draws import run_times, strata

DRAWS = np.random.default_rng(0)


def lengths_of(gpus: float, run_s: np.ndarray, ended: np.ndarray | None = None) -> Lengths:
    """Jobs that were all predicted to run an hour, within a factor of e."""
    many = len(run_s)
    ended = np.ones(many, bool) if ended is None else ended
    return Lengths.from_runs(np.full(many, gpus), run_s, np.full(many, 3600.0), np.ones(many), ended)


def drawn(lengths: Lengths, age_s: float = 0.0, gpus: float = 1.0, samples: int = 2000) -> np.ndarray:
    one = np.ones(1)
    args = np.full(1, gpus), 3600.0 * one, one, age_s * one
    return lengths.totals(*args, strata(np.array([1]), samples))[0]


def test_jobs_of_two_lengths_are_foreseen_given_their_age() -> None:
    """Half of them end within two minutes, half after a day: no lognormal has this shape."""
    short, long = DRAWS.uniform(60.0, 120.0, 500), DRAWS.uniform(80_000.0, 90_000.0, 500)
    lengths = lengths_of(1.0, np.concatenate([short, long]))
    fresh = drawn(lengths)
    assert (fresh < 121.0).mean() == pytest.approx(0.5, abs=0.01)
    assert fresh.max() <= 90_000.0
    old = drawn(lengths, age_s=600.0)
    assert (old > 79_000.0).mean() > 0.99
    half = drawn(lengths, age_s=85_000.0)
    assert half.min() >= 85_000.0
    assert np.median(half) == pytest.approx(87_500.0, rel=0.01)


def test_running_jobs_count_as_longer() -> None:
    """Exponential lengths of which the last ones are only seen to begin: the mean stays."""
    whole_s, seen_s = DRAWS.exponential(3600.0, 20_000), DRAWS.uniform(0.0, 9_000.0, 20_000)
    ended = whole_s <= seen_s
    lengths = lengths_of(1.0, np.minimum(whole_s, seen_s), ended)
    at = np.quantile(drawn(lengths), (0.25, 0.5))
    assert at == pytest.approx(-3600.0 * np.log((0.75, 0.5)), rel=0.05)
    naive = np.quantile(whole_s[ended], (0.25, 0.5))
    assert (naive < 0.8 * at).all(), "ended jobs only are too short"


def test_size_with_few_jobs_uses_all_and_an_old_job_only_its_age() -> None:
    lengths = lengths_of(8.0, DRAWS.uniform(60.0, 120.0, FEWEST))
    assert drawn(lengths, gpus=1.0).max() <= 120.0
    assert np.isnan(
        lengths_of(8.0, np.full(FEWEST - 1, 60.0)).totals(*[np.ones(1)] * 4, np.full((1, 2), 0.5))
    ).all()
    one, nothing = np.ones(1), np.full((1, 1), math.nan)
    at, like = strata(np.array([1]), 200), (lengths, np.ones(1))
    args = nothing, 3600.0 * one, one, math.nan * one
    old = run_times(*args, 5_000.0 * one, at, like)
    assert (old == run_times(*args, 5_000.0 * one, at)).all(), "hardly any job is as old"
    assert run_times(*args, 0.0 * one, at, like).max() <= 120.0
    capped = run_times(*args[:3], 90.0 * one, 0.0 * one, at, like)
    assert capped.max() == 90.0
