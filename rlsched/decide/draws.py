"""Random draws that depend only on the seed, the decision number and the half, not on process or order."""

from __future__ import annotations

import numpy as np


def draw(seed: int, number: int, half: int) -> float:
    """Return a uniform number in [0, 1) for a half of a decision (Philox 4x64, Salmon et al., SC'11)."""
    return float(generator(seed, number, half).random())


def generator(seed: int, number: int, half: int) -> np.random.Generator:
    """Return the random generator for a half of a decision."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, half, number]))
