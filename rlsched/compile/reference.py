"""Marks tuples of arrays that kernels pass by reference; imports no numba, so any module may use it."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", bound=type)

BY_REFERENCE: Final = set[type]()


def by_reference(named_tuple: T) -> T:
    """Let kernels pass instances of a named tuple class by reference (`rlsched.compile.packing`)."""
    BY_REFERENCE.add(named_tuple)
    return named_tuple
