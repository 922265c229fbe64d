"""The event loop of jobs that live through more than one attempt, compiled.

Used where something can interrupt a job or keep it from the queue: a scheduler that preempts, failures, node
events, dependencies, array limits. A run without any of these takes `simulation.next_instant` alone, and
both give the same schedule then. At equal times: ends, node events, arrivals (and jobs that become eligible,
before those submitted now), then decisions; the trace's row order breaks ties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import MAX_TENANTS, NODE_DOWN, Records
from rlsched.decide.rules import PLAIN, RuleCode, next_to_start
from rlsched.jit import kernel, large_kernel
from rlsched.models.memory import is_device_fault
from rlsched_envs import physics
from rlsched_envs.gate import make_ready, may_enter, next_task, pop_ready
from rlsched_envs.life_arrays import (
    AT_GATE,
    ENDED,
    FAILED,
    FAULT_PPM,
    HELD_BACK,
    LET_IN,
    MAX_RETRIES,
    NEED_ROOM,
    NEIGHBOUR_FAULT,
    NEXT_NODE_EVENT,
    NODE_FAILURE,
    ONGOING,
    PREEMPTED,
    READY,
    REVIEW_DUE,
    SEGMENT_GPUS,
    SEGMENTS,
    TIMEOUT,
    UNDECIDED,
    LifeArrays,
)
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
    left_others,
    next_event_s,
    note_left,
    nothing_new,
    pass_time,
    pop_end,
    push_end,
    put_slot,
    settle_slot,
)

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
    segments.energy_j[at] = sim.progress.outcome.energy_j[row] if s.config[0].modelled else 0.0
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
    if s.config[0].modelled:
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
    done_s = settle_slot(sim, slot) if sim.state.config[0].modelled else now_s - life.segments.start_s[at]
    kept_s = _work_kept_s(jobs, row, max(done_s - sim.state.job.overhead_left_s[slot], 0.0), reason)
    segments = life.segments
    segments.end_s[at], segments.reason[at], segments.useful_s[at] = now_s, reason, kept_s
    segments.done_s[at] = done_s
    if sim.state.config[0].modelled:
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
def note_preemption(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """The ledger has preempted this slot and queued it again: write it down."""
    forget_end(sim.progress, slot)
    _close(sim, life, slot, PREEMPTED)
    if not left_others(sim, slot):
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
    ledger.wait_again(sim.state, slot, sim.progress.clock[NOW])


@kernel
def _end_attempt(sim: SimArrays, life: LifeArrays, slot: int) -> None:
    """A running job has come to the end of its attempt: by itself, by its limit, or by a failure."""
    row = sim.progress.ends.row[slot]
    reason = life.jobs.ends_by[row]
    if sim.state.config[0].modelled and sim.progress.run.killed[slot]:
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
    if sim.state.config[0].revises:
        job, now_s = sim.state.job, sim.progress.clock[NOW]
        run_s = job.saved_s[slot] if reason == ENDED else now_s - job.start_s[slot]
        ledger.learn_end(sim.state, slot, run_s, now_s)
    ledger.forget(sim.state, slot)
    for position in range(life.jobs.first_child[row], life.jobs.first_child[row] + life.jobs.children[row]):
        child = life.children[position]
        life.jobs.waits_for[child] -= 1
        if life.jobs.stage[child] == HELD_BACK and may_enter(life, child):
            make_ready(life, child)
    if life.jobs.array[row] >= 0:
        next_task(life, life.jobs.array[row])


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
    if s.config[0].modelled:
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


@kernel
def _enter(sim: SimArrays, life: LifeArrays, row: int) -> None:
    """An eligible row comes to the queue; there is a free slot."""
    life.jobs.eligible_s[row] = sim.progress.clock[NOW]
    put_slot(sim, row, sim.progress.clock[NOW])


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
    left = r.tally[NEXT_ROW] < sim.truth.shape[0] or sim.state.counters[0].live_jobs > 0
    if left and life.counts[NEXT_NODE_EVENT] < life.node_events.shape[0]:
        at_s = min(at_s, life.node_events.time_s[life.counts[NEXT_NODE_EVENT]])
    return max(at_s, r.clock[NOW])


@kernel
def next_instant(sim: SimArrays, life: LifeArrays) -> int:
    """Go to the next time at which something happens, and let it happen.

    Returns MOVED, FINISHED, NEED_SLOTS, or REVIEW_DUE: nothing happens before that look at the nodes.
    """
    s, truth, r = sim.state, sim.truth, sim.progress
    at_s, live = _next_s(sim, life), s.counters[0].live_jobs
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
        if s.counters[0].live_jobs == s.job.shape[0]:
            return NEED_SLOTS
        _enter(sim, life, pop_ready(life))
    while r.tally[NEXT_ROW] < truth.shape[0] and truth.submit_s[r.tally[NEXT_ROW]] == at_s:
        row = r.tally[NEXT_ROW]
        if not may_enter(life, row):
            life.jobs.stage[row] = HELD_BACK
            life.counts[AT_GATE] += 1
            r.tally[NEXT_ROW] += 1
            continue
        if s.counters[0].live_jobs == s.job.shape[0]:
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
        if not has_room(sim, life, sim.state.counters[0].live_jobs - sim.state.derived.running_len[0]):
            return NEED_ROOM
        _decide_by_rule(sim, life, rule)
        life.counts[UNDECIDED] = 0
    return STOPPED
