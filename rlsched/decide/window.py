"""Compiled functions that choose the cheapest window for a job's predicted run, by prices of the next hours.

The rule is the «lowest window» of Hanafy et al., «Going Green for Less Green» (GAIA, ASPLOS'24). Prices are
known or forecast (`config.price_sums`); after these hours, the mean price is assumed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.clearing import latest_wait_s, predicted_left_s
from rlsched.decide.order.slack import MOST_SLACK_FRAC
from rlsched.energy.relative import AHEAD_H
from rlsched.energy.series import HOUR_S

_SAME_H: Final = 1e-6
"""Cost difference below which windows count as equally expensive; an hour at the mean price costs 1."""


class Window(NamedTuple):
    """A start time of a job.

    Attributes:
        start_s: The start time, seconds, rounded up to whole milliseconds.
        saved_frac: Fraction of the cost of the run that this start saves, compared with a start now.
    """

    start_s: float
    saved_frac: float


@kernel
def knows_prices_ahead(s: StateArrays) -> bool:
    """Return whether the prices of the next hours are known, or forecast."""
    return s.config[0].price_ratio > 0.0 and s.config[0].price_sums[AHEAD_H - 1] > 0.0


@kernel
def _cost_until(s: StateArrays, at_s: float) -> float:
    """Return the cost of constant power from `price_from_s` to `at_s`; an hour at the mean price costs 1."""
    config = s.config[0]
    hours = (at_s - config.price_from_s) / HOUR_S
    h = int(hours)
    if h >= AHEAD_H:
        return config.price_sums[AHEAD_H - 1] + hours - AHEAD_H
    before = config.price_sums[h - 1] if h > 0 else 0.0
    return before + (hours - h) * (config.price_sums[h] - before)


@kernel
def _cost_of_run(s: StateArrays, start_s: float, run_s: float) -> float:
    """Return the cost of constant power for `run_s` from `start_s` on, in the unit of `_cost_until`."""
    return _cost_until(s, start_s + run_s) - _cost_until(s, start_s)


@kernel
def cheapest_window(s: StateArrays, slot: int, spare: float, now_s: float) -> Window:
    """Return the start at which the predicted run of a waiting job costs least; the earliest of equal starts.

    The earliest start is the last change of the price, or the submission of the job if that is later, so the
    result stays the same until the next change, and may be in the past. At the latest start, the job has used
    `MOST_SLACK_FRAC` of its slack, or less with a `spare` (`rlsched.decide.clearing`). Also compared are the
    starts at which the window begins or ends on a full hour, because the cost is linear between them.
    """
    from_s, job = s.config[0].price_from_s, s.job
    first_s = max(from_s, job.submit_s[slot])
    last_s = max(latest_wait_s(s, slot, MOST_SLACK_FRAC, spare, now_s), first_s)
    run_s = predicted_left_s(s, slot)
    best_s, least = first_s, _cost_of_run(s, first_s, run_s)
    for h in range(1, AHEAD_H + 2):
        for ends in range(2):
            at_s = from_s + h * HOUR_S - ends * run_s if h <= AHEAD_H else last_s
            if at_s <= first_s or at_s > last_s:
                continue
            cost = _cost_of_run(s, at_s, run_s)
            if cost < least - _SAME_H or (at_s < best_s and cost < least + _SAME_H):
                best_s, least = at_s, cost
    cost = _cost_of_run(s, max(now_s, first_s), run_s)
    return Window(np.ceil(best_s * 1000.0) / 1000.0, 1.0 - least / cost)


@kernel
def window_from(s: StateArrays, slot: int, start_s: float, now_s: float) -> Window:
    """Return the window that begins at `start_s`, and what it saves compared with a start now."""
    run_s = predicted_left_s(s, slot)
    return Window(start_s, 1.0 - _cost_of_run(s, start_s, run_s) / _cost_of_run(s, now_s, run_s))
