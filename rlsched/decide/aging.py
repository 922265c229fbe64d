"""Shortest predicted GPU-time first, with a bound on age, compiled.

Jobs start by predicted run time x GPUs, those that do not fit are skipped (QSSF: Hu et al., «Characterization
and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters», SC'21). Skipping starves large
gangs: something smaller always fits first. So jobs that have waited as long as the bound come before all
others, in order of submission. That is the threshold of Lelong, Reis and Trystram («Tuning EASY-Backfilling
Queues», JSSPP 2017), who sort the queue in many ways and put the jobs beyond it at the head.

The oldest overdue job that does not fit blocks: it gets a reservation, as the head of the queue does under
EASY (`decide.easy`), and whatever would delay that has to wait. Without it an overdue gang would wait on
while smaller jobs took every GPU that came free. To block everything until it has started was tried:
on a loaded cluster most jobs become overdue in turn, and the rule is as slow as a FIFO that blocks
(docs/baselines.md).

Where ours differs from the paper: only an overdue job has a reservation, there the head of the queue always
has one; the order is predicted GPU-time alone; predictions, gangs and partitions are as in `decide.easy`.

The rule decides when a job comes or ends. No timer is needed for a job that becomes overdue in between: it
was not started when it was last looked at, and nothing has been freed since. What changes is which jobs
it holds back. (A reservation that moves away as predictions are outlived is seen at the next
event, as in EASY.)
"""

from __future__ import annotations

import numpy as np

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import first_fitting, fits_slot
from rlsched.decide.foresight import copy_nodes, leaves_alone, let_end_until_fits, no_verdicts
from rlsched.jit import array_kernel, kernel


@kernel
def _is_overdue(s: StateArrays, slot: int, bound_s: float, now_s: float) -> bool:
    return now_s - s.job.submit_s[slot] >= bound_s


@kernel
def _oldest_overdue(s: StateArrays, p: int, bound_s: float, now_s: float) -> int:
    """Queue position of the overdue job with the lowest number, -1 for none."""
    found = -1
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        if _is_overdue(s, slot, bound_s, now_s) and (
            found < 0 or s.job.seq[slot] < s.job.seq[s.derived.queue[p, found]]
        ):
            found = position
    return found


@kernel
def _oldest_overdue_that_fits(
    s: StateArrays, where: StateArrays, p: int, bound_s: float, now_s: float
) -> int:
    """The same among the jobs that fit the partition as it is in `where`."""
    found = -1
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        if (
            _is_overdue(s, slot, bound_s, now_s)
            and (found < 0 or s.job.seq[slot] < s.job.seq[s.derived.queue[p, found]])
            and fits_slot(where, p, slot)
        ):
            found = position
    return found


@array_kernel
def next_by_age(s: StateArrays, p: int, bound_s: float, now_s: float) -> int:
    """Queue position of the next job that starts in partition `p`, -1 for none.

    The queue is by predicted GPU-time. A job is overdue when it has waited `bound_s` or longer. An overdue
    job that would not fit the idle partition is treated as if it were not overdue.
    """
    at = first_fitting(s, p, 0)
    if at < 0:
        return -1
    oldest = _oldest_overdue(s, p, bound_s, now_s)
    if oldest < 0:
        return at
    if fits_slot(s, p, s.derived.queue[p, oldest]):
        return oldest
    future = copy_nodes(s)
    shadow_s = let_end_until_fits(future, p, s.derived.queue[p, oldest], now_s)
    if shadow_s == np.inf:
        oldest = _oldest_overdue_that_fits(s, future, p, bound_s, now_s)
        if oldest < 0:
            return at
        if fits_slot(s, p, s.derived.queue[p, oldest]):
            return oldest
        future = copy_nodes(s)
        shadow_s = let_end_until_fits(future, p, s.derived.queue[p, oldest], now_s)
    return _first_beside(s, future, p, s.derived.queue[p, oldest], shadow_s, bound_s, now_s)


@array_kernel
def _first_beside(
    s: StateArrays,
    future: StateArrays,
    p: int,
    reserved: int,
    shadow_s: float,
    bound_s: float,
    now_s: float,
) -> int:
    """Queue position of the job to start beside the reservation: the oldest overdue, else the first."""
    verdicts = no_verdicts(s)
    first, oldest = -1, -1
    at = first_fitting(s, p, 0)
    while at >= 0:
        slot = s.derived.queue[p, at]
        overdue = _is_overdue(s, slot, bound_s, now_s)
        wanted = first < 0
        if overdue:
            wanted = oldest < 0 or s.job.seq[slot] < s.job.seq[s.derived.queue[p, oldest]]
        if wanted and leaves_alone(s, future, p, reserved, shadow_s, slot, now_s, verdicts):
            if overdue:
                oldest = at
            else:
                first = at
        at = first_fitting(s, p, at + 1)
    return oldest if oldest >= 0 else first
