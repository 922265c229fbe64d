"""The event loop of jobs that live through more than one attempt, compiled.

Used where something can interrupt a job or keep it from the queue: a scheduler that preempts, failures, node
events, dependencies, array limits. A run without any of these takes `simulation.next_instant` alone, and
both give the same schedule then. At equal times: ends, node events, arrivals (and jobs that become eligible,
before those submitted now), then decisions; the trace's row order breaks ties.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import LIVE_JOBS, MAX_TENANTS, MODELLED, NODE_DOWN, Records, records
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import tenants_of
from rlsched.decide.rules import PLAIN, RuleCode, next_to_start
from rlsched.jit import kernel, large_kernel
from rlsched.models.memory import is_device_fault
from rlsched_envs import physics
from rlsched_envs.simulation import (
    ALLOCATED_MILLI,
    FINISHED,
    HEAP_LEN,
    MOVED,
    NEED_SLOTS,
    NEXT_ROW,
    NOW,
    REVIEW,
    STARTS,
    STOPPED,
    TIMER,
    SimArrays,
    allocate_slot,
    begin_attempt,
    count_allocated,
    forget_end,
    next_event_s,
    note_left,
    nothing_new,
    pass_time,
    pop_end,
    push_end,
    put_slot,
    settle_slot,
)

NEED_ROOM: Final = 4
"""The record of attempts is full: `grown_life`, then go on."""
REVIEW_DUE: Final = 5
"""The clock is at its REVIEW, and what happens now has happened: set the next, then go on."""

ONGOING: Final = 0
ENDED: Final = 1
TIMEOUT: Final = 2
FAILED: Final = 3
PREEMPTED: Final = 4
NODE_FAILURE: Final = 5
NEIGHBOUR_FAULT: Final = 6
"""A job on the same GPU met a fault that ended all of them."""
REASONS: Final = ("running", "ended", "timeout", "failed", "preempted", "node_failure", "neighbour_fault")
"""Why an attempt ended, by code; the first three after *running* can also be how its job ended."""

SEGMENTS: Final = 0
SEGMENT_GPUS: Final = 1
NEXT_NODE_EVENT: Final = 2
AT_GATE: Final = 3
READY: Final = 4
UNDECIDED: Final = 5
"""1: an instant's events have happened, and its decisions are still to come."""
MAX_RETRIES: Final = 6
FAULT_PPM: Final = 7
"""Failures that end all jobs of the GPU, millionths of them."""
NUM_LIFE_COUNTS: Final = 8

LIFE: Final = np.dtype(
    [
        ("duration_s", np.float64),  # work of the whole job, seconds at full speed
        ("limit_s", np.float64),  # an attempt is killed after running so long, nan: never
        ("checkpoint_s", np.float64),  # work between two checkpoints, nan: it saves when it is told to
        ("restart_s", np.float64),  # what every attempt after the first takes longer
        ("profile_s", np.float64),  # what the first attempt of a longer job takes longer: Lucid's profiler
        ("saved_s", np.float64),  # work that the next attempt does not have to do again
        ("run_s", np.float64),  # time run since the last failure
        ("eligible_s", np.float64),  # when it came to the queue first, nan until then
        ("segment", np.int64),  # its current or latest attempt, -1 before the first
        ("first_failure", np.int32),  # its failures to come: position in `fail_after_s` ...
        ("failures_given", np.int32),  # ... and their number
        ("failures", np.int32),  # failures so far
        ("first_child", np.int32),  # rows that wait for its end: position in `children` ...
        ("children", np.int32),  # ... and their number
        ("waits_for", np.int32),  # jobs that have to end before it is eligible
        ("array", np.int32),  # number of its array, -1 where it is in none that has a limit
        ("pinned", np.int32),  # 1: must not be preempted
        ("stage", np.int32),  # TO_COME, HELD_BACK, LET_IN
        ("ends_by", np.int32),  # what ends the current attempt if nothing interrupts it
        ("over_by", np.int32),  # how the job ended: ENDED, TIMEOUT, FAILED; ONGOING until it does
    ]
)
"""One entry a row of the run."""

TO_COME: Final = 0
HELD_BACK: Final = 1
"""Submitted, and not eligible yet."""
LET_IN: Final = 2

SEGMENT: Final = np.dtype(
    [
        ("start_s", np.float64),
        ("end_s", np.float64),  # nan while it runs
        ("useful_s", np.float64),  # work of it that no later attempt has to do again
        ("done_s", np.float64),  # work of it, restart costs included; without models: the time that it ran
        ("energy_j", np.float64),  # what it drew; 0 without models
        ("share_s", np.float64),  # integrals over it, 0 without models: of its share of each of its GPUs, ...
        ("used_s", np.float64),  # ... of its part of the time in which they are at work ...
        ("clock_s", np.float64),  # ... and of their SM clock
        ("gpu_at", np.int64),  # where its GPUs begin in `segment_gpu`
        ("row", np.int32),
        ("attempt", np.int32),  # 1 for the first
        ("gpus", np.int32),
        ("reason", np.int32),  # position in REASONS
    ]
)
"""One entry an attempt, in the order of their starts."""

NODE_EVENT: Final = np.dtype([("time_s", np.float64), ("node", np.int32), ("status", np.int32)])
"""One entry an event; `status` is what the node becomes."""

ARRAY: Final = np.dtype(
    [
        ("first", np.int32),  # its tasks: position in `tasks` ...
        ("length", np.int32),  # ... and their number
        ("limit", np.int32),
        ("inside", np.int32),  # tasks past the gate that have not ended
        ("passed", np.int32),  # all tasks before this one are past the gate
    ]
)
"""One entry a job array that has a limit."""


class LifeArrays(NamedTuple):
    """What the lives of a run's jobs are made of; T rows."""

    jobs: Records  # (T,) LIFE
    segments: Records  # (S,) SEGMENT, the first counts[SEGMENTS] in use
    segment_gpu: NDArray[np.int32]  # GPUs of the attempts, (0,) where placements are not kept
    fail_after_s: NDArray[np.float64]  # (failures,) run time up to each, since the failure before it
    children: NDArray[np.int32]  # (dependencies,) rows
    arrays: Records  # (A,) ARRAY
    tasks: NDArray[np.int32]  # (tasks of these arrays,) rows, ascending in each
    node_events: Records  # (E,) NODE_EVENT, by time
    ready: NDArray[np.int32]  # (T,) the first counts[READY]: eligible rows that still have no slot, a heap
    counts: NDArray[np.int64]  # (NUM_LIFE_COUNTS,)


def grown_life(life: LifeArrays) -> LifeArrays:
    """The same lives with room for twice as many attempts."""
    segments = records(2 * life.segments.shape[0], SEGMENT)
    segments[: life.segments.shape[0]] = life.segments
    gpu = np.zeros(2 * life.segment_gpu.shape[0], np.int32)
    gpu[: life.segment_gpu.shape[0]] = life.segment_gpu
    return life._replace(segments=segments, segment_gpu=gpu)


# ---- attempts -------------------------------------------------------------------------------------


@kernel
def has_room(sim: SimArrays, life: LifeArrays, jobs: int) -> bool:
    """Whether so many jobs can start, on whatever is free, without the record of attempts growing."""
    if life.segments.shape[0] - life.counts[SEGMENTS] < jobs:
        return False
    gpus = MAX_TENANTS * sim.state.gpu.shape[0]
    return life.segment_gpu.shape[0] == 0 or life.segment_gpu.shape[0] - life.counts[SEGMENT_GPUS] >= gpus


@kernel
def note_start(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """A slot has just been allocated: its attempt begins. There is room for one more (`has_room`)."""
    s, r, jobs, count = sim.state, sim.progress, life.jobs, life.counts
    row, now_s = r.ends.row[slot], r.clock[NOW]
    if np.isnan(r.outcome.start_s[row]):
        r.outcome.start_s[row] = now_s
    count_allocated(sim, slot, 1)
    r.tally[STARTS] += 1
    at = count[SEGMENTS]
    count[SEGMENTS] += 1
    jobs.segment[row] = at
    segments = life.segments
    segments.row[at], segments.attempt[at], segments.gpus[at] = row, s.job.attempt[slot], s.job.gpus[slot]
    segments.start_s[at], segments.end_s[at], segments.useful_s[at] = now_s, np.nan, 0.0
    segments.done_s[at] = segments.share_s[at] = segments.used_s[at] = segments.clock_s[at] = 0.0
    segments.energy_j[at] = sim.progress.outcome.energy_j[row] if s.counters[MODELLED] else 0.0
    segments.reason[at], segments.gpu_at[at] = ONGOING, count[SEGMENT_GPUS]
    if life.segment_gpu.shape[0] > 0:
        place = s.job.head[slot]
        while place >= 0:
            life.segment_gpu[count[SEGMENT_GPUS]] = place // MAX_TENANTS
            count[SEGMENT_GPUS] += 1
            place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    reason = ENDED
    if s.job.attempt[slot] == 1 and jobs.duration_s[row] > jobs.profile_s[row]:
        s.job.overhead_left_s[slot] = jobs.profile_s[row]
    takes_s = s.job.overhead_left_s[slot] + (jobs.duration_s[row] - jobs.saved_s[row])
    if jobs.failures[row] < jobs.failures_given[row]:
        left_s = life.fail_after_s[jobs.first_failure[row] + jobs.failures[row]] - jobs.run_s[row]
        if left_s < takes_s:
            takes_s, reason = max(left_s, 0.0), FAILED
    if s.counters[MODELLED]:
        jobs.ends_by[row] = reason
        begin_attempt(sim, slot, takes_s, jobs.limit_s[row])
        return
    if jobs.limit_s[row] < takes_s:
        takes_s, reason = jobs.limit_s[row], TIMEOUT
    end_s = now_s + takes_s
    if not np.isnan(sim.truth.fixed_end_s[row]):
        end_s, reason = max(sim.truth.fixed_end_s[row], now_s), ENDED
    jobs.ends_by[row] = reason
    push_end(r, end_s, slot)


@kernel
def _work_kept_s(jobs: Records, row: int, done_s: float, reason: int) -> float:
    """How much of the work that an attempt did need not be done again.

    A preempted job saves when it is told to, unless it says when it saves (`checkpoint_s`); a job that fails,
    itself or its node, has what it last saved. A time limit ends the job: nothing is done again.
    """
    left_s = jobs.duration_s[row] - jobs.saved_s[row]
    if reason == ENDED:
        return left_s
    done_s = min(done_s, left_s)
    every_s = jobs.checkpoint_s[row]
    if reason == TIMEOUT or every_s == 0.0:
        return done_s
    if np.isnan(every_s):
        return done_s if reason == PREEMPTED else 0.0
    saved_s = np.floor((jobs.saved_s[row] + done_s) / every_s) * every_s
    return max(saved_s - jobs.saved_s[row], 0.0)


@kernel
def _close(sim: SimArrays, life: LifeArrays, slot: int, reason: int) -> None:
    """The attempt in this slot is over: write it down, and what is left of its work."""
    r, jobs = sim.progress, life.jobs
    row, now_s = r.ends.row[slot], r.clock[NOW]
    at = jobs.segment[row]
    done_s = settle_slot(sim, slot) if sim.state.counters[MODELLED] else now_s - life.segments.start_s[at]
    kept_s = _work_kept_s(jobs, row, max(done_s - sim.state.job.overhead_left_s[slot], 0.0), reason)
    segments = life.segments
    segments.end_s[at], segments.reason[at], segments.useful_s[at] = now_s, reason, kept_s
    segments.done_s[at] = done_s
    if sim.state.counters[MODELLED]:
        x = sim.progress
        segments.energy_j[at] = x.outcome.energy_j[row] - segments.energy_j[at]
        segments.share_s[at], segments.used_s[at] = x.run.share_s[slot], x.run.used_s[slot]
        segments.clock_s[at] = x.run.clock_s[slot]
    jobs.saved_s[row] += kept_s
    sim.state.job.saved_s[slot] = jobs.saved_s[row]
    jobs.run_s[row] += done_s
    if reason == FAILED:
        jobs.failures[row] += 1
        jobs.run_s[row] = 0.0


@kernel
def _left_others(sim: SimArrays, slot: int) -> bool:
    """Whether a job whose GPUs have just been taken shared them, all whole, with jobs that stay."""
    if not sim.state.counters[MODELLED] or sim.progress.run.first_gpu[slot] < 0:
        return False
    whole = sim.state.demand.share_milli[sim.state.job.demand[slot]] == WHOLE_GPU_MILLI
    return whole and tenants_of(sim.state, sim.progress.run.first_gpu[slot]) > 0


@kernel
def note_preemption(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """The ledger has preempted this slot and queued it again: write it down."""
    forget_end(sim.progress, slot)
    _close(sim, life, slot, PREEMPTED)
    if not _left_others(sim, slot):
        s = sim.state
        sim.progress.tally[ALLOCATED_MILLI] -= s.job.gpus[slot] * s.job.share_milli[slot]
    note_left(sim, slot)
    sim.state.job.overhead_left_s[slot] = life.jobs.restart_s[sim.progress.ends.row[slot]]
    ledger.reorder(sim.state, slot)


@kernel
def preempt_slot(sim: SimArrays, life: LifeArrays, slot: int) -> bool:
    """Stop a running job now and queue it again. False, and nothing happens, where that is not legal.

    A job that must not be preempted is not, nor one that started at this very instant.
    """
    job = sim.state.job
    if job.pinned[slot] or job.start_s[slot] == sim.progress.clock[NOW]:
        return False
    ledger.preempt(sim.state, slot, sim.progress.clock[NOW])
    note_preemption(sim, life, slot)
    return True


@kernel
def _try_again(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """A closed attempt's job goes back to the queue."""
    count_allocated(sim, slot, -1)
    ledger.release(sim.state, slot, sim.progress.clock[NOW])
    note_left(sim, slot)
    sim.state.job.overhead_left_s[slot] = life.jobs.restart_s[sim.progress.ends.row[slot]]
    ledger.wait_again(sim.state, slot)


@kernel
def _end_attempt(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """A running job has come to the end of its attempt: by itself, by its limit, or by a failure."""
    row = sim.progress.ends.row[slot]
    reason = life.jobs.ends_by[row]
    if sim.state.counters[MODELLED] and sim.progress.run.killed[slot]:
        reason = TIMEOUT
    if reason == FAILED and _spreads(sim, life, row):
        _fail_beside(sim, life, slot)
    _close(sim, life, slot, reason)
    if reason == FAILED and life.jobs.failures[row] <= life.counts[MAX_RETRIES]:
        _try_again(sim, life, slot)
        return
    sim.progress.outcome.end_s[row] = sim.progress.clock[NOW]
    life.jobs.over_by[row] = reason
    count_allocated(sim, slot, -1)
    ledger.release(sim.state, slot, sim.progress.clock[NOW])
    note_left(sim, slot)
    ledger.forget(sim.state, slot)
    for position in range(life.jobs.first_child[row], life.jobs.first_child[row] + life.jobs.children[row]):
        child = life.children[position]
        life.jobs.waits_for[child] -= 1
        if life.jobs.stage[child] == HELD_BACK and _may_enter(life, child):
            _make_ready(life, child)
    if life.jobs.array[row] >= 0:
        _next_task(life, life.jobs.array[row])


@kernel
def _spreads(sim: SimArrays, life: LifeArrays, row: int) -> bool:
    """Whether a job's failure now is a fault of its GPU: drawn by the job and the number of the failure."""
    frac = life.counts[FAULT_PPM] / 1e6
    return frac > 0.0 and is_device_fault(sim.progress.outcome.key[row], life.jobs.failures[row], frac)


@large_kernel
def _fail_beside(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """A job that comes to its end has met a fault of its GPUs: the other jobs on them start over."""
    s = sim.state
    push_end(sim.progress, sim.progress.clock[NOW], slot)  # it is one of the jobs that run while they leave
    place = s.job.head[slot]
    while place >= 0:
        g = place // MAX_TENANTS
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0 and s.gpu.tenant[g, k] != slot:
                _fail(sim, life, s.gpu.tenant[g, k], NEIGHBOUR_FAULT)
        place = s.gpu.link[g, place % MAX_TENANTS]
    forget_end(sim.progress, slot)


@kernel
def _set_node(sim: SimArrays, life: LifeArrays, n: int, status: int) -> None:
    """A node goes down, drains or comes up; where it goes down, its jobs start over elsewhere."""
    s = sim.state
    before = s.node.status[n]
    ledger.set_node_status(s, n, status)
    if status == NODE_DOWN:
        _fail_jobs_on(sim, life, n)
    if s.counters[MODELLED]:
        x = sim.progress
        physics.add_idle_w(x, physics.node_idle_w(s, n, status) - physics.node_idle_w(s, n, before))


@large_kernel
def set_nodes(
    sim: SimArrays, life: LifeArrays, nodes: NDArray[np.int64], statuses: NDArray[np.int32]
) -> float:
    """Give idle nodes their statuses. Returns how much more these nodes draw now, W. Needs models."""
    idle_w = sim.progress.clock[physics.IDLE_W]
    for k in range(nodes.shape[0]):
        _set_node(sim, life, nodes[k], statuses[k])
    return sim.progress.clock[physics.IDLE_W] - idle_w


@kernel
def _fail_jobs_on(sim: SimArrays, life: LifeArrays, n: int) -> None:
    s = sim.state
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0:
                _fail(sim, life, s.gpu.tenant[g, k], NODE_FAILURE)
    position = 0
    while position < s.derived.running_len[0]:
        slot = s.derived.slot.running[position]
        if s.job.host[slot] == n:
            _fail(sim, life, slot, NODE_FAILURE)
        else:
            position += 1


@kernel
def _fail(sim: SimArrays, life: LifeArrays, slot: int, reason: int) -> None:
    """A running job is stopped by what happened around it, and queued again."""
    forget_end(sim.progress, slot)
    _close(sim, life, slot, reason)
    _try_again(sim, life, slot)


# ---- the gate: who is eligible --------------------------------------------------------------------


@kernel
def _may_enter(life: LifeArrays, row: int) -> bool:
    if life.jobs.waits_for[row] > 0:
        return False
    a = life.jobs.array[row]
    return a < 0 or life.arrays.inside[a] < life.arrays.limit[a]


@kernel
def _make_ready(life: LifeArrays, row: int) -> None:
    """A job that was held back becomes eligible: it comes to the queue at this instant, in row order."""
    life.jobs.stage[row] = LET_IN
    life.counts[AT_GATE] -= 1
    if life.jobs.array[row] >= 0:
        life.arrays.inside[life.jobs.array[row]] += 1
    ready, at = life.ready, life.counts[READY]
    ready[at] = row
    life.counts[READY] += 1
    while at > 0 and ready[at] < ready[(at - 1) // 2]:
        ready[at], ready[(at - 1) // 2] = ready[(at - 1) // 2], ready[at]
        at = (at - 1) // 2


@kernel
def _pop_ready(life: LifeArrays) -> int:
    ready = life.ready
    row = ready[0]
    last = life.counts[READY] - 1
    life.counts[READY] = last
    ready[0] = ready[last]
    at = 0
    while 2 * at + 1 < last:
        child = 2 * at + 1
        if child + 1 < last and ready[child + 1] < ready[child]:
            child += 1
        if ready[at] <= ready[child]:
            break
        ready[at], ready[child] = ready[child], ready[at]
        at = child
    return row


@kernel
def _next_task(life: LifeArrays, a: int) -> None:
    """A task of an array has ended: the first one that only the limit held back becomes eligible."""
    arrays = life.arrays
    arrays.inside[a] -= 1
    position = arrays.passed[a]
    while position < arrays.length[a] and life.jobs.stage[life.tasks[arrays.first[a] + position]] == LET_IN:
        position += 1
    arrays.passed[a] = position
    while position < arrays.length[a]:
        row = life.tasks[arrays.first[a] + position]
        if life.jobs.stage[row] == HELD_BACK and _may_enter(life, row):
            _make_ready(life, row)
            return
        position += 1


@kernel
def _enter(sim: SimArrays, life: LifeArrays, row: int) -> None:
    """An eligible row comes to the queue; there is a free slot."""
    at_s = sim.progress.clock[NOW]
    slot = put_slot(sim, row, at_s)
    sim.state.job.pinned[slot] = life.jobs.pinned[row]
    life.jobs.eligible_s[row] = at_s


# ---- the event loop -------------------------------------------------------------------------------


@kernel
def _next_s(sim: SimArrays, life: LifeArrays) -> float:
    """Time of the next event, never before now; node events alone do not keep a run going.

    What happened to nodes before the first submission has happened by then.
    """
    r = sim.progress
    at_s = next_event_s(sim)
    if life.counts[READY] > 0:
        at_s = min(at_s, r.clock[NOW])
    left = r.tally[NEXT_ROW] < sim.truth.shape[0] or sim.state.counters[LIVE_JOBS] > 0
    if left and life.counts[NEXT_NODE_EVENT] < life.node_events.shape[0]:
        at_s = min(at_s, life.node_events.time_s[life.counts[NEXT_NODE_EVENT]])
    return max(at_s, r.clock[NOW])


@kernel
def next_instant(sim: SimArrays, life: LifeArrays) -> int:
    """Go to the next time at which something happens, and let it happen.

    Returns MOVED, FINISHED, NEED_SLOTS, or REVIEW_DUE: nothing happens before that look at the nodes.
    """
    s, truth, r = sim.state, sim.truth, sim.progress
    at_s, live = _next_s(sim, life), s.counters[LIVE_JOBS]
    if at_s > r.clock[REVIEW] and (live > 0 or r.tally[NEXT_ROW] < truth.shape[0]):
        timer_s = r.clock[TIMER]
        pass_time(sim, r.clock[REVIEW], live - s.derived.running_len[0])
        r.clock[TIMER] = timer_s
        return REVIEW_DUE
    if at_s == np.inf:
        return FINISHED
    pass_time(sim, at_s, live - s.derived.running_len[0])
    while r.tally[HEAP_LEN] > 0 and r.ends.heap_s[0] == at_s:
        _end_attempt(sim, life, pop_end(r))
    events = life.node_events
    while life.counts[NEXT_NODE_EVENT] < events.shape[0]:
        k = life.counts[NEXT_NODE_EVENT]
        if events.time_s[k] > at_s:
            break
        life.counts[NEXT_NODE_EVENT] += 1
        _set_node(sim, life, events.node[k], events.status[k])
    while life.counts[READY] > 0:
        if s.counters[LIVE_JOBS] == s.job.shape[0]:
            return NEED_SLOTS
        _enter(sim, life, _pop_ready(life))
    while r.tally[NEXT_ROW] < truth.shape[0] and truth.submit_s[r.tally[NEXT_ROW]] == at_s:
        row = r.tally[NEXT_ROW]
        if not _may_enter(life, row):
            life.jobs.stage[row] = HELD_BACK
            life.counts[AT_GATE] += 1
            r.tally[NEXT_ROW] += 1
            continue
        if s.counters[LIVE_JOBS] == s.job.shape[0]:
            return NEED_SLOTS
        life.jobs.stage[row] = LET_IN
        if life.jobs.array[row] >= 0:
            life.arrays.inside[life.jobs.array[row]] += 1
        r.tally[NEXT_ROW] += 1
        _enter(sim, life, row)
    return MOVED


@kernel
def _decide_by_rule(sim: SimArrays, life: LifeArrays, rule: RuleCode) -> None:
    """`simulation.decide_by_rule`, with attempts written down."""
    part, now_s = sim.state.derived.part, sim.progress.clock[NOW]
    for p in range(part.shape[0]):
        if rule.kind == PLAIN and nothing_new(sim.state, p):
            continue
        slot = next_to_start(sim.state, p, rule, now_s)
        while slot >= 0:
            if allocate_slot(sim, p, slot, -1):
                note_start(sim, life, slot)
            slot = next_to_start(sim.state, p, rule, now_s)
        part.seen_changes[p], part.seen_arrivals[p] = part.changes[p], part.arrivals[p]


@kernel
def run_rule(sim: SimArrays, life: LifeArrays, rule: RuleCode, until_row: int) -> int:
    """`simulation.run_rule`, for lives; also returns NEED_ROOM and REVIEW_DUE."""
    while life.counts[UNDECIDED] or sim.progress.tally[NEXT_ROW] < until_row:
        if not life.counts[UNDECIDED]:
            moved = next_instant(sim, life)
            if moved != MOVED:
                return moved
            life.counts[UNDECIDED] = 1
        if not has_room(sim, life, sim.state.counters[LIVE_JOBS] - sim.state.derived.running_len[0]):
            return NEED_ROOM
        _decide_by_rule(sim, life, rule)
        life.counts[UNDECIDED] = 0
    return STOPPED
