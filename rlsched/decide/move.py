"""`Move`: what a rule, or a policy, does next in a partition."""

from __future__ import annotations

from typing import Final, NamedTuple

from rlsched.compile.jit import kernel

BY_OPTIONS: Final = -1.0
"""As a clock: the one that the start options give."""


class Move(NamedTuple):
    """One step of a decision; slots are -1 where there is none.

    Attributes:
        preempt: Running slot to stop now.
        start: Waiting slot to start now; a move either preempts or starts.
        share_with: Running slot whose GPUs the start shares.
        for_job: Waiting slot that the preempted job makes room for, where the rule has one in mind.
        for_gang: The same where the preempted job goes on elsewhere at once.
        place: Node of the start, -1: where the placement rule puts it.
        clock: SM clock of the start, of the maximum, or BY_OPTIONS.
    """

    preempt: int
    start: int
    share_with: int
    for_job: int
    for_gang: int
    place: int
    clock: float


@kernel
def nothing() -> Move:
    """Do nothing more now."""
    return Move(-1, -1, -1, -1, -1, -1, BY_OPTIONS)


@kernel
def start_of(slot: int, share_with: int) -> Move:
    """Start a job on free GPUs, or on those of a running one; slot -1: do nothing."""
    return Move(-1, slot, share_with, -1, -1, -1, BY_OPTIONS)


@kernel
def preempt_of(slot: int, for_job: int) -> Move:
    """Stop a running job; `for_job`: waiting slot that it makes room for, -1 where several do."""
    return Move(slot, -1, -1, for_job, -1, -1, BY_OPTIONS)


@kernel
def move_of(slot: int, for_gang: int) -> Move:
    """Stop a running job, which goes on elsewhere: a gang finds its GPUs together."""
    return Move(slot, -1, -1, for_gang, for_gang, -1, BY_OPTIONS)
