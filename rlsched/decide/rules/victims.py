"""Compiled search for the cheapest jobs to preempt so that another job fits.

A *group* is a job and all jobs that share its GPUs. A group is preempted as a whole, and only if all of its
jobs may be preempted. A gang that fits on one node gets the node whose preempted jobs have the fewest GPUs in
total, GPUs on other nodes included. A larger gang gets whole nodes of the largest size, each chosen by the
same rule, and a node for the remainder. On each node, jobs with the highest index (preemption score) are
preempted first.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, StateArrays
from rlsched.cluster.capacity import has_memory_when_idle, idle_places
from rlsched.compile.jit import array_kernel, kernel, shared

_MORE_GPUS = 1 << 30


@kernel
def _last_tenant(s: StateArrays, g: int) -> int:
    """Return the slot of the job on GPU `g`; of several jobs, of the last in the GPU's list of jobs.

    If a job has the whole node for itself, the node's unused GPUs count as GPUs of this job. -1: no job has
    the GPU.
    """
    last = -1
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            last = s.gpu.tenant[g, k]
    return last if last >= 0 else _node_tenant(s, g)


@kernel
def _node_tenant(s: StateArrays, g: int) -> int:
    """Return the slot of the job that has the node of GPU `g` as a whole node, -1 if there is no such job."""
    n, last = s.gpu.node[g], -1
    if s.gpu.free_milli[g] == 0:
        for other in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
            last = max(last, s.gpu.tenant[other, 0])
    return last


@kernel
def _has_nodes(s: StateArrays, slot: int) -> bool:
    """Return whether the job in a slot gets whole nodes."""
    return s.demand.exclusive[s.job.demand[slot]] != 0


@array_kernel
def _worst(s: StateArrays, index: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each GPU, the least preemption score of its jobs, (G,); infinite for a free GPU.

    `index`: preemption score of each slot.
    """
    worst, some = np.full(s.gpu.shape[0], math.inf), False
    for c in range(s.demand.shape[0]):
        some = some or s.demand.exclusive[c] != 0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        place = s.job.head[slot]
        while place >= 0:
            g = place // MAX_TENANTS
            worst[g] = min(worst[g], index[slot])
            place = s.gpu.link[g, place % MAX_TENANTS]
        if some and _has_nodes(s, slot):
            _withhold(s, slot, worst, index[slot])
    return worst


@kernel
def _withhold(s: StateArrays, slot: int, worst: NDArray[np.float64], index: float) -> None:
    """Set `worst` (result of `_worst`) for all GPUs on the nodes of a job that has whole nodes.

    The new value is `index`, the preemption score of the job. For a job without GPUs, the new value is
    -inf, so that its node is not chosen.
    """
    place, n = s.job.head[slot], s.job.host[slot]
    if place < 0:
        for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
            worst[g] = -math.inf
    while place >= 0:
        n = s.gpu.node[place // MAX_TENANTS]
        for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
            worst[g] = index
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]


@kernel
def _mark(s: StateArrays, g: int, free: NDArray[np.bool_], mark: bool) -> None:
    """Mark all GPUs of the group (job with co-tenants) that uses GPU `g`: True is free, False in use."""
    slot = _last_tenant(s, g)
    place, exclusive = s.job.head[slot], _has_nodes(s, slot)
    while place >= 0:
        free[place // MAX_TENANTS] = mark
        if exclusive:
            n = s.gpu.node[place // MAX_TENANTS]
            for other in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
                free[other] = mark
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]


@kernel
def _free_on(s: StateArrays, n: int, free: NDArray[np.bool_]) -> int:
    """Return the number of GPUs of node `n` that are marked as free."""
    count = 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        count += free[g]
    return count


@kernel
def _clear_node(
    s: StateArrays,
    n: int,
    needed: int,
    worst: NDArray[np.float64],
    above: float,
    free: NDArray[np.bool_],
    gone: NDArray[np.int32],
) -> int:
    """Choose groups (jobs with co-tenants) to preempt until `needed` GPUs of node `n` are marked in `free`.

    Marks the GPUs of the chosen groups in `free` (G,), and writes one GPU of each group to `gone`. Returns
    the number of groups; returns -1 and marks no GPU if `needed` GPUs cannot be freed. `worst` (G,): result
    of `_worst`. `above`: only groups with a `worst` above this value may be preempted.
    """
    first, end = s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]
    count, could, frees = 0, 0, _free_on(s, n, free)
    for g in range(first, end):
        could += free[g] or worst[g] > above
    if could < needed:
        return -1
    while frees < needed:
        at, most = first, above
        for g in range(first, end):
            if not free[g] and worst[g] > most:
                at, most = g, worst[g]
        _mark(s, at, free, True)
        gone[count] = at
        count, frees = count + 1, _free_on(s, n, free)
    k = count - 2  # the last group was needed; the earlier ones may have become unnecessary
    while k >= 0:
        _mark(s, gone[k], free, False)
        if _free_on(s, n, free) >= needed:
            count -= 1
            for other in range(k, count):
                gone[other] = gone[other + 1]
        else:
            _mark(s, gone[k], free, True)
        k -= 1
    return count


@kernel
def _gpus_held(s: StateArrays, gone: NDArray[np.int32]) -> int:
    """Return the number of GPUs, on all nodes, of the groups to preempt; `gone`: one GPU of each group."""
    held = 0
    for k in range(gone.shape[0]):
        held += s.job.gpus[_last_tenant(s, gone[k])]
    return held


@kernel
def _holds(s: StateArrays, p: int, gpus: int, size: int, free: NDArray[np.bool_]) -> bool:
    """Return whether a gang fits the GPUs marked in `free`, with `size` GPUs on each node except the last."""
    wholes, rest, holding, enough = gpus // size, gpus % size, 0, 0
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] == p and s.node.status[n] == NODE_UP:
            count = _free_on(s, n, free)
            holding += count >= size
            enough += count >= rest
    return holding >= wholes and (rest == 0 or enough > wholes)


@array_kernel
def find_victims(
    s: StateArrays, p: int, gpus: int, index: NDArray[np.float64], above: float
) -> tuple[int, int, float]:
    """Choose the jobs to preempt for a gang of `gpus` GPUs in partition `p`.

    Args:
        s: The state.
        p: The partition.
        gpus: Number of whole GPUs of the gang, which does not fit now.
        index: (J,) preemption score of each slot; -inf: the job must not be preempted.
        above: Only jobs with an index above this value may be preempted.

    Returns:
        (slot, GPUs, index): the slot of a running job to preempt now, -1 if no preemptions make the gang fit;
            the number of GPUs that all preempted groups hold; the least index of the preempted groups.
    """
    worst = _worst(s, index)
    size, left, groups = min(gpus, s.derived.part.node_size[p]), gpus, 0
    if size == 0 or not _holds(s, p, gpus, size, worst > above):
        return -1, 0, 0.0
    free, chosen = worst == math.inf, np.zeros(s.node.shape[0], np.bool_)
    gone = np.empty(max(s.derived.part.node_size[p], 1), np.int32)
    plan = np.empty(s.gpu.shape[0], np.int32)
    while left > 0:
        needed, node, least = min(left, size), -1, _MORE_GPUS
        for n in range(s.node.shape[0]):
            in_part = s.node.part_of[n] == p and s.node.status[n] == NODE_UP and s.node.gpus[n] >= needed
            if in_part and not chosen[n] and needed - _free_on(s, n, free) < least:
                count = _clear_node(s, n, needed, worst, above, free, gone)
                if count >= 0 and _gpus_held(s, gone[:count]) < least:
                    node, least = n, _gpus_held(s, gone[:count])
                for k in range(count):
                    _mark(s, gone[k], free, False)
        if node < 0:
            return -1, 0, 0.0
        chosen[node] = True
        count = _clear_node(s, node, needed, worst, above, free, gone)
        for k in range(count):  # a loop: for a slice, numba would also compile the error messages
            plan[groups + k] = gone[k]
        groups, left = groups + count, left - needed
    first, held, lowest = -1, 0, math.inf
    for k in range(groups - 1, -1, -1):  # a group chosen for a later node may free GPUs of an earlier one
        _mark(s, plan[k], free, False)
        if not _holds(s, p, gpus, size, free):
            _mark(s, plan[k], free, True)
            first = _last_tenant(s, plan[k])
            held += s.job.gpus[first]
            lowest = min(lowest, worst[plan[k]])
    return first, held, lowest


@array_kernel
def find_victims_of_nodes(
    s: StateArrays, p: int, c: int, index: NDArray[np.float64], above: float
) -> tuple[int, int, float]:
    """Choose the jobs to preempt in partition `p` for a job that gets whole nodes (demand class `c`).

    All jobs of the chosen nodes are preempted. A node that runs a job without GPUs is never chosen. The
    other arguments and the result are as in `find_victims`.
    """
    worst = _worst(s, index)
    free, chosen = worst == math.inf, np.zeros(s.node.shape[0], np.bool_)
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.head[slot] < 0:
            chosen[s.job.host[slot]] = True
    left, size = max(s.demand.gpus[c], 1), s.derived.class_queue.node_size[p, c]
    first, held, lowest = -1, 0, math.inf
    while left > 0:
        needed, node, least = min(left, size), -1, _MORE_GPUS
        for n in range(s.node.shape[0]):
            in_part = s.node.part_of[n] == p and s.node.status[n] == NODE_UP and not chosen[n]
            fits = idle_places(s, c, n) >= needed > 0 and has_memory_when_idle(s, n, c, needed)
            if in_part and fits:
                cost = _cost_of_node(s, n, worst, above, free)
                if 0 <= cost < least:
                    node, least = n, cost
        if node < 0:
            return -1, 0, 0.0
        chosen[node] = True
        for g in range(s.node.first_gpu[node], s.node.first_gpu[node] + s.node.gpus[node]):
            if not free[g]:
                _mark(s, g, free, True)
                first = _last_tenant(s, g)
                held += s.job.gpus[first]
                lowest = min(lowest, worst[g])
        left -= needed
    return first, held, lowest


@array_kernel
def _cost_of_node(
    s: StateArrays, n: int, worst: NDArray[np.float64], above: float, free: NDArray[np.bool_]
) -> int:
    """Return the number of GPUs of the groups that must be preempted so that node `n` becomes idle.

    A group is a job with its co-tenants. Groups whose GPUs are marked in `free` are not counted. Returns -1
    if one of the other groups must not be preempted.
    """
    seen, held = free.copy(), 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        if not seen[g]:
            if worst[g] <= above:
                return -1
            _mark(s, g, seen, True)
            held += s.job.gpus[_last_tenant(s, g)]
    return held


@shared
@kernel
def find_victims_for(
    s: StateArrays, p: int, slot: int, index: NDArray[np.float64], above: float
) -> tuple[int, int, float]:
    """Choose the jobs to preempt for the waiting job in a slot: see `find_victims`."""
    if _has_nodes(s, slot):
        return find_victims_of_nodes(s, p, s.job.demand[slot], index, above)
    return find_victims(s, p, s.job.gpus[slot], index, above)
