"""What a state keeps for a policy that sets dials: where they stand, what it has counted, its network.

The ledger keeps all of it for `rlsched.decide.dials`, and reads none.
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
"""What sets the dials: nothing, and nothing is counted; the network below, its last layer through tanh; a
caller that is asked in between; the network below, its last layer clipped to -1 to 1."""

DIAL: Final = np.dtype(
    [
        ("gate_pair", np.float64),  # added to the least gain of a second tenant ...
        ("gate_more", np.float64),  # ... and of a third and fourth
        ("by_length", np.float64),  # added to how the gate goes with the newcomer's length ...
        ("by_left", np.float64),  # ... and with the time left of the running job
        ("gpu_price", np.float64),  # ln of a factor on what GPU time costs where clocks are chosen
        ("margin", np.float64),  # added to the margin of preemption
        ("must_stay", np.float64),  # added to ln(cost) of a waiting job that must stay once it runs
        ("patience", np.float64),  # ln of a factor on the time until a job has a reservation
        ("type_price", np.float64),  # added to the price of GPU types that are usually fast
        ("due", np.int64),  # 1: they are to be set before anything else is decided
        ("next_s", np.float64),  # they are set at the first event from then on ...
        ("arrivals", np.int64),  # ... or when so many jobs have come since they were
        ("refused", np.int64),  # 1: what was to set them is out of range, or no number: they stand at 0
    ],
    align=True,
)
"""One entry a partition: what is added to the settings of the rule; all 0 is the rule as it is."""

SPANS_S: Final = (600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
"""Times over which arrivals are counted."""

COUNTED: Final = np.dtype(
    [
        ("jobs", np.float64, (len(SPANS_S),)),  # that came, fading over each span ...
        ("gpu_s", np.float64, (len(SPANS_S),)),  # ... and the GPU-seconds that were predicted of them
        ("noted_s", np.float64),  # up to when they have faded
        ("first_s", np.float64),  # when the first of them came
        ("ended", np.float64, (2,)),  # jobs that ended, fading over some 200 of them, and of one instant ...
        ("ended_s", np.float64),  # ... which is the latest; sums over these:
        ("said", np.float64, (2,)),  # ... x = ln(prediction)
        ("took", np.float64, (2,)),  # ... y = ln(run time)
        ("said_square", np.float64, (2,)),
        ("took_square", np.float64, (2,)),
        ("said_took", np.float64, (2,)),
    ],
    align=True,
)
"""One entry a partition: what the observation knows that the state alone does not tell."""


@by_reference
class DialArrays(NamedTuple):
    """F columns of an observation, D dials, a network of hidden layers of H and G; H = 0: linear."""

    who: NDArray[np.int64]  # (1,) NOBODY, NETWORK, OUTSIDE or CLIPPED
    dial: Records  # (P,) DIAL
    counted: Records  # (P,) COUNTED
    seen: NDArray[np.float64]  # (P, F) what was observed when they were last due
    first: NDArray[np.float64]  # (H, F + 1) weights, the bias last
    second: NDArray[np.float64]  # (G, H + 1)
    last: NDArray[np.float64]  # (D, G + 1), or (D, F + 1) of a linear one
    between: NDArray[np.float64]  # (2, the larger of H and G) scratch
    moved: NDArray[np.float64]  # (D,) scratch


def dials_of(dials: DialArrays, before: Sequence[str], names: Sequence[str]) -> DialArrays:
    """The same where the partitions `before` have become others; those that are new begin at 0."""
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
    """Dials that nothing sets. There is one row at least: jobs may come before any node."""
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
