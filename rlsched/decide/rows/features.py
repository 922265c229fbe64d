"""Compiled functions of the state that compute the columns of a candidate's row, for simulator and broker.

`rows.windows` and `rows.variants` choose the candidates, and decide which candidates are legal.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, Records, StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.placement import largest_hole
from rlsched.cluster.speed import feed, gpu_kind
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.order.gittins import age_s, job_index
from rlsched.decide.remaining import remaining_s
from rlsched.decide.rows.columns import (
    ATTAINED,
    BLOCKED_FIT_IN,
    BLOCKED_GPU_TIME,
    BLOCKED_GPUS,
    BLOCKED_KEY_RATIO,
    BLOCKED_PREDICTED,
    BLOCKED_WAITED,
    BY_PREEMPTING,
    BY_SHARING,
    CLOCK,
    CLOCK_BOUND,
    DEMAND,
    ENDS_AFTER_FIT,
    FREE,
    FULL_NODES,
    GPU_MEMORY,
    GPU_TIME,
    INDEX_LOG,
    LARGEST_HOLE,
    MUST_STAY,
    PARTNER_LEFT,
    PARTNER_RATE,
    POWER,
    PREDICTED,
    PREEMPT_MARGIN,
    PREEMPTED_GPUS,
    QUEUE,
    RATE,
    UTIL,
    WORK,
)
from rlsched.models.clocks import dynamic_power_w, gpu_power_w, relative_time

LONGEST_FIT_S: Final = 1e7
PROFILE: Final = 20
_FIRST_EDGE_S: Final = 30.0
TIME_SCALE: Final = 12.0
WORK_SCALE: Final = 15.0
COUNT_SCALE: Final = 8.0
INDEX_SCALE: Final = 20.0

_COUNT_LOG: Final = np.array([math.log1p(count) / COUNT_SCALE for count in range(1024)], np.float32)
_FIT_IN_LOG: Final = np.array(
    [math.log1p(_FIRST_EDGE_S * 2.0**bucket) / TIME_SCALE for bucket in range(PROFILE + 1)], np.float32
)

OWN: Final = np.dtype(
    [
        ("seq", np.int64),  # job that these columns belong to, -1: none
        ("predicted_s", np.float64),  # its prediction, for which they were computed
        ("predicted_gpu_s", np.float64),
        ("predicted_log", np.float32),
        ("spread", np.float32),
        ("gpu_time_log", np.float32),
        ("gpus_log", np.float32),
        ("gpus", np.int32),
        ("demand", np.int32),  # demand class
    ]
)
"""Columns that do not change while a job waits: cached, because logarithms are most of the work of a row."""

PLACE: Final = np.dtype(
    [("node", np.int32), ("leftover", np.float32), ("opens_node", np.float32), ("node_ends", np.float32)]
)
"""Place of jobs of a demand class (node -1: none, -2: not computed yet), and the columns about it."""


@kernel
def count_log(count: int) -> float:
    """Return ln(1 + count) / COUNT_SCALE, from a table for small counts."""
    if count < _COUNT_LOG.shape[0]:
        return _COUNT_LOG[count]
    return np.float32(math.log1p(count) / COUNT_SCALE)  # type: ignore[return-value]  # one type for numba


@kernel
def own_columns(job: Records, slot: int, own: Records) -> int:
    """Return the entry of `own` with the columns of the job in `slot`; computes them if they are missing.

    `own` is direct-mapped by slot; its length is a power of two.
    """
    at = slot & (own.shape[0] - 1)
    if own.seq[at] != job.seq[slot] or own.predicted_s[at] != job.predicted_s[slot]:
        predicted_s, gpus = job.predicted_s[slot], job.gpus[slot]
        own.predicted_s[at] = predicted_s
        own.seq[at], own.gpus[at], own.demand[at] = job.seq[slot], gpus, job.demand[slot]
        own.predicted_gpu_s[at] = predicted_s * gpus
        own.predicted_log[at] = math.log1p(predicted_s) / TIME_SCALE
        own.spread[at] = min(job.spread[slot], 4.0) / 4.0
        own.gpu_time_log[at] = math.log1p(predicted_s * gpus) / WORK_SCALE
        own.gpus_log[at] = math.log2(1.0 + gpus) / COUNT_SCALE
    return at


@kernel
def release_profile(s: StateArrays, p: int, now_s: float, profile: NDArray[np.int64]) -> None:
    """Fill profile[b] with the GPUs predicted to be free within _FIRST_EDGE_S x 2^b seconds; (PROFILE,)."""
    for b in range(PROFILE):
        profile[b] = 0
    job, running = s.job, s.derived.slot.running
    for position in range(s.derived.running_len[0]):
        slot = running[position]
        if job.placed_in[slot] == p:
            left = remaining_s(s, slot, now_s)
            bucket, edge = 0, _FIRST_EDGE_S
            while left > edge and bucket < PROFILE - 1:
                bucket += 1
                edge *= 2.0
            profile[bucket] += job.gpus[slot]
    for bucket in range(1, PROFILE):
        profile[bucket] += profile[bucket - 1]


@kernel
def fit_in_log(profile: NDArray[np.int64], missing: int) -> float:
    """Return ln(1 + predicted seconds until `missing` more GPUs are free) / TIME_SCALE."""
    for bucket in range(PROFILE):
        if profile[bucket] >= max(missing, 1):
            return _FIT_IN_LOG[bucket]
    return _FIT_IN_LOG[PROFILE]


@kernel
def _gpu_ends_s(s: StateArrays, g: int, now_s: float) -> float:
    """Return the predicted seconds until the last job on GPU `g` ends, 0 if none runs."""
    last = 0.0
    if s.gpu.free_milli[g] < WHOLE_GPU_MILLI:
        for k in range(MAX_TENANTS):
            tenant = s.gpu.tenant[g, k]
            if tenant >= 0:
                last = max(last, remaining_s(s, tenant, now_s))
    return last


@kernel
def _node_ends_s(s: StateArrays, n: int, now_s: float) -> float:
    """Return the predicted seconds until the last job on node `n` ends, 0 if none runs."""
    last = 0.0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        last = max(last, _gpu_ends_s(s, g, now_s))
    return last


@kernel
def partition_columns(s: StateArrays, p: int, demand: int, work: float, columns: NDArray[np.float32]) -> None:
    """Fill the columns that are equal in all rows: from FREE to WORK.

    Args:
        s: The state.
        p: The partition.
        demand: GPUs that the waiting jobs of the partition request.
        work: Predicted GPU-seconds of these jobs, added up in queue order.
        columns: (F,) columns of one row.
    """
    part = s.derived.part
    total = max(part.open_gpus[p], 1)
    whole = 0
    for gpus in range(s.derived.whole.shape[1]):
        whole += s.derived.whole[p, gpus]
    columns[FREE] = part.free_gpus[p] / total
    columns[FULL_NODES] = whole / max(part.open_nodes[p], 1)
    columns[LARGEST_HOLE] = largest_hole(s, p) / max(part.node_size[p], 1)
    columns[QUEUE] = count_log(part.queue_len[p])
    columns[DEMAND] = math.log1p(demand / total) / 4.0
    columns[WORK] = math.log1p(work / total) / WORK_SCALE


@kernel
def place_columns(s: StateArrays, node: int, gpus: int, now_s: float, place: Records, at: int) -> None:
    """Fill the columns of entry `at` of `place`, which describe a gang of this size on this node."""
    place.node[at] = node
    on_node = min(gpus, s.node.free[node])
    place.leftover[at] = (s.node.free[node] - on_node) / max(s.node.gpus[node], 1)
    place.opens_node[at] = 1.0 if s.node.free[node] == s.node.gpus[node] else 0.0
    place.node_ends[at] = math.log1p(_node_ends_s(s, node, now_s)) / TIME_SCALE


@kernel
def _kth_smallest(values: NDArray[np.float64], count: int, k: int) -> float:
    """Return the k-th smallest (from 1) of the first `count` values, and sort these values in place."""
    for i in range(1, count):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    return values[k - 1]


@array_kernel
def fits_in_s(s: StateArrays, p: int, gpus: int, now_s: float) -> float:
    """Return the seconds until a gang that does not fit now is predicted to fit, if no job starts before.

    A gang on one node fits when the first node has enough free GPUs. A gang on several nodes fits when
    enough nodes are wholly free (the remainder counts as a whole node). Infinite if the gang never fits.
    """
    return _fits_in_s(s, p, gpus, now_s, np.empty(s.derived.part.node_size[p] + s.node.shape[0], np.float64))


@kernel
def _fits_in_s(s: StateArrays, p: int, gpus: int, now_s: float, ends: NDArray[np.float64]) -> float:
    """Compute `fits_in_s`; `ends`: scratch for the GPUs of one node, followed by entries for all nodes."""
    size = s.derived.part.node_size[p]
    single = gpus <= size
    on_node, nodes, first = ends[:size], 0, np.inf
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] != p or s.node.status[n] != NODE_UP:
            continue
        sooner = 0
        for local in range(s.node.gpus[n]):
            on_node[local] = _gpu_ends_s(s, s.node.first_gpu[n] + local, now_s)
            sooner += on_node[local] < first
        if single:
            if sooner >= gpus:
                first = _kth_smallest(on_node, s.node.gpus[n], gpus)
        else:
            last = np.inf
            for local in range(s.node.gpus[n]):
                last = on_node[local] if local == 0 else max(last, on_node[local])
            ends[size + nodes] = last
            nodes += 1
    if single:
        return first
    needed = (gpus + size - 1) // size
    return _kth_smallest(ends[size:], nodes, needed) if needed <= nodes else np.inf


@kernel
def blocked_columns(s: StateArrays, p: int, blocked: int, now_s: float, shared: NDArray[np.float32]) -> None:
    """Fill the columns about the blocked job: slot `blocked`, -1 if no job is blocked."""
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
def workload_columns(s: StateArrays, p: int, slot: int, row: NDArray[np.float32]) -> None:
    """Fill a row's columns about the workload of its job on the GPU type of partition `p`."""
    kind, w, t = s.derived.part.kind[p], s.job.workload[slot], s.models.trait
    row[RATE] = row[PARTNER_RATE] = 1.0
    row[UTIL], row[CLOCK_BOUND] = t.util_frac[w, kind], t.clock_bound[w, kind]
    row[GPU_MEMORY] = t.memory_mib[w, kind] / s.models.gpu.memory_mib[kind]


@kernel
def partner_columns(s: StateArrays, slot: int, partner: int, now_s: float, row: NDArray[np.float32]) -> None:
    """Fill a row's columns about sharing the GPUs of the running job `partner`."""
    kind = gpu_kind(s, s.job.head[partner] // MAX_TENANTS)
    mine, theirs = s.job.workload[slot], s.job.workload[partner]
    row[BY_SHARING] = 1.0
    row[RATE] = min(s.models.trait.beside[mine, kind, theirs], 1.0)
    row[PARTNER_RATE] = min(s.models.trait.beside[theirs, kind, mine], 1.0)
    row[PARTNER_LEFT] = math.log1p(remaining_s(s, partner, now_s)) / TIME_SCALE


@kernel
def clock_columns(s: StateArrays, p: int, slot: int, clock: float, row: NDArray[np.float32]) -> None:
    """Fill a variant's columns about its SM clock: the job's speed and power at this clock."""
    kind, w = s.derived.part.kind[p], s.job.workload[slot]
    g, t = s.models.gpu, s.models.trait
    rho, dynamic_w = t.clock_bound[w, kind], t.dynamic_w[w, kind]
    row[CLOCK] = clock
    allowed = 1.0 / relative_time(rho, clock)
    alone = feed(s, slot, kind, s.demand.cpu_milli_each[s.job.demand[slot]] / 1000.0)
    row[RATE] *= min(allowed, alone) / alone
    busy = row[RATE] * alone / allowed
    added_w = dynamic_power_w(g, kind, dynamic_w, rho, clock, min(busy, 1.0))
    row[POWER] = gpu_power_w(g, kind, 1, added_w) / g.tdp_w[kind]


@kernel
def index_columns(s: StateArrays, slot: int, now_s: float, row: NDArray[np.float32]) -> None:
    """Fill a row's columns about the index of its job, for clusters on which jobs may be preempted."""
    row[INDEX_LOG] = job_index(s, slot, now_s) / INDEX_SCALE
    row[ATTAINED] = math.log1p(age_s(s, slot, now_s)) / TIME_SCALE
    row[MUST_STAY] = 1.0 if s.job.pinned[slot] else 0.0


@kernel
def preemption_columns(s: StateArrays, p: int, gpus: int, lead: float, row: NDArray[np.float32]) -> None:
    """Fill a row's columns about the jobs to preempt for its job: their GPUs, and the lead in index."""
    row[BY_PREEMPTING] = 1.0
    row[PREEMPTED_GPUS] = gpus / max(s.derived.part.open_gpus[p], 1)
    row[PREEMPT_MARGIN] = min(max(lead, -6.0), 6.0) / 6.0


@kernel
def against_blocked(row: NDArray[np.float32]) -> None:
    """Fill the two columns of a job row that compare the job with the blocked job, from its other columns."""
    if row[BLOCKED_GPUS] > 0.0:
        ratio = (row[GPU_TIME] - row[BLOCKED_GPU_TIME]) * WORK_SCALE
        row[BLOCKED_KEY_RATIO] = min(max(ratio, -6.0), 6.0) / 6.0
        longer = (row[PREDICTED] - row[BLOCKED_FIT_IN]) * TIME_SCALE
        row[ENDS_AFTER_FIT] = min(max(longer, -6.0), 6.0) / 6.0
