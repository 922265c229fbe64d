"""Learning from observed pairs in compiled runs: the formulas of `learning` on the arrays of the models.

A run learns two factors of the modelled slowdown. The predicted speed of a pair is
1 / (1 + (1 / modelled - 1) x more_sensitive x more_pressing). Both factors are 1 until their workloads have
been observed. Pairs in the table of measured pairs are known, and are not learnt.
"""

from __future__ import annotations

import math
from typing import Final

from rlsched.compile.jit import kernel
from rlsched.models.arrays import ModelArrays
from rlsched.models.learning import (
    FASTEST,
    INTRODUCED_SD,
    SLOWEST,
    most_likely,
    moved,
    with_pair,
)
from rlsched.models.sharing import known_pair

LEAST_SLOWDOWN: Final = 1e-6
"""Minimum of the modelled slowdown: a slowdown of 0 would stay 0 with any learnt factor."""

_most_likely = kernel(most_likely)
_moved = kernel(moved)
_with_pair = kernel(with_pair)


@kernel
def forget_all(m: ModelArrays) -> None:
    """Remove everything learnt from observations: predicted speeds are again the models' own (`modelled`)."""
    t = m.trait
    for a in range(t.shape[0]):
        for kind in range(t.shape[1]):
            t.more_sensitive[a, kind] = t.more_pressing[a, kind] = 1.0
            t.sensitivity_sd[a, kind] = t.pressure_sd[a, kind] = INTRODUCED_SD
            for b in range(t.shape[0]):
                t.beside[a, kind, b] = t.modelled[a, kind, b]
                t.times_seen[a, kind, b] = t.seen_log[a, kind, b] = 0.0


@kernel
def _slowdown(m: ModelArrays, kind: int, a: int, b: int) -> float:
    """Return the predicted slowdown, 1 / speed - 1, of workload `a` next to `b`, with the learnt factors."""
    t = m.trait
    modelled = max(1.0 / t.modelled[a, kind, b] - 1.0, LEAST_SLOWDOWN)
    return modelled * t.more_sensitive[a, kind] * t.more_pressing[b, kind]


@kernel
def _predict(m: ModelArrays, kind: int, a: int, b: int) -> None:
    """Update the predicted speed of workload `a` next to `b`, unless the speed of this pair was measured."""
    t = m.trait
    measured = known_pair(m, kind, a, b)
    if measured == measured:
        return
    speed = 1.0 / (1.0 + _slowdown(m, kind, a, b))
    if t.times_seen[a, kind, b] > 0.0:
        log_speed = _with_pair(
            math.log(speed), float(t.times_seen[a, kind, b]), float(t.seen_log[a, kind, b])
        )
        speed = math.exp(min(log_speed, 0.0))
    t.beside[a, kind, b] = speed


@kernel
def observe(m: ModelArrays, kind: int, a: int, b: int, speed: float) -> None:
    """Learn from a job of workload `a` that ran at `speed` (solo: 1) next to a job of workload `b`.

    Updates the sensitivity of `a`, the pressure of `b`, the values of the pair, and all dependent
    predictions. The pair must not be in the table of measured pairs, and both workloads must be known.
    """
    t = m.trait
    log_speed = math.log(min(max(speed, SLOWEST), FASTEST))
    of_mine, of_theirs = t.sensitivity_sd[a, kind] ** 2, t.pressure_sd[b, kind] ** 2
    before = math.log(_slowdown(m, kind, a, b))
    after = _most_likely(before, of_mine + of_theirs, log_speed)
    mine, t.sensitivity_sd[a, kind] = _moved(
        math.log(t.more_sensitive[a, kind]), of_mine, of_mine + of_theirs, before, after
    )
    theirs, t.pressure_sd[b, kind] = _moved(
        math.log(t.more_pressing[b, kind]), of_theirs, of_mine + of_theirs, before, after
    )
    t.more_sensitive[a, kind], t.more_pressing[b, kind] = math.exp(mine), math.exp(theirs)
    t.times_seen[a, kind, b] += 1.0
    t.seen_log[a, kind, b] += (log_speed - t.seen_log[a, kind, b]) / t.times_seen[a, kind, b]
    for other in range(1, t.shape[0]):
        _predict(m, kind, a, other)
        if other != a:
            _predict(m, kind, other, b)
