"""Spaces of the environments, and checks of actions."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS

_REAL = "fiu"
_SHOWN = 60
"""Maximum number of characters of an invalid action in an error message."""


EARLIER_SIZES: Final = ((56, 9),)
"""(number of columns, number of dials) of models of earlier versions, which set only the first dials."""


def spaces(columns: int = NUM_COLUMNS, dials: int = NUM_DIALS) -> tuple[gym.spaces.Box, gym.spaces.Box]:
    """Return (observation space, action space) for these numbers of observed columns and of dials."""
    return (
        gym.spaces.Box(-3.0, 3.0, (columns,), np.float32),
        gym.spaces.Box(-1.0, 1.0, (dials,), np.float32),
    )


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


FOR_SB3 = ("episode", "terminal_observation")
"""Keys of `info` for the `VecEnv` of Stable-Baselines3. The Gymnasium environments remove them, because
Gymnasium's wrappers add `episode`."""


def check_live(live: NDArray[np.bool_]) -> None:
    """Raise ResetNeeded if a cluster has no running episode."""
    if not live.all():
        which = f" of cluster {int(np.argmin(live))}" if live.size > 1 else ""
        raise ResetNeeded(f"step: no episode{which} has begun, or the last one has ended; call reset() first")
