"""Counter-based draws: seed, decision number and half give the number, in any process, in any order."""

from __future__ import annotations

import numpy as np


def draw(seed: int, number: int, half: int) -> float:
    """One uniform number in [0, 1) for this half of this decision (Philox 4x64, Salmon et al., SC'11)."""
    bits = np.random.Philox(key=seed, counter=[0, 0, half, number])
    return float(np.random.Generator(bits).random())
