"""The quota walk, compiled: which running jobs are preempted, and which waiting jobs get their GPUs.

The *movable* jobs of a partition are its running jobs that may be preempted, on nodes that are up. The
*quota* of a partition is its free GPUs plus the GPUs of its movable jobs. The *walk* is one pass over all
waiting and movable jobs of the partition, in a common order. If the quota that is left covers the GPUs of a
job, the GPUs are deducted from the quota, and the job *has quota*. A movable job without quota is preempted,
and a waiting job with quota may start.

The walk counts GPUs (a part of a GPU as one GPU) and ignores fragmentation: if a job with quota does not fit
yet, enough GPUs stay free until it fits.

Jobs with more attained service than a threshold come after all other jobs. Each of these two levels is in the
order of the queue. This is the rule of Lucid's simulator (Hu et al., ASPLOS'23) for Tiresias and for
SRTF, with five differences:

- Ties are broken by `seq`.
- Running jobs that are not movable keep their GPUs, which are not in the quota.
- A waiting job gets no quota if it would not fit even after the end of all movable jobs.
- A job with whole nodes counts with all GPUs of its nodes.
- The walk is made only at ticks (multiples of `tick_s`) at which its result can change. If `tick_s` is 0, it
  is made at every event.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, StateArrays
from rlsched.cluster.kernels import gpus_with
from rlsched.cluster.placement import fits_in, fits_slot
from rlsched.compile.jit import array_kernel, kernel, shared
from rlsched.decide.move import Move, nothing, preempt_of, start_of
from rlsched.decide.options import RuleOptions
from rlsched.decide.order.gittins import attained_gpu_s
from rlsched.decide.order.keys import order_key

LOOKS = True


@kernel
def begin(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> None:
    """At a tick, make the quota walk (`walk`); at other times, mark no job for a preemption or a start."""
    s.scratch[0].outs = s.scratch[0].ins = 0
    if is_tick(now_s, o.tick_s):
        walk(s, p, now_s, o.threshold_gpu_s)
    s.scratch[0].out_at = s.scratch[0].in_at = 0


@shared
@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Return the next move: first preempt the jobs that `walk` found, then start jobs with quota that fit."""
    scratch, slot = s.scratch[0], s.derived.slot
    if scratch.out_at < scratch.outs:
        scratch.out_at += 1
        return preempt_of(slot.quota_out[scratch.out_at - 1], -1)
    while scratch.in_at < scratch.ins:
        scratch.in_at += 1
        if fits_slot(s, p, slot.quota_in[scratch.in_at - 1]):
            return start_of(slot.quota_in[scratch.in_at - 1], -1)
    return nothing()


@kernel
def after(s: StateArrays, p: int, o: RuleOptions, move: Move, now_s: float) -> None:
    """Repeat the quota walk (`walk`) after a move that changes the result of the walk.

    The start of a job that must not be preempted removes its GPUs from the quota. A job with whole nodes may
    get other nodes than the walk assumed.
    """
    moved = max(move.start, move.preempt)
    if (move.start >= 0 and s.job.pinned[move.start]) or s.demand.exclusive[s.job.demand[moved]]:
        begin(s, p, o, now_s)


@kernel
def next_look_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """Return the next time at which, without an event, the quota walk of partition `p` can change a decision.

    Between ticks, this time is the next tick. At a tick, it is the first later tick at which another running
    job has exceeded the threshold of attained service. It is infinite if no job waits, or if `tick_s` is 0.
    """
    if s.derived.part.queue_len[p] == 0 or o.tick_s <= 0.0:
        return np.inf
    if not is_tick(now_s, o.tick_s):
        return _tick_after(now_s, o.tick_s)
    look_s = np.inf
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        left_gpu_s = o.threshold_gpu_s - attained_gpu_s(s, slot, now_s)
        if s.job.placed_in[slot] == p and left_gpu_s >= 0.0 and not s.job.pinned[slot]:
            reached_s = now_s + left_gpu_s * 1000.0 / (s.job.gpus[slot] * s.job.share_milli[slot])
            look_s = min(look_s, _tick_after(reached_s, o.tick_s))
    return look_s


@kernel
def _all_up(s: StateArrays, p: int) -> bool:
    """Return whether every node of partition `p` is up."""
    up = True
    for n in range(s.node.shape[0]):
        up = up and (s.node.part_of[n] != p or s.node.status[n] == NODE_UP)
    return up


@kernel
def _is_on_up_nodes(s: StateArrays, slot: int) -> bool:
    """Return whether all nodes of a running job are up, so that other jobs could get its GPUs."""
    place = s.job.head[slot]
    while place >= 0:
        g = place // MAX_TENANTS
        if s.node.status[s.gpu.node[g]] != NODE_UP:
            return False
        place = s.gpu.link[g, place % MAX_TENANTS]
    return True


@array_kernel
def _movable_running(s: StateArrays, p: int, all_up: bool) -> NDArray[np.int32]:
    """Return the slots of partition `p`'s movable jobs: running and preemptible, on nodes that are up."""
    out = np.empty(s.derived.running_len[0], np.int32)
    count = 0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.placed_in[slot] == p and not s.job.pinned[slot] and (all_up or _is_on_up_nodes(s, slot)):
            out[count] = slot
            count += 1
    return out[:count]


@array_kernel
def _in_order(
    s: StateArrays, slots: NDArray[np.int32], now_s: float, threshold_gpu_s: float
) -> tuple[NDArray[np.int32], NDArray[np.float64], int]:
    """Sort running jobs for the quota walk: by level, then by the sort key of the queue, then by `seq`.

    Jobs with attained service up to the threshold are in level 1, other jobs in level 2. Returns (sorted
    `slots`, their sort keys, number of jobs in level 1).
    """
    count = slots.shape[0]
    keys = np.empty(count)
    for k in range(count):
        keys[k] = order_key(s, slots[k], now_s)
    order = np.argsort(keys)
    for k in range(1, count):  # ties, which the sort leaves in any order
        moved, at = order[k], k
        while (
            at > 0
            and keys[order[at - 1]] == keys[moved]
            and s.job.seq[slots[order[at - 1]]] > s.job.seq[slots[moved]]
        ):
            order[at] = order[at - 1]
            at -= 1
        order[at] = moved
    out, out_keys = np.empty(count, np.int32), np.empty(count)
    at = first_level = 0
    for level in range(2):
        for k in order:
            if (attained_gpu_s(s, slots[k], now_s) > threshold_gpu_s) == (level == 1):
                out[at], out_keys[at] = slots[k], keys[k]
                at += 1
        if level == 0:
            first_level = at
    return out, out_keys, first_level


@array_kernel
def _room(s: StateArrays, p: int, movable: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (`holes`, `whole`): counts of the nodes of partition `p`, as if the jobs in `movable` had ended.

    `holes[k]`: number of nodes with k free GPUs. `whole[k]`: number of idle nodes with k GPUs. See `Index`.
    """
    free = s.node.free.copy()
    for slot in movable:
        place, exclusive = s.job.head[slot], s.demand.exclusive[s.job.demand[slot]] != 0
        if exclusive and place < 0:
            free[s.job.host[slot]] = s.node.gpus[s.job.host[slot]]
        while place >= 0:
            g = place // MAX_TENANTS
            n = s.gpu.node[g]
            free[n] = s.node.gpus[n] if exclusive else min(free[n] + 1, s.node.gpus[n])
            place = s.gpu.link[g, place % MAX_TENANTS]
    holes, whole = np.zeros_like(s.derived.holes[p]), np.zeros_like(s.derived.whole[p])
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] == p and s.node.status[n] == NODE_UP:
            holes[free[n]] += 1
            whole[s.node.gpus[n]] += free[n] == s.node.gpus[n]
    return holes, whole


@kernel
def _quota_of(s: StateArrays, p: int, slot: int, whole: NDArray[np.int32]) -> int:
    """Return the number of GPUs that a waiting job would take from the quota (see the module); -1: no room.

    A job takes the GPUs that it requested. A job with whole nodes takes all GPUs of the smallest node that
    holds it. If no node holds it, the job takes the GPUs of the largest nodes, and of the smallest node that
    holds the remainder. `whole[k]`: number of nodes with k GPUs that would be idle without the movable jobs.
    """
    gpus = s.job.gpus[slot]
    if not s.demand.exclusive[s.job.demand[slot]]:
        return gpus
    left, rest, last, wide = gpus, gpus, -1, gpus > s.derived.part.node_size[p]
    for size in range(whole.shape[0] - 1, 0, -1):
        left -= min(whole[size], left // size) * size if wide else 0
    if wide and left == 0:
        return gpus
    for size in range(whole.shape[0] - 1, -1, -1):
        take = min(whole[size], rest // size) if wide and size > 0 else 0
        rest -= take * size
        if size >= left and whole[size] > take:
            last = size
    return gpus - left + last if last >= 0 else -1


@kernel
def _could_start(
    s: StateArrays, p: int, slot: int, holes: NDArray[np.int32], whole: NDArray[np.int32], quota: int
) -> bool:
    """Return whether a waiting job would fit if all movable jobs of the partition (see the module) had ended.

    For a job with whole nodes, return False also if the GPUs left in the quota (`quota`) do not cover all
    GPUs of its nodes. `holes`, `whole`: result of `_room`.
    """
    if not s.demand.exclusive[s.job.demand[slot]]:
        return fits_in(holes, whole, s.derived.part.node_size[p], s.job.gpus[slot])
    return 0 <= _quota_of(s, p, slot, whole) <= quota


@kernel
def _smallest_waiting(s: StateArrays, p: int) -> int:
    """Return the number of GPUs of the smallest job that waits for partition `p`; at least one must wait."""
    classes, smallest = s.derived.class_queue, s.gpu.shape[0]
    for c in range(classes.shape[1]):
        if classes.waiting[p, c] > 0:
            smallest = min(smallest, s.demand.gpus[c])
    return smallest


@array_kernel
def walk(s: StateArrays, p: int, now_s: float, threshold_gpu_s: float) -> None:
    """Make the quota walk of partition `p`, which finds the jobs to preempt and the waiting jobs with quota.

    The module describes the walk. The slots of the jobs to preempt are written to `quota_out`, and the slots
    of the waiting jobs to `quota_in`. The caller preempts all jobs in `quota_out`, and then starts the jobs
    in `quota_in` that fit. A job that started at this instant is not preempted.
    """
    queue, waiting = s.derived.queue[p], s.derived.part.queue_len[p]
    if waiting == 0:
        return
    movable = _movable_running(s, p, _all_up(s, p))
    running, keys, first_level = _in_order(s, movable, now_s, threshold_gpu_s)
    holes, whole = _room(s, p, movable)
    quota = s.derived.part.free_gpus[p]
    for slot in movable:
        quota += gpus_with(s, slot)
    smallest = _smallest_waiting(s, p)
    preempt, start = s.derived.slot.quota_out, s.derived.slot.quota_in
    preempts = starts = r = 0
    for level in range(2):
        q, until = 0, first_level if level == 0 else running.shape[0]
        while True:
            if quota < smallest:
                q = waiting
            while q < waiting:
                slot = queue[q]
                if (
                    s.job.gpus[slot] <= quota
                    and (s.job.attained_gpu_s[slot] > threshold_gpu_s) == (level == 1)
                    and _could_start(s, p, slot, holes, whole, quota)
                ):
                    break
                q += 1
            if q < waiting and (
                r == until
                or s.derived.slot.key[queue[q]] < keys[r]
                or (s.derived.slot.key[queue[q]] == keys[r] and s.job.seq[queue[q]] < s.job.seq[running[r]])
            ):
                start[starts] = queue[q]
                starts += 1
                quota -= _quota_of(s, p, queue[q], whole)
                q += 1
            elif r < until:
                held = gpus_with(s, running[r])
                if held <= quota:
                    quota -= held
                elif s.job.start_s[running[r]] < now_s:
                    preempt[preempts] = running[r]
                    preempts += 1
                r += 1
            else:
                break
    s.scratch[0].outs, s.scratch[0].ins = preempts, starts


@kernel
def is_tick(now_s: float, tick_s: float) -> bool:
    """Return whether decisions are taken now: always if `tick_s` is 0, else at multiples of `tick_s`."""
    return tick_s <= 0.0 or np.floor(now_s / tick_s + 0.5) * tick_s == now_s


@kernel
def _tick_after(at_s: float, tick_s: float) -> float:
    """Return the first tick after the time `at_s`."""
    k = np.floor(at_s / tick_s) + 1.0
    return k * tick_s if k * tick_s > at_s else (k + 1.0) * tick_s
