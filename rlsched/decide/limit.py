"""Compiled functions that keep a cluster under a power limit: clocks, pauses, and jobs that must wait.

In this module, power is the most that the cluster can draw according to the models (`rlsched.cluster.power`).
Jobs without slack are urgent, jobs with slack are flexible. If the power exceeds the limit, these steps are
taken in this order until the limit is kept:

1. lower the clocks of flexible jobs;
2. pause flexible jobs (preempt and defer them), if the policy preempts;
3. lower the clocks of urgent jobs;
4. pause other jobs that may be preempted, if the policy preempts.

A flexible job starts only if all urgent jobs, running and waiting, can still have their full clocks. An
urgent job starts only if the limit can be kept with all jobs at the lowest clocks and the flexible jobs
paused. If the limit is soft, only steps 1 and 2 and the rule for starts of flexible jobs apply.

Falls of the limit may be announced (`config.fall_s`, `config.fall_w`). *Level* 0 is the limit now, level k is
the limit from `fall_s[k - 1]` on. A job that will still run at that time, by its prediction, starts only if
these rules permit its start at that level too, with the running jobs that will still run then. A job that may
be preempted then is exempt, because steps 2 and 4 can keep the limit.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import (
    DEFERRED,
    MAX_TENANTS,
    NODE_ASLEEP,
    NODE_BOOTING,
    NODE_UP,
    RUNNING,
    WAITING,
    PowerClass,
    StateArrays,
)
from rlsched.cluster.kernels import forget_speeds
from rlsched.cluster.power import (
    busy_cores_w,
    highest_clock,
    leads,
    most_added_w,
    node_idle_w,
    nodes_w,
)
from rlsched.cluster.speed import at_clock_w, class_of
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched.decide.order.slack import slack_ends_s
from rlsched.energy.limits import FALLS
from rlsched.models.clocks import MIN_CLOCK_FRAC, gpu_power_w

STEPS: Final = 32
"""Number of steps from the lowest to the highest value of a clock cap. With coarse steps, clocks change less
often.
"""
ROUNDED_S: Final = 0.001
"""Times are rounded up to multiples of this time, seconds. Slack of at most this time counts as used up."""
PATIENCE_S: Final = 3600.0
"""Waiting time, s, after which an urgent job can get power before other urgent jobs (`reserve_power`)."""


@kernel
def is_limited(s: StateArrays) -> bool:
    """Return whether the cluster has a power limit, now or announced. A limit needs models of power."""
    config = s.config[0]
    known = config.limit_w < np.inf or config.fall_s[0] < np.inf
    return MODELLED and config.modelled != 0 and config.limited != 0 and known


@kernel
def _cap(step: int) -> float:
    """Return the clock of a step, as a fraction of the maximum."""
    return MIN_CLOCK_FRAC + (1.0 - MIN_CLOCK_FRAC) * step / STEPS


@kernel
def drawn_w(s: StateArrays, urgent_cap: float, flexible_cap: float) -> float:
    """Return the most power that the whole cluster can draw if clocks are capped, W.

    The caps are fractions of the maximum clock: one for urgent jobs, one for flexible jobs.
    """
    return _drawn_later_w(s, urgent_cap, flexible_cap, -np.inf, 0.0)


@kernel
def _drawn_later_w(
    s: StateArrays, urgent_cap: float, flexible_cap: float, at_s: float, now_s: float
) -> float:
    """Return `drawn_w` of the running jobs that will still run at `at_s`."""
    watts = nodes_w(s)
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        g = s.job.head[slot] // MAX_TENANTS
        if s.job.head[slot] < 0:
            if _runs_at(s, slot, at_s, now_s):
                watts += busy_cores_w(s, slot, 0)
        elif leads(s, slot):
            runs = False
            for k in range(MAX_TENANTS):
                runs = runs or (s.gpu.tenant[g, k] >= 0 and _runs_at(s, s.gpu.tenant[g, k], at_s, now_s))
            if runs:
                watts += most_added_w(s, g, highest_clock(s, g, urgent_cap, flexible_cap), -1)
    return watts


@kernel
def _runs_at(s: StateArrays, slot: int, at_s: float, now_s: float) -> bool:
    """Return whether a job, which runs or would start now, will still run at `at_s`, by its prediction.

    A run time above the prediction by one standard deviation is assumed for jobs that must not be preempted.
    No job exceeds its time limit.
    """
    if at_s == -np.inf:
        return True
    job, ran_s = s.job, 0.0
    if job.status[slot] == RUNNING:
        ran_s = now_s - job.start_s[slot]
    margin, done_s = 1.0 if _may_stop(s, slot) else np.exp(job.spread[slot]), ran_s + job.saved_s[slot]
    left_s = max(job.predicted_s[slot] * margin - done_s, 0.5 * done_s, 1.0)  # as in `remaining_s`
    if job.limit_s[slot] - ran_s < left_s:
        left_s = job.limit_s[slot] - ran_s
    return not now_s + left_s <= at_s


@kernel
def _may_stop(s: StateArrays, slot: int) -> bool:
    """Return whether a job, while it runs, may be preempted to keep the limit."""
    return s.scratch[0].stops != 0 and not s.job.pinned[slot] and s.job.gpus[slot] > 0


@kernel
def _may_pause(s: StateArrays, slot: int, now_s: float, flexible: bool) -> bool:
    """Return whether a running job may be preempted to keep the limit.

    `flexible`: return False also for a job without slack left, or that shares its GPUs with an urgent job.
    """
    job = s.job
    if job.head[slot] < 0 or job.pinned[slot] or job.start_s[slot] >= now_s:
        return False
    if not flexible:
        return True
    left_s = slack_ends_s(s, slot, now_s) - now_s
    return left_s > ROUNDED_S and class_of(s, job.head[slot] // MAX_TENANTS) == PowerClass.FLEXIBLE


@kernel
def _saved_w(s: StateArrays, slot: int) -> float:
    """Return the power that a pause of this job saves while all jobs have the lowest clocks, W."""
    g = s.job.head[slot] // MAX_TENANTS
    clock = highest_clock(s, g, MIN_CLOCK_FRAC, MIN_CLOCK_FRAC)
    return most_added_w(s, g, clock, -1) - most_added_w(s, g, clock, slot)


@kernel
def hold_limit(s: StateArrays, preempts: bool, now_s: float) -> None:
    """Set the caps of the clocks so that the power limit is kept, and set `scratch.room_w`.

    `room_w` is the power that jobs may add when they start, W, at each level. Without a limit, the caps are
    1. If no caps suffice, they are as low as possible. `preempts`: whether jobs may be preempted.
    """
    config, room_w = s.config[0], s.scratch[0].room_w
    s.scratch[0].stops = preempts
    for level in range(1 + FALLS):
        s.scratch[0].first_seq[level] = s.counters[0].next_seq
        room_w[level, PowerClass.URGENT] = room_w[level, PowerClass.FLEXIBLE] = np.inf
    if not is_limited(s):
        _set_caps(s, 1.0, 1.0)
        return
    limit_w, full_w = config.limit_w, drawn_w(s, 1.0, 1.0)
    _note_hosts(s)
    most_w = full_w + _all_start_w(s)
    for k in range(FALLS):
        if config.fall_w[k] < most_w:
            _set_room_at_fall(s, k, preempts, now_s)
    if most_w <= limit_w:  # the usual case, in which nothing else needs to be computed
        _set_caps(s, 1.0, 1.0)
        return
    slowed_w, lowest_w = drawn_w(s, 1.0, MIN_CLOCK_FRAC), drawn_w(s, MIN_CLOCK_FRAC, MIN_CLOCK_FRAC)
    room_w[0, PowerClass.FLEXIBLE] = limit_w - slowed_w
    if not config.limit_soft:
        room_w[0, PowerClass.URGENT] = limit_w - lowest_w
        for position in range(s.derived.running_len[0] if preempts else 0):
            slot = s.derived.slot.running[position]
            if _may_pause(s, slot, now_s, True):
                room_w[0, PowerClass.URGENT] += _saved_w(s, slot)
    if full_w <= limit_w:
        _set_caps(s, 1.0, 1.0)
        return
    low, high = 0, STEPS - 1  # the highest step that keeps the limit, found by bisection
    of_urgent = slowed_w > limit_w
    while low < high:
        middle = (low + high + 1) // 2
        cap = _cap(middle)
        watts = drawn_w(s, cap, MIN_CLOCK_FRAC) if of_urgent else drawn_w(s, 1.0, cap)
        if watts <= limit_w:
            low = middle
        else:
            high = middle - 1
    if of_urgent:
        _set_caps(s, 1.0 if config.limit_soft else _cap(low), MIN_CLOCK_FRAC)
    else:
        _set_caps(s, 1.0, _cap(low))


@kernel
def _set_room_at_fall(s: StateArrays, k: int, preempts: bool, now_s: float) -> None:
    """Set `scratch.room_w` for the announced fall `k`, from the running jobs that will still run then."""
    at_s, limit_w, room_w = s.config[0].fall_s[k], s.config[0].fall_w[k], s.scratch[0].room_w[k + 1]
    room_w[PowerClass.FLEXIBLE] = limit_w - _drawn_later_w(s, 1.0, MIN_CLOCK_FRAC, at_s, now_s)
    if s.config[0].limit_soft:
        return
    room_w[PowerClass.URGENT] = limit_w - _drawn_later_w(s, MIN_CLOCK_FRAC, MIN_CLOCK_FRAC, at_s, now_s)
    for position in range(s.derived.running_len[0] if preempts else 0):
        slot = s.derived.slot.running[position]
        if _may_pause(s, slot, at_s, False) and _runs_at(s, slot, at_s, now_s):
            room_w[PowerClass.URGENT] += _saved_w(s, slot)


@kernel
def _set_caps(s: StateArrays, urgent_cap: float, flexible_cap: float) -> None:
    """Set the clock caps of urgent and flexible jobs.

    If a cap has changed, discard the cached speeds of running jobs.
    """
    caps = s.config[0].clock_cap
    if caps[PowerClass.URGENT] == urgent_cap and caps[PowerClass.FLEXIBLE] == flexible_cap:
        return
    caps[PowerClass.URGENT], caps[PowerClass.FLEXIBLE] = urgent_cap, flexible_cap
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.head[slot] >= 0:
            forget_speeds(s, s.job.head[slot] // MAX_TENANTS)


@kernel
def _usable(s: StateArrays, n: int) -> int:
    """Return how soon a node can run jobs: 2: up, with free GPUs; 1: asleep or booting; 0: other."""
    status = s.node.status[n]
    if status == NODE_UP:
        return 2 if s.node.free[n] > 0 else 0
    return int(status in (NODE_ASLEEP, NODE_BOOTING))


@kernel
def _note_hosts(s: StateArrays) -> None:
    """Store for each GPU type the node that can run jobs soonest (`_usable`) in `scratch.hosts`.

    Of nodes that are equal in this respect, a node with a fixed clock is preferred.
    """
    usable, hosts = s.scratch[0].usable, s.scratch[0].hosts
    usable[:] = -1
    for n in range(s.node.shape[0]):
        kind, found = s.node.kind[n], _usable(s, n)
        fixed = s.node.fixed_clock[n] > s.node.fixed_clock[hosts[kind]]
        if found > usable[kind] or (found == usable[kind] and fixed):
            usable[kind], hosts[kind] = found, n


@kernel
def start_w(s: StateArrays, slot: int, clock: float) -> float:
    """Return the power that a waiting job adds at SM clock `clock`, W, on the GPU type where it adds most.

    Only types with free GPUs on a node that is up are compared. If the job accepts no such type, types with a
    node that sleeps or boots are compared; the result then includes the idle power that this node adds.
    """
    t, gpu, w, scratch = s.models.trait, s.models.gpu, s.job.workload[slot], s.scratch[0]
    gpus, demand = s.job.gpus[slot], s.demand[s.job.demand[slot]]
    best, most_w = -1, 0.0
    for kind in range(gpu.shape[0]):
        n, usable = scratch.hosts[kind], scratch.usable[kind]
        if usable < max(best, 0) or (gpus > 0 and not (demand.kinds >> kind) & 1):
            continue
        added_w = s.node.core_w[n] * demand.cpu_milli_each / 1000.0
        if gpus > 0:
            x = 1.0 if s.node.fixed_clock[n] or gpu.sliced[kind] else clock
            added_w = gpu_power_w(gpu, kind, 1, at_clock_w(s, slot, kind, x, 1.0)) - gpu.idle_w[kind]
            if demand.cpu_milli_each > 0:
                added_w += s.node.core_w[n] * t.cores_each[w, kind]
        added_w *= max(gpus, 1)
        if usable == 1:
            nodes = (gpus + s.node.gpus[n] - 1) // max(s.node.gpus[n], 1)
            added_w += max(nodes, 1) * (node_idle_w(s, n, NODE_UP) - node_idle_w(s, n, s.node.status[n]))
        most_w = max(most_w, added_w) if usable == best else added_w
        best = usable
    return most_w


@kernel
def _all_start_w(s: StateArrays) -> float:
    """Return the power that all waiting jobs together add at full clock, W."""
    watts = 0.0
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        if s.job.status[slot] in (WAITING, DEFERRED):
            watts += start_w(s, slot, 1.0)
    return watts


@kernel
def reserve_power(s: StateArrays, now_s: float) -> None:
    """Keep power for the urgent jobs that wait, at each level: flexible jobs do not get this power.

    Of the urgent jobs that have waited for `PATIENCE_S` and could start on an idle cluster, the job submitted
    first has precedence. Urgent jobs submitted after it do not get its power either (`scratch.first_seq`,
    `scratch.first_w`).
    """
    for level in range(1 + FALLS):
        if s.scratch[0].room_w[level, PowerClass.FLEXIBLE] < np.inf:
            _reserve_power_at(s, level, now_s)


@kernel
def _reserve_power_at(s: StateArrays, level: int, now_s: float) -> None:
    """Do what `reserve_power` describes, for one level."""
    scratch, config, kept_w = s.scratch[0], s.config[0], 0.0
    at_s, limit_w = -np.inf, config.limit_w
    if level > 0:
        at_s, limit_w = config.fall_s[level - 1], config.fall_w[level - 1]
    most_w = limit_w - nodes_w(s)
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        if s.job.status[slot] not in (WAITING, DEFERRED):
            continue
        if start_class(s, slot, now_s) != PowerClass.URGENT or not _runs_at(s, slot, at_s, now_s):
            continue
        need_w = start_w(s, slot, MIN_CLOCK_FRAC)
        if need_w > most_w:
            continue
        kept_w += start_w(s, slot, 1.0)
        if now_s - s.job.submit_s[slot] >= PATIENCE_S and s.job.seq[slot] < scratch.first_seq[level]:
            scratch.first_seq[level], scratch.first_w[level] = s.job.seq[slot], need_w
    scratch.room_w[level, PowerClass.FLEXIBLE] -= kept_w


@kernel
def start_class(s: StateArrays, slot: int, now_s: float) -> int:
    """Return the `PowerClass` of a waiting job. A job that has used up its slack is URGENT too."""
    urgent = s.job.slack_s[slot] <= 0.0 or slack_ends_s(s, slot, now_s) <= now_s
    return PowerClass.URGENT if urgent else PowerClass.FLEXIBLE


@kernel
def power_left_w(s: StateArrays, slot: int, level: int, now_s: float) -> float:
    """Return the power that a waiting job may add at a level when it starts now, W; infinite: any power."""
    scratch = s.scratch[0]
    room_w = scratch.room_w[level, start_class(s, slot, now_s)]
    if level > 0 and (_may_stop(s, slot) or not _runs_at(s, slot, s.config[0].fall_s[level - 1], now_s)):
        return np.inf
    return room_w - scratch.first_w[level] if s.job.seq[slot] > scratch.first_seq[level] else room_w


@kernel
def level_too_low(s: StateArrays, slot: int, now_s: float) -> int:
    """Return the first level at which a waiting job must not start now, -1: it may start."""
    need_w = -1.0
    for level in range(1 + FALLS):
        if s.scratch[0].room_w[level, PowerClass.FLEXIBLE] == np.inf:
            continue
        room_w = power_left_w(s, slot, level, now_s)
        if room_w == np.inf:
            continue
        if need_w < 0.0:
            need_w = start_w(s, slot, MIN_CLOCK_FRAC)
        if need_w > room_w:
            return level
    return -1


@kernel
def fits_limit(s: StateArrays, slot: int, now_s: float) -> bool:
    """Return whether a waiting job may start under the power limit (see the module)."""
    return level_too_low(s, slot, now_s) < 0


@kernel
def next_to_stop(s: StateArrays, now_s: float) -> int:
    """Return the slot of the job to preempt next in order to keep the limit, -1 for none.

    Of the jobs whose pause suffices, returns the job that saves the least power. If no single pause suffices,
    returns the job that saves the most power. Of jobs that save equal power, returns the job submitted last.
    Call `hold_limit` before.
    """
    if not is_limited(s) or s.scratch[0].room_w[0, PowerClass.FLEXIBLE] == np.inf:
        return -1
    over_w = drawn_w(s, 1.0, MIN_CLOCK_FRAC) - s.config[0].limit_w
    if over_w <= 0.0:
        return -1
    found = _best_to_stop(s, now_s, over_w, True)
    if found >= 0 or s.config[0].limit_soft:
        return found
    over_w = drawn_w(s, MIN_CLOCK_FRAC, MIN_CLOCK_FRAC) - s.config[0].limit_w
    return _best_to_stop(s, now_s, over_w, False) if over_w > 0.0 else -1


@kernel
def _best_to_stop(s: StateArrays, now_s: float, over_w: float, flexible: bool) -> int:
    """Return the job that `next_to_stop` describes.

    `over_w`: power to save, W. `flexible`: consider only jobs with slack left that share GPUs with no urgent
    job.
    """
    found, best_w = -1, 0.0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if not _may_pause(s, slot, now_s, flexible):
            continue
        saved_w = _saved_w(s, slot)
        if found >= 0 and saved_w == best_w:
            better = s.job.seq[slot] > s.job.seq[found]
        elif best_w >= over_w:
            better = over_w <= saved_w < best_w
        else:
            better = saved_w > best_w
        if found < 0 or better:
            found, best_w = slot, saved_w
    return found
