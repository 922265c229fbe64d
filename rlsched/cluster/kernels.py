"""Compiled functions of the ledger: queue jobs, allocate and release GPUs, and set the status of nodes.

They keep the derived index (`arrays.Index`) up to date. They do not check whether a change is legal: callers
do (`ClusterState` for users and the broker, the candidate list for the simulator).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import (
    DEFERRED,
    INELIGIBLE,
    MAX_TENANTS,
    NODE_UP,
    RUNNING,
    SLOT_EMPTY,
    UNCOUNTED,
    WAITING,
    StateArrays,
)
from rlsched.cluster.capacity import idle_places
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.index import exclude, include, join_class, join_running, leave_class, leave_running
from rlsched.compile.jit import kernel


@kernel
def queue_position(s: StateArrays, p: int, key: float, seq: int) -> int:
    """Return the position in the queue of partition `p` at which a job with (key, seq) is inserted."""
    low, high = 0, s.derived.part.queue_len[p]
    while low < high:
        middle = (low + high) // 2
        slot = s.derived.queue[p, middle]
        if s.derived.slot.key[slot] < key or (s.derived.slot.key[slot] == key and s.job.seq[slot] < seq):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _insert(s: StateArrays, side: int, p: int, slot: int) -> None:
    join_class(s, side, p, slot)
    if s.config[0].sorts_queue:
        queue = s.derived.queue[p]
        at = queue_position(s, p, s.derived.slot.key[slot], s.job.seq[slot])
        for position in range(s.derived.part.queue_len[p], at, -1):
            queue[position] = queue[position - 1]
        queue[at] = slot
    s.derived.part.queue_len[p] += 1
    s.derived.part.arrivals[p] += 1


@kernel
def _remove(s: StateArrays, side: int, p: int, slot: int) -> None:
    leave_class(s, side, p, slot)
    if s.config[0].sorts_queue:
        queue = s.derived.queue[p]
        at = queue_position(s, p, s.derived.slot.key[slot], s.job.seq[slot])
        for position in range(at, s.derived.part.queue_len[p] - 1):
            queue[position] = queue[position + 1]
    s.derived.part.queue_len[p] -= 1
    s.derived.part.arrivals[p] += 1


@kernel
def enqueue(s: StateArrays, slot: int, key: float) -> None:
    """Add the waiting job in a slot to the queues of its partitions, which are sorted by key."""
    s.job.key[slot] = s.derived.slot.key[slot] = key
    if s.job.own_partition[slot] >= 0:
        _insert(s, 0, s.job.own_partition[slot], slot)
    if s.job.shared_partition[slot] >= 0:
        _insert(s, 1, s.job.shared_partition[slot], slot)


@kernel
def dequeue(s: StateArrays, slot: int) -> None:
    """Remove the waiting job in a slot from the queues of its partitions."""
    if s.job.own_partition[slot] >= 0:
        _remove(s, 0, s.job.own_partition[slot], slot)
    if s.job.shared_partition[slot] >= 0:
        _remove(s, 1, s.job.shared_partition[slot], slot)


@kernel
def note_moved(s: StateArrays, slot: int, gang: int) -> None:
    """Record that `slot`'s job was preempted for the waiting job in slot `gang`; -1: clear the record."""
    s.job.moved_for[slot], s.job.moved_attempt[slot] = -1, 0
    if gang >= 0:
        s.job.moved_for[slot], s.job.moved_attempt[slot] = s.job.seq[gang], s.job.attempt[gang]


@kernel
def add_job(
    s: StateArrays,
    demand: int,
    vc: int,
    own: int,
    shared: int,
    submit_s: float,
    predicted_s: float,
    spread: float,
    limit_s: float,
    pinned: bool,
) -> int:
    """Add a job of a demand class. The job is in no queue yet: call `enqueue`.

    Returns the slot of the job, -1 if all slots are in use.
    """
    slots = s.job.shape[0]
    live = s.counters[0].live_jobs
    if live == slots:
        return -1
    slot = s.derived.slot.stack[slots - live - 1]
    s.counters[0].live_jobs += 1
    job = s.job
    job.seq[slot] = s.counters[0].next_seq
    s.counters[0].next_seq += 1
    job.status[slot] = WAITING
    job.vc[slot], job.own_partition[slot], job.shared_partition[slot] = vc, own, shared
    job.placed_in[slot], job.host[slot] = -1, -1
    job.demand[slot], job.gpus[slot] = demand, s.demand.gpus[demand]
    job.share_milli[slot], job.sm_clock_frac[slot] = s.demand.share_milli[demand], 1.0
    s.demand.arrived[demand] += 1
    job.submit_s[slot], job.predicted_s[slot] = submit_s, predicted_s
    job.spread[slot], job.limit_s[slot], job.slack_s[slot] = spread, limit_s, 0.0
    job.start_s[slot] = np.nan
    note_moved(s, slot, -1)
    job.attempt[slot], job.preemptions[slot], job.generation[slot] = 1, 0, 0
    job.attained_gpu_s[slot] = job.overhead_left_s[slot] = job.rate_since_s[slot] = 0.0
    job.saved_s[slot] = 0.0
    job.rate[slot] = 1.0
    job.pinned[slot] = pinned
    job.workload[slot], job.reference_kind[slot] = 0, -1
    job.energy_ppm[slot] = -1
    job.core_need_milli[slot], job.dynamic_ratio[slot] = 0, 0.0
    job.unshared[slot], job.gpu_need_mib[slot] = s.demand.exclusive[demand], -1
    job.cpu_milli_each[slot] = s.demand.cpu_milli_each[demand]
    job.level[slot], job.ln_weight[slot] = 0, 0.0
    job.head[slot] = -1
    return slot


@kernel
def rank_job(s: StateArrays, slot: int, level: int, ln_weight: float) -> None:
    """Set the priority level of a job, and the natural logarithm of its weight in the queue order."""
    s.job.level[slot], s.job.ln_weight[slot] = level, ln_weight


@kernel
def admit_job(
    s: StateArrays,
    demand: int,
    vc: int,
    own: int,
    shared: int,
    submit_s: float,
    predicted_s: float,
    spread: float,
    limit_s: float,
    pinned: bool,
    level: int,
    ln_weight: float,
    unshared: bool,
    gpu_need_mib: int,
) -> int:
    """Call `add_job`, `rank_job` and `share_job` in one kernel: each call from Python has overhead."""
    slot = add_job(s, demand, vc, own, shared, submit_s, predicted_s, spread, limit_s, pinned)
    if slot >= 0:
        rank_job(s, slot, level, ln_weight)
        share_job(s, slot, unshared, gpu_need_mib)
    return slot


@kernel
def describe_job(s: StateArrays, slot: int, workload: int, energy_ppm: int) -> int:
    """Set a job's workload and weight of energy (-1: the cluster's). Return the job's sequence number."""
    s.job.workload[slot], s.job.energy_ppm[slot] = workload, energy_ppm
    if s.job.head[slot] >= 0:
        forget_speeds(s, s.job.head[slot] // MAX_TENANTS)
    return s.job.seq[slot]


@kernel
def share_job(s: StateArrays, slot: int, unshared: bool, gpu_need_mib: int) -> None:
    """Set whether a job must not share GPUs, and the job's memory on each GPU, MiB (-1: as models predict).

    A job that gets whole nodes never shares GPUs.
    """
    s.job.unshared[slot] = unshared or s.demand.exclusive[s.job.demand[slot]] != 0
    s.job.gpu_need_mib[slot] = gpu_need_mib


@kernel
def forget(s: StateArrays, slot: int) -> None:
    """Empty the slot of a job that is in no queue and has no GPUs."""
    s.job.status[slot] = SLOT_EMPTY
    index, at = s.derived.slot, s.derived.slot.stack_at[slot]
    first = s.job.shape[0] - s.counters[0].live_jobs
    other = index.stack[first]
    index.stack[at], index.stack_at[other] = other, at
    index.stack[first], index.stack_at[slot] = slot, first
    s.counters[0].live_jobs -= 1


@kernel
def _index_node(s: StateArrays, n: int, sign: int) -> None:
    """If node `n` is up, add it to its partition's index (sign 1), or remove it (sign -1)."""
    if s.node.status[n] != NODE_UP:
        return
    p, free, size = s.node.part_of[n], s.node.free[n], s.node.gpus[n]
    index, nodes = s.derived, s.node.shape[0]
    index.holes[p, free] += sign
    if sign > 0:
        include(index.by_free[p, free], nodes, n)
    else:
        exclude(index.by_free[p, free], nodes, n)
    if free == size:
        index.whole[p, size] += sign
        if sign > 0:
            include(index.by_whole[p, size], nodes, n)
        else:
            exclude(index.by_whole[p, size], nodes, n)
    s.derived.part.free_gpus[p] += sign * free
    s.derived.part.open_gpus[p] += sign * size
    s.derived.part.open_nodes[p] += sign


@kernel
def _set_free(s: StateArrays, n: int, free: int) -> None:
    _index_node(s, n, -1)
    s.node.free[n] = free
    _index_node(s, n, 1)


@kernel
def set_node_status(s: StateArrays, n: int, status: int) -> None:
    """Set the status of a node; the caller ends or requeues the jobs on it."""
    _index_node(s, n, -1)
    s.node.status[n] = status
    _index_node(s, n, 1)
    s.derived.part.changes[s.node.part_of[n]] += 1


@kernel
def _use(s: StateArrays, n: int, slot: int, sign: int) -> None:
    """Deduct a job's cores and memory for one GPU from the free amounts of node `n`; sign -1: add them.

    Lent cores are not deducted (`rlsched.cluster.loans`).
    """
    if s.node.cpu_milli[n] < UNCOUNTED:
        each = s.job.cpu_milli_each[slot]
        if s.config[0].lends_cores:
            each = min(each, s.demand.cpu_milli_each[s.job.demand[slot]])
        s.node.cpu_free_milli[n] -= sign * each
    if s.node.memory_mib[n] < UNCOUNTED:
        s.node.memory_free_mib[n] -= sign * s.demand.memory_mib_each[s.job.demand[slot]]


@kernel
def _uses_more_than_gpus(s: StateArrays, slot: int) -> bool:
    """Return whether cores or host memory are counted for a job."""
    return s.job.cpu_milli_each[slot] > 0 or s.demand.memory_mib_each[s.job.demand[slot]] > 0


@kernel
def close_node(s: StateArrays, n: int) -> None:
    """Withhold all GPUs, cores and memory of node `n` from other jobs: one job gets the whole node."""
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        s.gpu.free_milli[g] = 0
    _set_free(s, n, 0)
    if s.node.cpu_milli[n] < UNCOUNTED:
        s.node.cpu_free_milli[n] = 0
    if s.node.memory_mib[n] < UNCOUNTED:
        s.node.memory_free_mib[n] = 0


@kernel
def _open_node(s: StateArrays, n: int) -> None:
    """Mark all GPUs, cores and memory of node `n` as free, after a job that had the whole node."""
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        s.gpu.free_milli[g] = WHOLE_GPU_MILLI
    _set_free(s, n, s.node.gpus[n])
    s.node.cpu_free_milli[n], s.node.memory_free_mib[n] = s.node.cpu_milli[n], s.node.memory_mib[n]


@kernel
def gpus_with(s: StateArrays, slot: int) -> int:
    """Return how many GPUs the end of a running job would free.

    A job with whole nodes frees all GPUs of its nodes; any other job frees its own GPUs.
    """
    if not s.demand.exclusive[s.job.demand[slot]]:
        return s.job.gpus[slot]
    place, gpus = s.job.head[slot], 0
    if place < 0:
        return s.node.gpus[s.job.host[slot]]
    while place >= 0:
        n = s.gpu.node[place // MAX_TENANTS]
        gpus += s.node.gpus[n]
        while place >= 0 and s.gpu.node[place // MAX_TENANTS] == n:
            place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return gpus


@kernel
def occupy(s: StateArrays, slot: int, gpus: NDArray[np.int32], host: int, p: int, share_milli: int) -> int:
    """Allocate these GPUs of partition `p` to the job in a slot; change nothing else.

    `gpus` is grouped by node; the first group is on the node `host`. A job without GPUs gets cores and memory
    of `host`. If the job gets whole nodes, the nodes must be idle, and their remaining GPUs, cores and memory
    are withheld from other jobs.

    Returns the value of `JOB.head`: (first GPU) x MAX_TENANTS + (position among the jobs on this GPU); -1 for
    a job without GPUs.
    """
    gpu, counted = s.gpu, _uses_more_than_gpus(s, slot)
    exclusive = s.demand.exclusive[s.job.demand[slot]] != 0
    head = last = -1
    position, count = 0, gpus.shape[0]
    while position < count:
        n, taken = gpu.node[gpus[position]], 0
        while position < count and gpu.node[gpus[position]] == n:
            g = gpus[position]
            k = 0
            while gpu.tenant[g, k] >= 0:
                k += 1
            gpu.tenant[g, k] = slot
            gpu.link[g, k] = -1
            if gpu.free_milli[g] == WHOLE_GPU_MILLI:
                taken += 1
            gpu.free_milli[g] -= share_milli
            place = g * MAX_TENANTS + k
            if last < 0:
                head = place
            else:
                gpu.link[last // MAX_TENANTS, last % MAX_TENANTS] = place
            last = place
            position += 1
            if counted:
                _use(s, n, slot, 1)
        if taken:
            _set_free(s, n, s.node.free[n] - taken)
        if exclusive:
            close_node(s, n)
    if count == 0:
        _use(s, host, slot, 1)
        if exclusive:
            close_node(s, host)
    s.derived.part.changes[p] += 1
    return head


@kernel
def vacate(s: StateArrays, slot: int, head: int, host: int, p: int, share_milli: int) -> None:
    """Undo `occupy`: remove a job from all its GPUs. `head`: result of `occupy`."""
    gpu, counted = s.gpu, _uses_more_than_gpus(s, slot)
    exclusive = s.demand.exclusive[s.job.demand[slot]] != 0
    place = head
    if place < 0:
        _use(s, host, slot, -1)
        if exclusive:
            _open_node(s, host)
    while place >= 0:
        n, freed = gpu.node[place // MAX_TENANTS], 0
        while place >= 0 and gpu.node[place // MAX_TENANTS] == n:
            g, k = place // MAX_TENANTS, place % MAX_TENANTS
            place = gpu.link[g, k]
            gpu.tenant[g, k] = gpu.link[g, k] = -1
            gpu.joinable_mib[g] = UNCOUNTED
            gpu.free_milli[g] += share_milli
            if gpu.free_milli[g] == WHOLE_GPU_MILLI:
                freed += 1
            if counted:
                _use(s, n, slot, -1)
        if freed:
            _set_free(s, n, s.node.free[n] + freed)
        if exclusive:
            _open_node(s, n)
    s.derived.part.changes[p] += 1


@kernel
def forget_speeds(s: StateArrays, g: int) -> None:
    """Discard the cached speeds of the jobs on GPU `g` after a change of its jobs, cores or clock."""
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            s.derived.slot.speed[s.gpu.tenant[g, k]] = np.nan


@kernel
def allocate(
    s: StateArrays,
    slot: int,
    gpus: NDArray[np.int32],
    host: int,
    p: int,
    share_milli: int,
    sm_clock_frac: float,
    now_s: float,
) -> None:
    """Start a waiting job on these GPUs of partition `p`, which are grouped by node; node `host` is first."""
    dequeue(s, slot)
    s.job.head[slot] = occupy(s, slot, gpus, host, p, share_milli)
    _run(s, slot, host, p, share_milli, sm_clock_frac, now_s)
    if gpus.shape[0] > 0:
        forget_speeds(s, gpus[0])


@kernel
def _run(
    s: StateArrays, slot: int, host: int, p: int, share_milli: int, sm_clock_frac: float, now_s: float
) -> None:
    """Mark a slot as running, after its GPUs have been allocated."""
    job = s.job
    job.status[slot] = RUNNING
    note_moved(s, slot, -1)
    job.placed_in[slot], job.host[slot] = p, host
    job.share_milli[slot], job.sm_clock_frac[slot] = share_milli, sm_clock_frac
    job.start_s[slot] = job.rate_since_s[slot] = now_s
    at = s.derived.running_len[0]
    s.derived.slot.running[at] = slot
    s.derived.slot.running_at[slot] = at
    s.derived.running_len[0] = at + 1
    join_running(s, p, slot)


@kernel
def spare_cpu_milli(s: StateArrays, n: int) -> int:
    """Return the spare cores of node `n`, in thousandths: free cores that its free GPUs do not need.

    Each GPU needs an equal part of all cores of the node.
    """
    if s.node.cpu_milli[n] >= UNCOUNTED:
        return UNCOUNTED
    fair = s.node.cpu_milli[n] // max(s.node.gpus[n], 1)
    return max(s.node.cpu_free_milli[n] - s.node.free[n] * fair, 0)


@kernel
def spare_cpu_milli_each(s: StateArrays, slot: int) -> int:
    """Return how many spare cores a running job could get in addition for each of its GPUs, thousandths."""
    place, each = s.job.head[slot], UNCOUNTED
    while place >= 0:
        n, on_node = s.gpu.node[place // MAX_TENANTS], 0
        while place >= 0 and s.gpu.node[place // MAX_TENANTS] == n:
            place, on_node = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS], on_node + 1
        each = min(each, spare_cpu_milli(s, n) // on_node)
    return each


@kernel
def join(
    s: StateArrays, slot: int, share_with: int, cpu_milli_each: int, sm_clock_frac: float, now_s: float
) -> None:
    """Start the waiting job in `slot` on all GPUs of the running job in slot `share_with`.

    Both jobs must have the same number of GPUs. All jobs on a GPU then have equal shares of it (the
    first job also gets the rounding remainder), and use its cores together. `cpu_milli_each`: cores that the
    new job adds to the cores of each GPU, thousandths.
    """
    dequeue(s, slot)
    s.job.cpu_milli_each[slot] = cpu_milli_each
    gpu, p, host = s.gpu, s.job.placed_in[share_with], s.job.host[share_with]
    counted = _uses_more_than_gpus(s, slot)
    theirs, last, first = s.job.head[share_with], -1, s.job.head[share_with] // MAX_TENANTS
    while theirs >= 0:
        g, k = theirs // MAX_TENANTS, 0
        while gpu.tenant[g, k] >= 0:
            k += 1
        gpu.tenant[g, k], gpu.link[g, k] = slot, -1
        place = g * MAX_TENANTS + k
        if last < 0:
            s.job.head[slot] = place
        else:
            gpu.link[last // MAX_TENANTS, last % MAX_TENANTS] = place
        last = place
        if counted:
            _use(s, gpu.node[g], slot, 1)
        theirs = gpu.link[theirs // MAX_TENANTS, theirs % MAX_TENANTS]
    s.derived.part.changes[p] += 1
    _run(s, slot, host, p, 0, sm_clock_frac, now_s)
    _share_out(s, first, now_s)
    forget_speeds(s, first)


@kernel
def tenants_of(s: StateArrays, g: int) -> int:
    """Return the number of jobs on GPU `g`."""
    count = 0
    for k in range(MAX_TENANTS):
        count += s.gpu.tenant[g, k] >= 0
    return count


@kernel
def _share_out(s: StateArrays, g: int, now_s: float) -> None:
    """Give equal shares to all jobs on GPU `g`; these jobs have all their GPUs in common.

    At the end of an attempt, `release` computes its GPU-seconds as if the job had always had the last share.
    This function therefore corrects `attained_gpu_s`, by (attempt's run time so far) x GPUs x (previous share
    - new share).
    """
    count, job = tenants_of(s, g), s.job
    left = WHOLE_GPU_MILLI
    for k in range(MAX_TENANTS - 1, -1, -1):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            count -= 1
            before = job.share_milli[slot]
            job.share_milli[slot] = WHOLE_GPU_MILLI // tenants_of(s, g) if count > 0 else left
            left -= job.share_milli[slot]
            gpu_s = (now_s - job.start_s[slot]) * job.gpus[slot]
            job.attained_gpu_s[slot] += gpu_s * (before - job.share_milli[slot]) / 1000.0


@kernel
def _take_over(s: StateArrays, g: int, share_milli: int, cpu_milli_each: int, now_s: float) -> None:
    """After a job has left GPU `g`, give its share to the other jobs there, and cores if they lack any.

    `cpu_milli_each`: cores that the released job had with each GPU, thousandths. The other jobs get these
    cores even if the node has no spare cores, because they used them before.
    """
    first = -1
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            first = s.gpu.tenant[g, k]
            break
    missing = s.demand.cpu_milli_each[s.job.demand[first]] - s.job.cpu_milli_each[first]
    more = max(min(missing, max(cpu_milli_each, spare_cpu_milli_each(s, first))), 0)
    s.job.cpu_milli_each[first] += more
    place = s.job.head[first]
    while place >= 0:
        s.gpu.free_milli[place // MAX_TENANTS] -= share_milli
        n = s.gpu.node[place // MAX_TENANTS]
        if s.node.cpu_milli[n] < UNCOUNTED:
            s.node.cpu_free_milli[n] -= more
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    _share_out(s, g, now_s)


@kernel
def release(s: StateArrays, slot: int, now_s: float) -> None:
    """Free the GPUs of the running job in a slot, and remove the job from the lists of running jobs.

    The caller then calls `forget` (the job has ended) or `wait_again`.
    """
    job, share_milli, head = s.job, s.job.share_milli[slot], s.job.head[slot]
    vacate(s, slot, head, job.host[slot], job.placed_in[slot], share_milli)
    if share_milli < s.demand.share_milli[job.demand[slot]]:
        _take_over(s, head // MAX_TENANTS, share_milli, job.cpu_milli_each[slot], now_s)
        job.share_milli[slot] = s.demand.share_milli[job.demand[slot]]
    if head >= 0:
        forget_speeds(s, head // MAX_TENANTS)
    job.head[slot] = -1
    job.attained_gpu_s[slot] += (now_s - job.start_s[slot]) * job.gpus[slot] * share_milli / 1000.0
    leave_running(s, job.placed_in[slot], slot)
    job.placed_in[slot], job.host[slot] = -1, -1
    last = s.derived.running_len[0] - 1
    moved = s.derived.slot.running[last]
    s.derived.slot.running[s.derived.slot.running_at[slot]] = moved
    s.derived.slot.running_at[moved] = s.derived.slot.running_at[slot]
    s.derived.running_len[0] = last


@kernel
def wait_again(s: StateArrays, slot: int) -> None:
    """Mark a released job as waiting for its next attempt. The job is in no queue yet: call `enqueue`."""
    s.job.status[slot] = WAITING
    s.job.start_s[slot] = np.nan
    s.job.attempt[slot] += 1
    s.job.generation[slot] += 1
    s.job.rate[slot] = s.job.sm_clock_frac[slot] = 1.0
    s.job.cpu_milli_each[slot] = s.demand.cpu_milli_each[s.job.demand[slot]]


@kernel
def make_ineligible(s: StateArrays, slots: NDArray[np.int64]) -> None:
    """Mark the waiting jobs in these slots as ineligible, and remove the jobs from the queues."""
    for slot in slots:
        dequeue(s, slot)
        s.job.status[slot] = INELIGIBLE


@kernel
def defer(s: StateArrays, slot: int) -> None:
    """Mark the waiting job in a slot as deferred, and remove the job from the queues."""
    dequeue(s, slot)
    s.job.status[slot] = DEFERRED
    s.scratch[0].deferred += 1


@kernel
def undefer(s: StateArrays, slot: int) -> None:
    """Mark a deferred job as waiting. The job is in no queue yet: call `enqueue`."""
    s.job.status[slot] = WAITING
    s.scratch[0].deferred -= 1


@kernel
def set_price(s: StateArrays, ratio: float, outlook: NDArray[np.float64], until_s: float) -> None:
    """Set the price of electricity. If it has changed, mark the dials of all partitions as due.

    A strategy sets due dials (numbers that adjust a rule) before the next decision.

    Args:
        ratio: The price relative to the mean; 0: unknown.
        outlook: (K,) present values of the columns `rlsched.energy.relative.OUTLOOK`.
        until_s: Time when the price changes next.
    """
    config, changes = s.config[0], s.config[0].price_ratio != ratio
    for k in range(outlook.shape[0]):
        changes = changes or config.price_outlook[k] != outlook[k]
        config.price_outlook[k] = outlook[k]
    config.price_ratio, config.price_until_s = ratio, until_s
    for p in range(s.dials.seen.shape[0] if changes else 0):
        s.dials.dial[p].due = 1


@kernel
def size_class(s: StateArrays, c: int) -> None:
    """Compute `node_size` of class `c`: for each partition, the most places on one idle node.

    A place is room for one GPU of a job. A job without GPUs needs one place.

    If `c` prefers GPU types, the class that accepts only these types gets the same values: a preference must
    not split a gang that fits on one node.
    """
    sizes = s.derived.class_queue.node_size
    for p in range(sizes.shape[0]):
        sizes[p, c] = 0
    for n in range(s.node.shape[0]):
        sizes[s.node.part_of[n], c] = max(sizes[s.node.part_of[n], c], idle_places(s, c, n))
    narrow = s.demand.preferred[c]
    for p in range(sizes.shape[0] if narrow >= 0 else 0):
        sizes[p, narrow] = sizes[p, c]


@kernel
def forget_answers(s: StateArrays) -> None:
    """Invalidate the cached results of `placement.class_fits`."""
    for p in range(s.derived.part.shape[0]):
        s.derived.part.changes[p] += 1


@kernel
def rebuild_index(s: StateArrays) -> None:
    """Derive the whole index from nodes, GPUs and jobs."""
    index = s.derived
    index.running_len[0], s.scratch[0].look_s = 0, -np.inf
    s.scratch[0].deferred, s.scratch[0].defer_s, s.scratch[0].rank_s = 0, -np.inf, np.inf
    s.scratch[0].summed_s = -np.inf
    for p in range(index.part.shape[0]):
        part = index.part[p]
        part.open_gpus = part.open_nodes = part.free_gpus = part.node_size = part.queue_len = 0
        part.changes = part.arrivals = part.work_gpu_ms = 0
        part.seen_changes = part.seen_arrivals = -1
        for size in range(index.holes.shape[1]):
            index.holes[p, size] = index.whole[p, size] = 0
            for word in range(index.by_free.shape[2]):
                index.by_free[p, size, word] = index.by_whole[p, size, word] = 0
        for c in range(index.class_queue.shape[1]):
            index.class_queue.root[p, c] = index.class_queue.asked_at[p, c] = -1
            index.class_queue.running[p, c] = -1
            index.class_queue.waiting[p, c] = 0
    for n in range(s.node.shape[0]):
        index.part.node_size[s.node.part_of[n]] = max(index.part.node_size[s.node.part_of[n]], s.node.gpus[n])
        _index_node(s, n, 1)
    for c in range(s.demand.shape[0]):
        size_class(s, c)
    empty, live = 0, s.job.shape[0] - 1
    for slot in range(s.job.shape[0] - 1, -1, -1):
        if s.job.status[slot] == SLOT_EMPTY:
            index.slot.stack[empty], index.slot.stack_at[slot] = slot, empty
            empty += 1
            continue
        index.slot.stack[live], index.slot.stack_at[slot] = slot, live
        live -= 1
        if s.job.status[slot] == WAITING:
            enqueue(s, slot, s.job.key[slot])
            if s.job.slack_s[slot] > 0.0:
                s.scratch[0].rank_s = -np.inf
        elif s.job.status[slot] == DEFERRED:
            s.scratch[0].deferred += 1
        elif s.job.status[slot] == RUNNING:
            index.slot.running[index.running_len[0]] = slot
            index.slot.running_at[slot] = index.running_len[0]
            index.running_len[0] += 1
            join_running(s, s.job.placed_in[slot], slot)
            index.slot.speed[slot] = np.nan
