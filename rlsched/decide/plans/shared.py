"""Compiled plans that start a job on GPUs of running jobs: the gain of each plan, and whether it is allowed.

All values are computed from predicted speeds (`rlsched.cluster.speed`).
"""

from __future__ import annotations

import math
from typing import Final

from rlsched.cluster.arrays import MAX_TENANTS, StateArrays
from rlsched.cluster.capacity import gpu_need_mib, is_memory_left, takes_gpus_of
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import tenants_of
from rlsched.cluster.loans import lacks_cores, lent_milli_each
from rlsched.cluster.speed import (
    asked_feed,
    cores_given,
    feed,
    gpu_kind,
    shared_on,
    shared_with,
)
from rlsched.compile.jit import kernel
from rlsched.decide.clocks import join_cores
from rlsched.decide.options import KEEP_FRAC, LUCID, Gate, StartOptions
from rlsched.decide.plans.plan import (
    ADDS_TOO_LITTLE,
    ANOTHER_SIZE,
    FULL,
    KEPT_APART,
    LUCID_SAYS_NO,
    NO_CORES,
    NO_MEMORY,
    NODES_DIFFER,
    NOT_THE_FIRST,
    NOT_WHOLE,
    TAKEN_OR_OPEN,
    TOO_SLOW,
    WORTH_LESS,
    Plan,
    chooses_type,
    refused,
    type_worth,
)
from rlsched.decide.remaining import remaining_s
from rlsched.models.memory import fits_memory

LUCID_MAX_GPUS: Final = 8
LUCID_SCORES: Final = 2
"""Lucid packs jobs of up to 8 GPUs whose scores (0 tiny, 1 medium, 2 jumbo) add up to at most 2."""
LUCID_LONGER: Final = 2.0
"""Lucid adds a job only if its predicted GPU time is at most this multiple of the running job's GPU time
(its artifact's `policy/lucid.py`)."""
LUCID_MEDIUM_UTIL: Final = 0.5
LUCID_JUMBO_UTIL: Final = 0.85
"""Thresholds of solo GPU utilisation in place of Lucid's decision tree: below 0.5 a pair of equal jobs keeps
nearly full speed, above 0.85 each job falls below 0.85 of full speed.
"""


@kernel
def _score(s: StateArrays, slot: int, kind: int) -> int:
    """Return Lucid's sharing score of a job: 0 tiny, 1 medium, 2 jumbo."""
    util = s.models.trait.util_frac[s.job.workload[slot], kind]
    return (util > LUCID_MEDIUM_UTIL) + (util > LUCID_JUMBO_UTIL)


@kernel
def has_memory_beside(s: StateArrays, slot: int, share_with: int) -> bool:
    """Return whether GPU memory suffices for a waiting job next to a running job and its co-tenants.

    Plans (ways to start a job) get this check first: it is the fastest check, and most plans fail it.
    """
    g, used_mib, tenants = s.job.head[share_with] // MAX_TENANTS, 0.0, 0
    kind = gpu_kind(s, g)
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            used_mib += gpu_need_mib(s, other, kind)
            tenants += 1
    mine_mib = gpu_need_mib(s, slot, kind)
    fits = fits_memory(s.models.gpu.memory_mib[kind], used_mib, tenants, mine_mib)
    return fits and is_memory_left(s, share_with, used_mib, mine_mib)


@kernel
def shared_plan(
    s: StateArrays, slot: int, share_with: int, o: StartOptions, now_s: float, least: float
) -> Plan:
    """Return the plan of a waiting job on all GPUs of a running job, which may already have co-tenants.

    The gain of the plan is the predicted speed of the waiting job on these GPUs, less the speed that the
    other jobs lose. If a plan is worth less than `least`, its verdict is WORTH_LESS, and the required gain is
    not computed.
    """
    job = s.job
    kind = gpu_kind(s, job.head[share_with] // MAX_TENANTS)
    if job.gpus[slot] != job.gpus[share_with]:
        return refused(ANOTHER_SIZE, share_with, kind)
    if job.unshared[slot] or job.unshared[share_with]:
        return refused(KEPT_APART, share_with, kind)
    if job.share_milli[share_with] < WHOLE_GPU_MILLI:
        if o.max_jobs > 2 and o.share != LUCID:
            return _group_plan(s, slot, share_with, o, now_s, least)
        return refused(FULL, share_with, kind)
    demand = job.demand[slot]
    if s.demand.memory_mib_each[demand] > 0:
        return refused(NOT_WHOLE, share_with, kind)
    t, mine, theirs = s.models.trait, job.workload[slot], job.workload[share_with]
    memory_mib = s.models.gpu.memory_mib[kind]
    used_mib = gpu_need_mib(s, share_with, kind)
    mine_mib = gpu_need_mib(s, slot, kind)
    if not fits_memory(memory_mib, used_mib, 1, mine_mib):
        return refused(NO_MEMORY, share_with, kind)
    if not is_memory_left(s, share_with, used_mib, mine_mib):
        return refused(NO_MEMORY, share_with, kind)
    if o.share == LUCID:
        return _lucid_plan(s, slot, share_with, kind)
    one, two = t.beside[mine, kind, theirs], t.beside[theirs, kind, mine]
    if min(one, two) < o.min_speed:
        return refused(TOO_SLOW, share_with, kind)
    if not takes_gpus_of(s, demand, share_with):
        return refused(NODES_DIFFER, share_with, kind)
    if lacks_cores(s, slot, share_with):
        return refused(NO_CORES, share_with, kind)
    lent = lent_milli_each(s, share_with)  # the join may end the loan
    held = (job.cpu_milli_each[share_with] - lent + join_cores(s, slot, share_with, kind)) / 1000.0
    needed = t.cores_each[mine, kind] + t.cores_each[theirs, kind]
    met = min(1.0, held / needed)
    one = min(one, feed(s, slot, kind, t.cores_each[mine, kind] * met)) / asked_feed(s, slot, kind)
    two = min(two, feed(s, share_with, kind, t.cores_each[theirs, kind] * met)) / asked_feed(
        s, share_with, kind
    )
    before = 1.0
    if lent > 0:
        before = feed(s, share_with, kind, cores_given(s, share_with, kind)) / asked_feed(s, share_with, kind)
    return _priced(s, slot, share_with, kind, 2, o, one, one + two - before, min(one, two), now_s, least)


@kernel
def _lucid_plan(s: StateArrays, slot: int, share_with: int, kind: int) -> Plan:
    """Compute `shared_plan` by Lucid's sharing rule; all plans that the rule allows have the same worth."""
    job = s.job
    own, other = job.predicted_s[slot] * job.gpus[slot], job.predicted_s[share_with] * job.gpus[share_with]
    if job.gpus[slot] > LUCID_MAX_GPUS or own > LUCID_LONGER * other:
        return refused(LUCID_SAYS_NO, share_with, kind)
    if _score(s, slot, kind) + _score(s, share_with, kind) > LUCID_SCORES:
        return refused(LUCID_SAYS_NO, share_with, kind)
    if not takes_gpus_of(s, job.demand[slot], share_with):
        return refused(NODES_DIFFER, share_with, kind)
    if lacks_cores(s, slot, share_with):
        return refused(NO_CORES, share_with, kind)
    return Plan(TAKEN_OR_OPEN, -1, share_with, kind, 2, 1.0, 0.0, -1.0, 1.0, 0.0)


@kernel
def _priced(
    s: StateArrays,
    slot: int,
    share_with: int,
    kind: int,
    tenants: int,
    o: StartOptions,
    own: float,
    gain: float,
    slowest: float,
    now_s: float,
    least: float,
) -> Plan:
    """Return the plan to share GPUs, given the predicted speeds: `own`, `gain` and `slowest` (see `Plan`).

    The plan is marked as not allowed if `slowest`, the worth of the plan, or `gain` is too low.
    """
    if slowest < o.min_speed:
        return refused(TOO_SLOW, share_with, kind)
    worth = gain
    if chooses_type(s, slot, o):  # spare cores help on free GPUs too, so sharing adds at most 1
        worth = min(gain, 1.0) * type_worth(s, s.job.placed_in[share_with], slot, kind, o)
    if worth < least:
        return refused(WORTH_LESS, share_with, kind)
    asked = asked_gain(s, slot, share_with, o.gate, tenants > 2, slowest, now_s)
    verdict = ADDS_TOO_LITTLE if o.gate.is_shut and gain < asked else TAKEN_OR_OPEN
    return Plan(verdict, -1, share_with, kind, tenants, own, gain, asked, slowest, worth)


@kernel
def asked_gain(
    s: StateArrays, slot: int, share_with: int, gate: Gate, more: bool, slowest: float, now_s: float
) -> float:
    """Return the least gain that a waiting job needs on the GPUs of a running job; -1: no gain is required.

    `more`: whether two or more jobs already share the GPUs.
    """
    if not gate.is_shut:
        return -1.0
    p = s.job.placed_in[share_with]
    part, dial = s.derived.part[p], s.dials.dial[p]
    waiting = part.queue_len / max(part.open_gpus, 1)
    least = gate.more + dial.gate_more if more else gate.pair + dial.gate_pair
    by_length, by_left = gate.by_length + dial.by_length, gate.by_left + dial.by_left
    if by_length != 0.0:
        least += by_length * _long(s.job.predicted_s[slot])
    if by_left != 0.0:
        least += by_left * _long(remaining_s(s, share_with, now_s))
    if gate.by_queue != 0.0:
        least += gate.by_queue * (1.0 - math.exp(-4.0 * waiting))
    least += gate.by_slowest * max(KEEP_FRAC - slowest, 0.0)
    if gate.by_hold != 0.0:
        later_s = _held_longer_s(s, slot, share_with, slowest, now_s)
        hold_frac = s.job.gpus[slot] / max(part.open_gpus, 1)
        least += gate.by_hold * (2.0 * hold_frac) ** 3 * later_s / (later_s + 3600.0)
    return least


@kernel
def _held_longer_s(s: StateArrays, slot: int, share_with: int, slowest: float, now_s: float) -> float:
    """Return the predicted delay, s, of the release of a running job's GPUs if a waiting job joins it.

    Assumes that all jobs run at the speed of the slowest job while they share, and at their previous speed
    otherwise. The job on the GPUs that is predicted to end last determines the delay.
    """
    g, left_s, own_s = s.job.head[share_with] // MAX_TENANTS, 0.0, s.job.predicted_s[slot]
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            left_s = max(left_s, remaining_s(s, s.gpu.tenant[g, k], now_s))
    return max(own_s - left_s, 0.0) + min(own_s, left_s) * (1.0 / slowest - 1.0)


@kernel
def _long(time_s: float) -> float:
    """Return tanh(ln(time / 1 h) / 3): a time relative to one hour, on a scale from -1 to 1."""
    return math.tanh(math.log(max(time_s, 1.0) / 3600.0) / 3.0)


@kernel
def _group_plan(
    s: StateArrays, slot: int, share_with: int, o: StartOptions, now_s: float, least: float
) -> Plan:
    """Compute `shared_plan` for GPUs that several jobs share.

    All jobs on these GPUs give the same plan; only the plan with the job that arrived first is allowed.
    """
    job, t, g = s.job, s.models.trait, s.job.head[share_with] // MAX_TENANTS
    kind, tenants, used_mib, held = gpu_kind(s, g), tenants_of(s, g), 0.0, 0
    if tenants >= o.max_jobs:
        return refused(FULL, share_with, kind)
    if s.demand.share_milli[job.demand[share_with]] < WHOLE_GPU_MILLI:
        return refused(NOT_WHOLE, share_with, kind)
    needed = t.cores_each[job.workload[slot], kind]
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            if job.seq[other] < job.seq[share_with]:
                return refused(NOT_THE_FIRST, share_with, kind)
            if job.unshared[other]:
                return refused(KEPT_APART, share_with, kind)
            used_mib += gpu_need_mib(s, other, kind)
            needed += t.cores_each[job.workload[other], kind]
            held += job.cpu_milli_each[other] - lent_milli_each(s, other)
    mine_mib = gpu_need_mib(s, slot, kind)
    if s.demand.memory_mib_each[job.demand[slot]] > 0:
        return refused(NOT_WHOLE, share_with, kind)
    if not takes_gpus_of(s, job.demand[slot], share_with):
        return refused(NODES_DIFFER, share_with, kind)
    if lacks_cores(s, slot, share_with):
        return refused(NO_CORES, share_with, kind)
    if not fits_memory(s.models.gpu.memory_mib[kind], used_mib, tenants, mine_mib):
        return refused(NO_MEMORY, share_with, kind)
    if not is_memory_left(s, share_with, used_mib, mine_mib):
        return refused(NO_MEMORY, share_with, kind)
    met = min(1.0, (held + join_cores(s, slot, share_with, kind)) / 1000.0 / needed)
    both, slowest, own = 1.0, 1.0, 1.0
    for k in range(-1, MAX_TENANTS):
        one = slot if k < 0 else s.gpu.tenant[g, k]
        if one >= 0:
            speed = shared_with(s, one, slot, g)
            cores = t.cores_each[job.workload[one], kind] * met
            speed = min(speed, feed(s, one, kind, cores)) / asked_feed(s, one, kind)
            if speed < o.min_speed:
                return refused(TOO_SLOW, share_with, kind)
            slowest = min(slowest, speed)
            both += speed
            if k < 0:
                own = speed
            else:
                before = min(shared_on(s, one, g), feed(s, one, kind, cores_given(s, one, kind)))
                both -= before / asked_feed(s, one, kind)
    return _priced(s, slot, share_with, kind, tenants + 1, o, own, both - 1.0, slowest, now_s, least)
