"""Random draws. Each depends only on a seed, the index of a decision, and the index of a random stream."""

from __future__ import annotations

import numpy as np


def draw(seed: int, number: int, half: int) -> float:
    """Return a random number, uniform in [0, 1): the first draw of `generator(seed, number, half)`."""
    return float(generator(seed, number, half).random())


def generator(seed: int, number: int, half: int) -> np.random.Generator:
    """Return a random generator for the decision with the index `number` (Philox 4x64, Salmon et al., SC'11).

    `half`: index of the stream; the streams of one decision are independent.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, half, number]))
