"""State of a policy that sets dials: the dials, the counts for its observation, and its network.

The ledger stores it for `rlsched.decide.dials` and does not read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.reference import by_reference
from rlsched.models.arrays import Records

NOBODY: Final = 0
NETWORK: Final = 1
OUTSIDE: Final = 2
CLIPPED: Final = 3
"""Source of the dials: none, and nothing is counted; the network below, its last layer through tanh; a caller
that is asked in between; the network below, its last layer clipped to -1 to 1."""

DIAL: Final = np.dtype(
    [
        ("gate_pair", np.float64),  # added to the least gain of a second tenant
        ("gate_more", np.float64),  # added to the least gain of a third and fourth tenant
        ("by_length", np.float64),  # added to the gate's coefficient of the new job's length
        ("by_left", np.float64),  # added to the gate's coefficient of the running job's remaining time
        ("gpu_price", np.float64),  # ln of a factor of the cost of GPU time in the choice of clocks
        ("margin", np.float64),  # added to the margin of preemption
        ("must_stay", np.float64),  # added to ln(cost) of a waiting job that must stay once it runs
        ("patience", np.float64),  # ln of a factor of the time until a job gets a reservation
        ("type_price", np.float64),  # added to the price of fast GPU types
        ("due", np.int64),  # 1: they must be set before the next decision
        ("next_s", np.float64),  # time from which the next event sets them, s
        ("arrivals", np.int64),  # arrivals since they were set; many of them set the dials too
        ("refused", np.int64),  # 1: the network's output was out of range or NaN: all dials are 0
    ],
    align=True,
)
"""One entry per partition: values added to the settings of the rule; all 0: the settings unchanged."""

SPANS_S: Final = (600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
"""Time spans over which arrivals are counted, s."""

COUNTED: Final = np.dtype(
    [
        ("jobs", np.float64, (len(SPANS_S),)),  # jobs that arrived, decaying over each span
        ("gpu_s", np.float64, (len(SPANS_S),)),  # their predicted GPU-seconds, decaying likewise
        ("noted_s", np.float64),  # time up to which the counts have decayed, s
        ("first_s", np.float64),  # time of the first arrival, s
        ("ended", np.float64, (2,)),  # ended jobs: decaying over about 200 of them; and at the latest instant
        ("ended_s", np.float64),  # the latest instant, s; sums over the jobs of `ended`:
        ("said", np.float64, (2,)),  # x = ln(prediction)
        ("took", np.float64, (2,)),  # y = ln(run time)
        ("said_square", np.float64, (2,)),
        ("took_square", np.float64, (2,)),
        ("said_took", np.float64, (2,)),
    ],
    align=True,
)
"""One entry per partition: data of the observation that the state does not hold."""


@by_reference
class DialArrays(NamedTuple):
    """F columns of an observation, D dials, a network of hidden layers of H and G; H = 0: linear."""

    who: NDArray[np.int64]  # (1,) code of the source of the dials
    dial: Records  # (P,) DIAL
    counted: Records  # (P,) COUNTED
    seen: NDArray[np.float64]  # (P, F) observation
    first: NDArray[np.float64]  # (H, F + 1) weights, the bias last
    second: NDArray[np.float64]  # (G, H + 1)
    last: NDArray[np.float64]  # (D, G + 1), or (D, F + 1) for a linear network
    between: NDArray[np.float64]  # (2, the larger of H and G) scratch
    moved: NDArray[np.float64]  # (D,) scratch


def dials_of(dials: DialArrays, before: Sequence[str], names: Sequence[str]) -> DialArrays:
    """Return the dials after the partitions `before` have become `names`; new partitions begin at 0."""
    fresh = no_dials(len(names))
    somebody = dials.who[0] != NOBODY
    seen = np.zeros((fresh.dial.shape[0] if somebody else 0, dials.seen.shape[1]))
    for p, name in enumerate(names):
        if name in before:
            was = before.index(name)
            fresh.dial[p], fresh.counted[p] = dials.dial[was], dials.counted[was]
            seen[p : p + 1] = dials.seen[was : was + 1]
    return dials._replace(dial=fresh.dial, counted=fresh.counted, seen=seen)


def no_dials(partitions: int) -> DialArrays:
    """Return dials that are not set. There is at least one row: jobs may arrive before any node."""
    none = np.zeros((0, 0))
    partitions = max(1, partitions)
    return DialArrays(
        np.zeros(1, np.int64),
        np.zeros(partitions, DIAL).view(np.recarray),
        np.zeros(partitions, COUNTED).view(np.recarray),
        none,
        none,
        none,
        none,
        none,
        np.zeros(0),
    )
