"""Chooses a row from logits and a mask: arg max, or a draw that depends only on (seed, decision, half)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.draws import draw


def choose(
    logits: NDArray[np.float64],
    legal: NDArray[np.bool_],
    *,
    temperature: float,
    seed: int,
    number: int,
    half: int,
) -> int:
    """Choose a legal row.

    Args:
        logits: (K,) scores.
        legal: (K,) whether each row is legal; at least one is.
        temperature: 0 for arg max (the first row wins ties), otherwise softmax temperature.
        seed: Seed of the scheduler.
        number: Decision number.
        half: 0 for the first half of the decision, 1 for the second.

    Raises:
        FloatingPointError: a logit is not finite; the guard then decides.
        ValueError: no row is legal.
    """
    if not np.isfinite(logits).all():
        raise FloatingPointError(f"decision {number}: the network's output is not finite")
    rows = np.flatnonzero(legal)
    if len(rows) == 0:
        raise ValueError(f"decision {number}: no candidate is legal")
    scores = logits[rows]
    if temperature == 0 or len(rows) == 1:
        return int(rows[np.argmax(scores)])
    cumulative = np.cumsum(np.exp((scores - scores.max()) / temperature))
    drawn = draw(seed, number, half) * cumulative[-1]
    return int(rows[min(np.searchsorted(cumulative, drawn, side="right"), len(rows) - 1)])
