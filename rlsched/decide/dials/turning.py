"""Sets dials that are due, compiled: observe, run the network, hold the result."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.dials import CLIPPED, NETWORK
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import kernel
from rlsched.decide.dials.counting import EVERY_S
from rlsched.decide.dials.observing import observe

RANGES: Final = {
    "gate_pair": 0.5,
    "gate_more": 0.5,
    "by_length": 0.5,
    "by_left": 0.5,
    "gpu_price": 2.0,
    "margin": 1.0,
    "must_stay": 2.0,
    "patience": 3.0,
    "type_price": 1.0,
}
"""By dial, in the order of the network's outputs: the change at an output of 1; -1 is the opposite."""
_SPAN: Final = tuple(RANGES.values())


@kernel
def set_dials(s: StateArrays, p: int, moved: NDArray[np.float64]) -> None:
    """Set the dials of partition `p` to (D,) fractions of their ranges, -1 to 1."""
    d = s.dials.dial[p]
    d.gate_pair = moved[0] * _SPAN[0]
    d.gate_more = moved[1] * _SPAN[1]
    d.by_length = moved[2] * _SPAN[2]
    d.by_left = moved[3] * _SPAN[3]
    d.gpu_price = moved[4] * _SPAN[4]
    d.margin = moved[5] * _SPAN[5]
    d.must_stay = moved[6] * _SPAN[6]
    d.patience = moved[7] * _SPAN[7]
    d.type_price = moved[8] * _SPAN[8]


@kernel
def _layer(
    weights: NDArray[np.float64], x: NDArray[np.float64], out: NDArray[np.float64], clips: bool
) -> None:
    """tanh(W x + b), the bias in the last column of the weights; `clips`: W x + b clipped to -1 to 1."""
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
def _in_range(moved: NDArray[np.float64]) -> bool:
    """Whether all fractions are numbers from -1 to 1."""
    numbers = 0
    for k in range(moved.shape[0]):
        numbers += int(-1.0 <= moved[k] <= 1.0)
    return numbers == moved.shape[0]


@kernel
def any_due(s: StateArrays) -> bool:
    """Whether the dials of a partition must be set before the next decision."""
    due = 0
    for p in range(s.dials.seen.shape[0]):
        due += s.dials.dial[p].due
    return due > 0


@kernel
def turn_due(s: StateArrays, now_s: float) -> None:
    """Observe each partition whose dials are due, and set them if a network does so.

    Finite weights can overflow to NaN or infinity; the dials are set to 0 then.
    """
    dials = s.dials
    for p in range(dials.seen.shape[0]):
        d = dials.dial[p]
        if d.due == 0:
            continue
        observe(s, p, now_s, dials.seen[p])
        d.due, d.arrivals, d.next_s = 0, 0, now_s + EVERY_S
        clips = dials.who[0] == CLIPPED
        if dials.who[0] != NETWORK and not clips:
            continue
        if dials.first.shape[0] == 0:
            _layer(dials.last, dials.seen[p], dials.moved, clips)
        else:
            _layer(dials.first, dials.seen[p], dials.between[0], False)
            _layer(dials.second, dials.between[0], dials.between[1], False)
            _layer(dials.last, dials.between[1], dials.moved, clips)
        d.refused = 0 if _in_range(dials.moved) else 1
        if d.refused:
            dials.moved[:] = 0.0
        set_dials(s, p, dials.moved)


def refuse_dials(state: ClusterState) -> None:
    """Set every dial to 0, so that the settings apply unchanged, after a failure of the strategy."""
    dial = state.arrays.dials.dial
    for name in RANGES:
        dial[name] = 0.0
    dial.refused = 1
