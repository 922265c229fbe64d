"""Arrays of a simulated run: jobs with true run times, state, results, and a heap of planned ends."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, Records, StateArrays, records
from rlsched.compile.jit import kernel
from rlsched.compile.reference import by_reference
from rlsched.energy.limits import FALLS

TRUTH: Final = np.dtype(
    [
        ("submit_s", np.float64),
        ("duration_s", np.float64),  # run time: the duration, or the time limit if that is shorter
        ("fixed_end_s", np.float64),  # recorded end of the job; nan: start + `duration_s`
        ("predicted_s", np.float64),
        ("spread", np.float64),
        ("limit_s", np.float64),
        ("slack_s", np.float64),  # delay that the user accepts, s
        ("weight", np.float64),  # weight of the job's time in a cost; -1: no class, weight 1
        ("end_order", np.int32),  # jobs that end at the same time end in ascending `end_order`, then by row
        ("gpus", np.int32),
        ("demand", np.int32),  # demand class: index of the job's resource request
        ("vc", np.int32),
        ("own_partition", np.int32),
        ("shared_partition", np.int32),
        ("workload", np.int32),  # index in the catalogue, 0: unknown
        ("reference_kind", np.int32),  # GPU type that `duration_s` refers to; -1: the allocated type
        ("pinned", np.int32),  # 1: must not be preempted
        ("unshared", np.int32),  # 1: shares GPUs with no other job
        ("gpu_need_mib", np.int64),  # memory that the job needs on each GPU; 0: the need of its workload
        ("core_need_milli", np.int64),  # as in `JOB`
        ("dynamic_ratio", np.float64),  # as in `JOB`
    ]
)
"""Fields of a row (one job). Each job that can run on the cluster has a row; rows are in trace order."""

OUTCOME: Final = np.dtype(
    [
        ("start_s", np.float64),  # first start, nan until the job starts
        ("end_s", np.float64),  # nan until the job ends
        ("energy_j", np.float64),  # energy so far; this and the next fields: only with models
        ("cost", np.float64),  # integral of price x power, J x price
        ("carbon", np.float64),  # integral of carbon intensity x power
        ("key", np.uint64),  # key of the job for random draws
    ]
)
"""Fields of the outcome of a row (job)."""

ENDS: Final = np.dtype(
    [
        ("row", np.int32),  # row of the job in the slot
        ("order", np.int32),  # `end_order` of the job in the slot
        ("heap_s", np.float64),  # planned ends of running jobs: a binary heap by (time, order, row)
        ("heap_slot", np.int32),  # slot of the job that ends at `heap_s`
    ]
)
"""Fields with an entry per slot (place of a live job in the arrays).

`heap_s` and `heap_slot` form a heap of planned ends; their entry k need not belong to the job in slot k.
"""

WORK: Final = np.dtype(
    [
        ("target_s", np.float64),  # work of the attempt, including restart costs, seconds at full speed
        ("done_s", np.float64),  # work done up to `since_s`
        ("since_s", np.float64),  # time up to which the job's work and energy are settled (see `physics`)
        ("rate", np.float64),  # speed relative to full speed
        ("limit_end_s", np.float64),  # time at which the job is killed, infinite without a time limit
        ("power_w", np.float64),  # the job's share of its group's power, including the power of its cores
        ("share_frac", np.float64),  # the job's share of each of its GPUs, since `since_s`
        ("used_frac", np.float64),  # the job's share of the GPUs' busy time, since `since_s`
        ("share_s", np.float64),  # integral of `share_frac` over the attempt
        ("used_s", np.float64),  # integral of `used_frac`
        ("clock_s", np.float64),  # integral of the group's SM clock
        ("seen_s", np.float64),  # time at which the speeds of the watched pair are known, infinite: none
        ("watched", np.int64),  # `seq` of the other job of a watched pair (`lessons`), -1: none
        ("first_gpu", np.int32),  # the job's first GPU, which identifies its group; -1: no GPUs
        ("killed", np.int32),  # 1: the planned end is the time limit
        ("planned", np.int32),  # 0: no end is planned; 1: an end is planned; 2: plan the end again
    ],
    align=True,
)
"""Fields of the running attempt of the job in a slot; used only with models."""

RUN: Final = np.dtype(
    [
        ("now_s", np.float64),
        ("queued_s", np.float64),  # integral over time of the number of waiting jobs, job-seconds
        ("gpu_s", np.float64),  # allocated GPU-seconds so far
        ("timer_s", np.float64),  # time at which the rule or scheduler wants to be called next,
        # infinite: none; reset at each instant
        ("review_s", np.float64),  # time of the caller's next review of the nodes, infinite: none
        ("need_s", np.float64),  # time of a review because jobs wait while nodes sleep, infinite: none
        ("rest_s", np.float64),  # earliest time of such a review, infinite: no node sleeps
        ("restart_s", np.float64),  # restart cost of a preempted job if attempts are not logged
        ("next_row", np.int64),
        ("heap_len", np.int64),
        ("allocated_milli", np.int64),
        ("starts", np.int64),  # number of starts
        ("preemptions", np.int64),
        ("undecided", np.int64),  # 1: the events of the instant are done, its decisions are not
    ],
    align=True,
)
"""Fields of the state of the run (a single record)."""

BOOKS: Final = np.dtype(
    [
        ("total_w", np.float64),  # power of the whole cluster now
        ("idle_w", np.float64),  # power of nodes and of GPUs without jobs
        ("jobs_w", np.float64),  # power of all jobs
        ("energy_j", np.float64),  # integral of `total_w`; the next two: of `idle_w` and of `jobs_w`
        ("idle_j", np.float64),
        ("jobs_j", np.float64),
        ("cost", np.float64),  # integrals of price x `total_w` and x `idle_w`, J x price
        ("idle_cost", np.float64),
        ("carbon", np.float64),  # integrals of carbon intensity x `total_w` and x `idle_w`
        ("idle_carbon", np.float64),
        ("day_from_s", np.float64),  # start of `ProgressArrays.hours`: a midnight (UTC), seconds of the trace
        ("unused_cost", np.float64),  # integral of price x power of the nodes without jobs, J x price
        ("unused_sleep", np.float64),  # 1: unused nodes sleep: record `unused_cost` and `wake_ups`
        ("demand_w", np.float64),  # `total_w` without sleeping unused nodes, as a demand meter shows it
        ("peak_w", np.float64),  # highest `demand_w`
        ("wake_ups", np.float64),  # number of times that an unused node got a job
        ("capped_s", np.float64),  # time in which a power limit lowered clocks, s
        ("over_s", np.float64),  # time in which `total_w` exceeded the power limit, s
        ("over_j", np.float64),  # integral of the excess
        ("by_job", np.float64),  # 1: `costs.terms_so_far` records the terms of single jobs
        ("tail_after_s", np.float64),  # the part of a delay beyond this time counts in the term «tail»
        ("grid_from_s", np.float64),  # start of the first step of `signal`, seconds of the trace
        ("grid_step_s", np.float64),  # length of a step, s
        ("lost_rate", np.float64),  # sum over running jobs of 1 - rate: work lost to sharing, low clocks
        # and too few cores, job-seconds per second
        ("lost_s", np.float64),  # integral of `lost_rate`, job-seconds
        ("next_seen_s", np.float64),  # earliest time at which the speeds of a watched pair are known
        ("noise", np.float64),  # 1: speeds of unmeasured pairs scatter around the formula; 0: no scatter
        ("luck", np.float64),  # seed of the random speeds of pairs: a whole number below 2^53
        ("learns", np.float64),  # 1: predictions learn the speeds of pairs of jobs (`lessons`)
        ("dynamic_w", np.float64, (MAX_TENANTS,)),  # scratch: power that each job on a GPU adds
    ],
    align=True,
)
"""Fields of the current power and of the totals of a run (a single record); used only with models."""


ANNOUNCED: Final = np.dtype(
    [
        ("from_s", np.float64),  # time from which the falls are known, seconds of the trace
        ("fall_s", np.float64, (FALLS,)),  # fields as in `rlsched.cluster.arrays.CONFIG`
        ("fall_w", np.float64, (FALLS,)),
    ],
    align=True,
)
"""Fields of the announced falls of the power limit from a time on."""


@by_reference
class ProgressArrays(NamedTuple):
    """State and results of a run with T rows (jobs), J slots (for one live job each) and G GPUs."""

    ends: Records  # (J,) ENDS
    work: Records  # (J,) WORK
    outcome: Records  # (T,) OUTCOME
    placed_at: NDArray[np.int64]  # (T + 1,) offsets: `placed_gpu[placed_at[i]:placed_at[i + 1]]`
    # are the GPUs of row i
    placed_gpu: NDArray[np.int32]  # (sum of the rows' GPUs,), or (0,) if placements are not kept
    scratch: NDArray[np.int32]  # (G,)
    run: Records  # (1,) RUN
    books: Records  # (1,) BOOKS
    signal: NDArray[np.float64]  # (R, steps + 1): rows 0 and 1 are the integrals of price and carbon, rows 2
    # and 3 their values in each step (`rlsched.energy.series.Integrals`), others: see
    # `signals.RATIO`; (0, 0): no signal
    used: NDArray[np.int8]  # (nodes,) whether each node ran a job when last recorded; (0,): not recorded
    hours: NDArray[np.float64]  # (3, 24 x days) integrals of `BOOKS.total_w`, x price, and x carbon intensity
    # in each hour from `BOOKS.day_from_s` on; the last 24 also have the same hours of later days;
    # (3, 0): not recorded
    announced: Records  # (K,) ANNOUNCED, ascending; (0,): no limits are announced


@by_reference
class SimArrays(NamedTuple):
    """Arrays of one simulated run: cluster, jobs, progress, and attempt log."""

    state: StateArrays
    truth: Records  # (T,) TRUTH
    progress: ProgressArrays
    log: Any = None  # `attempt_arrays.AttemptArrays`, or None if attempts are not logged


def new_progress(slots: int, truth: Records, gpus: int, *, keep_placements: bool) -> ProgressArrays:
    """Return the state and results of a run that has not started."""
    rows = truth.shape[0]
    offsets = np.zeros(rows + 1, np.int64)
    if keep_placements:
        np.cumsum(truth.gpus, out=offsets[1:])
    progress = ProgressArrays(
        ends=records(slots, ENDS),
        work=records(slots, WORK),
        outcome=records(rows, OUTCOME),
        placed_at=offsets,
        placed_gpu=np.zeros(int(offsets[-1]), np.int32),
        scratch=np.zeros(max(gpus, 1), np.int32),
        run=records(1, RUN),
        books=records(1, BOOKS),
        signal=np.zeros((0, 0)),
        used=np.zeros(0, np.int8),
        hours=np.zeros((3, 0)),
        announced=records(0, ANNOUNCED),
    )
    progress.outcome.start_s[:] = progress.outcome.end_s[:] = np.nan
    run = progress.run
    run.timer_s = run.review_s = run.need_s = run.rest_s = np.inf
    if rows:
        progress.run.now_s = truth.submit_s[0]
    return progress


def grown_progress(progress: ProgressArrays, slots: int) -> ProgressArrays:
    """Return a copy of the state and results of a run, with room for `slots` live jobs."""
    ends, work = records(slots, ENDS), records(slots, WORK)
    ends[: progress.ends.shape[0]] = progress.ends
    work[: progress.work.shape[0]] = progress.work
    return progress._replace(ends=ends, work=work)


@kernel
def _before(r: ProgressArrays, a: int, b: int) -> bool:
    if r.ends.heap_s[a] != r.ends.heap_s[b]:
        return r.ends.heap_s[a] < r.ends.heap_s[b]
    one, other = r.ends.heap_slot[a], r.ends.heap_slot[b]
    if r.ends.order[one] != r.ends.order[other]:
        return r.ends.order[one] < r.ends.order[other]
    return r.ends.row[one] < r.ends.row[other]


@kernel
def _swap(r: ProgressArrays, a: int, b: int) -> None:
    r.ends.heap_s[a], r.ends.heap_s[b] = r.ends.heap_s[b], r.ends.heap_s[a]
    r.ends.heap_slot[a], r.ends.heap_slot[b] = r.ends.heap_slot[b], r.ends.heap_slot[a]


@kernel
def push_end(r: ProgressArrays, end_s: float, slot: int) -> None:
    """Add the planned end of the running job in slot `slot` to the heap of planned ends."""
    at = r.run[0].heap_len
    r.run[0].heap_len += 1
    r.ends.heap_s[at], r.ends.heap_slot[at] = end_s, slot
    while at > 0 and _before(r, at, (at - 1) // 2):
        _swap(r, at, (at - 1) // 2)
        at = (at - 1) // 2


@kernel
def _sift_down(r: ProgressArrays, at: int) -> None:
    last = r.run[0].heap_len
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
    """Remove the earliest planned end from the heap, and return the slot of the job that ends then."""
    slot = r.ends.heap_slot[0]
    last = r.run[0].heap_len - 1
    r.run[0].heap_len = last
    r.ends.heap_s[0], r.ends.heap_slot[0] = r.ends.heap_s[last], r.ends.heap_slot[last]
    _sift_down(r, 0)
    return slot


@kernel
def forget_end(r: ProgressArrays, slot: int) -> None:
    """Remove the planned end of the running job in slot `slot` from the heap of planned ends."""
    at = 0
    while r.ends.heap_slot[at] != slot:
        at += 1
    last = r.run[0].heap_len - 1
    r.run[0].heap_len = last
    if at == last:
        return
    r.ends.heap_s[at], r.ends.heap_slot[at] = r.ends.heap_s[last], r.ends.heap_slot[last]
    while at > 0 and _before(r, at, (at - 1) // 2):
        _swap(r, at, (at - 1) // 2)
        at = (at - 1) // 2
    _sift_down(r, at)
