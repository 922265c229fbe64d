"""Compiled checks of whether a job can start in a partition now, and on which GPUs.

The rule *consolidate*: a gang (all GPUs of a job) that fits the partition's largest node gets one node, the
node with the fewest free GPUs that suffice. A larger gang gets wholly free nodes, largest first, and the
remainder gets the node with the most free GPUs. Ties go to the lowest node number. On identical nodes this is
the rule of Lucid's simulator (Hu et al., ASPLOS'23). The other rules are in `choose`.

For jobs that request only whole GPUs ("plain"), the checks read only the counts of nodes with 0, 1, 2, ...
free GPUs. For other jobs they read every node.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import SPREAD, StateArrays
from rlsched.cluster.capacity import has_memory_for, is_untouched, open_places
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.index import comes_before, next_member
from rlsched.cluster.kernels import queue_position
from rlsched.compile.jit import array_kernel, kernel

BY_RULE: Final = -1
"""Value of `node` in `choose`: the placement rule chooses the node, of a preferred GPU type if the job fits
there.
"""
NO_PREFERENCE: Final = -2
"""Value of `node` in `choose`: the placement rule chooses the node, and ignores preferred GPU types."""
ANY_MEMORY: Final = -1
"""Value of `c` in `take_from`: any GPU has enough free memory."""


@kernel
def hole_for(holes: NDArray[np.int32], gpus: int) -> int:
    """Return the fewest free GPUs on any node with at least `gpus` free GPUs; -1 if there is no such node.

    `holes`: (M + 1,) number of nodes with 0, 1, 2, ... free GPUs.
    """
    for free in range(gpus, holes.shape[0]):
        if holes[free] > 0:
            return free
    return -1


@kernel
def gang_remainder(holes: NDArray[np.int32], whole: NDArray[np.int32], gpus: int) -> int:
    """Return how many GPUs a gang still needs after it got whole nodes, -1 if the gang does not fit.

    `holes`: (M + 1,) number of nodes with 0, 1, 2, ... free GPUs. `whole`: (M + 1,) number of wholly free
    nodes with 0, 1, 2, ... GPUs.
    """
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
    """Return whether a gang of `gpus` GPUs fits on the free GPUs of a partition.

    Args:
        holes: (M + 1,) number of nodes with 0, 1, 2, ... free GPUs.
        whole: (M + 1,) number of wholly free nodes with 0, 1, 2, ... GPUs.
        node_size: Largest number of GPUs of a node.
        gpus: Number of GPUs of the gang.
    """
    if gpus <= node_size:
        return hole_for(holes, gpus) >= 0
    return gang_remainder(holes, whole, gpus) >= 0


@kernel
def fits(s: StateArrays, p: int, gpus: int) -> bool:
    """Return whether a plain gang can start in partition `p` now."""
    if gpus > s.derived.part.free_gpus[p]:
        return False
    if s.config[0].placement == SPREAD:
        return True
    return fits_in(s.derived.holes[p], s.derived.whole[p], s.derived.part.node_size[p], gpus)


@array_kernel
def _class_fits(s: StateArrays, p: int, c: int) -> bool:
    """Return whether a job of class `c`, a class that is not plain, can start in partition `p` now."""
    needed, size = max(s.demand.gpus[c], 1), s.derived.class_queue.node_size[p, c]
    if size == 0 or (
        s.derived.part.free_gpus[p] < s.demand.gpus[c] and (s.demand.share_milli[c] == WHOLE_GPU_MILLI)
    ):
        return False
    spread = s.config[0].placement == SPREAD
    total, rest = 0, needed
    if needed <= size and not spread:
        return _has_room(s, c, p, needed, np.zeros(s.node.shape[0], np.bool_))
    if spread:
        for n in range(s.node.shape[0]):
            total += open_places(s, c, p, n)
        return total >= needed
    taken = np.zeros(s.node.shape[0], np.bool_)
    rest -= take_untouched(s, c, p, needed, taken)
    return rest == 0 or _has_room(s, c, p, rest, taken)


@kernel
def _has_room(s: StateArrays, c: int, p: int, needed: int, taken: NDArray[np.bool_]) -> bool:
    """Return whether a node that is not in `taken` (N,) has room for `needed` GPUs of a job of class `c`."""
    n = 0
    while n < s.node.shape[0] and (taken[n] or open_places(s, c, p, n) < needed):
        n += 1
    return n < s.node.shape[0]


@kernel
def take_untouched(s: StateArrays, c: int, p: int, needed: int, taken: NDArray[np.bool_]) -> int:
    """Choose idle nodes for a gang of class `c`, largest first, and set their flags in `taken` (N,).

    A node is chosen only if the gang needs all its places (room for one GPU of a job).

    Returns the number of places on the chosen nodes. `needed`: number of places that the gang needs.
    """
    got = 0
    for size in range(s.derived.class_queue.node_size[p, c], 0, -1):
        for n in range(s.node.shape[0]):
            if needed - got < size:
                break
            if not taken[n] and is_untouched(s, c, p, n) and open_places(s, c, p, n) == size:
                taken[n] = True
                got += size
    return got


@kernel
def class_fits(s: StateArrays, p: int, c: int) -> bool:
    """Return whether a job of class `c` can start in partition `p` now; cached until a node changes."""
    queues = s.derived.class_queue
    if queues.asked_at[p, c] != s.derived.part.changes[p]:
        _ask(s, p, c)
    return queues.fits[p, c] != 0


@kernel
def _ask(s: StateArrays, p: int, c: int) -> None:
    """Compute whether a job of class `c` can start in partition `p` now, and cache the result."""
    queues = s.derived.class_queue
    queues.asked_at[p, c] = s.derived.part.changes[p]
    if s.demand.plain[c]:
        queues.fits[p, c] = fits(s, p, s.demand.gpus[c])
    else:
        queues.fits[p, c] = _class_fits(s, p, c)


@kernel
def fits_slot(s: StateArrays, p: int, slot: int) -> bool:
    """Return whether the job in a slot can start in partition `p` now."""
    return class_fits(s, p, s.job.demand[slot])


@kernel
def class_to_place(s: StateArrays, p: int, slot: int, node: int) -> int:
    """Return the demand class by which `choose` places a waiting job; `node` as in `choose`.

    If `node` is BY_RULE and the job fits on GPUs of its preferred types now, return the class of these types.
    Otherwise, return the job's own class.
    """
    c = s.job.demand[slot]
    narrow = s.demand.preferred[c]
    return narrow if narrow >= 0 and node == BY_RULE and class_fits(s, p, narrow) else c


@kernel
def node_with(s: StateArrays, p: int, free: int) -> int:
    """Return the lowest numbered node of partition `p` that is up and has exactly `free` free GPUs."""
    return next_member(s.derived.by_free[p, free], s.node.shape[0], 0)


@kernel
def take_from(s: StateArrays, n: int, count: int, out: NDArray[np.int32], at: int, c: int) -> int:
    """Write the first `count` wholly free GPUs of node `n` to `out` from `at` on; return the end position.

    GPUs with too little free memory for class `c` are skipped. `c`: ANY_MEMORY: the job requests none.
    """
    g = s.node.first_gpu[n]
    while count > 0:
        if s.gpu.free_milli[g] == WHOLE_GPU_MILLI and (c == ANY_MEMORY or has_memory_for(s, g, c)):
            out[at] = g
            at += 1
            count -= 1
        g += 1
    return at


@kernel
def consolidate(s: StateArrays, p: int, gpus: int, out: NDArray[np.int32]) -> int:
    """Write the GPUs of a plain gang into `out`. Returns the first node, -1 if the gang does not fit."""
    index, nodes = s.derived, s.node.shape[0]
    if gpus <= index.part.node_size[p]:
        free = hole_for(index.holes[p], gpus)
        if free < 0:
            return -1
        n = node_with(s, p, free)
        take_from(s, n, gpus, out, 0, ANY_MEMORY)
        return n
    if gang_remainder(index.holes[p], index.whole[p], gpus) < 0:
        return -1
    at = 0
    for size in range(index.holes.shape[1] - 1, 0, -1):
        n = -1
        for _ in range(min(index.whole[p, size], (gpus - at) // size)):
            n = next_member(index.by_whole[p, size], nodes, n + 1)
            at = take_from(s, n, size, out, at, ANY_MEMORY)
    if at < gpus:
        take_from(s, _emptiest_besides(s, p, out[:at]), gpus - at, out, at, ANY_MEMORY)
    return s.gpu.node[out[0]]


@kernel
def _emptiest_besides(s: StateArrays, p: int, taken: NDArray[np.int32]) -> int:
    """Return the node with the most free GPUs that holds none of the GPUs in `taken`."""
    for free in range(s.derived.holes.shape[1] - 1, 0, -1):
        n = next_member(s.derived.by_free[p, free], s.node.shape[0], 0)
        while n >= 0:
            if not _on_node(s, n, taken):
                return n
            n = next_member(s.derived.by_free[p, free], s.node.shape[0], n + 1)
    return -1


@kernel
def _on_node(s: StateArrays, n: int, gpus: NDArray[np.int32]) -> bool:
    """Return whether one of these GPUs, which are grouped by node, is on node `n`."""
    at = 0
    while at < gpus.shape[0]:
        node = s.gpu.node[gpus[at]]
        if node == n:
            return True
        at += max(s.node.gpus[node], 1)
    return False


@kernel
def largest_hole(s: StateArrays, p: int) -> int:
    """Return the largest number of free GPUs on one node of partition `p` that is up."""
    for free in range(s.derived.part.node_size[p], 0, -1):
        if s.derived.holes[p, free] > 0:
            return free
    return 0


@kernel
def first_fitting(s: StateArrays, p: int, start: int) -> int:
    """Return the first queue position from `start` whose job fits partition `p` now, -1 if none does."""
    queues, first = s.derived.class_queue, -1
    for c in range(queues.shape[1]):
        root = queues.root[p, c]
        if root >= 0 and (first < 0 or comes_before(s, root, first)) and class_fits(s, p, c):
            first = root
    if first < 0:
        return -1
    at = queue_position(s, p, s.derived.slot.key[first], s.job.seq[first])
    if start <= at:
        return at
    for position in range(start, s.derived.part.queue_len[p]):
        if fits_slot(s, p, s.derived.queue[p, position]):
            return position
    return -1
