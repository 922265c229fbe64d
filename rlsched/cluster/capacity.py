"""Compiled functions that count how many places for a demand class are free on a node.

A demand class contains the jobs with equal requests. A *place* is room on a node for one GPU of a job, with
that GPU's part of the job's cores and memory. A job needs one place per GPU; a job without GPUs needs one.
"""

from __future__ import annotations

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, UNCOUNTED, StateArrays
from rlsched.cluster.demand import ANY_KIND, WHOLE_GPU_MILLI
from rlsched.compile.jit import kernel


@kernel
def _within(places: int, each: int, available: int) -> int:
    """Return how many of `places` places can get `each` units (cores or memory) from `available` units."""
    return min(places, available // each) if each > 0 else places


@kernel
def will_do(s: StateArrays, c: int, n: int) -> bool:
    """Return whether class `c` accepts the GPU type of node `n`.

    A class without GPUs accepts a node if its jobs request cores and the cores of the node are known.
    """
    d = s.demand
    if d.gpus[c] == 0:
        return d.cpu_milli_each[c] > 0 and s.node.cpu_milli[n] < UNCOUNTED
    return d.kinds[c] == ANY_KIND or (d.kinds[c] >> s.node.kind[n]) & 1 == 1


@kernel
def takes_gpus_of(s: StateArrays, c: int, running: int) -> bool:
    """Return whether the nodes of a running job allow jobs of class `c` to share its GPUs.

    All nodes must be up, allow several jobs per GPU, and have no MIG slices. Their GPUs must be of one type
    that the class accepts, because models predict the speed of co-tenants only on GPUs of one type.
    """
    place, kind = s.job.head[running], s.node.kind[s.job.host[running]]
    if s.models.gpu.sliced[kind]:
        return False
    while place >= 0:
        n = s.gpu.node[place // MAX_TENANTS]
        if s.node.status[n] != NODE_UP or s.node.kind[n] != kind or not will_do(s, c, n):
            return False
        if s.node.unshared[n]:
            return False
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return True


@kernel
def gpu_need_mib(s: StateArrays, slot: int, kind: int) -> float:
    """Return the memory that a job uses on each GPU of a type, MiB: as submitted, else as predicted."""
    own = s.job.gpu_need_mib[slot]
    return float(own) if own >= 0 else s.models.trait.memory_mib[s.job.workload[slot], kind]


@kernel
def idle_places(s: StateArrays, c: int, n: int) -> int:
    """Return how many places (room for one GPU of a job) class `c` would have on node `n` if it were idle.

    At most 1 if the class requests a share of a GPU.
    """
    if not will_do(s, c, n):
        return 0
    d = s.demand
    places = s.node.gpus[n] if d.gpus[c] > 0 else 1
    if d.share_milli[c] < WHOLE_GPU_MILLI:
        places = min(places, 1)
    places = _within(places, d.cpu_milli_each[c], s.node.cpu_milli[n])
    return _within(places, d.memory_mib_each[c], s.node.memory_mib[n])


@kernel
def has_tenant_place(s: StateArrays, g: int) -> bool:
    """Return whether GPU `g` runs fewer jobs than `MAX_TENANTS`."""
    k = 0
    while k < MAX_TENANTS and s.gpu.tenant[g, k] >= 0:
        k += 1
    return k < MAX_TENANTS


@kernel
def memory_left_mib(s: StateArrays, g: int) -> int:
    """Return the memory of GPU `g` that its jobs leave to one more job, MiB.

    A job counts with the larger of its request and the memory that it is known to use. Without a limit, the
    result is more than any request.
    """
    left_mib = s.gpu.usable_mib[g]
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            left_mib -= max(s.demand.gpu_free_mib[s.job.demand[slot]], s.job.gpu_need_mib[slot], 0)
    return left_mib


@kernel
def has_memory_for(s: StateArrays, g: int, c: int) -> bool:
    """Return whether the limits of GPU memory allow one more job of class `c` on GPU `g`.

    The limits are `gpu.usable_mib`, for all jobs of the GPU together, and `gpu.joinable_mib`. A job that
    requests no free memory is within the first limit.
    """
    if s.config[0].limits_memory == 0:
        return True
    needed_mib = s.demand.gpu_free_mib[c]
    if needed_mib > s.gpu.joinable_mib[g]:
        return False
    return needed_mib == 0 or needed_mib <= memory_left_mib(s, g)


@kernel
def has_memory_when_idle(s: StateArrays, n: int, c: int, needed: int) -> bool:
    """Return whether `needed` GPUs of node `n` have the free memory for class `c` if no job runs there."""
    if s.demand.gpu_free_mib[c] == 0 or s.config[0].limits_memory == 0:
        return True
    count = 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        count += s.gpu.usable_mib[g] >= s.demand.gpu_free_mib[c]
    return count >= needed


@kernel
def has_room(s: StateArrays, g: int, c: int) -> bool:
    """Return whether GPU `g` has a place and memory for a job of class `c`. The share is not checked."""
    return has_tenant_place(s, g) and has_memory_for(s, g, c)


@kernel
def tightest_gpu(s: StateArrays, n: int, c: int) -> int:
    """Return the GPU of node `n` with the smallest free share that has room for class `c`; -1: none has."""
    best, share = -1, s.demand.share_milli[c]
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        free = s.gpu.free_milli[g]
        if free >= share and (best < 0 or free < s.gpu.free_milli[best]) and has_room(s, g, c):
            best = g
    return best


@kernel
def loosest_gpu(s: StateArrays, n: int, c: int) -> int:
    """Return the GPU of node `n` with the largest free share that has room for class `c`; -1: none has."""
    best, share = -1, s.demand.share_milli[c]
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        free = s.gpu.free_milli[g]
        if free >= share and (best < 0 or free > s.gpu.free_milli[best]) and has_room(s, g, c):
            best = g
    return best


@kernel
def free_gpus_for(s: StateArrays, c: int, n: int) -> int:
    """Return how many wholly free GPUs of node `n` have the free memory that class `c` requests."""
    if s.demand.gpu_free_mib[c] == 0 or s.config[0].limits_memory == 0:
        return s.node.free[n]
    count = 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        count += s.gpu.free_milli[g] == WHOLE_GPU_MILLI and has_memory_for(s, g, c)
    return count


@kernel
def is_memory_left(s: StateArrays, running: int, used_mib: float, need_mib: float) -> bool:
    """Return whether the limits of GPU memory allow an additional job on all GPUs of a running job.

    The limits are `gpu.usable_mib` and `gpu.joinable_mib`.

    Args:
        s: The state.
        running: Slot of the running job.
        used_mib: Memory that the present jobs on these GPUs need on each GPU, MiB.
        need_mib: Memory that the additional job needs on each GPU, MiB; nan: unknown.
    """
    place = s.job.head[running] if s.config[0].limits_memory else -1
    while place >= 0:
        g = place // MAX_TENANTS
        most_mib = s.gpu.joinable_mib[g]
        if most_mib < 0 or need_mib > most_mib or used_mib + need_mib > s.gpu.usable_mib[g]:
            return False
        place = s.gpu.link[g, place % MAX_TENANTS]
    return True


@kernel
def has_no_job(s: StateArrays, n: int) -> bool:
    """Return whether no job runs on node `n`.

    A job without GPUs runs only on a node with known cores, and is detected by the cores that it uses.
    """
    if s.node.free[n] < s.node.gpus[n]:
        return False
    return s.node.cpu_milli[n] >= UNCOUNTED or s.node.cpu_free_milli[n] >= s.node.cpu_milli[n]


@kernel
def places_on(s: StateArrays, c: int, n: int) -> int:
    """Return how many places (room for one GPU of a job) class `c` has on node `n`, even if `n` is not up.

    If the class gets whole nodes, a node on which a job runs has no free places.

    Cores and memory do not limit a plain class (`demand.plain_demands`). If other jobs have got additional
    cores (`clocks.cores_for`), a job of a plain class may start with fewer cores than it requested.
    """
    if not will_do(s, c, n):
        return 0
    d = s.demand
    if d.gpus[c] == 0:
        places = 1
    elif d.share_milli[c] == WHOLE_GPU_MILLI:
        places = free_gpus_for(s, c, n)
    else:
        places = 1 if tightest_gpu(s, n, c) >= 0 else 0
    if places == 0 or d.plain[c]:
        return places
    if d.exclusive[c] and not has_no_job(s, n):
        return 0
    places = _within(places, d.cpu_milli_each[c], s.node.cpu_free_milli[n])
    return _within(places, d.memory_mib_each[c], s.node.memory_free_mib[n])


@kernel
def open_places(s: StateArrays, c: int, p: int, n: int) -> int:
    """Return the result of `places_on` for node `n` if it is up and in partition `p`, else 0."""
    if s.node.part_of[n] != p or s.node.status[n] != NODE_UP:
        return 0
    return places_on(s, c, n)


@kernel
def is_untouched(s: StateArrays, c: int, p: int, n: int) -> bool:
    """Return whether node `n` is up, in partition `p`, has no GPU in use, and can run jobs of class `c`.

    Its free cores and memory must suffice for as many GPUs of class `c` as on an idle node.
    """
    if s.node.free[n] < s.node.gpus[n]:
        return False
    return open_places(s, c, p, n) == idle_places(s, c, n) > 0
