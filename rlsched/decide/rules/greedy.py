"""The greedy rules, compiled: start the first job of the queue, or the first that fits.

`fifo`, `sjf` and `qssf` block: a first job that does not fit blocks all later jobs. The other greedy rules
start the first job that fits. If models predict the speed of jobs, a job may share the GPUs of a running job.
"""

from __future__ import annotations

import math

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.index import comes_before
from rlsched.cluster.placement import class_fits, fits_slot
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched.decide.move import Move, start_of
from rlsched.decide.options import LUCID, NEVER, RuleOptions, may_share
from rlsched.decide.plans.best import next_to_share, start_of_best

SKIPS_QUIET = True
SORTED_QUEUE = False


@kernel
def begin(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> None:
    """Do nothing: no data is needed in advance."""


@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Return the start of the next job in queue order."""
    return or_share(s, p, next_in_order(s, p, o.blocks), o, now_s)


@kernel
def after(s: StateArrays, p: int, o: RuleOptions, move: Move, now_s: float) -> None:
    """Do nothing: no data is kept."""


@kernel
def next_look_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """Return infinity: the decision changes only at events."""
    return math.inf


@kernel
def next_in_order(s: StateArrays, p: int, blocks: bool) -> int:
    """Return the slot of the next job that starts on free GPUs in partition `p`, -1 for none.

    A rule that blocks considers only the first job of the queue. Other rules start the first job that fits.
    """
    queues, first = s.derived.class_queue, -1
    for c in range(queues.shape[1]):
        top = queues.root[p, c]
        if top >= 0 and (first < 0 or comes_before(s, top, first)) and (blocks or class_fits(s, p, c)):
            first = top
    return first if first < 0 or not blocks or fits_slot(s, p, first) else -1


@kernel
def or_share(s: StateArrays, p: int, slot: int, o: RuleOptions, now_s: float) -> Move:
    """Return the move that starts the job in `slot`; if `slot` is -1, the start of a job that shares GPUs.

    The caller passes -1 if no job fits on free GPUs. Lucid's rule instead chooses the first job of the queue
    that can share or start, and prefers sharing.
    """
    if not MODELLED or o.start.share == NEVER:
        return start_of(slot, -1)
    if not may_share(s) or (slot >= 0 and o.start.share != LUCID):
        return start_of_best(s, p, slot, o.start, now_s)
    sharer, partner = next_to_share(s, p, o.blocks, o.start, now_s)
    if slot < 0 or (sharer >= 0 and (sharer == slot or comes_before(s, sharer, slot))):
        return start_of(sharer, partner)
    return start_of(slot, -1)
