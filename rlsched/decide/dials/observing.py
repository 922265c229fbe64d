"""Compiled observation of a partition for a policy that sets dials: named numbers, mostly from -1 to 1.

An observation holds only facts that a broker has: no true run times and no future arrivals.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import DEFERRED, MAX_TENANTS, RUNNING, StateArrays
from rlsched.cluster.dials import SPANS_S
from rlsched.cluster.kernels import tenants_of
from rlsched.compile.jit import kernel
from rlsched.decide.dials.counting import fade, join_ends, partition_of
from rlsched.decide.options import energy_weight, may_share
from rlsched.decide.remaining import remaining_s
from rlsched.energy.relative import OUTLOOK

HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
_LONG_S: Final = (600.0, 3_600.0, 21_600.0)
_ENDS_S: Final = (600.0, 3_600.0, 21_600.0, 86_400.0)
_SPANS: Final = len(SPANS_S)
_RECENT: Final = _SPANS - 1

NAMES: Final = (
    # waiting jobs
    "waiting_per_gpu",  # 1 - exp(-4 x waiting jobs per GPU)
    "waiting_jobs",  # ln(1 + jobs) / 5
    "waiting_gpus",  # ln(1 + GPUs requested, per GPU of the partition)
    "waiting_hours",  # ln(1 + predicted hours, per GPU of the partition) / 3
    "waiting_1_gpu",  # share of the waiting jobs that request 1 GPU; next: shares of larger jobs
    "waiting_2_to_4_gpus",
    "waiting_5_to_8_gpus",
    "waiting_over_8_gpus",
    "waiting_under_10_min",  # share of the waiting jobs predicted to run < 10 min; next: longer jobs
    "waiting_under_1_h",
    "waiting_under_6_h",
    "waiting_over_6_h",
    "oldest_wait",  # ln(1 + hours that the oldest job has waited) / 3
    "mean_wait",  # ln(1 + mean waiting time in hours) / 3
    "waiting_must_stay",  # share of the waiting jobs that must not be preempted
    "head_gpus",  # GPUs of the first job, per GPU of the partition
    # running jobs
    "running_per_gpu",  # running jobs per GPU, minus 1
    "free",  # share of the GPUs that are free
    "largest_hole",  # most free GPUs on one node, per GPU of the largest node
    "whole_nodes",  # share of the nodes that are idle
    "sharing",  # share of the running jobs that share their GPUs
    "tenants",  # mean number of jobs per GPU in use, minus 1
    "running_must_stay",  # share of the running jobs that must not be preempted
    "gangs_running",  # share of the GPUs in use that belong to jobs of more than 8 GPUs
    "ends_in_10_min",  # share of the GPUs in use predicted to be free in 10 min; next: in 1 h, ...
    "ends_in_1_h",
    "ends_in_6_h",
    "ends_in_1_d",
    "mean_age",  # ln(1 + mean hours since the start of the running jobs) / 3
    "mean_clock",  # mean SM clock as a fraction of the maximum, minus 1
    # arrivals
    "jobs_10_min",  # ln(arrivals per second, relative to the past week) / 3; next: over 1 h, ...
    "jobs_1_h",
    "jobs_6_h",
    "jobs_1_d",
    "work_10_min",  # the same for predicted GPU time
    "work_1_h",
    "work_6_h",
    "work_1_d",
    "load_1_h",  # ln(predicted GPU time of arrivals, relative to capacity) / 3; next: over 1 d, 7 d
    "load_1_d",
    "load_7_d",
    "hour_sin",
    "hour_cos",
    "weekday_sin",
    "weekday_cos",
    # prediction errors
    "prediction_bias",  # mean ln(run time / prediction) / 3
    "prediction_sd",  # standard deviation of ln(run time / prediction) / 3
    "prediction_corr",  # correlation of the two logarithms
    "prediction_ends",  # ln(1 + finished jobs in these statistics) / 5
    # permissions and hardware
    "energy_weight",
    "preempts",
    "shares",
    "reserves",
    "gpus",  # ln(GPUs) / 8
    "node_gpus",  # GPUs of a node / 8
    "static_power",  # idle power of the partition's GPU type, relative to its board power limit
    # price of electricity; all 0 while no price is known
    "price",  # ln(price / mean of about a day)
    *OUTLOOK,
    "deferred",  # ln(1 + GPUs requested by jobs that wait for a lower price, per GPU of the partition)
    "waiting_slack",  # share of the waiting jobs that have slack
    "running_slack",  # share of the GPUs in use that belong to preemptible jobs with slack
)
"""Columns of an observation, in order. Append new columns, because older strategies read the first ones."""
PRICE_COLUMNS: Final = NAMES[NAMES.index("price") :]
"""Columns that are 0 while no price of electricity is known."""
FIXED: Final = NAMES[NAMES.index("energy_weight") : NAMES.index("price")]
"""Columns that describe the set-up of a cluster, not its state."""


@kernel
def _put(x: NDArray[np.float64], at: int, value: float) -> int:
    """Clip a value to [-3, 3], write it to column `at`, and return the position of the next column."""
    x[at] = min(max(value, -3.0), 3.0)
    return at + 1


@kernel
def _class_of(value: float, bounds: tuple[float, float, float]) -> int:
    """Return the class of a value, 0 to 3: the number of bounds that the value reaches or exceeds."""
    return int(value >= bounds[0]) + int(value >= bounds[1]) + int(value >= bounds[2])


@kernel
def observe(s: StateArrays, p: int, now_s: float, x: NDArray[np.float64]) -> None:
    """Write the current observation of partition `p` to `x` (F,), one entry per column of `NAMES`."""
    at = _queue_columns(s, p, now_s, x, 0)
    at = _running_columns(s, p, now_s, x, at)
    fade(s, p, now_s)
    join_ends(s, p)
    at = _arrival_columns(s, p, now_s, x, at)
    at = _prediction_columns(s, p, x, at)
    at = _fixed_columns(s, p, x, at)
    _price_columns(s, p, x, at)


@kernel
def _queue_columns(s: StateArrays, p: int, now_s: float, x: NDArray[np.float64], at: int) -> int:
    job, part = s.job, s.derived.part[p]
    waiting, gpus = part.queue_len, max(part.open_gpus, 1)
    asked, hours, oldest_s, waited_s, stay = 0.0, 0.0, 0.0, 0.0, 0
    sizes, lengths = at + 4, at + 8
    for k in range(8):
        x[sizes + k] = 0.0
    share = 1.0 / max(waiting, 1)
    for position in range(waiting):
        slot = s.derived.queue[p, position]
        own = job.gpus[slot] * job.share_milli[slot] / 1000.0
        asked += own
        hours += own * job.predicted_s[slot] / HOUR_S
        wait_s = now_s - job.submit_s[slot]
        waited_s += wait_s
        oldest_s = max(oldest_s, wait_s)
        stay += job.pinned[slot] != 0
        x[sizes + _class_of(job.gpus[slot], (2.0, 5.0, 9.0))] += share
        x[lengths + _class_of(job.predicted_s[slot], _LONG_S)] += share
    _put(x, at, 1.0 - math.exp(-4.0 * waiting / gpus))
    _put(x, at + 1, math.log1p(waiting) / 5.0)
    _put(x, at + 2, math.log1p(asked / gpus))
    _put(x, at + 3, math.log1p(hours / gpus) / 3.0)
    at = _put(x, at + 12, math.log1p(oldest_s / HOUR_S) / 3.0)
    at = _put(x, at, math.log1p(waited_s * share / HOUR_S) / 3.0)
    at = _put(x, at, stay * share)
    return _put(x, at, job.gpus[s.derived.queue[p, 0]] / gpus if waiting > 0 else 0.0)


@kernel
def _running_columns(s: StateArrays, p: int, now_s: float, x: NDArray[np.float64], at: int) -> int:
    job, part = s.job, s.derived.part[p]
    gpus, running, shared, stay, places, gangs = max(part.open_gpus, 1), 0, 0, 0, 0, 0
    age_s, clock = 0.0, 0.0
    ends = at + 8
    for k in range(4):
        x[ends + k] = 0.0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if job.placed_in[slot] != p or job.gpus[slot] == 0:
            continue
        running += 1
        places += job.gpus[slot]
        gangs += job.gpus[slot] * (job.gpus[slot] > 8)
        stay += job.pinned[slot] != 0
        shared += tenants_of(s, job.head[slot] // MAX_TENANTS) > 1
        age_s += now_s - job.start_s[slot]
        clock += job.sm_clock_frac[slot]
        left_s = remaining_s(s, slot, now_s)
        for k in range(4):
            if left_s < _ENDS_S[k]:
                x[ends + k] += job.gpus[slot]
    used = max(part.open_gpus - part.free_gpus, 1)
    most, whole = 0, 0
    for size in range(s.derived.holes.shape[1]):
        if s.derived.holes[p, size] > 0:
            most = size
        whole += s.derived.whole[p, size]
    at = _put(x, at, running / gpus - 1.0)
    at = _put(x, at, part.free_gpus / gpus)
    at = _put(x, at, most / max(part.node_size, 1))
    at = _put(x, at, whole / max(part.open_nodes, 1))
    at = _put(x, at, shared / max(running, 1))
    at = _put(x, at, places / used - 1.0)
    at = _put(x, at, stay / max(running, 1))
    at = _put(x, at, gangs / max(places, 1))
    for k in range(4):
        at = _put(x, at, x[ends + k] / max(places, 1))
    at = _put(x, at, math.log1p(age_s / max(running, 1) / HOUR_S) / 3.0)
    return _put(x, at, clock / running - 1.0 if running > 0 else 0.0)


@kernel
def _over_s(s: StateArrays, p: int, now_s: float, k: int) -> float:
    """Return the time that a decaying count of arrivals (index `k`) covers, seconds.

    This is the time constant of the count, or less if counting began recently.
    """
    span_s, since_s = SPANS_S[k], max(now_s - s.dials.counted[p].first_s, 60.0)
    return span_s * (1.0 - math.exp(-since_s / span_s))


@kernel
def _arrival_columns(s: StateArrays, p: int, now_s: float, x: NDArray[np.float64], at: int) -> int:
    c, gpus = s.dials.counted[p], max(s.derived.part.open_gpus[p], 1)
    week_s = _over_s(s, p, now_s, _RECENT)
    for k in range(_RECENT):
        rate, usual = c.jobs[k] / _over_s(s, p, now_s, k), c.jobs[_RECENT] / week_s
        at = _put(x, at, math.log((rate + 1e-6) / (usual + 1e-6)) / 3.0)
    for k in range(_RECENT):
        rate, usual = c.gpu_s[k] / _over_s(s, p, now_s, k), c.gpu_s[_RECENT] / week_s
        at = _put(x, at, math.log((rate + 1e-2) / (usual + 1e-2)) / 3.0)
    for k in (1, 3, 4):
        at = _put(x, at, math.log(c.gpu_s[k] / _over_s(s, p, now_s, k) / gpus + 1e-2) / 3.0)
    day, week = 2.0 * math.pi * now_s / DAY_S, 2.0 * math.pi * now_s / (7.0 * DAY_S)
    at = _put(x, at, math.sin(day))
    at = _put(x, at, math.cos(day))
    at = _put(x, at, math.sin(week))
    return _put(x, at, math.cos(week))


@kernel
def _prediction_columns(s: StateArrays, p: int, x: NDArray[np.float64], at: int) -> int:
    c = s.dials.counted[p]
    n = max(c.ended[0], 1.0)
    predicted, ran = c.log_predicted[0] / n, c.log_ran[0] / n
    predicted_var = max(c.log_predicted_square[0] / n - predicted * predicted, 0.0)
    ran_var = max(c.log_ran_square[0] / n - ran * ran, 0.0)
    both = c.log_product[0] / n - predicted * ran
    at = _put(x, at, (ran - predicted) / 3.0)
    at = _put(x, at, math.sqrt(max(predicted_var + ran_var - 2.0 * both, 0.0)) / 3.0)
    at = _put(x, at, both / math.sqrt(max(predicted_var * ran_var, 1e-6)))
    return _put(x, at, math.log1p(c.ended[0]) / 5.0)


@kernel
def _fixed_columns(s: StateArrays, p: int, x: NDArray[np.float64], at: int) -> int:
    part, model = s.derived.part[p], s.models.gpu
    at = _put(x, at, energy_weight(s))
    at = _put(x, at, 1.0 if s.config[0].preempts else 0.0)
    at = _put(x, at, 1.0 if may_share(s) else 0.0)
    at = _put(x, at, 1.0 if s.config[0].reserve_after_s < math.inf else 0.0)
    at = _put(x, at, math.log(max(part.open_gpus, 1)) / 8.0)
    at = _put(x, at, part.node_size / 8.0)
    kind = min(part.kind, model.shape[0] - 1)
    return _put(x, at, model.static_w[kind] / max(model.tdp_w[kind], 1.0))


@kernel
def _price_columns(s: StateArrays, p: int, x: NDArray[np.float64], at: int) -> int:
    config, job, part = s.config[0], s.job, s.derived.part[p]
    if config.price_ratio <= 0.0:
        while at < x.shape[0]:
            at = _put(x, at, 0.0)
        return at
    at = _put(x, at, math.log(config.price_ratio))
    for k in range(config.price_outlook.shape[0]):
        at = _put(x, at, config.price_outlook[k])
    deferred, waiting, used, slack_gpus = 0.0, 0, 0, 0
    for k in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[k]
        if job.status[slot] == DEFERRED and partition_of(s, slot) == p:
            deferred += job.gpus[slot] * job.share_milli[slot] / 1000.0
        if job.status[slot] == RUNNING and job.placed_in[slot] == p:
            used += job.gpus[slot]
            slack_gpus += job.gpus[slot] * (job.slack_s[slot] > 0.0 and job.pinned[slot] == 0)
    for position in range(part.queue_len):
        waiting += job.slack_s[s.derived.queue[p, position]] > 0.0
    at = _put(x, at, math.log1p(deferred / max(part.open_gpus, 1)))
    at = _put(x, at, waiting / max(part.queue_len, 1))
    return _put(x, at, slack_gpus / max(used, 1))
