"""Compiled functions for the power of nodes, and for the highest modelled power of running jobs.

A job draws the highest power while its GPUs work for the job all the time. Co-tenants, too few cores and
additional nodes only slow the job down, so that it draws less.
"""

from __future__ import annotations

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS, NODE_ASLEEP, NODE_BOOTING, NODE_DOWN, StateArrays
from rlsched.cluster.speed import at_clock_w, cap_on, chosen_clock, cores_used, gpu_kind
from rlsched.compile.jit import kernel
from rlsched.models.clocks import gpu_power_w


@kernel
def idle_gpus_w(s: StateArrays, n: int) -> float:
    """Return the power of a node's GPUs while none of them is in use, W."""
    return s.node.gpus[n] * s.models.gpu.idle_w[s.node.kind[n]]


@kernel
def node_idle_w(s: StateArrays, n: int, status: int) -> float:
    """Return the power of an unused node in this status, W."""
    if status == NODE_DOWN:
        return 0.0
    if status == NODE_ASLEEP:
        return s.node.asleep_w[n]
    if status == NODE_BOOTING:
        return s.node.boot_w[n]
    return s.node.idle_w[n] + idle_gpus_w(s, n)


@kernel
def highest_clock(s: StateArrays, g: int, urgent_cap: float, flexible_cap: float) -> float:
    """Return the present SM clock of GPU `g`, or the clock chosen for its jobs if higher; at most its cap."""
    clock = max(chosen_clock(s, g), s.gpu.clock_frac[g])
    return min(clock, cap_on(s, g, urgent_cap, flexible_cap))


@kernel
def leads(s: StateArrays, slot: int) -> bool:
    """Return whether a job is the first on its GPUs; a sum over such jobs counts each GPU once."""
    g, first = s.job.head[slot] // MAX_TENANTS, 0
    while s.gpu.tenant[g, first] < 0:
        first += 1
    return bool(s.gpu.tenant[g, first] == slot)


@kernel
def most_added_w(s: StateArrays, g: int, clock: float, without: int) -> float:
    """Return the highest power that the jobs on GPU `g` draw, in addition to the power of idle nodes, W.

    It is the sum over all GPUs and cores of these jobs.

    Args:
        g: First GPU of these jobs. The jobs have the same GPUs.
        clock: SM clock, fraction of the maximum.
        without: Slot of a job that does not count; -1: none.
    """
    gpu, count = s.models.gpu, 0
    total_w, first, known, added_w = 0.0, -1, -1, 0.0
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and slot != without:
            total_w += busy_cores_w(s, slot, gpu_kind(s, g))
            first, count = slot, count + 1
    place = s.job.head[first] if first >= 0 else -1
    while place >= 0:
        at = place // MAX_TENANTS
        kind = gpu_kind(s, at)
        if kind != known:
            known, jobs_w = kind, 0.0
            for k in range(MAX_TENANTS):
                slot = s.gpu.tenant[g, k]
                if slot >= 0 and slot != without:
                    jobs_w += at_clock_w(s, slot, kind, clock, 1.0)
            added_w = gpu_power_w(gpu, kind, count, jobs_w) - gpu.idle_w[kind]
        total_w += added_w
        place = s.gpu.link[at, place % MAX_TENANTS]
    return total_w


@kernel
def busy_cores_w(s: StateArrays, slot: int, kind: int) -> float:
    """Return the power of a running job's cores if its GPUs (type `kind`) work all the time, W."""
    return s.node.core_w[s.job.host[slot]] * max(s.job.gpus[slot], 1) * cores_used(s, slot, kind, np.inf)


@kernel
def nodes_w(s: StateArrays) -> float:
    """Return the power of all nodes as if no job ran, W."""
    watts = 0.0
    for n in range(s.node.shape[0]):
        watts += node_idle_w(s, n, s.node.status[n])
    return watts
