"""Bursts: the common share of their jobs is learned, and ended jobs inform about the others."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.forecast.bursts import FIRST_SHARE, Bursts, normal_score
from rlsched.forecast.run_time_draws import strata

EACH = 20


def bursts_of(share: float, many: int, known: int = EACH, seed: int = 0) -> tuple[Bursts, np.ndarray]:
    """This many bursts of 20 jobs whose scores share this much; of the last one only some have ended."""
    draws = np.random.default_rng(seed)
    u, own = draws.standard_normal((many, 1)), draws.standard_normal((many, EACH))
    score = np.sqrt(share) * u + np.sqrt(1.0 - share) * own
    score[-1, known:] = np.nan
    submit_s = (10_000.0 * np.arange(many)[:, None] + 10.0 * np.arange(EACH)[None, :]).ravel()
    none, ones = np.zeros(many * EACH, np.int64), np.ones(many * EACH)
    return Bursts(none, none, submit_s, ones, score.ravel()), score


def places(bursts: Bursts, rows: list[int], outlived: list[float], samples: int = 512) -> np.ndarray:
    jobs = np.array(rows)
    return bursts.places(jobs, 7 * np.arange(len(jobs)), np.ones(len(jobs)), np.array(outlived), samples)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_common_share_is_learned_from_ended_bursts(share: float) -> None:
    bursts, _ = bursts_of(share, 400)
    assert bursts.shares[0] == pytest.approx(share, abs=0.06)
    assert bursts.shares[3] == FIRST_SHARE, "no burst of eight GPUs is known"


def test_jobs_of_a_burst_share_their_luck_and_each_keeps_its_distribution() -> None:
    bursts, _ = bursts_of(0.7, 400, known=0)
    mine = places(bursts, [-1, -1, 7980, 7981, 7982], [0.0] * 5)
    for row in mine:
        assert np.quantile(row, (0.1, 0.5, 0.9)) == pytest.approx((0.1, 0.5, 0.9), abs=0.05)
    alike = np.corrcoef(mine)
    assert alike[2, 3] > 0.5
    assert alike[3, 4] > 0.5
    assert abs(alike[0, 1]) < 0.2, "jobs of no burst"
    assert abs(alike[0, 2]) < 0.2
    width = [np.ptp(np.quantile(rows.mean(axis=0), (0.1, 0.9))) for rows in (mine[2:], mine[[0, 1]])]
    assert width[0] > width[1], "the mean of three equal ones is as unsure as each"


def test_short_and_long_ended_siblings_revise_waiting_jobs() -> None:
    means = []
    for seed in range(40):
        bursts, score = bursts_of(0.7, 100, known=10, seed=seed)
        found = places(bursts, [99 * EACH + 15], [0.0], 256)[0]
        means.append((score[-1, :10].mean(), np.median(found)))
    seen, said = np.array(means).T
    assert np.corrcoef(seen, said)[0, 1] > 0.95
    assert said[seen > 0.7].min() > 0.6
    assert said[seen < -0.7].max() < 0.4


def test_running_siblings_lengthen_a_waiting_job_and_are_drawn_from_their_remaining_time() -> None:
    bursts, _ = bursts_of(0.7, 100, known=0)
    rows = [99 * EACH + k for k in range(6)]
    fresh = places(bursts, rows, [0.0] * 6)
    aged = places(bursts, rows, [0.8] * 5 + [0.0])
    assert np.median(fresh[5]) == pytest.approx(0.5, abs=0.08)
    assert np.median(aged[5]) > 0.8
    alone = places(bursts, [-1], [0.8])[0]
    assert np.quantile(alone, (0.1, 0.5, 0.9)) == pytest.approx((0.1, 0.5, 0.9), abs=0.03)


def test_intervals_of_the_sum_of_a_burst_cover_the_truth() -> None:
    """80 % of sums of ten uniform places, given five siblings, are inside; with independent draws far fewer
    are.
    """
    inside = alone = 0
    for seed in range(150):
        bursts, _ = bursts_of(0.6, 60, known=5, seed=seed)
        rows = [59 * EACH + k for k in range(10, 20)]
        draws = np.random.default_rng(1_000 + seed)
        _, whole = bursts_of(0.6, 60, seed=seed)
        truth = whole[-1, 10:20].sum()
        sums = normal_score(places(bursts, rows, [0.0] * 10, 128)).sum(axis=0)
        low, high = np.quantile(sums, (0.1, 0.9))
        inside += low <= truth <= high
        plain = draws.standard_normal((10, 128)).sum(axis=0)
        low, high = np.quantile(plain, (0.1, 0.9))
        alone += low <= truth <= high
    assert 0.7 <= inside / 150 <= 0.9
    assert alone / 150 < 0.6


def test_every_fourth_future_is_as_even_and_jobs_are_drawn_independently() -> None:
    lucks = strata(np.arange(200), 64)
    for every in (1, 2, 4, 16):
        some = np.sort(lucks[:, ::every], axis=1)
        assert (np.floor(some * some.shape[1]) == np.arange(some.shape[1])).all()
    assert np.abs(np.corrcoef(lucks) - np.eye(200)).mean() < 0.15
