"""The columns of a candidate's row, compiled: pure functions of the state, called by simulator and broker.

Which candidates there are, and which of them are legal, is `decide.windows`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, StateArrays
from rlsched.cluster.placement import largest_hole
from rlsched.decide.schema import (
    NUM_FEATURES,
)
from rlsched.jit import allocating_kernel, kernel

(
    IS_WAIT,
    IS_JOB,
    IS_VARIANT,
    IS_REFERENCE,
    FEASIBLE,
    PREDICTED,
    SPREAD,
    GPU_TIME,
    GPUS,
    GPUS_FRAC,
    WAITED,
    HELD,
    RANK,
    FREE_AFTER,
    LEFTOVER,
    OPENS_NODE,
    FIT_IN,
    NODE_ENDS,
    FREE,
    FULL_NODES,
    LARGEST_HOLE,
    QUEUE,
    DEMAND,
    WORK,
    INFEASIBLE_AHEAD,
    BLOCKED_GPUS,
    BLOCKED_PREDICTED,
    BLOCKED_GPU_TIME,
    BLOCKED_WAITED,
    BLOCKED_FIT_IN,
    BLOCKED_KEY_RATIO,
    ENDS_AFTER_FIT,
) = range(NUM_FEATURES)  # the columns, in the order of `schema.ACTOR_FEATURES`

LONGEST_FIT_S: Final = 1e7
PROFILE: Final = 20
_FIRST_EDGE_S: Final = 30.0
TIME_SCALE: Final = 12.0
WORK_SCALE: Final = 15.0
COUNT_SCALE: Final = 8.0


@kernel
def remaining_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Predicted time that a running job still needs, seconds.

    What is left of the prediction; once that is nearly used up, half of the time it has run (the longer a
    heavy-tailed job has lasted, the longer it will).
    """
    ran = now_s - s.job.start_s[slot]
    return max(s.job.predicted_s[slot] - ran, 0.5 * ran, 1.0)


@kernel
def release_profile(s: StateArrays, p: int, now_s: float, profile: NDArray[np.int64]) -> None:
    """profile[b] = GPUs predicted to be free within _FIRST_EDGE_S x 2^b seconds from now. (PROFILE,)"""
    profile[:] = 0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.placed_in[slot] == p:
            left = remaining_s(s, slot, now_s)
            bucket, edge = 0, _FIRST_EDGE_S
            while left > edge and bucket < PROFILE - 1:
                bucket += 1
                edge *= 2.0
            profile[bucket] += s.job.gpus[slot]
    for bucket in range(1, PROFILE):
        profile[bucket] += profile[bucket - 1]


@kernel
def _fit_in_s(profile: NDArray[np.int64], missing: int) -> float:
    """Predicted seconds until `missing` more GPUs are free."""
    edge = _FIRST_EDGE_S
    for bucket in range(PROFILE):
        if profile[bucket] >= max(missing, 1):
            return edge
        edge *= 2.0
    return edge


@kernel
def _node_ends_s(s: StateArrays, n: int, now_s: float) -> float:
    """Predicted seconds until the last job on node `n` ends, 0 where none runs."""
    last = 0.0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0:
                last = max(last, remaining_s(s, s.gpu.tenant[g, k], now_s))
    return last


@kernel
def partition_columns(s: StateArrays, p: int, columns: NDArray[np.float64]) -> None:
    """Fill the columns that all rows share, from FREE to WORK. (F,)"""
    total = max(s.derived.part.open_gpus[p], 1)
    whole = 0
    for gpus in range(s.derived.whole.shape[1]):
        whole += s.derived.whole[p, gpus]
    demand, work = 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        demand += s.job.gpus[slot]
        work += s.job.predicted_s[slot] * s.job.gpus[slot]
    columns[FREE] = s.derived.part.free_gpus[p] / total
    columns[FULL_NODES] = whole / max(s.derived.part.open_nodes[p], 1)
    columns[LARGEST_HOLE] = largest_hole(s, p) / max(s.derived.part.node_size[p], 1)
    columns[QUEUE] = math.log1p(s.derived.part.queue_len[p]) / COUNT_SCALE
    columns[DEMAND] = math.log1p(demand / total) / 4.0
    columns[WORK] = math.log1p(work / total) / WORK_SCALE


@kernel
def job_columns(
    s: StateArrays,
    p: int,
    slot: int,
    node: int,
    rank: int,
    now_s: float,
    profile: NDArray[np.int64],
    row: NDArray[np.float32],
) -> None:
    """Fill a row's own columns. `node` < 0: the job does not fit."""
    job = s.job
    gpus = job.gpus[slot]
    total = max(s.derived.part.open_gpus[p], 1)
    free = s.derived.part.free_gpus[p]
    row[PREDICTED] = math.log1p(job.predicted_s[slot]) / TIME_SCALE
    row[SPREAD] = min(job.spread[slot], 4.0) / 4.0
    row[GPU_TIME] = math.log1p(job.predicted_s[slot] * gpus) / WORK_SCALE
    row[GPUS] = math.log2(1.0 + gpus) / COUNT_SCALE
    row[GPUS_FRAC] = gpus / total
    row[WAITED] = math.log1p(max(now_s - job.submit_s[slot], 0.0)) / TIME_SCALE
    held = job.held_since_s[slot]
    row[HELD] = math.log1p(now_s - held) / TIME_SCALE if held == held else 0.0
    row[RANK] = math.log1p(rank) / COUNT_SCALE
    if node < 0:
        row[FREE_AFTER] = free / total
        row[FIT_IN] = math.log1p(_fit_in_s(profile, gpus - free)) / TIME_SCALE
        return
    row[FEASIBLE] = 1.0
    row[FREE_AFTER] = (free - gpus) / total
    on_node = min(gpus, s.node.free[node])
    row[LEFTOVER] = (s.node.free[node] - on_node) / max(s.node.gpus[node], 1)
    row[OPENS_NODE] = 1.0 if s.node.free[node] == s.node.gpus[node] else 0.0
    row[NODE_ENDS] = math.log1p(_node_ends_s(s, node, now_s)) / TIME_SCALE


@kernel
def _kth_smallest(values: NDArray[np.float64], count: int, k: int) -> float:
    """The k-th smallest (from 1) of the first `count` values, which are sorted in place."""
    for i in range(1, count):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    return values[k - 1]


@allocating_kernel
def fits_in_s(s: StateArrays, p: int, gpus: int, now_s: float) -> float:
    """Predicted seconds until a gang that does not fit does, if nothing else starts; infinite if never.

    On one node: when the first node has enough GPUs free. Over several: when enough nodes are wholly free
    (the remainder is taken for a whole node).
    """
    size = s.derived.part.node_size[p]
    single = gpus <= size
    ends = np.empty(max(s.node.shape[0], size), np.float64)
    on_node = np.empty(max(size, 1), np.float64)
    nodes, first = 0, np.inf
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] != p or s.node.status[n] != NODE_UP:
            continue
        for local in range(s.node.gpus[n]):
            left = 0.0
            for k in range(MAX_TENANTS):
                tenant = s.gpu.tenant[s.node.first_gpu[n] + local, k]
                if tenant >= 0:
                    left = max(left, remaining_s(s, tenant, now_s))
            on_node[local] = left
        if single:
            if s.node.gpus[n] >= gpus:
                first = min(first, _kth_smallest(on_node, s.node.gpus[n], gpus))
        else:
            ends[nodes] = _kth_smallest(on_node, s.node.gpus[n], s.node.gpus[n]) if s.node.gpus[n] else np.inf
            nodes += 1
    if single:
        return first
    needed = (gpus + size - 1) // size
    return _kth_smallest(ends, nodes, needed) if needed <= nodes else np.inf


@kernel
def blocked_columns(s: StateArrays, p: int, blocked: int, now_s: float, shared: NDArray[np.float64]) -> None:
    """Fill the columns about the blocked job: slot `blocked`, -1 where nothing is blocked."""
    for column in range(BLOCKED_GPUS, BLOCKED_FIT_IN + 1):
        shared[column] = 0.0
    if blocked < 0:
        return
    job, gpus = s.job, s.job.gpus[blocked]
    shared[BLOCKED_GPUS] = math.log2(1.0 + gpus) / COUNT_SCALE
    shared[BLOCKED_PREDICTED] = math.log1p(job.predicted_s[blocked]) / TIME_SCALE
    shared[BLOCKED_GPU_TIME] = math.log1p(job.predicted_s[blocked] * gpus) / WORK_SCALE
    shared[BLOCKED_WAITED] = math.log1p(max(now_s - job.submit_s[blocked], 0.0)) / TIME_SCALE
    shared[BLOCKED_FIT_IN] = math.log1p(min(fits_in_s(s, p, gpus, now_s), LONGEST_FIT_S)) / TIME_SCALE


@kernel
def against_blocked(row: NDArray[np.float32]) -> None:
    """Fill a job row's two columns that compare it with the blocked job, from the row's other columns."""
    if row[BLOCKED_GPUS] > 0.0:
        ratio = (row[GPU_TIME] - row[BLOCKED_GPU_TIME]) * WORK_SCALE
        row[BLOCKED_KEY_RATIO] = min(max(ratio, -6.0), 6.0) / 6.0
        longer = (row[PREDICTED] - row[BLOCKED_FIT_IN]) * TIME_SCALE
        row[ENDS_AFTER_FIT] = min(max(longer, -6.0), 6.0) / 6.0
