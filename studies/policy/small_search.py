"""The optimum of a small instance: branch and bound over all sequences of decisions.

At every arrival and end at which jobs wait, any running jobs may be preempted (if another job starts then),
and each waiting job may start on any GPUs that are free or whose jobs it may join, at any clock, or wait.
Time, clocks, restarts and power behave as in the engine (`rlsched_envs.sim.physics`), which plays the result.
All of it is compiled.

A branch ends if it cannot cost less than the best known. The rest costs at least this: each
job continues at once at its least cost; and the first k of the remaining jobs need the GPU time of
the k smallest, of all GPUs with the best possible co-tenants.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from rlsched.models.clocks import DWELL_S
from studies.policy.small_instances import PLACES, TENANTS, Step, Tables

_FUTURE, _WAITING, _RUNNING, _DONE = 0, 1, 2, 3
_LEFT, _TARGET, _SAVED, _OVERHEAD, _START, _STOPPED, _RATE, _WATTS = range(8)
"""Per job: remaining and total work of its attempt; saved work; unpaid restart cost;
start of its attempt; speed; power."""
_STATUS, _PLACE, _CLOCK = range(3)
_NOW, _COST, _STARTED, _GAVE_WAY, _ASKED, _POSITION, _OPTION, _STEPS = range(8)
"""Per frame: time; cost so far; jobs that started and were preempted at this instant; whether jobs waited;
the job to decide (the first J positions: preemption; the next: start; the last: all continue), its next
option; steps so far."""
_OVERLAP: Final = np.array([[bool({*one} & {*two}) for two in PLACES] for one in PLACES])
_SIZE: Final = np.array([len(one) for one in PLACES])
_EPSILON: Final = 1e-9


class Allowed(NamedTuple):
    """Permitted abilities of a search.

    Attributes:
        preempts: Jobs may be preempted.
        tenants: Maximum number of jobs on a GPU.
        clocks: Number of clocks, from the highest.
        idles: A job may wait though GPUs of its size are free.
    """

    preempts: bool
    tenants: int = TENANTS
    clocks: int = 4
    idles: bool = True


class _Bounds(NamedTuple):
    """Least cost of the work of jobs, by node and job, and joint capacity of the remaining jobs."""

    least: NDArray[np.float64]  # (2, J) cost of a second of work
    joules: NDArray[np.float64]  # (2, J) energy of it
    fastest: NDArray[np.float64]  # (2, J) speed
    capacity: NDArray[np.float64]  # (2^J,) most GPUs at work, by the set of remaining jobs
    prices: NDArray[np.float64]  # (2,) of a second, of a joule
    ends_s: NDArray[np.float64]  # (J,) scratch
    needs_s: NDArray[np.float64]  # (J,) scratch


class Found(NamedTuple):
    """Result of a search.

    Attributes:
        cost: The least cost; infinite if no cost is below `at_most`.
        steps: Steps with this cost.
        proven: Whether the search has shown that there is no lower cost.
        branches: Number of examined branches.
    """

    cost: float
    steps: list[Step]
    proven: bool
    branches: int


def search(
    tables: Tables, allowed: Allowed, *, at_most: float = np.inf, most_branches: int = 5_000_000
) -> Found:
    """The least cost of an instance below `at_most`."""
    steps = np.zeros((64 * len(tables.jobs), 4))
    best, length, proven, branches = _search(
        tables.jobs,
        tables.rate[:, : allowed.clocks].copy(),
        tables.watts[:, : allowed.clocks].copy(),
        tables.switch_s,
        tables.time_price,
        tables.energy_price,
        allowed.preempts,
        allowed.tenants,
        allowed.idles,
        at_most,
        most_branches,
        steps,
    )
    found = [Step(float(row[0]), int(row[1]), int(row[2]), int(row[3])) for row in steps[:length]]
    return Found(best if length else np.inf, found, proven, branches)


@numba.njit(error_model="numpy", cache=True)
def _refresh(job, status, group, at, now_s, switch_s, rate, watts):
    """Recompute clock, speeds and power of a place after a job has joined or left it."""
    mask, node, level = 0, at // 3, np.int64(rate.shape[1])
    for k in range(job.shape[0]):
        if status[k, _STATUS] == _RUNNING and status[k, _PLACE] == at:
            mask |= 1 << k
            level = min(level, status[k, _CLOCK])
    if mask == 0:
        group[at, 0] = -1.0
        return
    before = int(group[at, 0])
    if before >= 0 and level > before and now_s < group[at, 1] + DWELL_S:
        level = before
    if before != level:
        group[at, 1] = now_s
    for k in range(job.shape[0]):
        if (mask >> k) & 1:
            if before >= 0 and before != level and job[k, _START] < now_s:
                job[k, _LEFT] += switch_s[node] * job[k, _RATE]
            job[k, _RATE], job[k, _WATTS] = rate[node, level, k, mask], watts[node, level, k, mask]
    group[at, 0] = level


@numba.njit(error_model="numpy", cache=True)
def _mask_at(status, at):
    mask = 0
    for k in range(status.shape[0]):
        if status[k, _STATUS] == _RUNNING and status[k, _PLACE] == at:
            mask |= 1 << k
    return mask


@numba.njit(error_model="numpy", cache=True)
def _is_free(status, at):
    for k in range(status.shape[0]):
        if status[k, _STATUS] == _RUNNING and _OVERLAP[at, status[k, _PLACE]]:
            return False
    return True


@numba.njit(error_model="numpy", cache=True)
def _count(mask):
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@numba.njit(error_model="numpy", cache=True)
def _may_start(gpus, job, status, now_s, k, at, tenants, rate):
    """Return whether a waiting job may start on a place; of a node's free GPUs, only on the first.

    A job may not start on the place on which it has just been preempted: this only costs a restart.
    """
    if _SIZE[at] != gpus or (job[k, _STOPPED] == now_s and status[k, _PLACE] == at):
        return False
    mask = _mask_at(status, at)
    if mask == 0:
        return _is_free(status, at) and not (at in (1, 4) and _is_free(status, at - 1))
    return _count(mask) < tenants and rate[at // 3, 0, k, mask | (1 << k)] > 0.0


@numba.njit(error_model="numpy", cache=True)
def _has_place(gpus, status):
    """Return whether a place of this many GPUs is free."""
    found = False
    for at in range(_SIZE.shape[0]):
        found |= _SIZE[at] == gpus and _is_free(status, at)
    return found


@numba.njit(error_model="numpy", cache=True)
def _insert(values, count, value):
    """Insert one more value into `count` sorted values."""
    at = count
    while at > 0 and values[at - 1] > value:
        values[at] = values[at - 1]
        at -= 1
    values[at] = value


@numba.njit(error_model="numpy", cache=True)
def _bounds(rate, watts, time_price, energy_price, tenants):
    """`_Bounds` of an instance."""
    levels, count = rate.shape[1], rate.shape[2]
    least, joules = np.full((2, count), np.inf), np.full((2, count), np.inf)
    fastest, single, capacity = np.zeros((2, count)), np.zeros((2, 1 << count)), np.zeros(1 << count)
    for node in range(2):
        for level in range(levels):
            for k in range(count):
                for mask in range(1 << count):
                    speed, drawn_w = rate[node, level, k, mask], watts[node, level, k, mask]
                    if speed > 0.0 and _count(mask) <= tenants:
                        least[node, k] = min(least[node, k], (time_price + energy_price * drawn_w) / speed)
                        fastest[node, k] = max(fastest[node, k], speed)
                        joules[node, k] = min(joules[node, k], drawn_w / speed)
    for node in range(2):
        for level in range(levels):
            for mask in range(1, 1 << count):
                together = 0.0
                for k in range(count):
                    if (mask >> k) & 1 and _count(mask) <= tenants:
                        together += rate[node, level, k, mask] / max(fastest[0, k], fastest[1, k])
                single[node, mask] = max(single[node, mask], together)
    for mask in range(1, 1 << count):
        for node in range(2):
            most, part = 0.0, mask
            while part:
                most = max(most, single[node, part])
                part = (part - 1) & mask
            capacity[mask] += 2.0 * most
    prices = np.array([time_price, energy_price])
    return _Bounds(least, joules, fastest, capacity, prices, np.empty(count), np.empty(count))


@numba.njit(error_model="numpy", cache=True)
def _at_least(jobs, job, status, now_s, b, preempts):
    """Lower bound of the remaining cost."""
    one_by_one, together, mask, known = 0.0, 0.0, 0, 0
    for k in range(jobs.shape[0]):
        if status[k, _STATUS] == _DONE:
            continue
        mask |= 1 << k
        from_s, fastest = max(now_s, jobs[k, 0]), max(b.fastest[0, k], b.fastest[1, k])
        if status[k, _STATUS] == _RUNNING:
            node, work_s = status[k, _PLACE] // 3, max(job[k, _LEFT], 0.0)
            least, run_s, drawn_j = (
                b.least[node, k] * work_s,
                work_s / b.fastest[node, k],
                b.joules[node, k] * work_s,
            )
            if preempts:
                moved_s = min(work_s, jobs[k, 1] - job[k, _SAVED]) + jobs[k, 3]
                least = min(least, min(b.least[0, k], b.least[1, k]) * moved_s)
                run_s = min(run_s, moved_s / fastest)
                drawn_j = min(drawn_j, min(b.joules[0, k], b.joules[1, k]) * moved_s)
        else:
            work_s = jobs[k, 1] - job[k, _SAVED] + job[k, _OVERHEAD]
            least, run_s = min(b.least[0, k], b.least[1, k]) * work_s, work_s / fastest
            drawn_j = min(b.joules[0, k], b.joules[1, k]) * work_s
        one_by_one += least
        together += b.prices[1] * drawn_j - b.prices[0] * from_s
        _insert(b.ends_s, known, from_s + run_s)
        _insert(b.needs_s, known, work_s * jobs[k, 2] / fastest)
        known += 1
    so_far_s = 0.0
    for k in range(known):
        so_far_s += b.needs_s[k]
        together += b.prices[0] * max(b.ends_s[k], now_s + so_far_s / b.capacity[mask])
    return max(one_by_one, together)


@numba.njit(error_model="numpy", cache=True)
def _give_way(jobs, job, status, group, k, now_s, switch_s, rate, watts):
    """Stop a running job, with all its work saved; it waits again."""
    done_s = job[k, _TARGET] - job[k, _LEFT]
    job[k, _SAVED] += min(max(done_s - job[k, _OVERHEAD], 0.0), jobs[k, 1] - job[k, _SAVED])
    job[k, _OVERHEAD], job[k, _STOPPED] = jobs[k, 3], now_s
    status[k, _STATUS] = _WAITING
    _refresh(job, status, group, status[k, _PLACE], now_s, switch_s, rate, watts)


@numba.njit(error_model="numpy", cache=True)
def _start(jobs, job, status, group, k, at, level, now_s, switch_s, rate, watts):
    """Start a waiting job."""
    status[k, _STATUS], status[k, _PLACE], status[k, _CLOCK] = _RUNNING, at, level
    job[k, _START] = now_s
    job[k, _LEFT] = job[k, _TARGET] = job[k, _OVERHEAD] + (jobs[k, 1] - job[k, _SAVED])
    _refresh(job, status, group, at, now_s, switch_s, rate, watts)


@numba.njit(error_model="numpy", cache=True)
def _go_on(jobs, job, status, group, frame, prices, switch_s, rate, watts):
    """Advance to the next end or arrival. Returns -1 if there is none, 1 if all jobs are done, else 0."""
    now_s, next_s = frame[_NOW], np.inf
    for k in range(jobs.shape[0]):
        if status[k, _STATUS] == _RUNNING:
            next_s = min(next_s, now_s + max(job[k, _LEFT], 0.0) / job[k, _RATE])
        elif status[k, _STATUS] == _FUTURE:
            next_s = min(next_s, jobs[k, 0])
    if next_s == np.inf:
        return -1
    lasted_s = next_s - now_s
    for k in range(jobs.shape[0]):
        if status[k, _STATUS] == _RUNNING:
            frame[_COST] += lasted_s * (prices[0] + prices[1] * job[k, _WATTS])
            job[k, _LEFT] -= lasted_s * job[k, _RATE]
        elif status[k, _STATUS] == _WAITING:
            frame[_COST] += lasted_s * prices[0]
    frame[_NOW], frame[_STARTED], frame[_GAVE_WAY], frame[_ASKED] = next_s, 0.0, 0.0, 0.0
    done = 1
    for k in range(jobs.shape[0]):
        if status[k, _STATUS] == _RUNNING and job[k, _LEFT] <= _EPSILON * job[k, _TARGET]:
            status[k, _STATUS] = _DONE
            _refresh(job, status, group, status[k, _PLACE], next_s, switch_s, rate, watts)
        elif status[k, _STATUS] == _FUTURE and jobs[k, 0] <= next_s:
            status[k, _STATUS] = _WAITING
        if status[k, _STATUS] == _WAITING:
            frame[_ASKED] = 1.0
        if status[k, _STATUS] != _DONE:
            done = 0
    return done


@numba.njit(error_model="numpy", cache=True)
def _next_position(status, position, asked, preempts):
    """The next job with a decision, from `position` on."""
    count = status.shape[0]
    while position < 2 * count:
        if position < count:
            if preempts and asked and status[position, _STATUS] == _RUNNING:
                return position
        elif status[position - count, _STATUS] == _WAITING:
            return position
        position += 1
    return position


@numba.njit(error_model="numpy", cache=True)
def _copy(job, status, group, frame, d):
    """Copy frame `d` to the next frame, element by element, because assignments of rows would be slow."""
    for k in range(job.shape[1]):
        for field in range(job.shape[2]):
            job[d + 1, k, field] = job[d, k, field]
        for field in range(status.shape[2]):
            status[d + 1, k, field] = status[d, k, field]
    for at in range(group.shape[1]):
        group[d + 1, at, 0], group[d + 1, at, 1] = group[d, at, 0], group[d, at, 1]
    for field in range(frame.shape[1]):
        frame[d + 1, field] = frame[d, field]


@numba.njit(error_model="numpy", cache=True)
def _search(
    jobs,
    rate,
    watts,
    switch_s,
    time_price,
    energy_price,
    preempts,
    tenants,
    idles,
    at_most,
    most_branches,
    steps_out,
):
    """Depth-first search; a frame is a state and the remaining options of one job in it."""
    count, levels, depths = jobs.shape[0], rate.shape[1], 2 * steps_out.shape[0]
    b = _bounds(rate, watts, time_price, energy_price, tenants)
    job_at, group_at = np.zeros((depths, count, 8)), np.full((depths, 6, 2), -1.0)
    status_at, frame = np.zeros((depths, count, 3), np.int64), np.zeros((depths, 8))
    steps = np.zeros(steps_out.shape)
    job_at[0, :, _STOPPED] = -1.0
    frame[0, _POSITION] = 2 * count
    best, best_length, branches, d = at_most, 0, 0, 0
    while d >= 0:
        position, option, now_s = int(frame[d, _POSITION]), int(frame[d, _OPTION]), frame[d, _NOW]
        frame[d, _OPTION] += 1
        k, asks_to_start = position % count, count <= position < 2 * count
        last = 1 if position < count else (6 * levels if asks_to_start else 0)
        if option > last or branches >= most_branches:
            d -= 1
            continue
        at, level, starts = option // levels, option % levels, asks_to_start and option < last
        if position < count and option == 1 and job_at[d, k, _START] == now_s:
            continue
        if starts and not _may_start(jobs[k, 2], job_at[d], status_at[d], now_s, k, at, tenants, rate):
            continue
        if asks_to_start and not starts and not idles and _has_place(jobs[k, 2], status_at[d]):
            continue
        if position == 2 * count and frame[d, _GAVE_WAY] > 0.0 and frame[d, _STARTED] == 0.0:
            continue
        if d + 1 >= depths or frame[d, _STEPS] + 1 >= steps.shape[0]:
            branches = most_branches
            continue
        branches += 1
        _copy(job_at, status_at, group_at, frame, d)
        job, status, group, mine = job_at[d + 1], status_at[d + 1], group_at[d + 1], frame[d + 1]
        changes, number = starts, int(mine[_STEPS])
        if position < count and option == 1:
            _give_way(jobs, job, status, group, k, now_s, switch_s, rate, watts)
            steps[number, 0], steps[number, 1], steps[number, 2] = now_s, k, -1.0
            mine[_GAVE_WAY] += 1
            mine[_STEPS] += 1
            changes = True
        elif starts:
            _start(jobs, job, status, group, k, at, level, now_s, switch_s, rate, watts)
            steps[number, 0], steps[number, 1], steps[number, 2], steps[number, 3] = now_s, k, at, level
            mine[_STARTED] += 1
            mine[_STEPS] += 1
        elif position == 2 * count:
            done = _go_on(jobs, job, status, group, mine, b.prices, switch_s, rate, watts)
            if done == 1 and mine[_COST] < best * (1.0 - _EPSILON):
                best, best_length = mine[_COST], number
                steps_out[:number] = steps[:number]
            if done != 0:
                continue
            changes, position = True, -1
        if changes:
            more = _at_least(jobs, job, status, mine[_NOW], b, preempts)
            if mine[_COST] + more >= best * (1.0 - _EPSILON):
                continue
        mine[_POSITION] = _next_position(status, position + 1, mine[_ASKED] > 0.0, preempts)
        mine[_OPTION] = 0.0
        d += 1
    return best, best_length, branches < most_branches, branches
