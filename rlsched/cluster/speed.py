"""Compiled speed of a job in a state, given its clock, sharing, GPU type, nodes and cores.

The *rate* of a job is the speed of its progress: at a rate of 1, an attempt lasts the stated run time. The
*full speed* of a job on a GPU type is its speed without co-tenants, at full clock and with enough cores.

Decisions predict speeds with these functions. The simulator computes the actual speeds with them, and adds
the part that no model explains (`sharing.pair_noise`).
"""

from __future__ import annotations

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS, PowerClass, StateArrays
from rlsched.compile.jit import array_kernel, kernel
from rlsched.models.arrays import ModelArrays
from rlsched.models.clocks import dynamic_power_w, relative_time
from rlsched.models.cores import input_speed
from rlsched.models.observing import forget_all
from rlsched.models.scaling import node_spread_speed
from rlsched.models.sharing import shared_speed


@kernel
def gpu_kind(s: StateArrays, g: int) -> int:
    """Return the GPU type of GPU `g`."""
    return s.node.kind[s.gpu.node[g]]


@array_kernel
def fill_beside(m: ModelArrays) -> None:
    """Compute the modelled speed of each workload next to each other workload, for every GPU type.

    Earlier observations are discarded: the predicted speeds (`beside`) are the modelled speeds again.
    """
    other = np.zeros(1, np.int64)
    for a in range(m.trait.shape[0]):
        for kind in range(m.trait.shape[1]):
            for b in range(m.trait.shape[0]):
                other[0] = b
                m.trait.modelled[a, kind, b] = shared_speed(m, kind, a, other, 1)
    forget_all(m)


@kernel
def shared_on(s: StateArrays, slot: int, g: int) -> float:
    """Return the predicted speed of a job next to all other jobs on its GPU `g`; 1 if there are none."""
    return shared_with(s, slot, slot, g)


@kernel
def shared_with(s: StateArrays, slot: int, more: int, g: int) -> float:
    """Return the predicted speed of a job next to the jobs on GPU `g` and the additional job `more`."""
    count, others = 0, s.scratch[0].others
    if more != slot:
        others[count] = s.job.workload[more]
        count += 1
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0 and other != slot:
            others[count] = s.job.workload[other]
            count += 1
    if count == 0:
        return 1.0
    mine, kind = s.job.workload[slot], gpu_kind(s, g)
    if count == 1:  # `fill_beside`
        return s.models.trait.modelled[mine, kind, others[0]]
    return shared_speed(s.models, kind, mine, others, count)


@kernel
def gpu_rate(s: StateArrays, slot: int, kind: int, x: float, shared: float, nodes: int, fewest: int) -> float:
    """Return the speed that GPUs of a type allow a job with enough cores.

    The speed is relative to the job's solo speed (without co-tenants) at full clock on these GPUs.

    Args:
        kind: Type of the job's GPUs.
        x: SM clock, fraction of the maximum.
        shared: Speed with sharing, relative to solo.
        nodes: Number of nodes on which the job runs.
        fewest: Least number of nodes on which the job fits.
    """
    t, w = s.models.trait, s.job.workload[slot]
    speed = shared / relative_time(t.clock_bound[w, kind], x)
    return speed * node_spread_speed(t.node_penalty[w, kind], nodes, fewest)


@kernel
def type_speed(s: StateArrays, slot: int, kind: int) -> float:
    """Return a job's full speed on a GPU type / its full speed on the type to which its run time refers."""
    t, w, reference = s.models.trait, s.job.workload[slot], s.job.reference_kind[slot]
    return 1.0 if reference < 0 or reference == kind else t.speed[w, kind] / t.speed[w, reference]


@kernel
def feed(s: StateArrays, slot: int, kind: int, cores_each: float) -> float:
    """Return the fraction of full speed that `cores_each` cores per GPU allow; 1: no cores requested."""
    if s.demand.cpu_milli_each[s.job.demand[slot]] == 0:
        return 1.0
    return input_speed(cores_each, s.models.trait.cores_each[s.job.workload[slot], kind])


@kernel
def asked_feed(s: StateArrays, slot: int, kind: int) -> float:
    """Return the fraction of full speed that the requested cores allow on GPUs of this type."""
    return feed(s, slot, kind, s.demand.cpu_milli_each[s.job.demand[slot]] / 1000.0)


@kernel
def reference_feed(s: StateArrays, slot: int, kind: int) -> float:
    """Return the fraction of full speed that the requested cores allow on the job's reference GPU type.

    The stated run time refers to the reference type. If a submission names none, `kind` is used instead.
    """
    reference = s.job.reference_kind[slot]
    return asked_feed(s, slot, kind if reference < 0 else reference)


@kernel
def cores_given(s: StateArrays, slot: int, kind: int) -> float:
    """Return the CPU cores per GPU of a job; co-tenants divide their cores in proportion to their needs."""
    head, held = s.job.head[slot], s.job.cpu_milli_each[slot] / 1000.0
    if head < 0 or s.job.share_milli[slot] >= s.demand.share_milli[s.job.demand[slot]]:
        return held
    held, needed, g, cores = 0.0, 0.0, head // MAX_TENANTS, s.models.trait.cores_each
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            held += s.job.cpu_milli_each[other] / 1000.0
            needed += cores[s.job.workload[other], kind]
    mine = cores[s.job.workload[slot], kind]
    return mine * min(1.0, held / needed)


@kernel
def fed_rate(s: StateArrays, slot: int, kind: int, allowed: float, cores_each: float) -> float:
    """Return a job's rate: the lower of the rates that its GPUs and its cores allow.

    At a rate of 1 the attempt lasts the job's stated run time.

    Args:
        kind: Type of the job's GPUs.
        allowed: Speed that the GPUs allow, as a fraction of the full speed on this type (`gpu_rate`).
        cores_each: CPU cores per GPU.
    """
    delivered = feed(s, slot, kind, cores_each)
    return min(allowed, delivered) / reference_feed(s, slot, kind) * type_speed(s, slot, kind)


@kernel
def fewest_nodes(s: StateArrays, p: int, slot: int, nodes: int) -> int:
    """Return the least number of nodes of partition `p` on which a job fits, but at most `nodes`."""
    size = max(s.derived.class_queue.node_size[p, s.job.demand[slot]], 1)
    return min((s.job.gpus[slot] + size - 1) // size, nodes)


@kernel
def speed_alone(s: StateArrays, slot: int, kind: int) -> float:
    """Return the predicted rate of a waiting job without co-tenants, at full clock on GPUs of a type.

    The prediction assumes the least number of nodes on which the job fits, and the requested cores.
    """
    allowed = min(gpu_rate(s, slot, kind, 1.0, 1.0, 1, 1), asked_feed(s, slot, kind))
    return allowed / reference_feed(s, slot, kind) * type_speed(s, slot, kind)


@kernel
def class_of(s: StateArrays, g: int) -> int:
    """Return the `PowerClass` of the jobs on GPU `g`: FLEXIBLE if all of them have slack, else URGENT."""
    urgent = 0
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        urgent += int(slot >= 0 and s.job.slack_s[slot] <= 0.0)
    return PowerClass.URGENT if urgent > 0 else PowerClass.FLEXIBLE


@kernel
def chosen_clock(s: StateArrays, g: int) -> float:
    """Return the highest of the SM clocks chosen for the jobs on GPU `g`, as a fraction of the maximum."""
    clock = 0.0
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            clock = max(clock, s.job.sm_clock_frac[slot])
    return clock


@kernel
def cap_on(s: StateArrays, g: int, urgent_cap: float, flexible_cap: float) -> float:
    """Return the cap of GPU `g`'s SM clock: `urgent_cap` or `flexible_cap`, by the `PowerClass` of its jobs.

    The clock of a MIG slice, and of a node whose clocks cannot be set, has no cap: the result is 1.
    """
    place, fixed = g * MAX_TENANTS, 0
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            place = s.job.head[s.gpu.tenant[g, k]]
    while place >= 0:
        at = place // MAX_TENANTS
        fixed += s.node.fixed_clock[s.gpu.node[at]] + int(s.models.gpu.sliced[gpu_kind(s, at)] != 0)
        place = s.gpu.link[at, place % MAX_TENANTS]
    if fixed:
        return 1.0
    return urgent_cap if class_of(s, g) == PowerClass.URGENT else flexible_cap


@kernel
def present_speed(s: StateArrays, slot: int) -> float:
    """Return the predicted rate of a running job with its present co-tenants and clock; 1 without GPUs.

    The clock is the recorded clock of the GPUs if there is one, as in the simulator. Otherwise, the clock is
    the job's chosen clock, up to the cap of a power limit. The rate is cached until the GPUs change
    (`rlsched.cluster.kernels.forget_speeds`).
    """
    if s.job.head[slot] < 0:
        return 1.0
    known = s.derived.slot.speed
    if known[slot] != known[slot]:
        known[slot] = _present_speed(s, slot, s.job.head[slot] // MAX_TENANTS)
    return known[slot]


@kernel
def _present_speed(s: StateArrays, slot: int, g: int) -> float:
    """Compute `present_speed` of a job whose first GPU is `g`."""
    clock, caps = s.job.sm_clock_frac[slot], s.config[0].clock_cap
    if s.gpu.clock_frac[g] > 0.0:
        clock = s.gpu.clock_frac[g]
    elif s.config[0].limited:
        clock = min(clock, cap_on(s, g, caps[PowerClass.URGENT], caps[PowerClass.FLEXIBLE]))
    return placed_rate(s, slot, clock, shared_on(s, slot, g))


@kernel
def placed_rate(s: StateArrays, slot: int, clock: float, shared: float) -> float:
    """Return the rate of a running job: the rate of its slowest GPU, limited by the job's cores.

    Args:
        clock: SM clock of the GPUs, fraction of the maximum.
        shared: Speed with sharing, relative to solo.
    """
    head = s.job.head[slot]
    nodes, last_node, place = 0, -1, head
    while place >= 0:
        n = s.gpu.node[place // MAX_TENANTS]
        nodes += n != last_node
        last_node = n
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    fewest = fewest_nodes(s, s.job.placed_in[slot], slot, nodes)
    rate, last_kind, place = np.inf, -1, head
    while place >= 0:
        kind = gpu_kind(s, place // MAX_TENANTS)
        if kind != last_kind:
            allowed = gpu_rate(s, slot, kind, clock, shared, nodes, fewest)
            rate = min(rate, fed_rate(s, slot, kind, allowed, cores_given(s, slot, kind)))
            last_kind = kind
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return rate


@kernel
def use_of_gpus(s: StateArrays, slot: int, kind: int, rate: float) -> float:
    """Convert a job's rate (1: the stated run time) to a fraction of its full speed on GPUs of this type."""
    return rate * reference_feed(s, slot, kind) / type_speed(s, slot, kind)


@kernel
def busy_frac(s: StateArrays, slot: int, kind: int, clock: float, rate: float) -> float:
    """Return `rate` / (the job's rate without co-tenants at this clock, with enough cores), at most 1."""
    alone = gpu_rate(s, slot, kind, clock, 1.0, 1, 1)
    return min(use_of_gpus(s, slot, kind, rate) / alone, 1.0)


@kernel
def dynamic_w(s: StateArrays, slot: int, kind: int) -> float:
    """Return a job's dynamic power on a GPU of this type at full clock, W.

    It is learnt from similar jobs if possible, else it is the catalogue's value for the job's workload.
    """
    watts, ratio = s.models.trait.dynamic_w[s.job.workload[slot], kind], s.job.dynamic_ratio[slot]
    return watts if ratio == 0.0 else watts * ratio


@kernel
def at_clock_w(s: StateArrays, slot: int, kind: int, clock: float, busy: float) -> float:
    """Return the power that a job adds to each of its GPUs (type `kind`) at an SM clock, W.

    `busy`: speed of the job, as a fraction of its solo speed at this clock with enough cores (`busy_frac`).
    At 1, the power is that of a GPU that works for the job all the time.
    """
    bound = s.models.trait.clock_bound[s.job.workload[slot], kind]
    return dynamic_power_w(s.models.gpu, kind, dynamic_w(s, slot, kind), bound, clock, busy)


@kernel
def added_power_w(s: StateArrays, slot: int, kind: int, clock: float, rate: float) -> float:
    """Return the power that a job adds to each of its GPUs (type `kind`), W.

    `clock`: SM clock of the GPUs, fraction of the maximum. `rate`: speed of the job's progress; 1: the job
    lasts its stated run time.
    """
    return at_clock_w(s, slot, kind, clock, busy_frac(s, slot, kind, clock, rate))


@kernel
def at_work_frac(s: StateArrays, slot: int, kind: int, clock: float, rate: float) -> float:
    """Return the fraction of time in which a job that progresses at `rate` keeps each of its GPUs busy.

    The fraction is the catalogue's solo utilisation, reduced if too few cores, co-tenants or more nodes slow
    the job down. The fraction ignores that the GPU is idle for a smaller part of the time at a lower clock.
    """
    util_frac = s.models.trait.util_frac[s.job.workload[slot], kind]
    return util_frac * busy_frac(s, slot, kind, clock, rate)


@kernel
def cores_used(s: StateArrays, slot: int, kind: int, rate: float) -> float:
    """Return the CPU cores per GPU that a job keeps busy if it progresses at `rate`; 0: none requested.

    A job without GPUs keeps all its cores busy.
    """
    if s.job.head[slot] < 0:
        return s.job.cpu_milli_each[slot] / 1000.0
    if s.demand.cpu_milli_each[s.job.demand[slot]] == 0:
        return 0.0
    busy = min(use_of_gpus(s, slot, kind, rate), 1.0)
    return min(cores_given(s, slot, kind), s.models.trait.cores_each[s.job.workload[slot], kind] * busy)
