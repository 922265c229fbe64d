"""EASY backfill, compiled: the job at the head of the queue has a reservation that no other job delays.

This rule is the aggressive backfill of Lifka («The ANL/IBM SP Scheduling System», JSSPP 1995) as described by
Mu'alem and Feitelson («Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the
IBM SP2 with Backfilling», IEEE TPDS 12(6), 2001). Jobs start in the order of submission. The first job that
does not fit gets a reservation for the time at which the running jobs will have made room for it. A later job
starts now only if it will have ended by this time, or leaves the room that the reservation needs.

Differences from the paper:

- Run times are predicted instead of estimated by users. A job that outlives its prediction is not killed; its
  end is predicted again (`reservation.predicted_end_s`): the correction of Tsafrir, Etsion and Feitelson
  («Backfilling Using System-Generated Predictions Rather than User Runtime Estimates», IEEE TPDS 18(6),
  2007), with half of the time run instead of fixed steps.
- GPUs are on nodes instead of in a flat pool. A later job leaves room if the reserved job, at its reserved
  time, fits without the GPUs that the placement rule would allocate to the later job now.
- There is one reservation per partition. A job that would not fit even if all nodes of the partition were
  idle gets no reservation, and blocks no job.
- The queue can have another order than submission. With the shortest jobs first, the head of the queue is
  usually a new job. Therefore a minimum waiting time for reservations can be set.
- Decisions are made only when a job arrives or ends.

With exact predictions, the head of the queue never starts later than its first reservation.
"""

from __future__ import annotations

import math

import numpy as np

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import BY_RULE, first_fitting, fits_slot
from rlsched.compile.jit import array_kernel, kernel, shared
from rlsched.decide.move import Move, placed
from rlsched.decide.options import RuleOptions, StartOptions
from rlsched.decide.plans.best import MOST_WAITERS, waits_for_better
from rlsched.decide.plans.plan import ends_by_gpu, waits_for_types
from rlsched.decide.rules.greedy import or_share
from rlsched.decide.rules.reservation import (
    NOWHERE,
    copy_nodes,
    let_end_until_fits,
    next_candidate,
    no_verdicts,
    nobody_passed,
    place_beside,
)


@shared
@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Return the start of the first job in queue order that fits and does not delay a reservation.

    If there is no such job, return the start of a job that shares GPUs (`or_share`).
    """
    reserve_after_s = o.reserve_after_s * math.exp(s.dials.dial[p].patience)
    at, node = next_by_easy(s, p, o.start, now_s, reserve_after_s)
    return placed(or_share(s, p, s.derived.queue[p, at] if at >= 0 else -1, o, now_s), node)


@kernel
def _has_waited(s: StateArrays, slot: int, now_s: float, reserve_after_s: float) -> bool:
    """Return whether a job has waited long enough for a reservation, or has a raised priority."""
    return now_s - s.job.submit_s[slot] >= reserve_after_s or s.job.level[slot] > 0


@shared
@array_kernel
def reserve_first(
    s: StateArrays, p: int, stop: int, now_s: float, reserve_after_s: float
) -> tuple[int, float, StateArrays]:
    """Return the reservation of the first job of partition `p`'s queue that can have a reservation.

    Only jobs before position `stop` are considered; none of them fits now. A job can have a reservation if it
    has waited for `reserve_after_s`, or has a raised priority.

    Returns:
        (slot of the job, time at which the job is predicted to fit, state of the partition at this time). If
        there is no reservation: (-1, infinity, a state without meaning).
    """
    queue, first = s.derived.queue[p], 0
    while first < stop and not _has_waited(s, queue[first], now_s, reserve_after_s):
        first += 1
    if first == stop:
        return -1, np.inf, s
    future = copy_nodes(s)
    shadow_s = let_end_until_fits(s, future, p, queue[first], now_s)
    if shadow_s < np.inf:
        return queue[first], shadow_s, future
    for position in range(first + 1, stop):
        waited = _has_waited(s, queue[position], now_s, reserve_after_s)
        if waited and fits_slot(future, p, queue[position]):
            ready = copy_nodes(s)
            return queue[position], let_end_until_fits(s, ready, p, queue[position], now_s), ready
    return -1, np.inf, future


@array_kernel
def next_by_easy(
    s: StateArrays, p: int, o: StartOptions, now_s: float, reserve_after_s: float
) -> tuple[int, int]:
    """Return (queue position, BY_RULE or NO_PREFERENCE) of the next job that EASY starts in partition `p`.

    The position is -1 if no job starts. NO_PREFERENCE: on GPUs of its preferred types, the
    job would delay the reservation, so it starts on other types. A job is skipped if waiting for GPUs of
    another type is better. `reserve_after_s`: as in `reserve_first`.
    """
    at, waiters = first_fitting(s, p, 0), 0
    may_pass = waits_for_types(s, o)
    if at < 0 or (at == 0 and not may_pass):
        return at, BY_RULE
    head, shadow_s, future = reserve_first(s, p, at, now_s, reserve_after_s)
    if head < 0 and not may_pass:
        return at, BY_RULE
    verdicts, passed_s, ends_s = no_verdicts(s), nobody_passed(), ends_by_gpu(s, p, now_s, o)
    while at >= 0:
        slot, node = s.derived.queue[p, at], BY_RULE
        if head >= 0:
            node = place_beside(s, future, p, head, shadow_s, slot, o, now_s, verdicts)
        if node != NOWHERE:
            if waiters == MOST_WAITERS or not waits_for_better(s, p, slot, o, now_s, ends_s, node):
                return at, node
            waiters += 1
        passed_s[0] = min(passed_s[0], s.job.predicted_s[slot])
        at = next_candidate(s, p, at + 1, now_s, shadow_s, verdicts, passed_s)
    return -1, BY_RULE


@array_kernel
def reservation(s: StateArrays, p: int, now_s: float, reserve_after_s: float) -> tuple[int, float]:
    """Return (slot, start time) of partition `p`'s job that has a reservation; (-1, infinity) for none."""
    fitting = first_fitting(s, p, 0)
    stop = s.derived.part.queue_len[p] if fitting < 0 else fitting
    slot, shadow_s, _ = reserve_first(s, p, stop, now_s, reserve_after_s)
    return slot, shadow_s
