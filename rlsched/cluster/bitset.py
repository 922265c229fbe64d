"""Bit sets of nodes, compiled: finds the lowest member in a few steps for any number of nodes.

A set is an array of words: one bit per node, then one bit for each word that is not 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import WORD_BITS
from rlsched.compile.jit import kernel

_MULTIPLIER: Final = 0x077CB531
"""A de Bruijn sequence of 32 bits: shifted by k, its top five bits differ for every k."""
_PLACES: Final = np.array([((_MULTIPLIER << k) & 0xFFFFFFFF) >> 27 for k in range(32)]).argsort()


@kernel
def _low_words(nodes: int) -> int:
    return max(1, (nodes + WORD_BITS - 1) // WORD_BITS)


@kernel
def _lowest(word: int) -> int:
    """Position of the lowest bit of a word that is not 0."""
    return _PLACES[(((word & -word) * _MULTIPLIER) & 0xFFFFFFFF) >> 27]


@kernel
def include(members: NDArray[np.int64], nodes: int, n: int) -> None:
    """Add node `n` of `nodes`."""
    word = n // WORD_BITS
    members[word] |= 1 << (n % WORD_BITS)
    members[_low_words(nodes) + word // WORD_BITS] |= 1 << (word % WORD_BITS)


@kernel
def exclude(members: NDArray[np.int64], nodes: int, n: int) -> None:
    """Remove node `n` of `nodes`."""
    word = n // WORD_BITS
    members[word] &= ~(1 << (n % WORD_BITS))
    if members[word] == 0:
        members[_low_words(nodes) + word // WORD_BITS] &= ~(1 << (word % WORD_BITS))


@kernel
def next_member(members: NDArray[np.int64], nodes: int, start: int) -> int:
    """Return the lowest member that is `start` or above, -1 if there is none."""
    low = _low_words(nodes)
    word = start // WORD_BITS
    if word >= low:
        return -1
    rest = members[word] >> (start % WORD_BITS)
    if rest != 0:
        return start + _lowest(rest)
    word += 1
    top = word // WORD_BITS
    shift = word % WORD_BITS
    while low + top < members.shape[0]:
        rest = members[low + top] >> shift
        if rest != 0:
            word = top * WORD_BITS + shift + _lowest(rest)
            return word * WORD_BITS + _lowest(members[word])
        top += 1
        shift = 0
    return -1
