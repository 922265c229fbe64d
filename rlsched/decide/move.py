"""`Move`: the next step of a rule or a policy in a partition."""

from __future__ import annotations

from typing import Final, NamedTuple

from rlsched.compile.jit import kernel

BY_OPTIONS: Final = -1.0
"""Value of `Move.clock`: the start options determine the clock."""


class Move(NamedTuple):
    """One step of a decision; a slot is -1 if there is no such job.

    Attributes:
        preempt: Slot of the running job to stop now.
        start: Slot of the waiting job to start now. A move either preempts or starts, never both.
        share_with: Slot of the running job whose GPUs the started job shares.
        for_job: Slot of the waiting job that gets the GPUs of the preempted job, if the rule chose one.
        place: Node on which the job starts, as in `rlsched.cluster.choose`. BY_RULE (-1): the placement rule
            chooses the node; NO_PREFERENCE (-2): the placement rule chooses the node, and ignores the job's
            preferred GPU types.
        clock: SM clock of the started job as a fraction of the maximum; BY_OPTIONS: the start options
            determine it.
    """

    preempt: int
    start: int
    share_with: int
    for_job: int
    place: int
    clock: float


@kernel
def nothing() -> Move:
    """Return the move that does nothing and ends the decision."""
    return Move(-1, -1, -1, -1, -1, BY_OPTIONS)


@kernel
def start_of(slot: int, share_with: int) -> Move:
    """Return the move that starts job `slot` (-1: none) on GPUs of job `share_with` (-1: on free GPUs)."""
    return Move(-1, slot, share_with, -1, -1, BY_OPTIONS)


@kernel
def placed(move: Move, place: int) -> Move:
    """If a move starts a job on free GPUs, return it with the node `place`; else return it unchanged."""
    if move.start < 0 or move.share_with >= 0:
        return move
    return Move(move.preempt, move.start, move.share_with, move.for_job, place, move.clock)


@kernel
def preempt_of(slot: int, for_job: int) -> Move:
    """Return the move that preempts a job; `for_job`: slot of the job that gets the GPUs, -1: not chosen."""
    return Move(slot, -1, -1, for_job, -1, BY_OPTIONS)
