"""Which tuples of arrays kernels pass by reference; light, so that what knows no numba may be marked too."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T", bound=type)

BY_REFERENCE: Final = set[type]()


def by_reference(named_tuple: T) -> T:
    """Let kernels pass instances of a class of named tuples by reference (`rlsched.compile.packing`)."""
    BY_REFERENCE.add(named_tuple)
    return named_tuple
