"""Compiled functions that choose which jobs wait, or pause, because of the price or the power limit.

A job waits for a lower price only within the slack (accepted delay) that its user declared. A power limit
holds for all jobs.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import DEFERRED, MAX_TENANTS, NODE_UP, WAITING, StateArrays
from rlsched.cluster.dials import NO_CONTROLLER
from rlsched.compile.jit import kernel
from rlsched.decide.clearing import latest_wait_s, sum_work
from rlsched.decide.constants import MODELLED
from rlsched.decide.dials.counting import partition_of
from rlsched.decide.limit import fits_limit, hold_limit, is_limited, next_to_stop, reserve_power
from rlsched.decide.options import PriceOptions
from rlsched.decide.order.queue import undefer
from rlsched.decide.order.slack import MOST_SLACK_FRAC, slack_ends_s
from rlsched.decide.remaining import remaining_s
from rlsched.decide.window import Window, cheapest_window, knows_prices_ahead, window_from
from rlsched.energy.relative import AHEAD_H
from rlsched.energy.series import HOUR_S

DAY_H: Final = 24
"""Number of hours over whose mean prices are relative (`rlsched.energy.relative`)."""
LEAST_LEFT_S: Final = 1800.0
"""Jobs that are predicted to end within this time, seconds, are not paused: a restart costs minutes."""


@kernel
def slack_frac(s: StateArrays, slope: float, percentile: float) -> float:
    """Return the fraction of their slack that jobs may use at the current price.

    The fraction is tanh(slope x ln(price / mean)), from 0 to `MOST_SLACK_FRAC`. If the price is above the
    quantile `percentile` (0: ignored) of the prices of the past 7 days, the fraction is `MOST_SLACK_FRAC`.
    """
    ratio = s.config[0].price_ratio
    if percentile > 0.0 and ratio > 0.0 and s.config[0].price_rank > percentile:
        return MOST_SLACK_FRAC
    return _slack_frac_at(ratio, slope)


@kernel
def _slack_frac_at(ratio: float, slope: float) -> float:
    """Return `slack_frac` without a percentile, for a price relative to its mean."""
    if ratio <= 1.0 or slope <= 0.0:
        return 0.0
    return min(math.tanh(slope * math.log(ratio)), MOST_SLACK_FRAC)


@kernel
def _defers(s: StateArrays, o: PriceOptions) -> bool:
    """Return whether jobs of any partition may be deferred at the current price."""
    if o.window and knows_prices_ahead(s):
        return True
    most = 0.0
    for p in range(s.dials.dial.shape[0]):
        dial = s.dials.dial[p]
        slope = max(o.defer, o.pause) + max(dial.defer, dial.pause)
        most = max(most, slack_frac(s, slope, o.percentile))
    return most > 0.0


@kernel
def _defer_slope(s: StateArrays, slot: int, o: PriceOptions) -> float:
    """Return the argument `slope` of `slack_frac` for a waiting job.

    The result is the setting `defer` plus the dial `defer`. If the job could be paused, `pause` replaces
    `defer` if it is larger, and after the first attempt the result is at least `pause` plus the dial `pause`:
    otherwise the job could start only to be paused immediately.
    """
    job, dial = s.job, s.dials.dial[partition_of(s, slot)]
    slope = o.defer
    if job.gpus[slot] > 0 and not job.pinned[slot] and job.predicted_s[slot] >= LEAST_LEFT_S:
        slope = max(slope, o.pause)
    slope += dial.defer
    if job.attained_gpu_s[slot] > 0.0 and not job.pinned[slot]:
        slope = max(slope, o.pause + dial.pause)
    return slope


@kernel
def _price_until_s(s: StateArrays, slot: int, o: PriceOptions, now_s: float) -> float:
    """Return the time, seconds, until which a job waits for a lower price; `now_s` or earlier: no wait."""
    if s.job.slack_s[slot] <= 0.0:
        return now_s
    if s.job.predicted_s[slot] <= o.longer_than_s and s.job.attained_gpu_s[slot] <= 0.0:
        return now_s
    frac = slack_frac(s, _defer_slope(s, slot, o), o.percentile)
    until_s = latest_wait_s(s, slot, frac, o.spare, now_s) if frac > 0.0 else now_s
    if o.window and knows_prices_ahead(s):
        until_s = max(until_s, cheapest_window(s, slot, o.spare, now_s).start_s)
    return until_s


@kernel
def planned_start(s: StateArrays, slot: int, o: PriceOptions, now_s: float) -> Window:
    """Return when a job that waits for a lower price will probably start, by the prices of the next hours.

    The result assumes that the dials keep their values, and that resources are free then. The start is
    `now_s` if it is unknown, because the prices of the next hours are unknown or the policy has a percentile.
    """
    config = s.config[0]
    if not knows_prices_ahead(s):
        return Window(now_s, 0.0)
    if o.window:
        return cheapest_window(s, slot, o.spare, now_s)
    slope, before = _defer_slope(s, slot, o), 0.0
    for h in range(AHEAD_H - DAY_H + 1 if o.percentile <= 0.0 else 0):
        day = config.price_sums[h + DAY_H - 1] - before
        ratio = DAY_H * (config.price_sums[h] - before) / day
        before = config.price_sums[h]
        from_s, until_s = max(config.price_from_s + h * HOUR_S, now_s), config.price_from_s + (h + 1) * HOUR_S
        frac = _slack_frac_at(ratio, slope)
        start_s = max(latest_wait_s(s, slot, frac, o.spare, now_s), from_s)
        if now_s < start_s < until_s:
            return window_from(s, slot, start_s, now_s)
    return Window(now_s, 0.0)


@kernel
def defer_jobs(s: StateArrays, o: PriceOptions, preempts: bool, now_s: float) -> None:
    """Defer waiting jobs that must not start yet, and return deferred jobs to the queue once they may start.

    A job waits for a lower price until it has used the permitted fraction of its slack, or until its cheapest
    window begins (`rlsched.decide.window`). A job waits for power until it can start without exceeding the
    power limit (`rlsched.decide.limit`). Sets `scratch.defer_s` to the first time at which a deferral ends
    even if nothing else happens; infinite: never. `preempts`: whether jobs may be preempted.
    """
    scratch, next_s = s.scratch[0], np.inf
    if MODELLED and s.config[0].limited:
        hold_limit(s, preempts, now_s)
    limited = is_limited(s)
    if limited:
        reserve_power(s, now_s)
    if scratch.deferred > 0 or limited or _defers(s, o):
        if o.spare > 0.0:
            sum_work(s, now_s)
        for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
            slot = s.derived.slot.stack[at]
            if s.job.status[slot] not in (WAITING, DEFERRED):
                continue
            until_s = _price_until_s(s, slot, o, now_s)
            if until_s <= now_s and limited and not fits_limit(s, slot, now_s):
                until_s = slack_ends_s(s, slot, now_s) if s.job.slack_s[slot] > 0.0 else np.inf
                until_s = until_s if until_s > now_s else np.inf
            if until_s > now_s:
                if s.job.status[slot] == WAITING:
                    ledger.defer(s, slot)
                next_s = min(next_s, until_s)
            elif s.job.status[slot] == DEFERRED:
                undefer(s, slot, now_s)
                until_s = _price_until_s(s, slot, o, now_s) if o.window else now_s
                if until_s > now_s:  # its prediction has been revised
                    ledger.defer(s, slot)
                    next_s = min(next_s, until_s)
    scratch.defer_s = next_s


@kernel
def _is_on_up_nodes(s: StateArrays, slot: int) -> bool:
    """Return whether all nodes of a running job are up, so that a pause of the job frees usable GPUs."""
    place, up = s.job.head[slot], s.node.status[s.job.host[slot]] == NODE_UP
    while place >= 0 and up:
        up = s.node.status[s.gpu.node[place // MAX_TENANTS]] == NODE_UP
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return up


@kernel
def next_to_pause(s: StateArrays, p: int, o: PriceOptions, preempts: bool, now_s: float) -> int:
    """Return the slot of the job to preempt next because of the price or the power limit, -1 for none.

    For the power limit, the job can be in any partition (`rlsched.decide.limit.next_to_stop`). For the price,
    it is the earliest submitted job of partition `p` that meets these conditions:

    - it is preemptible, started before this instant, and holds GPUs on nodes that are up;
    - it has used less of its slack than the price permits;
    - it is predicted to run for at least `LEAST_LEFT_S` more.
    """
    if preempts and is_limited(s):
        stopped = next_to_stop(s, now_s)
        if stopped >= 0:
            return stopped
    percentile = o.percentile if preempts else 0.0
    frac, found = slack_frac(s, o.pause + s.dials.dial[p].pause, percentile), -1
    if frac <= 0.0:
        return -1
    for position in range(s.derived.running_len[0]):
        slot, job = s.derived.slot.running[position], s.job
        if job.gpus[slot] == 0 or job.slack_s[slot] <= 0.0 or job.pinned[slot] or job.placed_in[slot] != p:
            continue
        if job.start_s[slot] >= now_s or (found >= 0 and job.seq[slot] > job.seq[found]):
            continue
        if latest_wait_s(s, slot, frac, o.spare, now_s) <= now_s or not _is_on_up_nodes(s, slot):
            continue
        if remaining_s(s, slot, now_s) >= LEAST_LEFT_S:
            found = slot
    return found


@kernel
def review_s(s: StateArrays, o: PriceOptions) -> float:
    """Return the time, s, at which to check deferrals and pauses even if no event occurs; infinite: never.

    The result is the next change of the price or the limit, or the end of a deferral if that is earlier
    (`scratch.defer_s`). It is infinite if no job is deferred or may pause, and there is no power limit.
    """
    if s.config[0].limited and s.counters[0].live_jobs > 0:
        return min(s.scratch[0].defer_s, s.config[0].price_until_s)
    if s.scratch[0].deferred > 0:
        return min(s.scratch[0].defer_s, s.config[0].price_until_s)
    may_pause = o.pause > 0.0 or o.percentile > 0.0 or s.dials.controller[0] != NO_CONTROLLER
    for position in range(s.derived.running_len[0] if may_pause else 0):
        slot = s.derived.slot.running[position]
        if s.job.gpus[slot] > 0 and s.job.slack_s[slot] > 0.0 and not s.job.pinned[slot]:
            return s.config[0].price_until_s
    return np.inf
