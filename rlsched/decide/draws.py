"""Counter-based random draws, keyed by seed, decision number and half: independent of process and order."""

from __future__ import annotations

import numpy as np


def draw(seed: int, number: int, half: int) -> float:
    """One uniform number in [0, 1) for this half of this decision (Philox 4x64, Salmon et al., SC'11)."""
    return float(generator(seed, number, half).random())


def generator(seed: int, number: int, half: int) -> np.random.Generator:
    """Return a generator of all the numbers that this half of this decision may draw."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, half, number]))
