"""What the cluster will look like, compiled: a copy of nodes and GPUs on which running jobs can be let end.

Rules that promise GPUs to a job that does not fit yet look ahead with it. The copy is handled by the
ledger's own `vacate` and `occupy`, so that whether something fits there is asked as it is of the cluster now.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Index, StateArrays
from rlsched.cluster.choose import choose
from rlsched.cluster.kernels import occupy, vacate
from rlsched.cluster.placement import fits_slot
from rlsched.decide.constants import MODELLED
from rlsched.decide.options import StartOptions
from rlsched.decide.plans.alone import alone_plan, chooses_type
from rlsched.decide.remaining import remaining_s
from rlsched.jit import array_kernel, kernel
from rlsched.models.speed import present_speed, speed_alone

UNKNOWN: Final = 0
_LEAVES_ROOM: Final = 1
_DELAYS: Final = 2

AS_PREDICTED: Final = 0
WITHIN_LIMITS: Final = 1
AT_LIMITS: Final = 2


@array_kernel
def copy_nodes(s: StateArrays) -> StateArrays:
    """The same state with nodes and GPUs of its own; jobs and queues are shared, and only to be read."""
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
    """When a running job is predicted to end.

    Start + prediction while that is not past; a job that has outlived its prediction is given a new one,
    `remaining_s` from now: half of the time that it has run. With models the prediction is stretched by the
    speed that the job is predicted to have where it is now, as if it had had it since its start.
    """
    run_s = s.job.predicted_s[slot]
    if MODELLED and s.config[0].modelled:
        run_s /= present_speed(s, slot)
    end_s = s.job.start_s[slot] + run_s
    return end_s if end_s >= now_s else now_s + remaining_s(s, slot, now_s)


@kernel
def predicted_run_s(s: StateArrays, p: int, slot: int, node: int) -> float:
    """How long a waiting job that fits is predicted to run if it starts now.

    With models: alone, at full clock, on GPUs of the type that it would be given on `node`, or where the
    placement rule puts it (-1).
    """
    if MODELLED and s.config[0].modelled:
        return s.job.predicted_s[slot] / _speed_if_started(s, p, slot, node)
    return s.job.predicted_s[slot]


@array_kernel
def _speed_if_started(s: StateArrays, p: int, slot: int, node: int) -> float:
    gpus = np.empty(s.job.gpus[slot], np.int32)
    host = choose(s, p, slot, node, gpus)
    return speed_alone(s, slot, s.node.kind[host]) if host >= 0 and gpus.shape[0] else 1.0


@kernel
def _sink(ends_s: NDArray[np.float64], slots: NDArray[np.int32], count: int, at: int) -> None:
    """Let entry `at` of a heap by end sink to its place."""
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


@kernel
def _end_s(s: StateArrays, slot: int, now_s: float, by: int) -> float:
    """When a running job ends, by what is gone by."""
    if by == AS_PREDICTED:
        return predicted_end_s(s, slot, now_s)
    limit_s = s.job.limit_s[slot]
    last_s = np.inf if np.isnan(limit_s) else max(s.job.start_s[slot] + limit_s, now_s)
    return last_s if by == AT_LIMITS else min(predicted_end_s(s, slot, now_s), last_s)


@array_kernel
def let_end_by(future: StateArrays, p: int, slot: int, now_s: float, by: int) -> float:
    """Let the jobs of partition `p` end until the job in `slot`, which does not fit, does.

    `by`: they end as predicted (AS_PREDICTED), by their time limits at the latest too (WITHIN_LIMITS), or
    only when they reach these (AT_LIMITS; never without one).

    Jobs that are predicted to end at one time end together. `future` (`copy_nodes`) is then the partition at
    that time; where the job would not fit even the idle partition it is that, and the time is infinite.
    R running jobs cost O(R + k log R), where k have to end.
    """
    running = future.derived.running_len[0]
    ends_s, slots = np.empty(running, np.float64), np.empty(running, np.int32)
    count = 0
    for position in range(running):
        other = future.derived.slot.running[position]
        if future.job.placed_in[other] == p:
            ends_s[count], slots[count] = _end_s(future, other, now_s, by), other
            count += 1
    for at in range(count // 2 - 1, -1, -1):
        _sink(ends_s, slots, count, at)
    while count > 0:
        end_s = ends_s[0]
        while count > 0 and ends_s[0] == end_s:
            job, ended = future.job, slots[0]
            vacate(future, ended, job.head[ended], job.host[ended], p, job.share_milli[ended])
            count -= 1
            ends_s[0], slots[0] = ends_s[count], slots[count]
            _sink(ends_s, slots, count, 0)
        if end_s < np.inf and fits_slot(future, p, slot):
            return end_s
    return np.inf


@array_kernel
def let_end_until_fits(future: StateArrays, p: int, slot: int, now_s: float) -> float:
    """`let_end_by`, as predicted: what rules go by."""
    return let_end_by(future, p, slot, now_s, AS_PREDICTED)


@array_kernel
def no_verdicts(s: StateArrays) -> NDArray[np.int8]:
    """Whether jobs of each demand class may run past a reservation: nothing is known yet. (C,)"""
    return np.full(s.demand.shape[0], UNKNOWN, np.int8)


@array_kernel
def fits_beside(s: StateArrays, future: StateArrays, p: int, slot: int, other: int, node: int) -> bool:
    """Whether the job in `slot` fits `future` although the job in `other` has started now and still runs.

    `other` is put on the GPUs that it would be given now, on `node` or by the placement rule (-1). `future`
    is left as it was.
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
def leaves_alone(
    s: StateArrays,
    future: StateArrays,
    p: int,
    reserved: int,
    shadow_s: float,
    slot: int,
    o: StartOptions,
    now_s: float,
    verdicts: NDArray[np.int8],
) -> bool:
    """Whether the job in `slot`, which fits now, can start without delaying the job in `reserved`.

    It can if it is predicted to end by `shadow_s`, the time of the reservation, or if `reserved` fits
    `future`, the partition at that time, beside it. Jobs of one class would be given the same GPUs now, so
    `verdicts` (`no_verdicts`) keeps the answer by class, unless their GPU type is chosen; it holds until
    something starts.
    """
    typed = chooses_type(s, slot, o)
    node = alone_plan(s, p, slot, o).node if typed else -1
    if now_s + predicted_run_s(s, p, slot, node) <= shadow_s:
        return True
    c = s.job.demand[slot]
    if typed or verdicts[c] == UNKNOWN:
        verdicts[c] = _LEAVES_ROOM if fits_beside(s, future, p, reserved, slot, node) else _DELAYS
    return verdicts[c] == _LEAVES_ROOM
