"""Compiled functions that learn the speeds of two jobs on one GPU, after `WATCH_S` of observation.

Frameworks report iterations or batches of 0.05 to about 10 s: even the slowest report 30 in `WATCH_S`.
Lucid (ASPLOS'23) profiles jobs for 200 s. The error of a mean over this time is small compared to the scatter
between pairs of the same workloads (`learning.REPEAT_SD`), so the simulation adds no measurement error.

The speed of a job that is limited by its CPU cores is not learned.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS, StateArrays
from rlsched.cluster.kernels import tenants_of
from rlsched.cluster.speed import cores_given, feed, gpu_kind, use_of_gpus
from rlsched.compile.jit import kernel
from rlsched.models.observing import observe
from rlsched.models.sharing import known_pair
from rlsched_envs.sim.physics import true_share
from rlsched_envs.sim.sim_arrays import ProgressArrays

WATCH_S: Final = 300.0
"""Time for which two jobs must share a GPU, without a third job, before their speeds are learned, seconds."""


@kernel
def _can_teach(s: StateArrays, kind: int, slot: int, other: int) -> bool:
    """Return whether a job's speed next to a co-tenant is unknown, and both workloads are known."""
    mine, theirs = s.job.workload[slot], s.job.workload[other]
    if mine <= 0 or theirs <= 0:
        return False
    measured = known_pair(s.models, kind, mine, theirs)
    return measured != measured


@kernel
def watch(x: ProgressArrays, s: StateArrays, g: int, now_s: float) -> None:
    """Begin or end the observation of the jobs on GPU `g` after a change there.

    A pair is watched while exactly two jobs are on the GPU.
    """
    if x.books[0].learns == 0.0:
        return
    work, seq, first, second = x.work, s.job.seq, -1, -1
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and (first < 0 or seq[slot] < seq[first]):
            first, second = slot, first
        elif slot >= 0:
            second = slot
    if tenants_of(s, g) == 2 and work.watched[first] == seq[second]:
        return
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            work.seen_s[slot], work.watched[slot] = np.inf, -1
    if tenants_of(s, g) == 2:
        work.watched[first] = seq[second]
        kind = gpu_kind(s, g)
        if _can_teach(s, kind, first, second) or _can_teach(s, kind, second, first):
            work.seen_s[first] = now_s + WATCH_S
            x.books[0].next_seen_s = min(x.books[0].next_seen_s, work.seen_s[first])


@kernel
def _learn_from(x: ProgressArrays, s: StateArrays, slot: int, other: int) -> None:
    """Learn the observed speed of a job next to its co-tenant `other`."""
    g = x.work.first_gpu[slot]
    kind = gpu_kind(s, g)
    delivered = feed(s, slot, kind, cores_given(s, slot, kind))
    fed = delivered >= 1.0 or use_of_gpus(s, slot, kind, x.work.rate[slot]) < delivered
    if fed and _can_teach(s, kind, slot, other):
        speed = true_share(x, s, slot, g)
        observe(s.models, kind, s.job.workload[slot], s.job.workload[other], speed)


@kernel
def learn_due(x: ProgressArrays, s: StateArrays, now_s: float) -> None:
    """Learn the speeds of all pairs that have been watched long enough by now, earliest first."""
    work, seq = x.work, s.job.seq
    while True:
        found, due_s, then_s = -1, np.inf, np.inf
        for position in range(s.derived.running_len[0]):
            slot = s.derived.slot.running[position]
            at_s = work.seen_s[slot]
            if at_s < due_s or (at_s == due_s and found >= 0 and seq[slot] < seq[found]):
                found, due_s, then_s = slot, at_s, due_s
            else:
                then_s = min(then_s, at_s)
        if due_s > now_s:
            x.books[0].next_seen_s = due_s
            return
        work.seen_s[found] = np.inf
        g = work.first_gpu[found]
        for k in range(MAX_TENANTS):
            other = s.gpu.tenant[g, k]
            if other >= 0 and other != found:
                _learn_from(x, s, found, other)
                _learn_from(x, s, other, found)
        if then_s > now_s:
            x.books[0].next_seen_s = then_s
            return
