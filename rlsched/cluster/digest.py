"""Digest of the jobs and GPUs of a state: sums of hashed 64-bit words, in one pass of a compiled kernel.

Sums do not depend on order, so jobs need not be sorted by number, and each slot is read once. Two different
states have the same sum with a probability of 2^-64. The digest is not cryptographic: collisions can be
constructed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import JOB, MAX_TENANTS, SLOT_EMPTY, StateArrays, columns
from rlsched.compile.jit import kernel

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_LESS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
"""SplitMix64's constants (Steele, Lea, Flood: «Fast splittable pseudorandom number generators», 2014)."""
_NOTHING: Final = np.uint64(0)
_FOLLOWS: Final = frozenset({"key", "head", "placed_in", "own_partition", "shared_partition", "demand"})
"""Fields of `JOB` that are never in the digest: they follow from other fields, or are positions in arrays."""
_OF_MODELS: Final = frozenset({"energy_ppm", "unshared", "gpu_need_mib"})
"""Fields of `JOB` that are in the digest only if there are models."""
_BURST: Final = frozenset(
    {"first_predicted_s", "burst", "burst_ended", "burst_ln_sum", "burst_spread", "look_s"}
)
"""Fields of `JOB` in the digest only if run times of ended jobs revise the predictions of waiting jobs."""


@kernel
def _mixed(word: np.uint64, salt: np.uint64) -> np.uint64:
    """Hash a word with a salt: each bit of the word and of the salt changes half of the result's bits."""
    z = word + salt * _STEP
    z = (z ^ (z >> _LESS[0])) * _FIRST
    z = (z ^ (z >> _LESS[1])) * _SECOND
    return z ^ (z >> _LESS[2])


_LEARNT: Final = ("core_need_milli", "dynamic_ratio")
"""The last fields of `JOB`. Such a field is in the digest only if there are models and its value is not 0, so
that digests of earlier versions stay valid.
"""


@kernel
def sums(
    s: StateArrays, rows: NDArray[np.uint64], masks: NDArray[np.uint64], learnt: int
) -> tuple[np.uint64, np.uint64]:
    """Return two sums of hashes: over the live jobs, and over the pairs of a GPU and a job that runs on it.

    Args:
        rows: (J, W) job entries as 64-bit words.
        masks: One bit mask for each of the first words of a row: only the bits in the mask are hashed.
        learnt: Number of words at the end of a row that are hashed only if they are not 0.
    """
    jobs, places = _NOTHING, _NOTHING
    for slot in range(rows.shape[0]):
        if s.job.status[slot] != SLOT_EMPTY:
            row, one = rows[slot], _NOTHING
            for position in range(masks.shape[0]):
                one += _mixed(row[position] & masks[position], np.uint64(position))
            for position in range(row.shape[0] - learnt, row.shape[0]):
                if row[position] != _NOTHING:
                    one += _mixed(row[position], np.uint64(position))
            jobs += _mixed(one, _NOTHING)
    for g in range(s.gpu.shape[0]):
        for k in range(MAX_TENANTS):
            slot = s.gpu.tenant[g, k]
            if slot >= 0:
                places += _mixed(np.uint64(s.job.seq[slot]), np.uint64(g * MAX_TENANTS + k))
    return jobs, places


@cache
def _masks(modelled: bool, revises: bool, priced: bool) -> NDArray[np.uint64]:
    """Return a bit mask for each word of a `JOB` entry before `_LEARNT`: 1 for each bit in the digest.

    `slack_s`, the last word before `_LEARNT`, is in the digest only if a price of electricity is known.
    """
    unread = _FOLLOWS | (frozenset() if modelled else _OF_MODELS) | (frozenset() if revises else _BURST)
    one = np.zeros(1, JOB)
    for name in JOB.names or ():
        if name not in unread:
            one[name].view(np.uint8)[:] = 0xFF
    words = one.view(np.uint64)[: -len(_LEARNT)]
    return words if priced else words[:-1]


def arguments(s: StateArrays) -> tuple[StateArrays, NDArray[np.uint64], NDArray[np.uint64], int]:
    """Return the arguments of `sums` for a state."""
    rows: NDArray[Any] = columns(s.job).view(np.uint64).reshape(len(s.job), -1)
    config, revises = columns(s.config), columns(s.order.code)["revises"][0]
    modelled, priced = config["modelled"][0], config["price_ratio"][0] > 0.0
    return s, rows, _masks(bool(modelled), bool(revises), bool(priced)), len(_LEARNT) if modelled else 0


def of_jobs(s: StateArrays) -> bytes:
    """Return the bytes to hash for the live jobs and the GPUs that they hold."""
    jobs, places = sums(*arguments(s))
    return int(jobs).to_bytes(8, "big") + int(places).to_bytes(8, "big")
