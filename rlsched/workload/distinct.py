"""Numbers for the distinct values of columns, found without sorting a million rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ROWS: Final = 1 << 14
"""Number of texts processed in one step, chosen to fit the second-level cache."""
_SMALL: Final = 1 << 16
"""Columns of whole numbers below this value are counted in a table, not sorted."""


def distinct_rows(columns: list[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first row of each distinct combination of values, and each row's (J,) combination number.

    Combinations are in ascending order, by the first column first. All nan count as one value, which is
    greater than all numbers.
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
    """Return a (J,) number for each text: equal for equal texts, almost always different for different texts.

    The number is the sum of the code points, each multiplied by an odd number that depends on its position,
    modulo 2^64.
    """
    wide = column.dtype.itemsize // 4
    factors = np.random.default_rng(0).integers(1 << 63, size=wide, dtype=np.uint64) * 2 + 1
    found = np.empty(len(column), np.uint64)
    for first in range(0, len(column), _ROWS):
        part = np.ascontiguousarray(column[first : first + _ROWS])
        found[first : first + _ROWS] = part.view(np.uint32).reshape(-1, wide) @ factors
    return found


def surely_differ(column: NDArray[np.str_]) -> bool:
    """Return whether all texts differ; False also if two different texts have the same fingerprint."""
    ordered = np.sort(fingerprints(column))
    return not bool((ordered[1:] == ordered[:-1]).any())


def _numbered(column: NDArray[Any]) -> tuple[NDArray[np.intp], int]:
    """Return the (J,) rank of each value among the distinct values, and the number of distinct values."""
    if column.dtype.kind == "U":
        return _numbered_texts(column)
    whole = np.fmin(column, _SMALL).astype(np.intp)  # fmin turns nan into _SMALL
    small = (whole == column) & (whole >= 0) & (whole < _SMALL)
    if not (small | np.isnan(column)).all():
        values, number = np.unique(column, return_inverse=True)
        return number, len(values)
    first, number = _first_and_number(whole, _SMALL + 1)
    return number, len(first)


def _numbered_texts(column: NDArray[np.str_]) -> tuple[NDArray[np.intp], int]:
    """Number texts as `_numbered` does, but sort by fingerprint; sort only the distinct texts by content."""
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
    """Return index and inverse as `np.unique` does, for whole numbers from 0 to `count` - 1."""
    first = np.full(count, -1, np.intp)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of equal codes, the first row is written last
    there = first >= 0
    return first[there], (np.cumsum(there) - 1)[code]
