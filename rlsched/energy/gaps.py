"""Gaps of a series: steps without a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

import numpy as np

from rlsched.energy.series import DAY_S, HOUR_S, Series
from rlsched.errors import InputError

MOST_STEPS: Final = 20_000_000
"""Maximum number of steps of a converted file."""


def filled(
    name: str, begins: datetime, step_s: float, values: Sequence[float | None], fill_h: float
) -> tuple[Series, int, int]:
    """Return a series without gaps, the number of filled steps, and the number of steps left out.

    A step is filled with the value 24 h earlier; if there is none, with the value of the step before.

    Args:
        name: Name of the series.
        begins: Start of the first step, UTC.
        step_s: Length of a step, seconds.
        values: Value of each step; None: unknown. Unknown steps at both ends are left out.
        fill_h: Longest gap that is filled, hours; 0: no gap is filled.

    Raises:
        InputError: a gap is longer than `fill_h`, or there are fewer than two values.
    """
    known = [k for k, value in enumerate(values) if value is not None]
    if len(known) < 2:
        raise InputError(f"{name}: expected two values or more, got {len(known)}; choose another column")
    first, end = known[0], known[-1] + 1
    series, day = list(values[first:end]), DAY_S / step_s
    starts = begins + first * timedelta(seconds=step_s)
    fills = 0
    longer = [gap for gap in _gaps(series) if gap[1] * step_s > fill_h * HOUR_S]
    if longer:
        at, length = longer[0]
        more = f", and {len(longer) - 1:,} other such gaps" if len(longer) > 1 else ""
        longest_h = max(length for _, length in longer) * step_s / HOUR_S
        limit = f"no gap of more than {fill_h:g} h" if fill_h else "no gaps"
        raise InputError(
            f"{name}: expected {limit}, got one of {length * step_s / HOUR_S:g} h from "
            f"{starts + at * timedelta(seconds=step_s):%Y-%m-%dT%H:%M} (UTC){more}; `--fill {longest_h:g}` "
            "fills all of them"
        )
    for at, length in _gaps(series):
        for k in range(at, at + length):
            back = int(day) if day % 1 == 0 and k >= day else 1
            series[k] = series[k - back]
        fills += length
    return Series(name, starts, step_s, np.array(series, np.float64)), fills, len(values) - (end - first)


def _gaps(values: Sequence[float | None]) -> Iterator[tuple[int, int]]:
    """Yield (first step, number of steps) of each gap."""
    at = 0
    for is_gap, run in groupby([value is None for value in values]):
        length = len(list(run))
        if is_gap:
            yield at, length
        at += length
