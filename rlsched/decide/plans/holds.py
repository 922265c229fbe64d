"""Holds of a *wait*, compiled: the jobs that a *wait* passed over are kept back for a while.

A wait that lasted only until the next event would be requested again at every event. Sampled and greedy
decisions would then give different schedules, and training would never explore a long wait. A hold is in
favour of the blocked job, the first in queue order that does not fit. The hold ends when the blocked job no
longer waits, after `HOLD_S` at the latest, or as soon as half of the partition is free.
"""

from __future__ import annotations

import numpy as np

from rlsched.cluster.arrays import WAITING, StateArrays
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched.decide.plans.best import LOOK_AT, partner_of
from rlsched.decide.schema import GUARD_FREE_FRAC, HOLD_S, MAX_HOLD_S


@kernel
def half_free(s: StateArrays, p: int) -> bool:
    """Return whether so much of partition `p` is free that no job is kept back."""
    return s.derived.part.free_gpus[p] >= GUARD_FREE_FRAC * s.derived.part.open_gpus[p]


@kernel
def is_held(s: StateArrays, p: int, slot: int, now_s: float) -> bool:
    """Return whether a *wait* keeps this job back from partition `p` now."""
    if s.job.held_until_s[slot] <= now_s or half_free(s, p):
        return False
    other = s.job.held_for_slot[slot]
    return other < 0 or (s.job.seq[other] == s.job.held_for[slot] and s.job.status[other] == WAITING)


@kernel
def is_overdue(s: StateArrays, slot: int, now_s: float) -> bool:
    """Return whether the job was first passed over so long ago that it must start before all others."""
    return now_s - s.job.held_since_s[slot] >= MAX_HOLD_S


@kernel
def first_startable(s: StateArrays, p: int, now_s: float) -> int:
    """Return the first queue position whose job fits partition `p` and is not kept back, or -1."""
    position = first_fitting(s, p, 0)
    while position >= 0 and is_held(s, p, s.derived.queue[p, position], now_s):
        position = first_fitting(s, p, position + 1)
    return position


@kernel
def first_sharing(s: StateArrays, p: int, now_s: float) -> int:
    """Return the first queue position of partition `p` whose job can share GPUs and is not kept back, or -1.

    Checks the first `LOOK_AT` jobs of the queue. Without models no job can share.
    """
    if not MODELLED or not s.config[0].modelled:
        return -1
    for position in range(min(s.derived.part.queue_len[p], LOOK_AT)):
        slot = s.derived.queue[p, position]
        if not is_held(s, p, slot, now_s) and partner_of(s, p, slot, now_s) >= 0:
            return position
    return -1


@kernel
def pass_over(s: StateArrays, slot: int, blocked: int, now_s: float) -> None:
    """Record that a *wait* passes over a job that could start, for the job in slot `blocked` (-1: none)."""
    if np.isnan(s.job.held_since_s[slot]):
        s.job.held_since_s[slot] = now_s
    s.job.held_until_s[slot] = now_s + HOLD_S
    s.job.held_for_slot[slot] = blocked
    s.job.held_for[slot] = s.job.seq[blocked] if blocked >= 0 else -1


@kernel
def next_hold(s: StateArrays, now_s: float) -> int:
    """Return the slot of the job whose hold ends next, -1 if no job is kept back."""
    found, first = -1, np.inf
    for p in range(s.derived.part.shape[0]):
        for position in range(s.derived.part.queue_len[p]):
            slot = s.derived.queue[p, position]
            until = s.job.held_until_s[slot]
            if now_s < until < first:
                found, first = slot, until
    return found


@kernel
def next_hold_end_s(s: StateArrays, now_s: float) -> float:
    """Return the time at which the next hold ends, a decision point; infinite if no job is kept back."""
    slot = next_hold(s, now_s)
    return s.job.held_until_s[slot] if slot >= 0 else np.inf


@kernel
def any_released(s: StateArrays, p: int, now_s: float) -> bool:
    """Return whether a job that fits partition `p` was kept back by a hold that ended early.

    A start in another partition can end a hold in partition `p` at the same instant.
    """
    position = first_fitting(s, p, 0)
    while position >= 0:
        slot = s.derived.queue[p, position]
        if s.job.held_until_s[slot] > now_s and not is_held(s, p, slot, now_s):
            return True
        position = first_fitting(s, p, position + 1)
    return False


def has_startable(state: ClusterState, partition: int, now_s: float) -> bool:
    """Return whether this is a decision point: a waiting job that is not kept back can start here now."""
    return bool(first_startable(state.arrays, partition, now_s) >= 0)


def has_released(state: ClusterState, partition: int, now_s: float) -> bool:
    """Return whether a hold in this partition has ended early, and the job that was kept back can start."""
    return bool(any_released(state.arrays, partition, now_s))
