"""Marks tuples of arrays that kernels pass by reference. Imports no numba: any module can import it."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", bound=type)

BY_REFERENCE: Final = set[type]()


def by_reference(named_tuple: T) -> T:
    """Mark a named tuple class: kernels pass its instances by reference (`rlsched.compile.packing`)."""
    BY_REFERENCE.add(named_tuple)
    return named_tuple
