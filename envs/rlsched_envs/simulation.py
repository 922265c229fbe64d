"""The event loop, compiled: arrivals and ends move the clock, a rule or a policy starts jobs in between.

At equal times: ends, then arrivals, then decisions; the trace's row order breaks ties. True durations
live here (`TRUTH` records) and reach no feature.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels as ledger
from rlsched.cluster.arrays import (
    MAX_TENANTS,
    Records,
    StateArrays,
    records,
)
from rlsched.cluster.choose import choose
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.decide.rules import RuleCode, next_by_rule
from rlsched.jit import array_kernel, kernel, large_kernel
from rlsched_envs import lessons, physics
from rlsched_envs.physics import is_joint

MOVED: Final = 0
FINISHED: Final = 1
NEED_SLOTS: Final = 2
STOPPED: Final = 3

NOW: Final = 0
QUEUED_S: Final = 1
"""Integral over time of the number of waiting jobs: all queueing so far, job-seconds."""
GPU_SECONDS: Final = 2
TIMER: Final = 3
"""When a *wait* asked to be looked at again; infinite while nobody did. Any instant resets it."""
REVIEW: Final = 4
"""When somebody outside wants to look at the nodes next (`sleeping`); infinite while nobody does."""

NEXT_ROW: Final = 0
HEAP_LEN: Final = 1
ALLOCATED_MILLI: Final = 2
STARTS: Final = 3
"""Starts, less preemptions: of the rows that have arrived, so many do not wait."""
PREEMPTIONS: Final = 4
NUM_COUNTS: Final = 5


TRUTH: Final = np.dtype(
    [
        ("submit_s", np.float64),
        ("duration_s", np.float64),  # run time: the duration, or the time limit where that is shorter
        ("fixed_end_s", np.float64),  # end as recorded, nan: start + duration
        ("predicted_s", np.float64),
        ("spread", np.float64),
        ("limit_s", np.float64),
        ("gpus", np.int32),
        ("demand", np.int32),  # class of what it asks for
        ("vc", np.int32),
        ("own_partition", np.int32),
        ("shared_partition", np.int32),
        ("workload", np.int32),  # number in the catalogue, 0: unknown
        ("reference_kind", np.int32),  # GPU type that the duration is of, -1: whichever it gets
        ("pinned", np.int32),  # 1: must not be preempted
    ]
)
"""The jobs of a run, in trace order, one entry a row; all of them are able to run on the cluster."""

OUTCOME: Final = np.dtype(
    [
        ("start_s", np.float64),  # nan until it does
        ("end_s", np.float64),  # likewise
        ("energy_j", np.float64),  # drawn so far; with models alone, as is the next
        ("key", np.uint64),  # of the job, for draws
    ]
)
"""What became of each row."""

ENDS: Final = np.dtype(
    [
        ("row", np.int32),  # row of a live slot
        ("heap_s", np.float64),  # ends of running jobs: a binary heap by (time, row)
        ("heap_slot", np.int32),
    ]
)
"""One entry a slot."""


class ProgressArrays(NamedTuple):
    """Where a run stands, and what it has written down."""

    ends: Records  # (J,) ENDS
    run: Records  # (J,) physics.RUN
    outcome: Records  # (T,) OUTCOME
    placed_at: NDArray[np.int64]  # (T + 1,) where a job's GPUs stand in `placed_gpu`
    placed_gpu: NDArray[np.int32]  # (sum of GPUs,) or (0,) where placements are not kept
    scratch: NDArray[np.int32]  # (G,)
    clock: NDArray[np.float64]  # (physics.NUM_CLOCKS,)
    tally: NDArray[np.int64]  # (NUM_COUNTS,)


class SimArrays(NamedTuple):
    """A whole run."""

    state: StateArrays
    truth: Records  # (T,) TRUTH
    progress: ProgressArrays


def new_progress(slots: int, truth: Records, gpus: int, *, keep_placements: bool) -> ProgressArrays:
    """Progress of a run that has not begun."""
    rows = truth.shape[0]
    offsets = np.zeros(rows + 1, np.int64)
    if keep_placements:
        np.cumsum(truth.gpus, out=offsets[1:])
    progress = ProgressArrays(
        ends=records(slots, ENDS),
        run=records(slots, physics.RUN),
        outcome=records(rows, OUTCOME),
        placed_at=offsets,
        placed_gpu=np.zeros(int(offsets[-1]), np.int32),
        scratch=np.zeros(max(gpus, 1), np.int32),
        clock=np.zeros(physics.NUM_CLOCKS),
        tally=np.zeros(NUM_COUNTS, np.int64),
    )
    progress.outcome.start_s[:] = progress.outcome.end_s[:] = np.nan
    progress.clock[TIMER] = progress.clock[REVIEW] = np.inf
    if rows:
        progress.clock[NOW] = truth.submit_s[0]
    return progress


def grown_progress(progress: ProgressArrays, slots: int) -> ProgressArrays:
    """The same progress with room for `slots` live jobs."""
    ends, run = records(slots, ENDS), records(slots, physics.RUN)
    ends[: progress.ends.shape[0]] = progress.ends
    run[: progress.run.shape[0]] = progress.run
    return progress._replace(ends=ends, run=run)


@kernel
def _before(r: ProgressArrays, a: int, b: int) -> bool:
    if r.ends.heap_s[a] != r.ends.heap_s[b]:
        return r.ends.heap_s[a] < r.ends.heap_s[b]
    return r.ends.row[r.ends.heap_slot[a]] < r.ends.row[r.ends.heap_slot[b]]


@kernel
def _swap(r: ProgressArrays, a: int, b: int) -> None:
    r.ends.heap_s[a], r.ends.heap_s[b] = r.ends.heap_s[b], r.ends.heap_s[a]
    r.ends.heap_slot[a], r.ends.heap_slot[b] = r.ends.heap_slot[b], r.ends.heap_slot[a]


@kernel
def push_end(r: ProgressArrays, end_s: float, slot: int) -> None:
    """A running slot will end then."""
    at = r.tally[HEAP_LEN]
    r.tally[HEAP_LEN] += 1
    r.ends.heap_s[at], r.ends.heap_slot[at] = end_s, slot
    while at > 0 and _before(r, at, (at - 1) // 2):
        _swap(r, at, (at - 1) // 2)
        at = (at - 1) // 2


@kernel
def _sift_down(r: ProgressArrays, at: int) -> None:
    last = r.tally[HEAP_LEN]
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and _before(r, child + 1, child):
            child += 1
        if not _before(r, child, at):
            break
        _swap(r, child, at)
        at = child


@kernel
def pop_end(r: ProgressArrays) -> int:
    """Slot of the first end, which leaves the heap."""
    slot = r.ends.heap_slot[0]
    last = r.tally[HEAP_LEN] - 1
    r.tally[HEAP_LEN] = last
    r.ends.heap_s[0], r.ends.heap_slot[0] = r.ends.heap_s[last], r.ends.heap_slot[last]
    _sift_down(r, 0)
    return slot


@kernel
def forget_end(r: ProgressArrays, slot: int) -> None:
    """The end of a running slot will not come as planned: it leaves the heap, so no end in it is ever stale.

    Takes a look at every running job: interruptions are rare beside ends, which pay nothing for this.
    """
    at = 0
    while r.ends.heap_slot[at] != slot:
        at += 1
    last = r.tally[HEAP_LEN] - 1
    r.tally[HEAP_LEN] = last
    if at == last:
        return
    r.ends.heap_s[at], r.ends.heap_slot[at] = r.ends.heap_s[last], r.ends.heap_slot[last]
    while at > 0 and _before(r, at, (at - 1) // 2):
        _swap(r, at, (at - 1) // 2)
        at = (at - 1) // 2
    _sift_down(r, at)


@kernel
def next_event_s(sim: SimArrays) -> float:
    """Time of the next end, arrival or timer, infinite when there is none."""
    r = sim.progress
    at = r.clock[TIMER]
    if r.tally[NEXT_ROW] < sim.truth.shape[0]:
        at = min(at, sim.truth.submit_s[r.tally[NEXT_ROW]])
    if r.tally[HEAP_LEN] > 0:
        at = min(at, r.ends.heap_s[0])
    return at


@kernel
def put_slot(sim: SimArrays, row: int, at_s: float) -> int:
    """A row comes to the queue, as submitted at this time; there is a free slot. Returns the slot."""
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
    sim.progress.ends.row[slot] = row
    sim.state.job.workload[slot] = truth.workload[row]
    sim.state.job.reference_kind[slot] = truth.reference_kind[row]
    return slot


@kernel
def pass_time(sim: SimArrays, at_s: float, waiting: int) -> None:
    """The clock goes to `at_s`; until then so many jobs waited."""
    r, seconds = sim.progress, at_s - sim.progress.clock[NOW]
    r.clock[QUEUED_S] += waiting * seconds
    r.clock[GPU_SECONDS] += r.tally[ALLOCATED_MILLI] * seconds / WHOLE_GPU_MILLI
    r.clock[NOW] = at_s
    r.clock[TIMER] = np.inf
    if sim.state.config[0].modelled:
        physics.pass_time(sim.progress, seconds)
        if r.clock[physics.NEXT_SEEN] <= at_s:
            lessons.learn_due(r, sim.state, at_s)


@kernel
def count_allocated(sim: SimArrays, slot: int, sign: int) -> None:
    """A slot has its GPUs (sign 1) or is about to give them back (-1); who shares them adds nothing."""
    s = sim.state
    if not is_joint(s, slot):
        sim.progress.tally[ALLOCATED_MILLI] += sign * s.job.gpus[slot] * s.job.share_milli[slot]


@kernel
def plan_end(sim: SimArrays, slot: int) -> None:
    """Queue the end of a settled job at its present rate; an end that was queued before is forgotten."""
    if sim.progress.run.planned[slot]:
        forget_end(sim.progress, slot)
    push_end(sim.progress, physics.end_s(sim.progress, slot, sim.progress.clock[NOW]), slot)
    sim.progress.run.planned[slot] = 1


@large_kernel
def refresh_group(sim: SimArrays, g: int) -> None:
    """The group of GPU `g` has changed: new rates for its jobs, and new ends for those whose rate changed."""
    s, x, now_s = sim.state, sim.progress, sim.progress.clock[NOW]
    physics.refresh(x, s, g, now_s)
    lessons.watch(x, s, g, now_s)
    for k in range(MAX_TENANTS):
        slot = s.gpu.tenant[g, k]
        if slot >= 0 and x.run.planned[slot] != 1:
            plan_end(sim, slot)


@large_kernel
def begin_attempt(sim: SimArrays, slot: int, work_s: float, limit_s: float) -> None:
    """A slot has its GPUs: its attempt begins with so much work. Needs models."""
    physics.begin(sim.progress, sim.state, slot, work_s, limit_s, sim.progress.clock[NOW])
    if sim.state.job.head[slot] < 0:
        physics.enter_without_gpus(sim.progress, sim.state, slot)
        plan_end(sim, slot)
    else:
        physics.enter(sim.progress, sim.state, slot)
        refresh_group(sim, sim.progress.run.first_gpu[slot])


@kernel
def settle_slot(sim: SimArrays, slot: int) -> float:
    """Write down what a running job has done and drawn. Returns the work of the attempt so far, seconds."""
    if sim.state.config[0].modelled:
        physics.settle(sim.progress, sim.state, slot, sim.progress.clock[NOW])
    return sim.progress.run.done_s[slot] if sim.state.config[0].modelled else 0.0


@kernel
def note_left(sim: SimArrays, slot: int) -> None:
    """A settled slot has given its GPUs back: whoever shared them goes on at another rate."""
    if sim.state.config[0].modelled and physics.leave(sim.progress, sim.state, slot):
        refresh_group(sim, sim.progress.run.first_gpu[slot])


@kernel
def next_instant(sim: SimArrays) -> int:
    """Go to the next time at which something happens, and let it happen: all ends, then all arrivals."""
    s, truth, r = sim.state, sim.truth, sim.progress
    at = next_event_s(sim)
    if at == np.inf:
        return FINISHED
    pass_time(sim, at, r.tally[NEXT_ROW] - r.tally[STARTS])
    while r.tally[HEAP_LEN] > 0 and r.ends.heap_s[0] == at:
        slot = pop_end(r)
        r.outcome.end_s[r.ends.row[slot]] = at
        settle_slot(sim, slot)
        count_allocated(sim, slot, -1)
        ledger.release(s, slot, at)
        note_left(sim, slot)
        if s.config[0].revises:
            ledger.learn_end(s, slot, s.job.saved_s[slot] + at - s.job.start_s[slot], at)
        ledger.forget(s, slot)
    while r.tally[NEXT_ROW] < truth.shape[0] and truth.submit_s[r.tally[NEXT_ROW]] == at:
        if s.counters[0].live_jobs == s.job.seq.shape[0]:
            return NEED_SLOTS
        put_slot(sim, r.tally[NEXT_ROW], at)
        r.tally[NEXT_ROW] += 1
    return MOVED


@kernel
def note_start(sim: SimArrays, slot: int) -> None:
    """A slot has just been allocated: write it down, and queue its end."""
    truth, r = sim.truth, sim.progress
    row = r.ends.row[slot]
    now_s, job = r.clock[NOW], sim.state.job
    work_s = job.overhead_left_s[slot] + (truth.duration_s[row] - job.saved_s[slot])
    if np.isnan(r.outcome.start_s[row]):
        r.outcome.start_s[row] = now_s
    count_allocated(sim, slot, 1)
    r.tally[STARTS] += 1
    if r.placed_gpu.shape[0] > 0:
        place, at = sim.state.job.head[slot], r.placed_at[row]
        while place >= 0:
            r.placed_gpu[at] = place // MAX_TENANTS
            at += 1
            place = sim.state.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    end = truth.fixed_end_s[row]
    if sim.state.config[0].modelled:
        begin_attempt(sim, slot, work_s, np.nan)
    else:
        push_end(r, end if end == end else now_s + work_s, slot)


@kernel
def allocate_slot(sim: SimArrays, p: int, slot: int, node: int, sm_clock_frac: float = 1.0) -> bool:
    """Give a waiting job GPUs of partition `p` on `node`, or where the placement rule puts it (-1)."""
    s, scratch = sim.state, sim.progress.scratch
    host = choose(s, p, slot, node, scratch)
    if host < 0:
        return False
    gpus, share_milli = scratch[: s.job.gpus[slot]], s.job.share_milli[slot]
    ledger.allocate(s, slot, gpus, host, p, share_milli, sm_clock_frac, sim.progress.clock[NOW])
    return True


@kernel
def start_slot(sim: SimArrays, p: int, slot: int, node: int) -> bool:
    """Start a waiting job in partition `p` on `node`, or where the placement rule puts it (-1)."""
    if not allocate_slot(sim, p, slot, node):
        return False
    note_start(sim, slot)
    return True


@kernel
def left_others(sim: SimArrays, slot: int) -> bool:
    """Whether a job whose GPUs have just been taken shared them, all whole, with jobs that stay."""
    if not sim.state.config[0].modelled or sim.progress.run.first_gpu[slot] < 0:
        return False
    whole = sim.state.demand.share_milli[sim.state.job.demand[slot]] == WHOLE_GPU_MILLI
    return whole and ledger.tenants_of(sim.state, sim.progress.run.first_gpu[slot]) > 0


@large_kernel
def preempt_slot(sim: SimArrays, slot: int, restart_s: float) -> None:
    """Stop a running job and queue it again: it has saved all of its work, and pays `restart_s` to go on.

    What a restart costs counts as queueing at once, less what was still unpaid of the one before: at the end
    of a run, QUEUED_S is what JCT has beyond the jobs' durations. This is `life.preempt_slot` for runs in
    which nothing else can interrupt a job.
    """
    s, r = sim.state, sim.progress
    job, now_s, began_s = s.job, r.clock[NOW], s.job.start_s[slot]
    forget_end(r, slot)
    ledger.preempt(s, slot, now_s)
    done_s = settle_slot(sim, slot) if s.config[0].modelled else now_s - began_s
    left_s = sim.truth.duration_s[r.ends.row[slot]] - job.saved_s[slot]
    r.clock[QUEUED_S] += restart_s - max(job.overhead_left_s[slot] - done_s, 0.0)
    job.saved_s[slot] += min(max(done_s - job.overhead_left_s[slot], 0.0), left_s)
    if not left_others(sim, slot):
        r.tally[ALLOCATED_MILLI] -= job.gpus[slot] * job.share_milli[slot]
    note_left(sim, slot)
    job.overhead_left_s[slot] = restart_s
    ledger.reorder(s, slot)
    r.tally[STARTS] -= 1
    r.tally[PREEMPTIONS] += 1


@kernel
def nothing_new(s: StateArrays, p: int) -> bool:
    """Whether partition `p` is as it was when a plain rule last had nothing more to start in it."""
    part = s.derived.part
    return part.seen_changes[p] == part.changes[p] and part.seen_arrivals[p] == part.arrivals[p]


@kernel
def decide_by_rule(sim: SimArrays, rule: RuleCode) -> None:
    """Let a plain rule start what it will at this instant, partition by partition."""
    part = sim.state.derived.part
    for p in range(part.shape[0]):
        if nothing_new(sim.state, p):
            continue
        slot = next_by_rule(sim.state, p, rule.blocks)
        while slot >= 0:
            start_slot(sim, p, slot, -1)
            slot = next_by_rule(sim.state, p, rule.blocks)
        part.seen_changes[p], part.seen_arrivals[p] = part.changes[p], part.arrivals[p]


@large_kernel
def run_rule(sim: SimArrays, rule: RuleCode, until_row: int) -> int:
    """Run a plain rule until the trace is over, or until so many rows have arrived and been decided on."""
    while sim.progress.tally[NEXT_ROW] < until_row:
        moved = next_instant(sim)
        if moved != MOVED:
            return moved
        decide_by_rule(sim, rule)
    return STOPPED


@large_kernel
def run_rule_recording(
    sim: SimArrays,
    rule: RuleCode,
    at_s: NDArray[np.float64],
    queued_s: NDArray[np.float64],
    waiting: NDArray[np.float64],
) -> int:
    """Run a rule to the end; at every instant k note the time, the queueing so far, the jobs waiting.

    The three arrays hold 2 T + 1 instants. Returns how many there were, -1 if slots ran out.
    """
    k = 0
    while True:
        moved = next_instant(sim)
        if moved == NEED_SLOTS:
            return -1
        if moved == FINISHED:
            return k
        decide_by_rule(sim, rule)
        at_s[k] = sim.progress.clock[NOW]
        queued_s[k] = sim.progress.clock[QUEUED_S]
        waiting[k] = sim.progress.tally[NEXT_ROW] - sim.progress.tally[STARTS]
        k += 1


@array_kernel
def rewind(sim: SimArrays) -> None:
    """Back to the beginning of the run: idle cluster, no job has arrived. The index is rebuilt."""
    s, r = sim.state, sim.progress
    s.job.status[:] = 0
    s.gpu.free_milli[:] = WHOLE_GPU_MILLI
    s.gpu.tenant[:] = -1
    s.gpu.link[:] = -1
    s.node.free[:] = s.node.gpus
    s.node.cpu_free_milli[:] = s.node.cpu_milli
    s.node.memory_free_mib[:] = s.node.memory_mib
    s.demand.arrived[:] = 0
    s.demand.error_square[:] = s.demand.error_count[:] = 0.0
    s.demand.own_square[:] = s.demand.own_count[:] = 0.0
    s.demand.burst_last_s[:] = -np.inf
    s.counters[0].live_jobs = 0
    s.counters[0].next_seq = 0
    ledger.rebuild_index(s)
    r.outcome.start_s[:] = np.nan
    r.outcome.end_s[:] = np.nan
    r.clock[: TIMER + 1] = 0.0
    r.clock[NOW] = sim.truth.submit_s[0]
    r.clock[TIMER] = r.clock[REVIEW] = np.inf
    r.tally[:] = 0
    if s.config[0].modelled:
        physics.begin_books(sim.progress, s)
