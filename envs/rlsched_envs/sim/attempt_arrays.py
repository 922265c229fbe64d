"""Arrays of the attempt log: causes that interrupt or delay jobs, and the attempts so far."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, records
from rlsched.compile.reference import by_reference

ONGOING: Final = 0
ENDED: Final = 1
TIMEOUT: Final = 2
FAILED: Final = 3
PREEMPTED: Final = 4
NODE_FAILURE: Final = 5
NEIGHBOUR_FAULT: Final = 6
"""Reason for an attempt's end: another job on its GPU caused a GPU fault, which stops all jobs on a GPU."""
CANCELLED: Final = 7
"""Outcome of a job that never starts, because a dependency can never be met. No attempt has this reason."""
REASONS: Final = (
    *("running", "ended", "timeout", "failed", "preempted", "node_failure", "neighbour_fault", "cancelled"),
)
"""Names of the reasons why attempts end, by code: ONGOING (0: still runs) to CANCELLED (7). *ended*,
*timeout*, *failed* and *cancelled* are also outcomes of jobs."""

JOB_LOG: Final = np.dtype(
    [
        ("duration_s", np.float64),  # work of the whole job, seconds at full speed
        ("limit_s", np.float64),  # time limit of an attempt, nan: none
        ("checkpoint_s", np.float64),  # work between two checkpoints, nan: work is saved only at a preemption
        ("restart_s", np.float64),  # extra time of each attempt after the first
        ("profile_s", np.float64),  # extra time of the first attempt, for profiling; only in longer jobs
        ("saved_s", np.float64),  # work that the next attempt does not repeat
        ("run_s", np.float64),  # run time since the job's last own failure
        ("eligible_s", np.float64),  # time when the job entered the queue, nan before
        ("latest", np.int64),  # index of the job's latest attempt, -1 before the first
        ("first_failure", np.int32),  # index in `fail_after_s` of the job's first planned failure
        ("failures_given", np.int32),  # number of failures of the job in the trace
        ("failures", np.int32),  # failures so far
        ("first_child", np.int32),  # index in `children` of the first dependency on the job
        ("children", np.int32),  # number of dependencies on the job
        ("waits_for", np.int32),  # number of dependencies that are not met
        ("hopeless", np.int32),  # whether a dependency can never be met
        ("array", np.int32),  # index of the job's array in `arrays`, -1: no array with a limit
        ("stage", np.int32),  # TO_COME, HELD_BACK, LET_IN, LEFT_OUT
        ("ends_by", np.int32),  # reason for the planned end of the current attempt
        ("over_by", np.int32),  # outcome of the job: ENDED, TIMEOUT, FAILED, CANCELLED; ONGOING until it ends
    ]
)
"""Fields of the log for each row (job) of the run."""

TO_COME: Final = 0
HELD_BACK: Final = 1
"""Stage of a job that is submitted but not eligible yet."""
LET_IN: Final = 2
LEFT_OUT: Final = 3
"""Stage of a cancelled job."""

CHILD: Final = np.dtype([("row", np.int32), ("kind", np.int32)])
"""Fields of a dependency: row of the dependent job, and kind of the dependency (index in `KINDS`)."""

ATTEMPT: Final = np.dtype(
    [
        ("start_s", np.float64),
        ("end_s", np.float64),  # nan while the attempt runs
        ("useful_s", np.float64),  # work that no later attempt repeats; times in s
        ("done_s", np.float64),  # work done, including restart costs; without models: run time
        ("energy_j", np.float64),  # 0 without models
        ("share_s", np.float64),  # integral over time of the attempt's share of each GPU, 0 without models
        ("used_s", np.float64),  # integral of the attempt's share of the GPUs' busy time
        ("clock_s", np.float64),  # integral of the GPUs' SM clock / maximum clock
        ("gpu_at", np.int64),  # index in `attempt_gpu` of the attempt's first GPU
        ("row", np.int32),
        ("attempt", np.int32),  # 1 for the first attempt
        ("gpus", np.int32),
        ("reason", np.int32),  # index in REASONS
    ]
)
"""Fields of an attempt; attempts are in the order of starts."""

NODE_EVENT: Final = np.dtype([("time_s", np.float64), ("node", np.int32), ("status", np.int32)])
"""Fields of a node event; `status` is the new status of the node."""

ARRAY: Final = np.dtype(
    [
        ("first", np.int32),  # index in `tasks` of the array's first task
        ("length", np.int32),  # number of tasks
        ("limit", np.int32),  # most tasks that can be eligible at once
        ("inside", np.int32),  # number of eligible tasks that have not ended
        ("passed", np.int32),  # number of leading tasks that have become eligible
    ]
)
"""Fields of a job array that has a limit."""


LOG_CONFIG: Final = np.dtype(
    [
        ("max_retries", np.int64),
        ("fault_ppm", np.int64),  # GPU faults per million job failures; they end all jobs on the GPU
    ]
)
"""Settings for failures (a single record)."""

LOG_COUNTERS: Final = np.dtype(
    [
        ("attempts", np.int64),
        ("attempt_gpus", np.int64),
        ("next_node_event", np.int64),
        ("held_back", np.int64),  # number of submitted rows that are not eligible yet
        ("ready", np.int64),
        ("cancelled", np.int64),  # number of rows in `cancelled`
    ]
)
"""Counters of the log (a single record)."""


@by_reference
class AttemptArrays(NamedTuple):
    """The attempt log of a run with T rows."""

    jobs: Records  # (T,) JOB_LOG
    attempts: Records  # (S,) ATTEMPT, the first counters.attempts entries are in use
    attempt_gpu: NDArray[np.int32]  # GPUs of the attempts, (0,) if placements are not kept
    fail_after_s: NDArray[np.float64]  # (failures,) run time from the job's previous failure to this one
    children: Records  # (dependencies,) CHILD, grouped by the row they wait for
    arrays: Records  # (A,) ARRAY
    tasks: NDArray[np.int32]  # (tasks,) rows of the arrays' tasks, ascending in each array
    node_events: Records  # (E,) NODE_EVENT, by time
    ready: NDArray[np.int32]  # (T + 1,) first counters.ready entries: a heap of eligible rows without a slot
    cancelled: NDArray[np.int32]  # (T,) first counters.cancelled entries: rows whose children must be updated
    config: Records  # (1,) LOG_CONFIG
    counters: Records  # (1,) LOG_COUNTERS


def grown_log(log: AttemptArrays) -> AttemptArrays:
    """Return a copy of the log with room for twice as many attempts."""
    attempts = records(2 * log.attempts.shape[0], ATTEMPT)
    attempts[: log.attempts.shape[0]] = log.attempts
    gpu = np.zeros(2 * log.attempt_gpu.shape[0], np.int32)
    gpu[: log.attempt_gpu.shape[0]] = log.attempt_gpu
    return log._replace(attempts=attempts, attempt_gpu=gpu)
