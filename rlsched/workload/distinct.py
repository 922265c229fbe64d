"""Distinct values of columns, as indices, found without sorting all rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ROWS: Final = 1 << 14
"""Number of texts processed in one step; their bytes fit the second-level cache."""
_SMALL: Final = 1 << 16
"""Integers below this value are not sorted, but used as indices of a table of this size."""


def distinct_rows(columns: list[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the distinct combinations of values in columns with J rows.

    Combinations are sorted by the first column, then by the second, and so on. All nan are one value, which
    is greater than all numbers.

    Returns:
        The index of the first row with each combination, and for each row the (J,) index of its combination.
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
    """Return the (J,) hashes of J texts; different texts almost always have different hashes.

    The hash is the sum of the code points, each multiplied by an odd factor of its position, modulo 2^64.
    """
    wide = column.dtype.itemsize // 4
    factors = np.random.default_rng(0).integers(1 << 63, size=wide, dtype=np.uint64) * 2 + 1
    found = np.empty(len(column), np.uint64)
    for first in range(0, len(column), _ROWS):
        part = np.ascontiguousarray(column[first : first + _ROWS])
        found[first : first + _ROWS] = part.view(np.uint32).reshape(-1, wide) @ factors
    return found


def surely_differ(column: NDArray[np.str_]) -> bool:
    """Return True only if all texts differ. False: two fingerprints are equal, and usually the texts too."""
    ordered = np.sort(fingerprints(column))
    return not bool((ordered[1:] == ordered[:-1]).any())


def _numbered(column: NDArray[Any]) -> tuple[NDArray[np.intp], int]:
    """Return the (J,) rank of each cell among the distinct values, and the number of distinct values."""
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
    """Return ranks and number of distinct values, as `_numbered` does, for a column of texts.

    All rows are sorted by fingerprint; only the distinct texts are sorted as text.
    """
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
    """Return what `np.unique` returns as index and inverse, for integers from 0 to `count` - 1."""
    first = np.full(count, -1, np.intp)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of equal codes, the first row is written last
    there = first >= 0
    return first[there], (np.cumsum(there) - 1)[code]
