"""Compiled functions that read the price, the carbon intensity and the power limit of a run."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.kernels import set_price
from rlsched.compile.jit import kernel
from rlsched.energy.limits import FALLS
from rlsched.energy.relative import AHEAD_H, OUTLOOK, PricesAsked
from rlsched_envs.sim.sim_arrays import ProgressArrays, SimArrays

PRICE: Final = 0
CARBON: Final = 1
"""PRICE and CARBON: rows of `ProgressArrays.signal` with the integrals of price and carbon intensity.

Rows 2 and 3 have the price and the carbon intensity in each time step.
"""
RATIO: Final = 4
"""Row of `ProgressArrays.signal` with the price relative to its mean over about a day.

The next rows have the outlook of the price (`rlsched.energy.relative.OUTLOOK`).
"""
LIMIT: Final = RATIO + 1 + len(OUTLOOK)
"""Row of `ProgressArrays.signal` with the power limit, W."""
ROWS: Final = LIMIT + 1
"""Number of rows of `ProgressArrays.signal` if the policy reads no ranks or sums of prices."""
RANK: Final = ROWS
"""First of the *details* of the price: rows that exist only if the policy reads ranks or sums of prices.

The details are: rank of the price, start of the step in which the price applies, and sums of the prices of
the next hours (`rlsched.cluster.arrays.CONFIG`).
"""
FROM: Final = RANK + 1
SUMS: Final = FROM + 1
ROWS_AHEAD: Final = SUMS + AHEAD_H


def rows_of(asked: PricesAsked) -> int:
    """Return the number of rows of `ProgressArrays.signal` for a policy that reads the prices `asked`."""
    return ROWS_AHEAD if any(asked) else ROWS


@kernel
def signal_between(x: ProgressArrays, k: int, since_s: float, until_s: float) -> float:
    """Return the integral of the price (k = 0) or the carbon intensity (k = 1) between two times, value x s.

    Compiled equivalent of `rlsched.energy.series.Integrals.between`.
    """
    from_s, step_s, last = x.books[0].grid_from_s, x.books[0].grid_step_s, x.signal.shape[1] - 1
    first = min(int((since_s - from_s) / step_s), last)
    end = min(int((until_s - from_s) / step_s), last)
    if first == end:
        return (until_s - since_s) * x.signal[2 + k, first]
    before_s = from_s + (first + 1) * step_s - since_s
    after_s = until_s - (from_s + end * step_s)
    between = x.signal[k, end] - x.signal[k, first + 1]
    return before_s * x.signal[2 + k, first] + between + after_s * x.signal[2 + k, end]


@kernel
def _is_as_before(x: ProgressArrays, k: int) -> bool:
    """Return whether all rows of the signal that policies read have equal values in steps `k` - 1 and `k`."""
    same = True
    for row in range(RATIO, x.signal.shape[0]):
        same = same and x.signal[row, k] == x.signal[row, k - 1]
    return same


@kernel
def _announce(x: ProgressArrays, s: StateArrays, now_s: float) -> float:
    """Write the announced falls of the power limit to the state; return the time of their next change."""
    first, end = 0, x.announced.shape[0]
    while end - first > 1:
        middle = (first + end) // 2
        if x.announced.from_s[middle] <= now_s:
            first = middle
        else:
            end = middle
    for k in range(FALLS):
        s.config[0].fall_s[k] = x.announced.fall_s[first, k]
        s.config[0].fall_w[k] = x.announced.fall_w[first, k]
    return x.announced.from_s[end] if end < x.announced.shape[0] else np.inf


@kernel
def read_price(sim: SimArrays) -> None:
    """Write the current price and power limit, and the time of their next change, to the state.

    Without a signal, a price in the state stays valid until `price_until_s`, and is unknown afterwards.
    """
    x, now_s, config = sim.progress, sim.progress.run[0].now_s, sim.state.config[0]
    if x.signal.shape[1] == 0:
        if now_s >= config.price_until_s:
            set_price(sim.state, 0.0, config.price_outlook, np.inf)
        return
    is_known = config.price_ratio > 0.0 or (config.limited and config.limit_w < np.inf)
    if is_known and now_s < config.price_until_s:
        return
    last, step_s = x.signal.shape[1] - 1, x.books[0].grid_step_s
    k = min(int((now_s - x.books[0].grid_from_s) / step_s), last)
    while k < last and _is_as_before(x, k + 1):
        k += 1
    until_s = x.books[0].grid_from_s + (k + 1) * step_s if k < last else np.inf
    if x.announced.shape[0] > 0:
        until_s = min(until_s, _announce(x, sim.state, now_s))
    set_price(sim.state, x.signal[RATIO, k], x.signal[RATIO + 1 : LIMIT, k], until_s)
    config.limit_w = x.signal[LIMIT, k]
    if x.signal.shape[0] > ROWS:
        config.price_rank, config.price_from_s = x.signal[RANK, k], x.signal[FROM, k]
        for h in range(AHEAD_H):
            config.price_sums[h] = x.signal[SUMS + h, k]
