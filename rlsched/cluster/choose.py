"""The placement rules, compiled: they choose the GPUs for a job that fits.

- *consolidate*: see `placement`. A job that requests a share (a part) of a GPU gets the GPU with the smallest
  sufficient free share.
- *best-fit*: as consolidate, except for a gang (all GPUs of a job) that needs several nodes. Such a gang gets
  whole nodes, and its remaining GPUs are on the node that has the fewest free GPUs afterwards.
- *worst-fit*: the node with most free GPUs; for a share, the GPU with the largest free share.
- *spread*: one GPU at a time, each on the node with most free GPUs. Only with this rule can a gang span more
  nodes than necessary.
- *fgd*: the node and GPU where fragmentation grows least (`fragmentation`; Weng et al., ATC'23); ties go to
  the fewest free GPUs.

The rule places a job with preferred GPU types on GPUs of these types. If the job does not fit there now, the
job is placed as if it had no preference (`placement.class_to_place`). A preference never splits a gang that
fits on one node.

A job without GPUs gets the node with the fewest GPUs; of several such nodes, the node with the fewest free
cores (*worst-fit*, *spread*: the most). All other ties go to the lowest node number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import CONSOLIDATE, FGD, SPREAD, WORST_FIT, StateArrays
from rlsched.cluster.capacity import has_room, loosest_gpu, open_places, tightest_gpu
from rlsched.cluster.demand import ANY_KIND, WHOLE_GPU_MILLI
from rlsched.cluster.fragmentation import added_by_gpus, added_by_share, typical_classes
from rlsched.cluster.placement import class_fits, class_to_place, consolidate, take_from, take_untouched
from rlsched.compile.jit import array_kernel, kernel


@kernel
def _gpu_for_share(s: StateArrays, n: int, c: int, classes: NDArray[np.int64]) -> int:
    """Return the GPU of node `n` of which a job of class `c` gets a share; -1: no GPU has room."""
    rule, share = s.config[0].placement, s.demand.share_milli[c]
    if rule in (WORST_FIT, SPREAD):
        return loosest_gpu(s, n, c)
    if rule != FGD:
        return tightest_gpu(s, n, c)
    best, least = -1, np.inf
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        if s.gpu.free_milli[g] >= share and has_room(s, g, c):
            added = added_by_share(s, n, c, g, classes)
            if added < least:
                best, least = g, added
    return best


@kernel
def _cost(s: StateArrays, n: int, c: int, classes: NDArray[np.int64]) -> tuple[float, float]:
    """Return (cost, second cost for ties) of placing a job of class `c`, which must fit, on node `n`."""
    rule, d = s.config[0].placement, s.demand
    sign = -1.0 if rule in (WORST_FIT, SPREAD) else 1.0
    if d.gpus[c] == 0:
        return float(s.node.gpus[n]), sign * s.node.cpu_free_milli[n]
    free = float(s.node.free[n])
    if d.share_milli[c] < WHOLE_GPU_MILLI:
        g = _gpu_for_share(s, n, c, classes)
        if rule == FGD:
            return added_by_share(s, n, c, g, classes), free
        return sign * s.gpu.free_milli[g], sign * free
    if rule == FGD:
        return added_by_gpus(s, n, c, classes), free
    return sign * free, 0.0


@kernel
def _best_node(s: StateArrays, p: int, c: int, classes: NDArray[np.int64]) -> int:
    """Return the node of least cost that has room for a whole job of class `c`, -1 if no node has room."""
    best, first, second = -1, np.inf, np.inf
    for n in range(s.node.shape[0]):
        if open_places(s, c, p, n) >= max(s.demand.gpus[c], 1):
            a, b = _cost(s, n, c, classes)
            if a < first or (a == first and b < second):
                best, first, second = n, a, b
    return best


@kernel
def _put(s: StateArrays, n: int, c: int, classes: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Choose GPUs of node `n` for a job of class `c`, and write them to `out`. The job must fit there."""
    if s.demand.share_milli[c] < WHOLE_GPU_MILLI:
        out[0] = _gpu_for_share(s, n, c, classes)
    else:
        take_from(s, n, s.demand.gpus[c], out, 0, c)


@array_kernel
def _gang(s: StateArrays, p: int, c: int, out: NDArray[np.int32]) -> int:
    """Place a gang that does not fit on one node: whole nodes, and one more node for the remainder.

    Returns the first node, -1 if the gang does not fit.
    """
    nodes, needed = s.node.shape[0], s.demand.gpus[c]
    taken = np.zeros(nodes, np.bool_)
    rest = needed - take_untouched(s, c, p, needed, taken)
    last, places = -1, 0
    most = s.config[0].placement in (CONSOLIDATE, WORST_FIT)
    if rest > 0:
        for n in range(nodes):
            room = 0 if taken[n] else open_places(s, c, p, n)
            if room >= rest and (last < 0 or (room > places if most else room < places)):
                last, places = n, room
        if last < 0:
            return -1
    at = 0
    for n in range(nodes):
        if taken[n]:
            at = take_from(s, n, open_places(s, c, p, n), out, at, c)
    if rest > 0:
        take_from(s, last, rest, out, at, c)
    return s.gpu.node[out[0]]


@array_kernel
def _spread(s: StateArrays, p: int, c: int, out: NDArray[np.int32]) -> int:
    """Choose one GPU after the other, each on the node with the most free GPUs at that moment.

    Returns the node of the first GPU in `out`, -1 if the job does not fit.
    """
    nodes, needed = s.node.shape[0], s.demand.gpus[c]
    room = np.zeros(nodes, np.int64)
    given = np.zeros(nodes, np.int64)
    for n in range(nodes):
        room[n] = open_places(s, c, p, n)
    for _ in range(needed):
        n = int(np.argmax(room))
        if room[n] == 0:
            return -1
        room[n] -= 1
        given[n] += 1
    at = 0
    for n in range(nodes):
        if given[n] > 0:
            at = take_from(s, n, given[n], out, at, c)
    return s.gpu.node[out[0]]


@kernel
def choose(s: StateArrays, p: int, slot: int, node: int, out: NDArray[np.int32]) -> int:
    """Choose GPUs for the job in `slot`, and write their indices to `out`.

    Returns the first node, -1 if the job does not fit.

    `node` >= 0 requests this node or, for a gang that does not fit on one node, nodes with the same GPU type
    as this node. BY_RULE: the rule chooses. NO_PREFERENCE: the rule chooses, regardless of preferred types.
    """
    c = class_to_place(s, p, slot, node)
    if node < 0 and s.demand.plain[c] and s.config[0].placement == CONSOLIDATE:
        return consolidate(s, p, s.job.gpus[slot], out)
    if node >= 0 and s.demand.gpus[c] > s.derived.class_queue.node_size[p, c]:
        return gang_of_kind(s, p, c, s.node.kind[node], out)
    return _choose_by_looking(s, p, c, node, out)


@array_kernel
def gang_of_kind(s: StateArrays, p: int, c: int, kind: int, out: NDArray[np.int32]) -> int:
    """Choose GPUs for a gang on several nodes of one GPU type.

    Returns the first node, -1 if the gang does not fit.
    """
    admitted = s.demand.kinds[c]
    if admitted != ANY_KIND and (admitted >> kind) & 1 == 0:
        return -1
    s.demand.kinds[c] = 1 << kind
    host = _gang(s, p, c, out)
    s.demand.kinds[c] = admitted
    return host


@array_kernel
def _choose_by_looking(s: StateArrays, p: int, c: int, node: int, out: NDArray[np.int32]) -> int:
    """Choose GPUs for a job of class `c` as `choose` does, by checking the nodes one by one."""
    classes = np.empty(s.demand.shape[0], np.int64)
    typical = typical_classes(s, classes) if s.config[0].placement == FGD else 0
    if node >= 0:
        if open_places(s, c, p, node) < max(s.demand.gpus[c], 1):
            return -1
        if s.demand.gpus[c] > 0:
            _put(s, node, c, classes[:typical], out)
        return node
    if not class_fits(s, p, c):
        return -1
    whole = s.demand.gpus[c] > 0 and s.demand.share_milli[c] == WHOLE_GPU_MILLI
    if whole and s.config[0].placement == SPREAD:
        return _spread(s, p, c, out)
    if whole and s.demand.gpus[c] > s.derived.class_queue.node_size[p, c]:
        return _gang(s, p, c, out)
    n = _best_node(s, p, c, classes[:typical])
    if s.demand.gpus[c] > 0:
        _put(s, n, c, classes[:typical], out)
    return n


@array_kernel
def _gpus_of_nodes(s: StateArrays, p: int, slot: int, node: int) -> int:
    """Return the number of GPUs of all nodes on which `choose` would place a job. The job must fit now."""
    out, held, last = np.empty(s.job.gpus[slot], np.int32), 0, -1
    host = choose(s, p, slot, node, out)
    if out.shape[0] == 0:
        return s.node.gpus[host]
    for position in range(out.shape[0]):
        n = s.gpu.node[out[position]]
        held += s.node.gpus[n] if n != last else 0
        last = n
    return held


@kernel
def gpus_taken(s: StateArrays, p: int, slot: int, node: int) -> int:
    """Return how many GPUs the start of a job would withhold from other jobs. The job must fit now.

    `node`: requested node, or a constant such as BY_RULE, as in `choose`.
    """
    if s.demand.exclusive[s.job.demand[slot]]:
        return _gpus_of_nodes(s, p, slot, node)
    return s.job.gpus[slot]
