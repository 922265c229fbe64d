"""Validates the actions of callers before a kernel reads them; errors have one line."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_REAL = "fiu"
_SHOWN = 60
"""Maximum number of characters of an invalid action in an error."""


def checked_dials(actions: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return dial positions as a float64 array of this shape; values outside -1 to 1 are clipped.

    Raises:
        ValueError: the actions have another shape, are not real numbers, or are not finite.
    """
    expected = f"expected {' x '.join(map(str, shape))} numbers from -1 to 1"
    found = _array(actions, expected)
    if found.shape != shape:
        raise ValueError(f"action: {expected}, got shape {found.shape}")
    moved = found.astype(np.float64)
    if not np.isfinite(moved).all():
        at = tuple(int(k) for k in np.argwhere(~np.isfinite(moved))[0])
        raise ValueError(f"action: {expected}, got {moved[at]} at {at if len(at) > 1 else at[0]}")
    clipped: NDArray[np.float64] = np.clip(moved, -1.0, 1.0)
    return clipped


def _array(actions: Any, expected: str) -> NDArray[Any]:
    try:
        found = np.asarray(actions)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors on a GPU
        reason = " ".join(str(error).split())[:_SHOWN]
        raise ValueError(f"action: {expected}, got something that is not an array: {reason}") from None
    if found.dtype.kind not in _REAL:
        text = " ".join(repr(actions).split())
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise ValueError(f"action: {expected}, got dtype {found.dtype}: {shown}")
    return found
