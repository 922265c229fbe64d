"""Compiled events of a run. At one instant, jobs end first, then nodes change, then jobs enter the queue.

Jobs that become eligible enter the queue before new submissions, in the order of the trace. True durations
(`TRUTH` records) are never inputs of policies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import MAX_TENANTS, NODE_DOWN, SLOT_EMPTY
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.power import node_idle_w
from rlsched.compile.jit import kernel, shared
from rlsched.decide.dials.counting import reset_dials
from rlsched.decide.order import queue
from rlsched.models.memory import is_device_fault
from rlsched.workload.dependencies import COMPLETED, ENDED_OTHERWISE
from rlsched_envs.sim import physics
from rlsched_envs.sim.attempt_arrays import (
    ENDED,
    FAILED,
    LET_IN,
    NEIGHBOUR_FAULT,
    NODE_FAILURE,
    TIMEOUT,
)
from rlsched_envs.sim.constants import FINISHED, LOGGED, MOVED, NEED_SLOTS, PHYSICS, REVIEW_DUE
from rlsched_envs.sim.eligibility import hold_back, may_enter, next_task, pop_ready, resolve
from rlsched_envs.sim.moves import draw_power, give_back, log_end, settled_s
from rlsched_envs.sim.sim_arrays import SimArrays, forget_end, pop_end, push_end


@kernel
def waiting_jobs(sim: SimArrays) -> int:
    """Return the number of waiting jobs."""
    return sim.state.counters[0].live_jobs - sim.state.derived.running_len[0]


@kernel
def note_need(sim: SimArrays) -> None:
    """Plan a review of sleeping nodes after decisions, if jobs wait for resources while nodes sleep."""
    run = sim.progress.run[0]
    if run.rest_s < np.inf and waiting_jobs(sim) > sim.state.scratch[0].deferred:
        run.need_s = min(run.need_s, max(run.now_s, run.rest_s))


@kernel
def put_slot(sim: SimArrays, row: int, at_s: float) -> int:
    """Add the job with this row to the queue at time `at_s`; return the job's slot. A slot must be free."""
    truth = sim.truth
    slot = ledger.add_job(
        sim.state,
        truth.demand[row],
        truth.vc[row],
        truth.own_partition[row],
        truth.shared_partition[row],
        at_s,
        truth.predicted_s[row],
        truth.spread[row],
        truth.limit_s[row],
        truth.pinned[row] != 0,
    )
    sim.progress.ends.row[slot], sim.progress.ends.order[slot] = row, truth.end_order[row]
    sim.state.job.workload[slot] = truth.workload[row]
    sim.state.job.reference_kind[slot] = truth.reference_kind[row]
    sim.state.job.slack_s[slot] = truth.slack_s[row]
    sim.state.job.core_need_milli[slot] = truth.core_need_milli[row]
    sim.state.job.dynamic_ratio[slot] = truth.dynamic_ratio[row]
    if truth.unshared[row]:
        sim.state.job.unshared[slot] = 1
    if truth.gpu_need_mib[row] > 0:
        sim.state.job.gpu_need_mib[slot] = truth.gpu_need_mib[row]
    queue.arrive(sim.state, slot, at_s)
    return slot


@kernel
def _enter(sim: SimArrays, row: int) -> None:
    """Add the eligible job with this row to the queue. A slot must be free."""
    sim.log.jobs.eligible_s[row] = sim.progress.run[0].now_s
    put_slot(sim, row, sim.progress.run[0].now_s)


# ---- ends -----------------------------------------------------------------------------------------


@kernel
def _end(sim: SimArrays, slot: int) -> None:
    """End a running job and release its GPUs."""
    s, now_s = sim.state, sim.progress.run[0].now_s
    sim.progress.outcome.end_s[sim.progress.ends.row[slot]] = now_s
    settled_s(sim, slot)
    run_s = s.job.saved_s[slot] + now_s - s.job.start_s[slot]
    give_back(sim, slot)
    queue.ended(s, slot, run_s, now_s)
    ledger.forget(s, slot)


@kernel
def _end_attempt(sim: SimArrays, slot: int) -> None:
    """End the attempt of a running job that has finished, reached its time limit, or failed."""
    s, log, row, now_s = sim.state, sim.log, sim.progress.ends.row[slot], sim.progress.run[0].now_s
    reason = log.jobs.ends_by[row]
    if PHYSICS and s.config[0].modelled and sim.progress.work.killed[slot]:
        reason = TIMEOUT
    if reason == FAILED and _spreads(sim, row):
        _fail_beside(sim, slot)
    run_s = s.job.saved_s[slot] + now_s - s.job.start_s[slot]
    log_end(sim, slot, reason)
    if reason == FAILED and log.jobs.failures[row] <= log.config[0].max_retries:
        _try_again(sim, slot)
        return
    sim.progress.outcome.end_s[row] = now_s
    log.jobs.over_by[row] = reason
    if reason == ENDED:
        run_s = s.job.saved_s[slot]
    give_back(sim, slot)
    queue.ended(s, slot, run_s, now_s)
    ledger.forget(s, slot)
    if log.jobs.children[row] > 0:
        resolve(log, row, COMPLETED if reason == ENDED else ENDED_OTHERWISE)
    if log.jobs.array[row] >= 0:
        next_task(log, log.jobs.array[row])


@kernel
def _try_again(sim: SimArrays, slot: int) -> None:
    """Requeue a job that failed. The caller must already have logged the end of its attempt."""
    give_back(sim, slot)
    sim.state.job.overhead_left_s[slot] = sim.log.jobs.restart_s[sim.progress.ends.row[slot]]
    queue.requeue(sim.state, slot, sim.progress.run[0].now_s)


@kernel
def _fail(sim: SimArrays, slot: int, reason: int) -> None:
    """Stop and requeue a running job. `reason`: NODE_FAILURE, or NEIGHBOUR_FAULT (fault of a co-tenant)."""
    forget_end(sim.progress, slot)
    log_end(sim, slot, reason)
    _try_again(sim, slot)


@kernel
def _spreads(sim: SimArrays, row: int) -> bool:
    """Return whether a job's failure is a GPU fault, by a random draw for this failure of this job."""
    frac = sim.log.config[0].fault_ppm / 1e6
    return frac > 0.0 and is_device_fault(sim.progress.outcome.key[row], sim.log.jobs.failures[row], frac)


@kernel
def _fail_beside(sim: SimArrays, slot: int) -> None:
    """Stop and requeue the other jobs on the GPUs of a job that ends with a GPU fault."""
    s = sim.state
    push_end(sim.progress, sim.progress.run[0].now_s, slot)  # a running job needs a planned end
    place = s.job.head[slot]
    while place >= 0:
        g = place // MAX_TENANTS
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0 and s.gpu.tenant[g, k] != slot:
                _fail(sim, s.gpu.tenant[g, k], NEIGHBOUR_FAULT)
        place = s.gpu.link[g, place % MAX_TENANTS]
    forget_end(sim.progress, slot)


# ---- nodes ----------------------------------------------------------------------------------------


@kernel
def _set_node(sim: SimArrays, n: int, status: int) -> None:
    """Set the status of a node. If the node goes down, its jobs are requeued."""
    s = sim.state
    before = s.node.status[n]
    ledger.set_node_status(s, n, status)
    if status == NODE_DOWN:
        _fail_jobs_on(sim, n)
    if PHYSICS and s.config[0].modelled:
        more_w = node_idle_w(s, n, status) - node_idle_w(s, n, before)
        physics.add_idle_w(sim.progress, more_w)


@kernel
def _fail_jobs_on(sim: SimArrays, n: int) -> None:
    s = sim.state
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0:
                _fail(sim, s.gpu.tenant[g, k], NODE_FAILURE)
    position = 0
    while position < s.derived.running_len[0]:
        slot = s.derived.slot.running[position]
        if s.job.host[slot] == n:
            _fail(sim, slot, NODE_FAILURE)
        else:
            position += 1


@kernel
def set_nodes(sim: SimArrays, nodes: NDArray[np.int64], statuses: NDArray[np.int32]) -> float:
    """Set the statuses of the idle nodes `nodes`; return the increase of their power, W. Requires models."""
    idle_w = sim.progress.books[0].idle_w
    for k in range(nodes.shape[0]):
        _set_node(sim, nodes[k], statuses[k])
    return sim.progress.books[0].idle_w - idle_w


# ---- the next instant -----------------------------------------------------------------------------


@kernel
def _next_s(sim: SimArrays) -> float:
    """Return the time, now or later, of the next event or of the next call that the rule requested.

    Infinite if there is neither an event nor such a call. Node events after the end of the last job are
    ignored. Node events before the first submission are due at once.
    """
    run, r = sim.progress.run[0], sim.progress
    at_s = run.timer_s
    if run.next_row < sim.truth.shape[0]:
        at_s = min(at_s, sim.truth.submit_s[run.next_row])
    if run.heap_len > 0:
        at_s = min(at_s, r.ends.heap_s[0])
    if LOGGED:
        counters, events = sim.log.counters[0], sim.log.node_events
        if counters.ready > 0:
            at_s = min(at_s, run.now_s)
        left = run.next_row < sim.truth.shape[0] or sim.state.counters[0].live_jobs > 0
        if left and counters.next_node_event < events.shape[0]:
            at_s = min(at_s, events.time_s[counters.next_node_event])
        at_s = max(at_s, run.now_s)
    return at_s


@kernel
def _pass_time(sim: SimArrays, at_s: float) -> None:
    """Advance the clock to `at_s`, and add the time span up to then to the run's totals."""
    run = sim.progress.run[0]
    seconds = at_s - run.now_s
    run.queued_s += waiting_jobs(sim) * seconds
    run.gpu_s += run.allocated_milli * seconds / WHOLE_GPU_MILLI
    run.now_s = at_s
    run.timer_s = np.inf
    draw_power(sim, seconds, at_s)


@shared
@kernel
def next_instant(sim: SimArrays) -> int:
    """Advance to the time of the next event, and carry out all events of that time.

    Returns MOVED; FINISHED if there is no event; NEED_SLOTS if more job slots are needed to continue; or
    REVIEW_DUE if `run.review_s` or `run.need_s` is before the next event.
    """
    s, truth, r, run = sim.state, sim.truth, sim.progress, sim.progress.run[0]
    at_s = _next_s(sim)
    if LOGGED:
        left = s.counters[0].live_jobs > 0 or run.next_row < truth.shape[0]
        review_s = min(run.review_s, run.need_s)
        if at_s > review_s and left:
            timer_s = run.timer_s
            _pass_time(sim, review_s)
            run.timer_s = timer_s
            return REVIEW_DUE
    if at_s == np.inf:
        return FINISHED
    _pass_time(sim, at_s)
    while run.heap_len > 0 and r.ends.heap_s[0] == at_s:
        if LOGGED:
            _end_attempt(sim, pop_end(r))
        else:
            _end(sim, pop_end(r))
    if LOGGED:
        _change_nodes(sim, at_s)
        while sim.log.counters[0].ready > 0:
            if s.counters[0].live_jobs == s.job.shape[0]:
                return NEED_SLOTS
            _enter(sim, pop_ready(sim.log))
    while run.next_row < truth.shape[0] and truth.submit_s[run.next_row] == at_s:
        if LOGGED and not may_enter(sim.log, run.next_row):
            hold_back(sim.log, run.next_row)
            run.next_row += 1
            continue
        if s.counters[0].live_jobs == s.job.shape[0]:
            return NEED_SLOTS
        row = run.next_row
        run.next_row += 1
        if LOGGED:
            _let_in(sim, row)
        else:
            put_slot(sim, row, at_s)
    return MOVED


@kernel
def _let_in(sim: SimArrays, row: int) -> None:
    """Mark a newly submitted job as eligible, and add it to the queue."""
    log = sim.log
    log.jobs.stage[row] = LET_IN
    if log.jobs.array[row] >= 0:
        log.arrays.inside[log.jobs.array[row]] += 1
    _enter(sim, row)


@kernel
def _change_nodes(sim: SimArrays, at_s: float) -> None:
    """Carry out all node events up to now."""
    events, counters = sim.log.node_events, sim.log.counters[0]
    while counters.next_node_event < events.shape[0]:
        k = counters.next_node_event
        if events.time_s[k] > at_s:
            break
        counters.next_node_event += 1
        _set_node(sim, events.node[k], events.status[k])


@kernel
def rewind(sim: SimArrays) -> None:
    """Reset the run to its start (idle cluster, no job has arrived), and recompute the derived arrays."""
    s, r, run = sim.state, sim.progress, sim.progress.run[0]
    for slot in range(s.job.shape[0]):
        s.job.status[slot] = SLOT_EMPTY
    for g in range(s.gpu.shape[0]):
        s.gpu.free_milli[g] = WHOLE_GPU_MILLI
        for k in range(MAX_TENANTS):
            s.gpu.tenant[g, k] = s.gpu.link[g, k] = -1
    for n in range(s.node.shape[0]):
        node = s.node[n]
        node.free, node.cpu_free_milli, node.memory_free_mib = node.gpus, node.cpu_milli, node.memory_mib
    for c in range(s.demand.shape[0]):
        demand = s.demand[c]
        demand.arrived, demand.burst_last_s = 0, -np.inf
        demand.error_square = demand.error_count = demand.own_square = demand.own_count = 0.0
    s.counters[0].live_jobs = s.counters[0].next_seq = 0
    s.config[0].price_ratio, s.config[0].price_until_s, s.scratch[0].deferred = 0.0, np.inf, 0
    reset_dials(s)
    ledger.rebuild_index(s)
    for row in range(r.outcome.shape[0]):
        r.outcome.start_s[row] = r.outcome.end_s[row] = np.nan
    run.now_s, run.queued_s, run.gpu_s = sim.truth.submit_s[0], 0.0, 0.0
    run.timer_s = run.review_s = run.need_s = run.rest_s = np.inf
    run.next_row = run.heap_len = run.allocated_milli = run.starts = run.preemptions = run.undecided = 0
    if PHYSICS and s.config[0].modelled:
        physics.begin_books(r, s)
