"""Compiled functions that update the dials that are due: observe, run the network, store the new dials."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import CLOCKS_ALONE, StateArrays
from rlsched.cluster.dials import CLIPPED, DIAL, DIALS, NETWORK, PRICE_DIALS
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import kernel
from rlsched.decide.dials.counting import EVERY_S
from rlsched.decide.dials.observing import observe

RANGES: Final = {dial.name: dial.range for dial in DIALS}
"""Value of each dial at a network output of 1, in the order of the outputs. An output of -1 gives the
negative of this value.
"""
_RANGE: Final = tuple(RANGES.values())
_OF_PRICE: Final = tuple(name in PRICE_DIALS for name in RANGES)
_FIELDS: Final = len(DIAL.names or ())


@kernel
def set_dials(s: StateArrays, p: int, action: NDArray[np.float64]) -> None:
    """Set the dials of partition `p` to `action` (D,), -1 to 1, multiplied by their `RANGES`."""
    values, first = s.dials.dial.view(np.float64), p * _FIELDS
    for k in range(len(_RANGE)):
        values[first + k] = action[k] * _RANGE[k]


@kernel
def _layer(
    weights: NDArray[np.float64], x: NDArray[np.float64], out: NDArray[np.float64], clips: bool
) -> None:
    """Write tanh(W x + b) to `out`, or W x + b clipped to -1 to 1; b is the last column of `weights`."""
    columns = weights.shape[1] - 1
    for row in range(weights.shape[0]):
        total = weights[row, columns]
        for column in range(columns):
            total += weights[row, column] * x[column]
        if not clips:
            out[row] = math.tanh(total)
        elif total > 1.0:
            out[row] = 1.0
        elif total < -1.0:
            out[row] = -1.0
        else:
            out[row] = total  # may be NaN: `_in_range` detects it


@kernel
def _in_range(action: NDArray[np.float64]) -> bool:
    """Return whether all outputs of the network are numbers from -1 to 1."""
    numbers = 0
    for k in range(action.shape[0]):
        numbers += int(-1.0 <= action[k] <= 1.0)
    return numbers == action.shape[0]


@kernel
def any_due(s: StateArrays) -> bool:
    """Return whether the dials of any partition must be updated before the next decision."""
    due = 0
    for p in range(s.dials.seen.shape[0]):
        due += s.dials.dial[p].due
    return due > 0


@kernel
def turn_due(s: StateArrays, now_s: float) -> None:
    """Observe each partition whose dials are due; if a network computes the dials, set them.

    If an output overflows to NaN or infinity, the dials are set to 0. With `DialArrays.only_modelled`, only
    `PRICE_DIALS` are set on a cluster without models of speed, because strategies are trained with models.
    """
    dials = s.dials
    for p in range(dials.seen.shape[0]):
        d = dials.dial[p]
        if d.due == 0:
            continue
        observe(s, p, now_s, dials.seen[p])
        d.due, d.arrivals, d.next_s = 0, 0, now_s + EVERY_S
        clips = dials.controller[0] == CLIPPED
        if dials.controller[0] != NETWORK and not clips:
            continue
        if dials.layer1.shape[0] == 0:
            _layer(dials.output, dials.seen[p], dials.action, clips)
        else:
            _layer(dials.layer1, dials.seen[p], dials.scratch[0], False)
            _layer(dials.layer2, dials.scratch[0], dials.scratch[1], False)
            _layer(dials.output, dials.scratch[1], dials.action, clips)
        d.refused = 0 if _in_range(dials.action) else 1
        if d.refused:
            dials.action[:] = 0.0
        if dials.only_modelled[0] and s.config[0].modelled in (0, CLOCKS_ALONE):
            for k in range(len(_RANGE)):
                dials.action[k] = dials.action[k] if _OF_PRICE[k] else 0.0
        set_dials(s, p, dials.action)


def refuse_dials(state: ClusterState) -> None:
    """Set every dial to 0 after a failure of the strategy, so that the settings apply unchanged."""
    dial = state.arrays.dials.dial
    for name in RANGES:
        dial[name] = 0.0
    dial.refused = 1
