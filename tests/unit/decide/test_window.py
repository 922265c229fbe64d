"""The cheapest window of a job: against a second implementation that tries every minute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.options import NO_PRICE
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.price import slack_frac
from rlsched.decide.window import cheapest_window, knows_prices_ahead
from rlsched.energy.relative import AHEAD_H
from rlsched.energy.series import HOUR_S

HOUR_MIN = 60
BEGINS_S = 7_200.0
"""Start of the first hour of the prices."""


def state(
    prices: list[float],
    *,
    slack_min: int,
    run_min: int,
    submit_min: int,
    saved_min: int = 0,
) -> tuple[ClusterState, int]:
    """A cluster with a waiting job that was submitted `submit_min` minutes after the prices begin."""
    cluster = ClusterState.from_spec(ClusterSpec.uniform(1, 4), OrderedQueue(Order()))
    seq = cluster.add_job(
        num_gpus=1,
        submit_s=BEGINS_S + 60.0 * submit_min,
        predicted_s=60.0 * run_min,
        spread=0.1,
        slack_s=60.0 * slack_min,
    )
    slot = cluster.slot_of(seq)
    cluster.arrays.job.saved_s[slot] = 60.0 * saved_min
    cluster.set_price(prices[0] if prices else 1.0, (), math.inf, BEGINS_S, prices)
    return cluster, slot


def costs_by_hand(prices: list[float], starts_min: NDArray[np.int64], run_min: int) -> NDArray[np.float64]:
    """Costs of runs that start some minutes after the prices begin, minute by minute."""
    hours = np.arange(starts_min.max() + run_min) // HOUR_MIN
    minutes = np.where(hours < len(prices), np.array(prices)[np.minimum(hours, len(prices) - 1)], 1.0)
    return np.array([minutes[start : start + run_min].sum() / HOUR_MIN for start in starts_min.tolist()])


def window_by_hand(prices: list[float], slack_min: int, run_min: int, submit_min: int) -> int:
    """The earliest minute of least cost among the starts that the slack permits."""
    first = max(submit_min, 0)
    starts_min = np.arange(first, max(submit_min + slack_min * 4 // 5, first) + 1)
    return int(starts_min[np.argmin(np.round(costs_by_hand(prices, starts_min, run_min), 5))])


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    slack=st.integers(1, 500),
    run_min=st.sampled_from([1, 7, 45, 60, 61, 150, 600, 3_000]),
    submit_min=st.integers(-90, 90),
)
def test_the_window_is_the_cheapest_of_all_minutes(
    seed: int, slack: int, run_min: int, submit_min: int
) -> None:
    prices = np.random.default_rng(seed).choice([0.25, 0.5, 1.0, 1.5, 4.0], AHEAD_H).tolist()
    slack_min = 5 * slack
    cluster, slot = state(prices, slack_min=slack_min, run_min=run_min, submit_min=submit_min)
    now_min = max(submit_min, 0) + seed % 50
    found = cheapest_window(cluster.arrays, slot, 0.0, BEGINS_S + 60.0 * now_min)
    wanted = window_by_hand(prices, slack_min, run_min, submit_min)
    assert found.start_s == pytest.approx(BEGINS_S + 60.0 * wanted, abs=0.01)
    least, now = costs_by_hand(prices, np.array([wanted, now_min]), run_min)
    assert found.saved_frac == pytest.approx(1.0 - least / now, abs=1e-6)


def test_work_that_is_saved_is_not_counted_again() -> None:
    prices = [2.0] * 3 + [1.0] + [3.0] + [0.5, 0.5] + [2.0] * 41
    fresh, slot = state(prices, slack_min=600, run_min=180, submit_min=0)
    assert cheapest_window(fresh.arrays, slot, 0.0, BEGINS_S).start_s == BEGINS_S + 5 * HOUR_S
    resumed, slot = state(prices, slack_min=300, run_min=180, submit_min=0, saved_min=120)
    assert cheapest_window(resumed.arrays, slot, 0.0, BEGINS_S).start_s == BEGINS_S + 3 * HOUR_S


def test_after_the_known_hours_the_price_is_the_mean() -> None:
    dear = [1.5] * AHEAD_H
    late, slot = state(dear, slack_min=10 * 24 * 60, run_min=120, submit_min=0)
    assert cheapest_window(late.arrays, slot, 0.0, BEGINS_S).start_s == BEGINS_S + AHEAD_H * HOUR_S
    short, slot = state(dear, slack_min=24 * 60, run_min=120, submit_min=0)
    assert cheapest_window(short.arrays, slot, 0.0, BEGINS_S).start_s == BEGINS_S
    long, slot = state(dear, slack_min=60 * 60, run_min=120, submit_min=0)
    assert cheapest_window(long.arrays, slot, 0.0, BEGINS_S).start_s == BEGINS_S + 48 * HOUR_S


def test_unknown_prices_are_no_prices() -> None:
    cluster, _ = state([], slack_min=600, run_min=60, submit_min=0)
    assert not knows_prices_ahead(cluster.arrays)
    cluster.set_price(1.0, (), math.inf, BEGINS_S, [1.0] * AHEAD_H)
    assert knows_prices_ahead(cluster.arrays)
    cluster.set_price(0.0, (), math.inf)
    assert not knows_prices_ahead(cluster.arrays)


@pytest.mark.parametrize(
    ("ratio", "rank", "percentile", "frac"),
    [
        (1.5, 0.31, 0.3, 0.8),
        (0.5, 0.31, 0.3, 0.8),
        (1.5, 0.3, 0.3, 0.0),
        (1.5, 0.9, 0.0, 0.0),
        (0.0, 0.9, 0.3, 0.0),
    ],
)
def test_a_price_above_the_percentile_uses_the_slack(
    ratio: float, rank: float, percentile: float, frac: float
) -> None:
    cluster, _ = state([], slack_min=60, run_min=60, submit_min=0)
    cluster.set_price(ratio, (), math.inf, rank=rank)
    assert slack_frac(cluster.arrays, NO_PRICE.defer, percentile) == frac
