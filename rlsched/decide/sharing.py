"""Whose GPUs a waiting job had best share, compiled.

All of it goes by predicted speeds (`rlsched.models.speed`), which a policy sees too.
"""

from __future__ import annotations

import math
from typing import Final

from rlsched.cluster.arrays import MAX_TENANTS, StateArrays
from rlsched.cluster.capacity import takes_gpus_of
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import tenants_of
from rlsched.decide.clocks import join_cores
from rlsched.decide.options import (
    BLOCKED,
    KEEP_FRAC,
    LUCID,
    NEVER,
    Gate,
    StartOptions,
    may_share,
    policy_start,
)
from rlsched.decide.remaining import remaining_s
from rlsched.jit import kernel
from rlsched.models.memory import fits_memory
from rlsched.models.speed import (
    asked_feed,
    cores_given,
    feed,
    gpu_kind,
    shared_on,
    shared_with,
)

LOOK_AT: Final = 16
"""Waiting jobs that are looked at for one that may share: a bound, as Slurm's `bf_max_job_test`."""
LUCID_MAX_GPUS: Final = 8
LUCID_SCORES: Final = 2
"""Lucid packs jobs of up to 8 GPUs whose scores (0 tiny, 1 medium, 2 jumbo) add up to 2 at most ..."""
LUCID_LONGER: Final = 2.0
"""... with a job whose predicted GPU-time is at least half of theirs (its artifact's `policy/lucid.py`)."""
LUCID_MEDIUM_UTIL: Final = 0.5
LUCID_JUMBO_UTIL: Final = 0.85
"""Lucid learns its scores by a decision tree over profiles; ours are cut by solo GPU utilisation alone, where
a pair of equals keeps nearly all of its speed (0.5) and where each falls below 0.85 of it."""


@kernel
def _score(s: StateArrays, slot: int, kind: int) -> int:
    """Lucid's sharing score of a job: 0 tiny, 1 medium, 2 jumbo."""
    util = s.models.trait.util_frac[s.job.workload[slot], kind]
    return (util > LUCID_MEDIUM_UTIL) + (util > LUCID_JUMBO_UTIL)


@kernel
def pair_value(s: StateArrays, slot: int, share_with: int, o: StartOptions, now_s: float) -> float:
    """Predicted speed that is gained, and the running job's, if a waiting job joins a running one.

    That is the speed of both for a pair; beside several, the waiting job's, and one less what they lose.
    0 where it may not join.
    """
    job = s.job
    if job.gpus[slot] != job.gpus[share_with]:
        return 0.0
    g = job.head[share_with] // MAX_TENANTS
    if job.share_milli[share_with] < WHOLE_GPU_MILLI:
        shares_more = o.max_jobs > 2 and o.share == BLOCKED
        return _group_value(s, slot, share_with, o, now_s) if shares_more else 0.0
    kind, demand = gpu_kind(s, g), job.demand[slot]
    if s.demand.memory_mib_each[demand] > 0:
        return 0.0
    t, mine, theirs = s.models.trait, job.workload[slot], job.workload[share_with]
    memory_mib = s.models.gpu.memory_mib[kind]
    if not fits_memory(memory_mib, t.memory_mib[theirs, kind], 1, t.memory_mib[mine, kind]):
        return 0.0
    if o.share == LUCID:
        own, other = (
            job.predicted_s[slot] * job.gpus[slot],
            job.predicted_s[share_with] * job.gpus[share_with],
        )
        if job.gpus[slot] > LUCID_MAX_GPUS or own > LUCID_LONGER * other:
            return 0.0
        small = _score(s, slot, kind) + _score(s, share_with, kind) <= LUCID_SCORES
        return 1.0 * (small and takes_gpus_of(s, demand, share_with))
    one, two = t.beside[mine, kind, theirs], t.beside[theirs, kind, mine]
    if min(one, two) < o.min_speed or not takes_gpus_of(s, demand, share_with):
        return 0.0
    held = (job.cpu_milli_each[share_with] + join_cores(s, slot, share_with, kind)) / 1000.0
    needed = t.cores_each[mine, kind] + t.cores_each[theirs, kind]
    met = min(1.0, held / needed)
    one = min(one, feed(s, slot, kind, t.cores_each[mine, kind] * met)) / asked_feed(s, slot, kind)
    two = min(two, feed(s, share_with, kind, t.cores_each[theirs, kind] * met)) / asked_feed(
        s, share_with, kind
    )
    slowest, gain = min(one, two), one + two - 1.0
    if slowest < o.min_speed or not _pays(s, slot, share_with, o.gate, False, gain, slowest, now_s):
        return 0.0
    return one + two


@kernel
def _pays(
    s: StateArrays,
    slot: int,
    share_with: int,
    gate: Gate,
    more: bool,
    gain: float,
    slowest: float,
    now_s: float,
) -> bool:
    """Whether what a waiting job adds to the GPUs of a running one is as much as the gate asks.

    `more`: whether these are shared already.
    """
    if not gate.is_shut:
        return True
    p = s.job.placed_in[share_with]
    part, dial = s.derived.part[p], s.dials.dial[p]
    waiting = part.queue_len / max(part.open_gpus, 1)
    least = gate.more + dial.gate_more if more else gate.pair + dial.gate_pair
    least += (gate.by_length + dial.by_length) * _long(s.job.predicted_s[slot])
    least += (gate.by_left + dial.by_left) * _long(remaining_s(s, share_with, now_s))
    least += gate.by_queue * (1.0 - math.exp(-4.0 * waiting))
    least += gate.by_slowest * max(KEEP_FRAC - slowest, 0.0)
    if gate.by_hold != 0.0:
        later_s = _held_longer_s(s, slot, share_with, slowest, now_s)
        hold_frac = s.job.gpus[slot] / max(part.open_gpus, 1)
        least += gate.by_hold * (2.0 * hold_frac) ** 3 * later_s / (later_s + 3600.0)
    return gain >= least


@kernel
def _held_longer_s(s: StateArrays, slot: int, share_with: int, slowest: float, now_s: float) -> float:
    """How much later the GPUs of a running job are predicted to come free if a waiting job joins it, seconds.

    All run at the speed of the slowest while they share, and as before without each other. The last of those
    who share them already counts.
    """
    g, left_s, own_s = s.job.head[share_with] // MAX_TENANTS, 0.0, s.job.predicted_s[slot]
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            left_s = max(left_s, remaining_s(s, s.gpu.tenant[g, k], now_s))
    return max(own_s - left_s, 0.0) + min(own_s, left_s) * (1.0 / slowest - 1.0)


@kernel
def _long(time_s: float) -> float:
    """How much longer than an hour, -1 to 1."""
    return math.tanh(math.log(max(time_s, 1.0) / 3600.0) / 3.0)


@kernel
def _group_value(s: StateArrays, slot: int, share_with: int, o: StartOptions, now_s: float) -> float:
    """`pair_value` where the running job shares its GPUs already: by the first of those who share alone."""
    job, t, g = s.job, s.models.trait, s.job.head[share_with] // MAX_TENANTS
    kind, tenants, used_mib, held = gpu_kind(s, g), tenants_of(s, g), 0.0, 0
    if tenants >= o.max_jobs or s.demand.share_milli[job.demand[share_with]] < WHOLE_GPU_MILLI:
        return 0.0
    needed = t.cores_each[job.workload[slot], kind]
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            if job.seq[other] < job.seq[share_with]:
                return 0.0
            used_mib += t.memory_mib[job.workload[other], kind]
            needed += t.cores_each[job.workload[other], kind]
            held += job.cpu_milli_each[other]
    mine_mib = t.memory_mib[job.workload[slot], kind]
    if s.demand.memory_mib_each[job.demand[slot]] > 0 or not takes_gpus_of(s, job.demand[slot], share_with):
        return 0.0
    if not fits_memory(s.models.gpu.memory_mib[kind], used_mib, tenants, mine_mib):
        return 0.0
    met = min(1.0, (held + join_cores(s, slot, share_with, kind)) / 1000.0 / needed)
    value, slowest = 1.0, 1.0
    for k in range(-1, MAX_TENANTS):
        one = slot if k < 0 else s.gpu.tenant[g, k]
        if one >= 0:
            speed = shared_with(s, one, slot, g)
            cores = t.cores_each[job.workload[one], kind] * met
            speed = min(speed, feed(s, one, kind, cores)) / asked_feed(s, one, kind)
            if speed < o.min_speed:
                return 0.0
            slowest = min(slowest, speed)
            value += speed
            if k >= 0:
                before = min(shared_on(s, one, g), feed(s, one, kind, cores_given(s, one, kind)))
                value -= before / asked_feed(s, one, kind)
    return value if _pays(s, slot, share_with, o.gate, True, value - 1.0, slowest, now_s) else 0.0


@kernel
def best_partner(s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float) -> int:
    """Running job of partition `p` that a waiting one had best share GPUs with, -1 for none.

    Best is the highest speed of both together, then the job that came first.
    """
    if s.demand.share_milli[s.job.demand[slot]] < WHOLE_GPU_MILLI or s.job.gpus[slot] == 0:
        return -1
    found, most = -1, 0.0
    for position in range(s.derived.running_len[0]):
        share_with = s.derived.slot.running[position]
        if s.job.placed_in[share_with] == p and s.job.gpus[share_with] == s.job.gpus[slot]:
            value = pair_value(s, slot, share_with, o, now_s)
            better = value > most or (
                value == most and found >= 0 and s.job.seq[share_with] < s.job.seq[found]
            )
            if value > 0.0 and better:
                found, most = share_with, value
    return found


@kernel
def fails_as(s: StateArrays, p: int, slot: int, other: int, o: StartOptions) -> bool:
    """Whether a waiting job can share with nobody of partition `p` because another one could not.

    They ask for the same, are of the same workload, and the gate asks no less of it.
    """
    job = s.job
    if job.demand[slot] != job.demand[other] or job.workload[slot] != job.workload[other] or o.share == LUCID:
        return False
    if not o.gate.is_shut:
        return True
    longer_s = job.predicted_s[slot] - job.predicted_s[other]
    tilt = o.gate.by_length + s.dials.dial[p].by_length
    return tilt * longer_s >= 0.0 and o.gate.by_hold * longer_s >= 0.0


@kernel
def next_to_share(s: StateArrays, p: int, blocks: bool, o: StartOptions, now_s: float) -> tuple[int, int]:
    """(waiting slot, running slot that it joins) of a rule's next pair in partition `p`; (-1, -1) for none.

    The first waiting job of the queue order that has a partner; of a rule that blocks, the very first alone.
    """
    if o.share == NEVER or not may_share(s):
        return -1, -1
    queue = s.derived.queue[p]
    for position in range(min(s.derived.part.queue_len[p], 1 if blocks else LOOK_AT)):
        known = False
        for before in range(position):
            known = known or fails_as(s, p, queue[position], queue[before], o)
        if known:
            continue
        share_with = best_partner(s, p, queue[position], o, now_s)
        if share_with >= 0:
            return queue[position], share_with
    return -1, -1


@kernel
def partner_of(s: StateArrays, p: int, slot: int, now_s: float) -> int:
    """The running job that a policy's reference rule would let a waiting one share GPUs with, -1: none."""
    return best_partner(s, p, slot, policy_start(s), now_s) if may_share(s) else -1
