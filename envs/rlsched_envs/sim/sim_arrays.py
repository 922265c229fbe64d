"""The arrays of a simulated run: what its jobs truly need, where the run stands, what it has written down."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, Records, StateArrays, records
from rlsched.compile.reference import by_reference

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
        ("unshared", np.int32),  # 1: it shares its GPUs with no other job
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

WORK: Final = np.dtype(
    [
        ("target_s", np.float64),  # work of the attempt, restart costs included
        ("done_s", np.float64),  # work done up to `since_s`
        ("since_s", np.float64),
        ("rate", np.float64),
        ("limit_end_s", np.float64),  # killed then, infinite without a limit
        ("power_w", np.float64),  # its part of its groups' power, its cores included
        ("share_frac", np.float64),  # of each of its GPUs, since `since_s`
        ("used_frac", np.float64),  # its part of the time in which they are at work
        ("share_s", np.float64),  # integral of `share_frac` over the attempt
        ("used_s", np.float64),  # integral of `used_frac`
        ("clock_s", np.float64),  # integral of its group's SM clock
        ("seen_s", np.float64),  # when it will have been watched beside another for long enough
        ("watched", np.int64),  # number of the job that it is watched beside, -1: none
        ("first_gpu", np.int32),  # group that it is in, -1 where it has no GPU
        ("killed", np.int32),  # 1: its planned end is its time limit
        ("planned", np.int32),  # 1: its end is queued
    ],
    align=True,
)
"""One entry a slot: the attempt that runs there, with models."""

RUN: Final = np.dtype(
    [
        ("now_s", np.float64),
        ("queued_s", np.float64),  # integral over time of the jobs waiting: all queueing so far, job-seconds
        ("gpu_s", np.float64),  # GPU-seconds allocated so far
        ("timer_s", np.float64),  # when a *wait* asked to be looked at again, infinite: nobody; any instant
        # resets it
        ("review_s", np.float64),  # when somebody outside wants to look at the nodes next, infinite: nobody
        ("restart_s", np.float64),  # what a preempted job pays to go on, where attempts are not logged
        ("next_row", np.int64),
        ("heap_len", np.int64),
        ("allocated_milli", np.int64),
        ("starts", np.int64),  # starts, less preemptions: of the rows that have arrived, so many do not wait
        ("preemptions", np.int64),
        ("undecided", np.int64),  # 1: an instant's events have happened, its decisions are still to come
    ],
    align=True,
)
"""One entry: where the run stands."""

BOOKS: Final = np.dtype(
    [
        ("total_w", np.float64),  # power of the whole cluster now ...
        ("idle_w", np.float64),  # ... of nodes and of GPUs without jobs ...
        ("jobs_w", np.float64),  # ... of all jobs
        ("energy_j", np.float64),  # their integrals
        ("idle_j", np.float64),
        ("jobs_j", np.float64),
        ("lost_rate", np.float64),  # sum over running jobs of 1 - rate: how fast time is lost to sharing,
        # clocks and short cores ...
        ("lost_s", np.float64),  # ... and its integral: JCT beyond queueing and work, job-seconds
        ("next_seen_s", np.float64),  # when the next pair may have been watched for long enough
        ("noise", np.float64),  # 1: pairs that were never measured scatter about the formula; 0: they do not
        ("luck", np.float64),  # what the deviates of pairs go by: a whole number below 2^53
        ("learns", np.float64),  # 1: pairs that have run for long enough reveal their speeds (`lessons`)
        ("dynamic_w", np.float64, (MAX_TENANTS,)),  # scratch: what each job of a group adds to the power of
        # a GPU
    ],
    align=True,
)
"""One entry: the books of power and time, with models."""


@by_reference
class ProgressArrays(NamedTuple):
    """Where a run stands, and what it has written down."""

    ends: Records  # (J,) ENDS
    work: Records  # (J,) WORK
    outcome: Records  # (T,) OUTCOME
    placed_at: NDArray[np.int64]  # (T + 1,) where a job's GPUs stand in `placed_gpu`
    placed_gpu: NDArray[np.int32]  # (sum of GPUs,) or (0,) where placements are not kept
    scratch: NDArray[np.int32]  # (G,)
    run: Records  # (1,) RUN
    books: Records  # (1,) BOOKS


@by_reference
class SimArrays(NamedTuple):
    """A run."""

    state: StateArrays
    truth: Records  # (T,) TRUTH
    progress: ProgressArrays
    log: Any = None  # `attempt_arrays.AttemptArrays`: every attempt; None where nothing but a policy's
    # preemptions interrupts a job


def new_progress(slots: int, truth: Records, gpus: int, *, keep_placements: bool) -> ProgressArrays:
    """Progress of a run that has not begun."""
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
    )
    progress.outcome.start_s[:] = progress.outcome.end_s[:] = np.nan
    progress.run.timer_s = progress.run.review_s = np.inf
    if rows:
        progress.run.now_s = truth.submit_s[0]
    return progress


def grown_progress(progress: ProgressArrays, slots: int) -> ProgressArrays:
    """The same progress with room for `slots` live jobs."""
    ends, work = records(slots, ENDS), records(slots, WORK)
    ends[: progress.ends.shape[0]] = progress.ends
    work[: progress.work.shape[0]] = progress.work
    return progress._replace(ends=ends, work=work)
