"""Queue-order rules as data, and the one compiled step that runs them in simulator and broker alike."""

from __future__ import annotations

import msgspec

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import first_fitting, fits
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
def next_by_rule(s: StateArrays, p: int, blocks: bool, position: int) -> int:
    """Queue position of the next job that the rule starts in partition `p`, -1 for none.

    `position`: where to go on; jobs before it are known not to fit.
    """
    if not blocks:
        return first_fitting(s, p, position)
    if s.derived.part.queue_len[p] > 0 and fits(s, p, s.job.gpus[s.derived.queue[p, 0]]):
        return 0
    return -1
