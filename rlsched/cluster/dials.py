"""State of a policy that sets dials: dials, counts for the policy's observations, and the policy's network.

A dial is a number that adjusts a rule while the rule runs. The ledger stores this state for
`rlsched.decide.dials` and does not read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray

from rlsched.compile.reference import by_reference
from rlsched.models.arrays import Records

NO_CONTROLLER: Final = 0
NETWORK: Final = 1
OUTSIDE: Final = 2
CLIPPED: Final = 3
"""Source of the dials. NO_CONTROLLER: none; arriving and ended jobs are not counted. NETWORK: the network in
`DialArrays`, with tanh after its last layer. OUTSIDE: a caller sets them between decisions. CLIPPED: the
network, with its last layer clipped to -1 to 1.
"""


class Dial(NamedTuple):
    """Declaration of a dial. A new dial needs a line in `DIALS`, a use in a rule, and a line in the docs.

    Attributes:
        name: Name of the dial: a field of `DIAL`, and an entry of strategy files.
        range: Value of the dial at a network output of 1; at -1 the value is negated.
        unit: Unit of the value.
        effect: Effect of the value, for `docs/reference/environment.md`.
    """

    name: str
    range: float
    unit: str
    effect: str


DIALS: Final = (
    Dial("gate_pair", 0.5, "speed", "added to the least gain of a second tenant of a GPU (`share.min_gain`)"),
    Dial(
        "gate_more",
        0.5,
        "speed",
        "added to the least gain of a third and fourth tenant (`share.min_gain_more`)",
    ),
    Dial(
        "by_length",
        0.5,
        "speed",
        "added to the factor by which that least gain depends on the new job's length (`share.by_length`)",
    ),
    Dial("by_left", 0.5, "speed", "the same for the running job's remaining time (`share.by_left`)"),
    Dial("gpu_price", 2.0, "ln of a factor", "multiplies the cost of GPU time when clocks are chosen"),
    Dial("margin", 1.0, "ln(cost)", "added to the margin of preemption (`preempt.margin`)"),
    Dial("must_stay", 2.0, "ln(cost)", "added to the cost of a waiting job that refuses preemption"),
    Dial(
        "patience",
        3.0,
        "ln of a factor",
        "multiplies the waiting time before a job gets a reservation (`reserve_after`)",
    ),
    Dial(
        "type_price",
        1.0,
        "exponent",
        "added to the price of GPU types that are fast for most jobs (`types.price`)",
    ),
    Dial(
        "defer",
        5.0,
        "slope",
        "added to the slope with which jobs use their slack while electricity is expensive (`price.defer`)",
    ),
    Dial("pause", 5.0, "slope", "the same for running jobs, which are preempted (`price.pause`)"),
)
"""All dials, in the order of the network's outputs and of the rows of strategy files. Append a new dial at
the end: older strategy files then leave the new dial at 0.
"""
PRICE_DIALS: Final = ("defer", "pause")
"""Dials that have no effect while no price of electricity is known."""

DIAL: Final = np.dtype(
    [
        *((dial.name, np.float64) for dial in DIALS),
        ("due", np.int64),  # 1: the dials must be set before the next decision
        ("next_s", np.float64),  # the first event at or after this time makes the dials due, s
        ("arrivals", np.int64),  # arrivals since the dials were set; many arrivals also make the dials due
        ("refused", np.int64),  # 1: the network's output was out of range or NaN: all dials are 0
    ],
    align=True,
)
"""Dials of a partition, one entry per partition: the values that a rule reads. If all are 0, the rule's
settings apply unchanged. All fields have 8 bytes.
"""

SPANS_S: Final = (600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
"""Time spans over which arrivals are counted, s."""

COUNTED: Final = np.dtype(
    [
        ("jobs", np.float64, (len(SPANS_S),)),  # jobs that arrived, decaying over each span
        ("gpu_s", np.float64, (len(SPANS_S),)),  # predicted GPU-seconds of these jobs, with the same decay
        ("noted_s", np.float64),  # time up to which the counts have decayed, s
        ("first_s", np.float64),  # time of the first arrival, s
        ("ended", np.float64, (2,)),  # number of ended jobs: [0] decaying over about 200 jobs, [1] only jobs
        # of the latest instant; the (2,) fields below are sums over the same jobs
        ("ended_s", np.float64),  # the latest instant, s
        ("log_predicted", np.float64, (2,)),  # x = ln(prediction)
        ("log_ran", np.float64, (2,)),  # y = ln(run time)
        ("log_predicted_square", np.float64, (2,)),
        ("log_ran_square", np.float64, (2,)),
        ("log_product", np.float64, (2,)),  # x y
    ],
    align=True,
)
"""Counts and sums of arrived and ended jobs, one entry per partition. The partition's observation is computed
from them. All fields are float64.
"""


@by_reference
class DialArrays(NamedTuple):
    """Dials of all partitions, and the network that sets them.

    Shapes: P partitions, F columns of an observation, D dials. The network's hidden layers have H and G
    units; H = 0: the network is linear.
    """

    controller: NDArray[np.int64]  # (1,) source of the dials: NO_CONTROLLER, NETWORK, OUTSIDE or CLIPPED
    only_modelled: NDArray[np.int64]  # (1,) 1: without models of speed, dials stay at 0, except `PRICE_DIALS`
    dial: Records  # (P,) DIAL
    counted: Records  # (P,) COUNTED
    seen: NDArray[np.float64]  # (P, F) observation
    layer1: NDArray[np.float64]  # (H, F + 1) weights, the bias last
    layer2: NDArray[np.float64]  # (G, H + 1)
    output: NDArray[np.float64]  # (D, G + 1), or (D, F + 1) for a linear network
    scratch: NDArray[np.float64]  # (2, the larger of H and G)
    action: NDArray[np.float64]  # (D,) latest output of the network, as fractions of the ranges


def dials_of(dials: DialArrays, before: Sequence[str], names: Sequence[str]) -> DialArrays:
    """Return dials for the partitions `names`. A partition in `before` keeps its dials, a new one gets 0.

    `before`: names of the partitions of `dials`, in order.
    """
    fresh = no_dials(len(names))
    controlled = dials.controller[0] != NO_CONTROLLER
    seen = np.zeros((fresh.dial.shape[0] if controlled else 0, dials.seen.shape[1]))
    for p, name in enumerate(names):
        if name in before:
            was = before.index(name)
            fresh.dial[p], fresh.counted[p] = dials.dial[was], dials.counted[was]
            seen[p : p + 1] = dials.seen[was : was + 1]
    return dials._replace(dial=fresh.dial, counted=fresh.counted, seen=seen)


def hashed_dials(dials: DialArrays) -> bytes:
    """Return the bytes of the dials and counts that are part of a state's hash.

    `PRICE_DIALS` are left out while all of them are 0, so that hashes of earlier versions stay valid.
    """
    dial, names = np.ndarray.view(dials.dial, np.ndarray), DIAL.names or ()
    if not any(dial[name].any() for name in PRICE_DIALS):
        dial = repack_fields(dial[[name for name in names if name not in PRICE_DIALS]])
    return dial.tobytes() + dials.counted.tobytes()


def no_dials(partitions: int) -> DialArrays:
    """Return the dial arrays of a policy without a strategy: every dial is 0.

    There is a row per partition, and at least one row, because jobs can arrive before any node."""
    none = np.zeros((0, 0))
    partitions = max(1, partitions)
    return DialArrays(
        np.zeros(1, np.int64),
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
