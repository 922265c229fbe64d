"""Queue-order rules as data, and the one compiled step that runs them in simulator and broker alike."""

from __future__ import annotations

import msgspec

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.lanes import comes_before
from rlsched.cluster.placement import class_fits, fits_slot
from rlsched.decide.scheduler import Information, Order
from rlsched.jit import kernel


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A queue-order heuristic.

    Attributes:
        name: Its name on the command line.
        order: The key of the queue.
        blocks: Whether the first job that does not fit blocks those behind it.
        information: Whether the predictions it is fed are causal or the true durations.
    """

    name: str
    order: Order
    blocks: bool
    information: Information = "causal"


@kernel
def next_by_rule(s: StateArrays, p: int, blocks: bool) -> int:
    """Slot of the next job that the rule starts in partition `p`, -1 for none.

    The first of the queue order, where it fits, or, for a rule that does not block, the first that fits: the
    first among the tops of the demand classes that fit.
    """
    lane, first = s.derived.lane, -1
    for c in range(lane.shape[1]):
        top = lane.root[p, c]
        if top >= 0 and (first < 0 or comes_before(s, top, first)) and (blocks or class_fits(s, p, c)):
            first = top
    return first if first < 0 or not blocks or fits_slot(s, p, first) else -1
