"""The placement rule *consolidate*, compiled.

A gang that fits the partition's largest node goes on one node: the one with the fewest free GPUs that
fits (best fit). A larger gang takes wholly free nodes, largest first, and puts what is left over on the
node with the most free GPUs. Ties go to the lowest node number. On nodes that are all alike this is the
rule of Lucid's simulator (Hu et al., ASPLOS'23).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import NODE_UP, WHOLE_GPU_MILLI, StateArrays
from rlsched.jit import allocating_kernel, kernel


@kernel
def hole_for(holes: NDArray[np.int32], gpus: int) -> int:
    """Fewest free GPUs on any node that holds `gpus` on its own; -1 if no node does. `holes`: (M + 1,)."""
    for free in range(gpus, holes.shape[0]):
        if holes[free] > 0:
            return free
    return -1


@kernel
def gang_remainder(holes: NDArray[np.int32], whole: NDArray[np.int32], gpus: int) -> int:
    """GPUs of a gang left over after whole nodes, -1 where the gang does not fit. (M + 1,) counts by size."""
    left = gpus
    taken_at_least = 0
    for size in range(holes.shape[0] - 1, 0, -1):
        left -= min(whole[size], left // size) * size
    if left == 0:
        return 0
    left_again = gpus
    nodes = 0
    for size in range(holes.shape[0] - 1, 0, -1):
        take = min(whole[size], left_again // size)
        left_again -= take * size
        if size >= left:
            taken_at_least += take
    for free in range(left, holes.shape[0]):
        nodes += holes[free]
    return left if nodes > taken_at_least else -1


@kernel
def fits_in(holes: NDArray[np.int32], whole: NDArray[np.int32], node_size: int, gpus: int) -> bool:
    """Whether a gang fits these counts of nodes."""
    if gpus <= node_size:
        return hole_for(holes, gpus) >= 0
    return gang_remainder(holes, whole, gpus) >= 0


@kernel
def fits(s: StateArrays, p: int, gpus: int) -> bool:
    """Whether a gang can start in partition `p` now."""
    if gpus > s.derived.part.free_gpus[p]:
        return False
    return fits_in(s.derived.holes[p], s.derived.whole[p], s.derived.part.node_size[p], gpus)


@kernel
def node_with(s: StateArrays, p: int, free: int) -> int:
    """Lowest numbered node of partition `p` that is up and has exactly `free` free GPUs."""
    for n in range(s.node.shape[0]):
        if s.node.free[n] == free and s.node.part_of[n] == p and s.node.status[n] == NODE_UP:
            return n
    return -1


@kernel
def _is_whole(s: StateArrays, p: int, n: int, size: int) -> bool:
    """Whether node `n` is an up node of partition `p` with `size` GPUs, all free."""
    node = s.node
    return (
        node.gpus[n] == size and node.free[n] == size and node.part_of[n] == p and node.status[n] == NODE_UP
    )


@kernel
def _take_from(s: StateArrays, n: int, count: int, out: NDArray[np.int32], at: int) -> int:
    """Append the `count` lowest numbered free GPUs of node `n` to `out`."""
    g = s.node.first_gpu[n]
    while count > 0:
        if s.gpu.free_milli[g] == WHOLE_GPU_MILLI:
            out[at] = g
            at += 1
            count -= 1
        g += 1
    return at


@allocating_kernel
def choose_gpus(s: StateArrays, p: int, gpus: int, node: int, out: NDArray[np.int32]) -> int:
    """Write the GPUs of a gang that fits into `out`; returns how many, 0 where it does not fit.

    `node` >= 0 asks for that node (a gang of one node only), -1 for the rule's own choice.
    """
    if node >= 0:
        return _take_from(s, node, gpus, out, 0) if s.node.free[node] >= gpus else 0
    if gpus <= s.derived.part.node_size[p]:
        free = hole_for(s.derived.holes[p], gpus)
        return _take_from(s, node_with(s, p, free), gpus, out, 0) if free >= 0 else 0
    if gang_remainder(s.derived.holes[p], s.derived.whole[p], gpus) < 0:
        return 0
    nodes = s.node.shape[0]
    taken = np.zeros(nodes, np.bool_)
    at = 0
    for size in range(s.derived.holes.shape[1] - 1, 0, -1):
        take = min(s.derived.whole[p, size], (gpus - at) // size)
        for n in range(nodes):
            if take == 0:
                break
            if _is_whole(s, p, n, size):
                at = _take_from(s, n, size, out, at)
                taken[n] = True
                take -= 1
    if at < gpus:
        most = -1
        for n in range(nodes):
            if (
                not taken[n]
                and s.node.part_of[n] == p
                and s.node.status[n] == NODE_UP
                and (most < 0 or s.node.free[n] > s.node.free[most])
            ):
                most = n
        at = _take_from(s, most, gpus - at, out, at)
    return at


@kernel
def first_node_of(s: StateArrays, p: int, gpus: int) -> int:
    """First node that the rule would use for a gang, -1 where it does not fit."""
    if gpus <= s.derived.part.node_size[p]:
        free = hole_for(s.derived.holes[p], gpus)
        return node_with(s, p, free) if free >= 0 else -1
    if gang_remainder(s.derived.holes[p], s.derived.whole[p], gpus) < 0:
        return -1
    for size in range(s.derived.holes.shape[1] - 1, 0, -1):
        if s.derived.whole[p, size] > 0 and size <= gpus:
            for n in range(s.node.shape[0]):
                if _is_whole(s, p, n, size):
                    return n
    return -1


@allocating_kernel
def all_fit(s: StateArrays, p: int) -> bool:
    """Whether everything that waits in partition `p` can start at once, one after the other in queue order.

    Exact where the partition's nodes are all alike; elsewhere it may say no too often, never yes too often.
    """
    waiting = s.derived.part.queue_len[p]
    total = 0
    for position in range(waiting):
        total += s.job.gpus[s.derived.queue[p, position]]
        if total > s.derived.part.free_gpus[p]:
            return False
    holes, whole = s.derived.holes[p].copy(), s.derived.whole[p].copy()
    size = s.derived.part.node_size[p]
    for position in range(waiting):
        gpus = s.job.gpus[s.derived.queue[p, position]]
        if gpus <= size:
            free = hole_for(holes, gpus)
            if free < 0:
                return False
            holes[free] -= 1
            holes[free - gpus] += 1
            whole[free] = max(0, whole[free] - 1)
        else:
            left = gang_remainder(holes, whole, gpus)
            if left < 0:
                return False
            rest = gpus
            for node_size in range(holes.shape[0] - 1, 0, -1):
                take = min(whole[node_size], rest // node_size)
                rest -= take * node_size
                whole[node_size] -= take
                holes[node_size] -= take
                holes[0] += take
            if left > 0:
                most = holes.shape[0] - 1
                while holes[most] == 0:
                    most -= 1
                holes[most] -= 1
                holes[most - left] += 1
                whole[most] = max(0, whole[most] - 1)
    return True


@kernel
def largest_hole(s: StateArrays, p: int) -> int:
    """Most free GPUs on one node of partition `p` that is up."""
    for free in range(s.derived.part.node_size[p], 0, -1):
        if s.derived.holes[p, free] > 0:
            return free
    return 0


@kernel
def first_fitting(s: StateArrays, p: int, start: int) -> int:
    """First queue position from `start` whose job fits partition `p` now, -1 if none does."""
    hole, size = largest_hole(s, p), s.derived.part.node_size[p]
    if hole == 0:
        return -1
    sizes = s.derived.waiting_sizes[p]
    candidates = 0
    for gpus in range(1, hole + 1):
        candidates += sizes[gpus]
    gangs = 0
    if s.derived.part.free_gpus[p] > size:
        for gpus in range(size + 1, sizes.shape[0]):
            gangs += sizes[gpus]
    if candidates + gangs == 0:
        return -1
    for position in range(start, s.derived.part.queue_len[p]):
        gpus = s.job.gpus[s.derived.queue[p, position]]
        if gpus <= hole or (gangs > 0 and gpus > size and fits(s, p, gpus)):
            return position
    return -1
