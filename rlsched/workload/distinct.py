"""Which different values a column has, and which of them each row has, without sorting a million rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ROWS: Final = 1 << 14
"""Texts looked at in one step; so many stay in the second-level cache."""
_SMALL: Final = 1 << 16
"""Whole numbers below this are counted in a table."""


def distinct_rows(columns: list[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First row of each different combination of these columns, and which of them each row has (J,).

    Combinations are in ascending order, by the first column first; a nan is one value, above all numbers.
    """
    code, count = np.zeros(len(columns[0]), np.intp), 1
    for column in columns:
        if len(column) and not (column == column[0]).all():
            number, values = _numbered(column)
            code, count = code * values + number, count * values
            if count > max(len(code), _SMALL):
                code, count = _numbered(code)
    return _first_and_number(code, count)


def fingerprints(column: NDArray[np.str_]) -> NDArray[np.uint64]:
    """(J,) a number for each text: equal for equal texts, and hardly ever for others.

    It is the sum of the code points, each times an odd number that belongs to its place, modulo 2^64.
    """
    wide = column.dtype.itemsize // 4
    factors = np.random.default_rng(0).integers(1 << 63, size=wide, dtype=np.uint64) * 2 + 1
    found = np.empty(len(column), np.uint64)
    for first in range(0, len(column), _ROWS):
        part = np.ascontiguousarray(column[first : first + _ROWS])
        found[first : first + _ROWS] = part.view(np.uint32).reshape(-1, wide) @ factors
    return found


def surely_differ(column: NDArray[np.str_]) -> bool:
    """Whether every text differs from every other; where two fingerprints are equal, nobody knows."""
    ordered = np.sort(fingerprints(column))
    return not bool((ordered[1:] == ordered[:-1]).any())


def _numbered(column: NDArray[Any]) -> tuple[NDArray[np.intp], int]:
    """(J,) the number of each value among the different ones, ascending, and how many there are."""
    if column.dtype.kind == "U":
        return _numbered_texts(column)
    whole = np.fmin(column, _SMALL).astype(np.intp)  # a nan is the largest
    small = (whole == column) & (whole >= 0) & (whole < _SMALL)
    if not (small | np.isnan(column)).all():
        values, number = np.unique(column, return_inverse=True)
        return number, len(values)
    first, number = _first_and_number(whole, _SMALL + 1)
    return number, len(first)


def _numbered_texts(column: NDArray[np.str_]) -> tuple[NDArray[np.intp], int]:
    """The same of texts: they are sorted by fingerprint, and the few different ones by what they say."""
    _, first, number = np.unique(fingerprints(column), return_index=True, return_inverse=True)
    texts = column[first]
    for row in range(0, len(column), _ROWS):
        if (texts[number[row : row + _ROWS]] != column[row : row + _ROWS]).any():
            values, number = np.unique(column, return_inverse=True)
            return number, len(values)
    rank = np.empty(len(texts), np.intp)
    rank[np.argsort(texts)] = np.arange(len(texts))
    return rank[number], len(texts)


def _first_and_number(code: NDArray[np.intp], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """What `np.unique` gives as index and inverse, of whole numbers from 0 to `count` - 1."""
    first = np.full(count, -1, np.intp)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # the one written last stays
    there = first >= 0
    return first[there], (np.cumsum(there) - 1)[code]
