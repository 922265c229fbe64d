"""The cheapest jobs to preempt so that another one fits, compiled.

What may give way is looked at GPU by GPU: jobs that share GPUs leave them together, and a GPU whose jobs
may not all be preempted stays taken. A gang that one node holds is given the node where those who leave hold
fewest GPUs in all, wherever those are; a larger gang is given whole nodes, one after the other, in the same
way. On a node those with the highest index go first, and nobody goes in vain.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, StateArrays
from rlsched.jit import array_kernel, kernel


@kernel
def _left(s: StateArrays, g: int, leaving: NDArray[np.bool_]) -> bool:
    """Whether GPU `g` would be wholly free if all of `leaving` (J,) left."""
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and not leaving[slot]:
            return False
    return True


@kernel
def _gpu_index(s: StateArrays, g: int, index: NDArray[np.float64]) -> float:
    """Least index of the jobs on GPU `g`; infinite where it is free."""
    least = math.inf
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            least = min(least, index[slot])
    return least


@kernel
def _free_on(s: StateArrays, n: int, leaving: NDArray[np.bool_]) -> int:
    """GPUs of node `n` that would be wholly free."""
    free = 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        free += _left(s, g, leaving)
    return free


@kernel
def _mark(s: StateArrays, g: int, leaving: NDArray[np.bool_], mark: bool) -> None:
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            leaving[s.gpu.tenant[g, k]] = mark


@kernel
def _clear_node(
    s: StateArrays,
    n: int,
    needed: int,
    index: NDArray[np.float64],
    above: float,
    leaving: NDArray[np.bool_],
    gone: NDArray[np.int32],
) -> int:
    """Choose who leaves node `n` so that `needed` of its GPUs are free, beside those who are leaving anyway.

    Those chosen are marked in `leaving`, and stand in `gone` (one GPU of each group). Returns how many groups
    that are, -1 (and nobody is marked) where it cannot be done.
    """
    first, end = s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]
    count, free = 0, _free_on(s, n, leaving)
    while free < needed:
        at, most = -1, above
        for g in range(first, end):
            if not _left(s, g, leaving):
                worst = _gpu_index(s, g, index)
                if worst > most:
                    at, most = g, worst
        if at < 0:
            for k in range(count):
                _mark(s, gone[k], leaving, False)
            return -1
        _mark(s, at, leaving, True)
        gone[count] = at
        count, free = count + 1, _free_on(s, n, leaving)
    k = count - 2  # the last one was needed; those before it may not be any more
    while k >= 0:
        _mark(s, gone[k], leaving, False)
        if _free_on(s, n, leaving) >= needed:
            count -= 1
            for other in range(k, count):
                gone[other] = gone[other + 1]
        else:
            _mark(s, gone[k], leaving, True)
        k -= 1
    return count


@array_kernel
def first_to_leave(s: StateArrays, p: int, gpus: int, index: NDArray[np.float64], above: float) -> int:
    """A running slot of partition `p` to preempt, so that in the end a gang of `gpus` fits; -1: it cannot be.

    Args:
        s: The state.
        p: The partition.
        gpus: GPUs of the gang, whole ones; it does not fit now.
        index: (J,) what speaks for preempting each slot; -inf: it must not be.
        above: Only jobs with an index above this leave.
    """
    leaving, chosen = np.zeros(s.job.shape[0], np.bool_), np.zeros(s.node.shape[0], np.bool_)
    size, left, first = min(gpus, s.derived.part.node_size[p]), gpus, -1
    gone = np.empty(max(s.derived.part.node_size[p], 1), np.int32)
    while left > 0:
        needed, node, least = min(left, size), -1, math.inf
        for n in range(s.node.shape[0]):
            in_part = s.node.part_of[n] == p and s.node.status[n] == NODE_UP and s.node.gpus[n] >= needed
            if in_part and not chosen[n]:
                count = _clear_node(s, n, needed, index, above, leaving, gone)
                cost = _gpus_held(s, gone[:count]) if count >= 0 else math.inf
                for k in range(count):
                    _mark(s, gone[k], leaving, False)
                if cost < least:
                    node, least = n, cost
        if node < 0:
            return -1
        chosen[node] = True
        count = _clear_node(s, node, needed, index, above, leaving, gone)
        if first < 0 and count > 0:
            first = _last_tenant(s, gone[0])
        left -= needed
    return first


@kernel
def _gpus_held(s: StateArrays, gone: NDArray[np.int32]) -> float:
    """GPUs that the groups on these GPUs hold in all, wherever they are."""
    held = 0.0
    for k in range(gone.shape[0]):
        held += s.job.gpus[_last_tenant(s, gone[k])]
    return held


@kernel
def _last_tenant(s: StateArrays, g: int) -> int:
    """The slot in the last place of GPU `g` that is taken."""
    last = -1
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            last = s.gpu.tenant[g, k]
    return last
