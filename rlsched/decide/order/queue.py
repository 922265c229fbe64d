"""Compiled functions that put jobs into the queue, with the prediction and the sort key of each job.

Simulator and broker call these functions when a job arrives, starts, is queued again and ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import WAITING, OrderArrays, StateArrays
from rlsched.cluster.dials import NO_CONTROLLER
from rlsched.compile.jit import kernel
from rlsched.decide.dials.counting import note_arrival, note_end
from rlsched.decide.order.bursts import (
    begin_to_look,
    expected_shift,
    join_burst,
    look_at_ages,
    note_ended,
    shifted_s,
)
from rlsched.decide.order.keys import Order, order_key
from rlsched.decide.order.slack import next_slack_change_s


@kernel
def arrive(s: StateArrays, slot: int, now_s: float) -> None:
    """Queue a newly arrived job; its slot is already filled."""
    revises = s.order.code[0].revises
    if revises:
        s.job.first_predicted_s[slot] = s.job.predicted_s[slot]
        join_burst(s, slot, now_s)
    _enqueue(s, slot, now_s)
    if revises:
        _hear_ages(s, now_s)
    if s.dials.controller[0] != NO_CONTROLLER:
        note_arrival(s, slot, now_s)
    if s.order.code.shape[0] > 1 and not s.job.pinned[slot] and not s.config[0].preempts:
        _let_preempt(s, now_s)


@kernel
def _let_preempt(s: StateArrays, now_s: float) -> None:
    """Allow preemption from now on: sort the queue by the second order (the index), and end reservations."""
    s.config[0].preempts, s.config[0].reserve_after_s = 1, np.inf
    s.order.code[0] = s.order.code[1]
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        if s.job.status[slot] == WAITING:
            rank(s, slot, now_s)


@kernel
def started(s: StateArrays, slot: int, now_s: float) -> None:
    """Record that an attempt of a job has just begun."""
    if s.order.code[0].revises:
        begin_to_look(s, slot, now_s)


@kernel
def _enter_again(s: StateArrays, slot: int, now_s: float) -> None:
    """Queue a waiting job that is in no queue; revise its prediction first if the order revises them."""
    if s.order.code[0].revises:
        _predict_again(s, slot, now_s)
    _enqueue(s, slot, now_s)


@kernel
def _enqueue(s: StateArrays, slot: int, now_s: float) -> None:
    """Add a waiting job to the queue, and note when its place changes because of its slack."""
    ledger.enqueue(s, slot, order_key(s, slot, now_s))
    _note_next_rank(s, slot, now_s)


@kernel
def _note_next_rank(s: StateArrays, slot: int, now_s: float) -> None:
    """Set `scratch.rank_s` to the time at which a waiting job's place changes, if this is earlier."""
    s.scratch[0].rank_s = min(s.scratch[0].rank_s, next_slack_change_s(s, slot, now_s))


@kernel
def rank(s: StateArrays, slot: int, now_s: float) -> None:
    """Move a waiting job to its new place in the queue."""
    ledger.dequeue(s, slot)
    _enqueue(s, slot, now_s)


@kernel
def rank_by_slack(s: StateArrays, now_s: float) -> None:
    """Move waiting jobs to their new places in the queue if they have used up a part of their slack.

    Call this before the decisions of each instant. `scratch.rank_s` is then the time of the next such move.
    """
    if s.scratch[0].rank_s > now_s:
        return
    s.scratch[0].rank_s = np.inf
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        if s.job.status[slot] != WAITING or s.job.slack_s[slot] <= 0.0:
            continue
        if order_key(s, slot, now_s) != s.derived.slot.key[slot]:
            rank(s, slot, now_s)
        else:
            _note_next_rank(s, slot, now_s)


@kernel
def requeue(s: StateArrays, slot: int, now_s: float) -> None:
    """Queue a released job for its next attempt."""
    ledger.wait_again(s, slot)
    _enter_again(s, slot, now_s)


@kernel
def make_eligible(s: StateArrays, slots: NDArray[np.int64], now_s: float) -> None:
    """Queue jobs that have become eligible."""
    for slot in slots:
        s.job.status[slot] = WAITING
        _enter_again(s, slot, now_s)


@kernel
def undefer(s: StateArrays, slot: int, now_s: float) -> None:
    """Return a deferred job to the queue."""
    ledger.undefer(s, slot)
    _enter_again(s, slot, now_s)


@kernel
def ended(s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
    """Count an ended job as input for the dials, and revise the predictions of waiting jobs in its burst.

    The job must have released its GPUs, but its slot must not be emptied yet. `run_s`: run time of the job in
    all attempts, seconds.
    """
    if s.dials.controller[0] != NO_CONTROLLER:
        note_end(s, slot, run_s, now_s)
    if s.order.code[0].revises:
        _learn_end(s, slot, run_s, now_s)


@kernel
def _predict_again(s: StateArrays, slot: int, now_s: float) -> None:
    s.job.predicted_s[slot] = shifted_s(s, slot, expected_shift(s, slot, now_s))


@kernel
def _learn_end(s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
    waiting = note_ended(s, slot, run_s)
    if waiting >= 0:
        _revise(s, waiting, now_s)
    _hear_ages(s, now_s)


@kernel
def _hear_ages(s: StateArrays, now_s: float) -> None:
    """Revise the predictions of waiting jobs if running jobs of their burst have reached an age step."""
    if s.scratch[0].look_s > now_s:
        return
    next_s = np.inf
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.look_s[slot] <= now_s:
            waiting = look_at_ages(s, s.job.burst[slot], now_s)
            if waiting >= 0:
                _revise(s, waiting, now_s)
        next_s = min(next_s, s.job.look_s[slot])
    s.scratch[0].look_s = next_s


@kernel
def _revise(s: StateArrays, one: int, now_s: float) -> None:
    """Revise the predictions of all waiting jobs in the burst of the waiting job in slot `one`."""
    shift = expected_shift(s, one, now_s)
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        if s.job.status[slot] == WAITING and s.job.burst[slot] == s.job.burst[one]:
            predicted_s = shifted_s(s, slot, shift)
            if predicted_s != s.job.predicted_s[slot]:
                s.job.predicted_s[slot] = predicted_s
                rank(s, slot, now_s)


class OrderedQueue:
    """The queue of a `ClusterState`, sorted by an `Order`.

    Attributes:
        order: The order.
        arrays: The order as arrays for kernels.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.arrays: OrderArrays = order.arrays

    def arrive(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Queue a newly arrived job; its slot is already filled."""
        arrive(s, slot, now_s)

    def rank(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Move a waiting job to its new place in the queue after a change of its level or weight."""
        rank(s, slot, now_s)

    def rank_by_slack(self, s: StateArrays, now_s: float) -> None:
        """Move waiting jobs to their new places if they have used up a part of their slack."""
        rank_by_slack(s, now_s)

    def note_start(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Record that an attempt of a job has just begun."""
        if self.order.revised:
            started(s, slot, now_s)

    def requeue(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Queue a released job for its next attempt."""
        requeue(s, slot, now_s)

    def make_eligible(self, s: StateArrays, slots: NDArray[np.int64], now_s: float) -> None:
        """Queue jobs that have become eligible."""
        make_eligible(s, slots, now_s)

    def update_siblings(self, s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
        """Count an ended job as input for the dials, and revise the predictions of waiting jobs in its burst.

        The slot of the job must not be emptied yet. `run_s`: run time of the job in all attempts, seconds.
        """
        if self.order.revised or s.dials.controller[0] != NO_CONTROLLER:
            ended(s, slot, run_s, now_s)
