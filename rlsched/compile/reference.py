"""Marks tuples of arrays that kernels pass by reference. Does not import numba, so any module can use it."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", bound=type)

BY_REFERENCE: Final = set[type]()


def by_reference(named_tuple: T) -> T:
    """Mark a named tuple class: kernels pass its instances by reference (`rlsched.compile.packing`)."""
    BY_REFERENCE.add(named_tuple)
    return named_tuple
