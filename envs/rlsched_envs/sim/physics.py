"""Compiled functions for the power of jobs, and for their speed, which can change while they run.

The jobs on the same GPUs are a *group*, identified by the first of these GPUs. A group changes when a job
joins or leaves, or when its clock changes. The work and the energy of its jobs up to now are then *settled*
(added to the totals of these jobs), and the ends of these jobs are planned again. The *rate* of a job is its
speed relative to full speed.

The power of the cluster must equal the power of its jobs plus idle power. The three values are computed
separately, and `tests/property/test_conservation.py` compares them.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS, NODE_UP, PowerClass, StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import forget_speeds, tenants_of
from rlsched.cluster.power import node_idle_w
from rlsched.cluster.speed import (
    added_power_w,
    at_clock_w,
    at_work_frac,
    cap_on,
    chosen_clock,
    cores_used,
    gpu_kind,
    placed_rate,
    shared_on,
)
from rlsched.compile.jit import kernel
from rlsched.energy.series import HOUR_S
from rlsched.models.clocks import DWELL_S, MIN_CLOCK_FRAC, gpu_power_w, job_part_w
from rlsched.models.observing import forget_all
from rlsched.models.sharing import pair_noise, share_deviate, with_noise
from rlsched_envs.sim.signals import CARBON, PRICE, signal_between
from rlsched_envs.sim.sim_arrays import ProgressArrays

CAP_HALVINGS: Final = 30
"""Number of bisections in the search for the clock under a power cap. The result has a relative error of
1e-9."""
ROUNDING: Final = 1e-9
"""Relative rounding error of a sum of powers. A smaller excess over the power limit is ignored."""
DEMAND_S: Final = 900.0 / math.log(10.0)
"""Time constant of the demand meter (`_meter`), seconds."""


@kernel
def is_joint(s: StateArrays, slot: int) -> bool:
    """Return whether a running job that requested whole GPUs shares its GPUs."""
    head = s.job.head[slot]
    if head < 0 or s.demand.share_milli[s.job.demand[slot]] < WHOLE_GPU_MILLI:
        return False
    return tenants_of(s, head // MAX_TENANTS) > 1


@kernel
def pass_time(x: ProgressArrays, since_s: float, until_s: float) -> None:
    """Add a time span's energy, cost and carbon, and the work lost to slowdowns, to the run's totals."""
    seconds = until_s - since_s
    if x.signal.shape[1] > 0:
        price = signal_between(x, PRICE, since_s, until_s)
        carbon = signal_between(x, CARBON, since_s, until_s)
        x.books[0].cost += x.books[0].total_w * price
        x.books[0].idle_cost += x.books[0].idle_w * price
        x.books[0].carbon += x.books[0].total_w * carbon
        x.books[0].idle_carbon += x.books[0].idle_w * carbon
    if x.hours.shape[1] > 0:
        _pass_hours(x, since_s, until_s)
    x.books[0].energy_j += x.books[0].total_w * seconds
    x.books[0].idle_j += x.books[0].idle_w * seconds
    x.books[0].jobs_j += x.books[0].jobs_w * seconds
    x.books[0].lost_s += x.books[0].lost_rate * seconds
    if x.books[0].unused_sleep == 0.0:
        _meter(x, x.books[0].total_w, seconds)


@kernel
def _pass_hours(x: ProgressArrays, since_s: float, until_s: float) -> None:
    """Add the energy, cost and carbon of a time span to the totals of each hour."""
    books, recorded = x.books[0], x.hours.shape[1]
    while since_s < until_s:
        hour = math.floor((since_s - books.day_from_s) / HOUR_S)
        end_s = min(until_s, books.day_from_s + (hour + 1) * HOUR_S)
        if end_s <= since_s:  # rounding
            end_s = until_s
        at = int(hour)
        if at >= recorded:
            at = recorded - 24 + at % 24
        x.hours[0, at] += books.total_w * (end_s - since_s)
        if x.signal.shape[1] > 0:
            x.hours[1, at] += books.total_w * signal_between(x, PRICE, since_s, end_s)
            x.hours[2, at] += books.total_w * signal_between(x, CARBON, since_s, end_s)
        since_s = end_s


@kernel
def _meter(x: ProgressArrays, watts: float, seconds: float) -> None:
    """Advance the demand meter by `seconds` in which the power is `watts`.

    A thermal demand meter averages over about 15 minutes: 15 minutes after a step of the power, it shows 90 %
    of the step.
    """
    books = x.books[0]
    books.demand_w = watts + (books.demand_w - watts) * math.exp(-seconds / DEMAND_S)
    books.peak_w = max(books.peak_w, books.demand_w)


@kernel
def pass_limit(x: ProgressArrays, s: StateArrays, seconds: float) -> None:
    """Record for a time span whether the power limit lowered clocks, and whether the limit was exceeded."""
    books, config = x.books[0], s.config[0]
    if min(config.clock_cap[PowerClass.URGENT], config.clock_cap[PowerClass.FLEXIBLE]) < 1.0:
        books.capped_s += seconds
    if books.total_w > config.limit_w * (1.0 + ROUNDING):
        books.over_s += seconds
        books.over_j += (books.total_w - config.limit_w) * seconds


@kernel
def pass_unused(x: ProgressArrays, s: StateArrays, since_s: float, until_s: float) -> None:
    """Add the cost of the power that unused nodes (nodes without jobs) draw in a time span to `unused_cost`.

    Also advances the demand meter (`_meter`) with the power of all other nodes and GPUs, and counts how often
    an unused node got a job. All jobs must use GPUs: a node is unused if all its GPUs are free.
    """
    watts, books = 0.0, x.books[0]
    if until_s <= since_s:
        return
    for n in range(s.node.shape[0]):
        used = s.node.free[n] < s.node.gpus[n]
        if s.node.status[n] == NODE_UP and not used:
            watts += node_idle_w(s, n, NODE_UP)
        if used and x.used[n] == 0:
            books.wake_ups += 1.0
        x.used[n] = used
    books.unused_cost += watts * signal_between(x, PRICE, since_s, until_s)
    _meter(x, books.total_w - watts, until_s - since_s)


@kernel
def add_idle_w(x: ProgressArrays, watts: float) -> None:
    """Add `watts` (negative: subtract) to the idle power of nodes and of GPUs without jobs."""
    x.books[0].idle_w += watts
    x.books[0].total_w += watts


@kernel
def settle(x: ProgressArrays, s: StateArrays, slot: int, now_s: float) -> None:
    """Add a job's work and energy since the last call of `settle` for this job to the job's totals."""
    work = x.work
    lasted_s = now_s - work.since_s[slot]
    work.done_s[slot] += lasted_s * work.rate[slot]
    row = x.ends.row[slot]
    x.outcome.energy_j[row] += lasted_s * work.power_w[slot]
    if x.signal.shape[1] > 0:
        since_s = work.since_s[slot]
        x.outcome.cost[row] += work.power_w[slot] * signal_between(x, PRICE, since_s, now_s)
        x.outcome.carbon[row] += work.power_w[slot] * signal_between(x, CARBON, since_s, now_s)
    work.share_s[slot] += lasted_s * work.share_frac[slot]
    work.used_s[slot] += lasted_s * work.used_frac[slot]
    if work.first_gpu[slot] >= 0:
        work.clock_s[slot] += lasted_s * s.gpu.clock_frac[work.first_gpu[slot]]
    work.since_s[slot] = now_s


@kernel
def begin(x: ProgressArrays, slot: int, target_s: float, limit_s: float, now_s: float) -> None:
    """Start an attempt with `target_s` seconds of work. `limit_s`: its time limit, seconds; nan: none."""
    work = x.work
    work.target_s[slot], work.done_s[slot], work.since_s[slot] = target_s, 0.0, now_s
    work.limit_end_s[slot] = now_s + limit_s if limit_s == limit_s else np.inf
    work.rate[slot], work.power_w[slot] = 1.0, 0.0
    work.share_frac[slot] = work.used_frac[slot] = 0.0
    work.share_s[slot] = work.used_s[slot] = work.clock_s[slot] = 0.0
    work.planned[slot] = work.killed[slot] = 0
    work.seen_s[slot], work.watched[slot] = np.inf, -1


@kernel
def _form_group(x: ProgressArrays, s: StateArrays, slot: int) -> None:
    """Form a group (the jobs on the same GPUs) for a job on GPUs without other jobs."""
    group, g = s.gpu, x.work.first_gpu[slot]
    idle_w, place = 0.0, s.job.head[slot]
    while place >= 0:
        idle_w += s.models.gpu.idle_w[gpu_kind(s, place // MAX_TENANTS)]
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    group.idle_w[g], group.power_w[g], group.clock_frac[g] = idle_w, 0.0, 0.0
    group.clock_since_s[g] = -np.inf
    add_idle_w(x, -idle_w)


@kernel
def enter(x: ProgressArrays, s: StateArrays, slot: int) -> None:
    """Add a started job to the group of jobs on its GPUs. The caller then calls `refresh` for the group."""
    g = x.work.first_gpu[slot]
    if g >= 0 and tenants_of(s, g) == 1:
        _form_group(x, s, slot)


@kernel
def leave(x: ProgressArrays, s: StateArrays, slot: int) -> bool:
    """Remove a job from the group of jobs on its GPUs, after its GPUs were released.

    Return whether the group has other jobs; if so, the caller then calls `refresh` for the group. The job's
    work and energy must be up to date (`settle`).
    """
    g = x.work.first_gpu[slot]
    x.books[0].jobs_w -= x.work.power_w[slot]
    x.books[0].lost_rate -= 1.0 - x.work.rate[slot]
    if g < 0:
        x.books[0].total_w -= x.work.power_w[slot]
        return False
    if tenants_of(s, g) > 0:
        return True
    x.books[0].total_w -= s.gpu.power_w[g]
    add_idle_w(x, s.gpu.idle_w[g])
    s.gpu.power_w[g] = 0.0
    return False


@kernel
def group_clock(s: StateArrays, g: int, now_s: float) -> float:
    """Return the SM clock of a group (the jobs on the same GPUs): the highest clock of its jobs.

    The power cap of the GPUs limits this clock. Without a power cap, the clock is not lowered for `DWELL_S`
    after its last change. A power limit of the cluster lowers the clock at once.
    """
    clock = chosen_clock(s, g)
    if s.models.gpu.cap_w[gpu_kind(s, g)] < s.models.gpu.tdp_w[gpu_kind(s, g)]:
        clock = _under_cap(s, g, clock)
    elif now_s < s.gpu.clock_since_s[g] + DWELL_S:
        clock = max(clock, s.gpu.clock_frac[g])
    return min(clock, group_cap(s, g))


@kernel
def group_cap(s: StateArrays, g: int) -> float:
    """Return the highest SM clock of jobs on GPU `g` under the cluster's power limit; 1 without a limit."""
    caps = s.config[0].clock_cap
    return cap_on(s, g, caps[PowerClass.URGENT], caps[PowerClass.FLEXIBLE]) if s.config[0].limited else 1.0


@kernel
def _under_cap(s: StateArrays, g: int, clock: float) -> float:
    """Return the highest SM clock, up to `clock`, at which a group's GPUs draw at most their power cap.

    Assumes that jobs of other groups do not slow down the jobs of this group. The result is at least
    `MIN_CLOCK_FRAC`, or `clock` if that is lower, even if the power then exceeds the cap.
    """
    kind = gpu_kind(s, g)
    if _drawn_w(s, g, clock) <= s.models.gpu.cap_w[kind]:
        return clock
    low, high = min(MIN_CLOCK_FRAC, clock), clock
    for _ in range(CAP_HALVINGS):
        middle = 0.5 * (low + high)
        if _drawn_w(s, g, middle) <= s.models.gpu.cap_w[kind]:
            low = middle
        else:
            high = middle
    return low


@kernel
def _drawn_w(s: StateArrays, g: int, clock: float) -> float:
    """Return the power, W, that GPU `g`, the first GPU of a group (jobs on the same GPUs), draws at `clock`.

    Assumes that jobs of other groups do not slow down the jobs of this group.
    """
    kind, added_w = gpu_kind(s, g), 0.0
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            added_w += at_clock_w(s, slot, kind, clock, min(shared_on(s, slot, g), 1.0))
    return gpu_power_w(s.models.gpu, kind, tenants_of(s, g), added_w)


@kernel
def _deviate(x: ProgressArrays, s: StateArrays, slot: int, g: int) -> float:
    """Return the random deviation of a job's speed on GPU `g`, in standard deviations.

    0 if the job's speed next to each of its co-tenants is measured.
    """
    total, strangers, kind, luck = 0.0, 0, gpu_kind(s, g), np.uint64(x.books[0].luck)
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0 and other != slot:
            mine, theirs = s.job.workload[slot], s.job.workload[other]
            measured = s.models.pair[kind, mine, theirs]
            if measured != measured:
                of_jobs = pair_noise(x.outcome.key[x.ends.row[slot]], x.outcome.key[x.ends.row[other]])
                total += share_deviate(luck, kind, mine, theirs, of_jobs)
                strangers += 1
    return total / np.sqrt(strangers) if strangers > 0 else 0.0


@kernel
def true_share(x: ProgressArrays, s: StateArrays, slot: int, g: int) -> float:
    """Return the true speed of a job next to its co-tenants on GPU `g`, relative to an unshared GPU."""
    shared = shared_on(s, slot, g)
    if tenants_of(s, g) > 1 and x.books[0].noise > 0.0:
        deviate = _deviate(x, s, slot, g)
        if deviate != 0.0:
            shared = with_noise(shared, deviate)
    return shared


@kernel
def _settle_group(x: ProgressArrays, s: StateArrays, g: int, now_s: float) -> None:
    """Settle the jobs of a group (the jobs on the same GPUs), and set the clock of its GPUs.

    If the clock changes, each job that was already running loses the work of `switch_s` seconds.
    """
    clock = group_clock(s, g, now_s)
    changed = s.gpu.clock_frac[g] not in (0.0, clock)
    if s.gpu.clock_frac[g] != clock:
        s.gpu.clock_since_s[g] = now_s
        forget_speeds(s, g)
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            settle(x, s, slot, now_s)
            if changed and x.work.planned[slot] and s.job.start_s[slot] < now_s:
                x.work.done_s[slot] -= s.models.gpu.switch_s[gpu_kind(s, g)] * x.work.rate[slot]
                x.work.planned[slot] = 2
    s.gpu.clock_frac[g] = clock


@kernel
def _share_power(x: ProgressArrays, s: StateArrays, g: int) -> None:
    """Compute the power of the jobs on GPU `g` (a group) from their rates, and each job's share of it."""
    work, gpu, count, clock = x.work, s.models.gpu, tenants_of(s, g), s.gpu.clock_frac[g]
    total_w, known, added_w, first = 0.0, -1, 0.0, -1
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            x.books[0].jobs_w -= work.power_w[slot]
            watts = s.node.core_w[s.job.host[slot]] * s.job.gpus[slot]
            work.power_w[slot] = watts * cores_used(s, slot, gpu_kind(s, g), work.rate[slot])
            total_w += work.power_w[slot]
            first = slot
    place = s.job.head[first]
    while place >= 0:
        at = place // MAX_TENANTS
        kind = gpu_kind(s, at)
        if kind != known:
            known, added_w = kind, 0.0
            for k in range(MAX_TENANTS):
                slot = s.gpu.tenant[g, k]
                if slot >= 0:
                    x.books[0].dynamic_w[k] = added_power_w(s, slot, kind, clock, work.rate[slot])
                    added_w += x.books[0].dynamic_w[k]
        total_w += gpu_power_w(gpu, kind, count, added_w)
        for k in range(MAX_TENANTS):
            slot = s.gpu.tenant[g, k]
            if slot >= 0:
                work.power_w[slot] += job_part_w(gpu, kind, count, added_w, x.books[0].dynamic_w[k])
        place = s.gpu.link[at, place % MAX_TENANTS]
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            x.books[0].jobs_w += work.power_w[slot]
    x.books[0].total_w += total_w - s.gpu.power_w[g]
    s.gpu.power_w[g] = total_w


@kernel
def _share_time(x: ProgressArrays, s: StateArrays, g: int) -> None:
    """Compute each job's share of the GPUs of a group (jobs on the same GPUs), and of their busy time.

    The utilisation of a group is estimated as 1 - product over the jobs of (1 - the job's own utilisation).
    The mean absolute error of this estimate is 0.10 on measured pairs (Lucid's pairs, RTX 3090). The shares
    of the busy time are proportional to the jobs' own utilisations.
    """
    work, kind, clock = x.work, gpu_kind(s, g), s.gpu.clock_frac[g]
    idle, alone = 1.0, 0.0
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            work.share_frac[slot] = s.job.share_milli[slot] / WHOLE_GPU_MILLI
            work.used_frac[slot] = at_work_frac(s, slot, kind, clock, work.rate[slot])
            idle *= 1.0 - work.used_frac[slot]
            alone += work.used_frac[slot]
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and alone > 0.0:
            work.used_frac[slot] *= (1.0 - idle) / alone


@kernel
def refresh(x: ProgressArrays, s: StateArrays, g: int, now_s: float) -> None:
    """After a change in a group (jobs on the same GPUs), settle its jobs, and update their rates and power.

    Afterwards `planned` of a job is 1 if its planned end is still valid, 2 if its end must be planned again,
    and 0 if no end has been planned.
    """
    _settle_group(x, s, g, now_s)
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0:
            shared = true_share(x, s, slot, s.job.head[slot] // MAX_TENANTS)
            rate = placed_rate(s, slot, s.gpu.clock_frac[g], shared)
            if rate != x.work.rate[slot]:
                x.books[0].lost_rate += x.work.rate[slot] - rate
                x.work.rate[slot] = s.job.rate[slot] = rate
                s.job.rate_since_s[slot] = now_s
                s.job.generation[slot] += 1
                if x.work.planned[slot]:
                    x.work.planned[slot] = 2
    _share_power(x, s, g)
    _share_time(x, s, g)


@kernel
def enter_without_gpus(x: ProgressArrays, s: StateArrays, slot: int) -> None:
    """Add the power of the cores of a job without GPUs to the cluster's power. The job's rate stays 1."""
    x.work.power_w[slot] = s.node.core_w[s.job.host[slot]] * cores_used(s, slot, 0, 1.0)
    x.books[0].jobs_w += x.work.power_w[slot]
    x.books[0].total_w += x.work.power_w[slot]


@kernel
def end_s(x: ProgressArrays, slot: int, now_s: float) -> float:
    """Return the time at which a job, at its current rate, finishes its work or reaches its time limit.

    The job's work must be up to date (`settle`).
    """
    work = x.work
    at_s = now_s + max(work.target_s[slot] - work.done_s[slot], 0.0) / work.rate[slot]
    work.killed[slot] = work.limit_end_s[slot] < at_s
    return min(at_s, work.limit_end_s[slot])


@kernel
def begin_books(x: ProgressArrays, s: StateArrays) -> None:
    """Set power and totals to the values of a cluster without jobs, and forget all learned speeds."""
    books = x.books[0]
    books.total_w = books.idle_w = books.jobs_w = 0.0
    books.energy_j = books.idle_j = books.jobs_j = 0.0
    books.cost = books.idle_cost = books.unused_cost = books.carbon = books.idle_carbon = 0.0
    books.lost_rate = books.lost_s = books.demand_w = books.peak_w = books.wake_ups = 0.0
    books.capped_s = books.over_s = books.over_j = 0.0
    x.hours[:] = 0.0
    for n in range(x.used.shape[0]):
        x.used[n] = 0
    x.books[0].next_seen_s = np.inf
    if x.books[0].learns > 0.0:
        forget_all(s.models)
    for row in range(x.outcome.shape[0]):
        x.outcome.energy_j[row] = x.outcome.cost[row] = x.outcome.carbon[row] = 0.0
    for n in range(s.node.shape[0]):
        add_idle_w(x, node_idle_w(s, n, s.node.status[n]))
