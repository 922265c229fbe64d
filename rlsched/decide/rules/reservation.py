"""Compiled look-ahead: a copy of the cluster, from which running jobs are removed at their predicted ends.

Rules that reserve GPUs for a job that does not fit yet (the reserved job) use the copy to predict the time at
which this job will fit: the time of the reservation. `future` is the copy as predicted for this time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Index, StateArrays
from rlsched.cluster.choose import choose
from rlsched.cluster.kernels import occupy, vacate
from rlsched.cluster.placement import (
    BY_RULE,
    NO_PREFERENCE,
    class_fits,
    class_to_place,
    first_fitting,
    fits_slot,
)
from rlsched.cluster.speed import present_speed, speed_alone
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.constants import MODELLED
from rlsched.decide.options import StartOptions
from rlsched.decide.plans.plan import chooses_type, node_to_place
from rlsched.decide.remaining import remaining_s

UNKNOWN: Final = 0
_LEAVES_ROOM: Final = 1
_DELAYS: Final = 2
_CLOSED: Final = 3
"""Verdicts on the jobs of a demand class. UNKNOWN: not checked yet. _LEAVES_ROOM: a job may run beyond the
time of the reservation, because the reserved job fits next to it. _DELAYS: a job that runs beyond this time
delays the reserved job. _CLOSED: no job of the class can start now.
"""
NOWHERE: Final = -3
"""Result of `place_beside` for a job that must not start now."""


@array_kernel
def copy_nodes(s: StateArrays) -> StateArrays:
    """Return a state with copies of the nodes and GPUs of `s`, and with the same jobs and queues as `s`.

    Callers may change the nodes and GPUs of the result, but not its jobs and queues.
    """
    old = s.derived
    index = Index(
        old.slot,
        old.part.copy(),
        old.holes.copy(),
        old.whole.copy(),
        old.by_free.copy(),
        old.by_whole.copy(),
        old.class_queue.copy(),
        old.queue,
        old.running_len,
    )
    return StateArrays(
        s.node.copy(),
        s.gpu.copy(),
        s.job,
        s.demand,
        index,
        s.config,
        s.counters,
        s.scratch,
        s.order,
        s.models,
        s.dials,
    )


@kernel
def predicted_end_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the predicted end of a running job, seconds on the clock of `now_s`.

    The predicted end is the start plus the predicted run time. With models, this run time is divided by the
    job's present predicted speed. If the predicted end is in the past, the job is predicted to run for
    `remaining_s` more.
    """
    run_s = s.job.predicted_s[slot]
    if MODELLED and s.config[0].modelled:
        run_s /= present_speed(s, slot)
    end_s = s.job.start_s[slot] + run_s
    return end_s if end_s >= now_s else now_s + remaining_s(s, slot, now_s)


@kernel
def predicted_run_s(s: StateArrays, p: int, slot: int, node: int) -> float:
    """Return the predicted run time of a waiting job that fits, if the job starts now, seconds.

    With models, this is the run time without co-tenants at full clock, on GPUs of the type of `node`; for a
    negative `node`, on the GPUs that the function `choose` returns.
    """
    if MODELLED and s.config[0].modelled:
        return s.job.predicted_s[slot] / _speed_if_started(s, p, slot, node)
    return s.job.predicted_s[slot]


@kernel
def _speed_if_started(s: StateArrays, p: int, slot: int, node: int) -> float:
    if node >= 0 or s.models.gpu.shape[0] > 1:
        return _speed_where_put(s, p, slot, node)
    return speed_alone(s, slot, 0) if s.job.gpus[slot] > 0 and fits_slot(s, p, slot) else 1.0


@array_kernel
def _speed_where_put(s: StateArrays, p: int, slot: int, node: int) -> float:
    gpus = np.empty(s.job.gpus[slot], np.int32)
    host = choose(s, p, slot, node, gpus)
    return speed_alone(s, slot, s.node.kind[host]) if host >= 0 and gpus.shape[0] else 1.0


@kernel
def _sink(ends_s: NDArray[np.float64], slots: NDArray[np.int32], count: int, at: int) -> None:
    """Restore the order of a heap of `count` running jobs, earliest end at the root: sift entry `at` down."""
    while True:
        child = 2 * at + 1
        if child >= count:
            return
        if child + 1 < count and ends_s[child + 1] < ends_s[child]:
            child += 1
        if ends_s[at] <= ends_s[child]:
            return
        ends_s[at], ends_s[child] = ends_s[child], ends_s[at]
        slots[at], slots[child] = slots[child], slots[at]
        at = child


@array_kernel
def let_end_until_fits(s: StateArrays, future: StateArrays, p: int, slot: int, now_s: float) -> float:
    """Remove running jobs from `future` at their predicted ends, until the waiting job in `slot` fits.

    Returns the time at which the job fits; infinite if it does not fit even the idle partition. `future` is a
    result of `copy_nodes`; afterwards it is partition `p` as predicted for the returned time. The job must
    not fit now. Jobs with the same predicted end are removed together.
    """
    running = s.derived.running_len[0]
    ends_s, slots = np.empty(running, np.float64), np.empty(running, np.int32)
    count = 0
    for position in range(running):
        other = s.derived.slot.running[position]
        if s.job.placed_in[other] == p:
            ends_s[count], slots[count] = predicted_end_s(s, other, now_s), other
            count += 1
    for at in range(count // 2 - 1, -1, -1):
        _sink(ends_s, slots, count, at)
    while count > 0:
        end_s = ends_s[0]
        while count > 0 and ends_s[0] == end_s:
            job, ended = s.job, slots[0]
            vacate(future, ended, job.head[ended], job.host[ended], p, job.share_milli[ended])
            count -= 1
            ends_s[0], slots[0] = ends_s[count], slots[count]
            _sink(ends_s, slots, count, 0)
        if end_s < np.inf and fits_slot(future, p, slot):
            return end_s
    return np.inf


@array_kernel
def no_verdicts(s: StateArrays) -> NDArray[np.int8]:
    """Return an array (2 C,) of verdicts on the C demand classes, all UNKNOWN.

    The verdict on a class states whether its jobs may run beyond the time of the reservation (see `_CLOSED`).
    The second half of the array is for jobs of these classes that start on GPUs of their preferred types.
    """
    return np.full(2 * s.demand.shape[0], UNKNOWN, np.int8)


@array_kernel
def fits_beside(s: StateArrays, future: StateArrays, p: int, slot: int, other: int, node: int) -> bool:
    """Return whether the reserved job (in `slot`) still fits `future` if the job in `other` starts now.

    `future` is the partition as predicted for the time of the reservation; this function restores it. The
    job in `other` is assumed to run beyond that time, on the GPUs that `choose` (with `node`) returns now.
    """
    gpus = np.empty(s.job.gpus[other], np.int32)
    host = choose(s, p, other, node, gpus)
    if host < 0:
        return False
    head = occupy(future, other, gpus, host, p, s.job.share_milli[other])
    fits_still = fits_slot(future, p, slot)
    vacate(future, other, head, host, p, s.job.share_milli[other])
    return fits_still


@kernel
def place_beside(
    s: StateArrays,
    future: StateArrays,
    p: int,
    reserved: int,
    shadow_s: float,
    slot: int,
    o: StartOptions,
    now_s: float,
    verdicts: NDArray[np.int8],
) -> int:
    """Return how the job in `slot` can start without delaying the reserved job. The job in `slot` fits now.

    The reserved job, in slot `reserved`, has a reservation for the time `shadow_s`.

    Returns:
        BY_RULE: the job in `slot` can start where the placement rule places it.
        NO_PREFERENCE: the job in `slot` can start if the placement rule ignores the job's preferred types.
        NOWHERE: the job in `slot` would delay the reserved job everywhere, so it must not start now.
    """
    if _leaves_alone(s, future, p, reserved, shadow_s, slot, o, now_s, verdicts, BY_RULE):
        return BY_RULE
    if class_to_place(s, p, slot, BY_RULE) == s.job.demand[slot]:
        return NOWHERE
    anywhere = _leaves_alone(s, future, p, reserved, shadow_s, slot, o, now_s, verdicts, NO_PREFERENCE)
    return NO_PREFERENCE if anywhere else NOWHERE


@kernel
def _leaves_alone(
    s: StateArrays,
    future: StateArrays,
    p: int,
    reserved: int,
    shadow_s: float,
    slot: int,
    o: StartOptions,
    now_s: float,
    verdicts: NDArray[np.int8],
    node: int,
) -> bool:
    """Return whether the reserved job can start in time if the job in `slot` starts now.

    The result is True in two cases. First, the job in `slot` is predicted to end by `shadow_s`, the time of
    the reservation. Second, both jobs fit `future`, the partition as predicted for that time.

    `node`: BY_RULE or NO_PREFERENCE. `verdicts` stores the results of the second case by demand class. A
    stored result is used only if rules do not choose GPU types: all jobs of a class then get the same GPUs.
    """
    c = own = s.job.demand[slot]
    typed, place = chooses_type(s, slot, o), node_to_place(s, p, slot, o, node)
    if now_s + predicted_run_s(s, p, slot, place) <= shadow_s:
        return True
    if class_to_place(s, p, slot, node) != own:
        c += s.demand.shape[0]
    if typed or verdicts[c] == UNKNOWN:
        verdicts[c] = _LEAVES_ROOM if fits_beside(s, future, p, reserved, slot, place) else _DELAYS
    return verdicts[c] == _LEAVES_ROOM


@array_kernel
def nobody_passed() -> NDArray[np.float64]:
    """Return an array (1,) in which `next_candidate` stores the least run time of skipped jobs."""
    return np.full(1, np.inf)


@kernel
def next_candidate(
    s: StateArrays,
    p: int,
    start: int,
    now_s: float,
    shadow_s: float,
    verdicts: NDArray[np.int8],
    passed_s: NDArray[np.float64],
) -> int:
    """Return the first queue position from `start` on whose job fits and is not skipped; -1: none.

    The caller then calls `place_beside`, which decides whether the job starts. A job is skipped if it is
    predicted to run beyond the time of the reservation (`shadow_s`), and `verdicts` has _DELAYS for its
    demand class. After a scan of the whole queue, `class_queue.least_s` stores a lower bound of the run times
    of the skipped jobs. If even this run time is too long, later calls skip the whole class. With models, no
    job that fits is skipped, because run times depend on placements.
    """
    if MODELLED and s.config[0].modelled:
        return first_fitting(s, p, start)
    queues, some = s.derived.class_queue, False
    for c in range(queues.shape[1]):
        if verdicts[c] == _CLOSED:
            continue
        waits = queues.waiting[p, c] > 0 and class_fits(s, p, c)
        if not waits or (verdicts[c] == _DELAYS and now_s + queues.least_s[p, c] > shadow_s):
            verdicts[c] = _CLOSED
        else:
            some = True
    if not some:
        return -1
    for position in range(start, s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        verdict = verdicts[s.job.demand[slot]]
        if verdict == _CLOSED:
            continue
        run_s = s.job.predicted_s[slot]
        if verdict != _DELAYS or now_s + run_s <= shadow_s:
            return position
        passed_s[0] = min(passed_s[0], run_s)
    for c in range(queues.shape[1]):
        if verdicts[c] == _DELAYS:
            queues.least_s[p, c] = passed_s[0]
    return -1
