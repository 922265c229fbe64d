"""The arrays of the log of attempts: what jobs are to live through, and what they did."""

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
"""A job on the same GPU met a fault that ended all of them."""
REASONS: Final = ("running", "ended", "timeout", "failed", "preempted", "node_failure", "neighbour_fault")
"""Why an attempt ended, by code; the first three after *running* can also be how its job ended."""

JOB_LOG: Final = np.dtype(
    [
        ("duration_s", np.float64),  # work of the whole job, seconds at full speed
        ("limit_s", np.float64),  # an attempt is killed after running so long, nan: never
        ("checkpoint_s", np.float64),  # work between two checkpoints, nan: it saves when it is told to
        ("restart_s", np.float64),  # what every attempt after the first takes longer
        ("profile_s", np.float64),  # what the first attempt of a longer job takes longer: Lucid's profiler
        ("saved_s", np.float64),  # work that the next attempt does not have to do again
        ("run_s", np.float64),  # time run since the last failure
        ("eligible_s", np.float64),  # when it came to the queue first, nan until then
        ("latest", np.int64),  # its current or latest attempt, -1 before the first
        ("first_failure", np.int32),  # its failures to come: position in `fail_after_s` ...
        ("failures_given", np.int32),  # ... and their number
        ("failures", np.int32),  # failures so far
        ("first_child", np.int32),  # rows that wait for its end: position in `children` ...
        ("children", np.int32),  # ... and their number
        ("waits_for", np.int32),  # jobs that have to end before it is eligible
        ("array", np.int32),  # number of its array, -1 where it is in none that has a limit
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

ATTEMPT: Final = np.dtype(
    [
        ("start_s", np.float64),
        ("end_s", np.float64),  # nan while it runs
        ("useful_s", np.float64),  # work of it that no later attempt has to do again
        ("done_s", np.float64),  # work of it, restart costs included; without models: the time that it ran
        ("energy_j", np.float64),  # what it drew; 0 without models
        ("share_s", np.float64),  # integrals over it, 0 without models: of its share of each of its GPUs, ...
        ("used_s", np.float64),  # ... of its part of the time in which they are at work ...
        ("clock_s", np.float64),  # ... and of their SM clock
        ("gpu_at", np.int64),  # where its GPUs begin in `attempt_gpu`
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


LOG_CONFIG: Final = np.dtype(
    [
        ("max_retries", np.int64),
        ("fault_ppm", np.int64),  # failures that end all jobs of the GPU, millionths of them
    ]
)
"""One entry: how failures are dealt with."""

LOG_COUNTERS: Final = np.dtype(
    [
        ("attempts", np.int64),
        ("attempt_gpus", np.int64),
        ("next_node_event", np.int64),
        ("held_back", np.int64),  # rows that are submitted, and not eligible yet
        ("ready", np.int64),
    ]
)
"""One entry: how far the log is."""


@by_reference
class AttemptArrays(NamedTuple):
    """The log of a run; T rows."""

    jobs: Records  # (T,) JOB_LOG
    attempts: Records  # (S,) ATTEMPT, the first counters.attempts in use
    attempt_gpu: NDArray[np.int32]  # GPUs of the attempts, (0,) where placements are not kept
    fail_after_s: NDArray[np.float64]  # (failures,) run time up to each, since the failure before it
    children: NDArray[np.int32]  # (dependencies,) rows
    arrays: Records  # (A,) ARRAY
    tasks: NDArray[np.int32]  # (tasks of these arrays,) rows, ascending in each
    node_events: Records  # (E,) NODE_EVENT, by time
    ready: NDArray[np.int32]  # (T,) the first counters.ready: eligible rows that still have no slot, a heap
    config: Records  # (1,) LOG_CONFIG
    counters: Records  # (1,) LOG_COUNTERS


def grown_log(log: AttemptArrays) -> AttemptArrays:
    """The same log with room for twice as many attempts."""
    attempts = records(2 * log.attempts.shape[0], ATTEMPT)
    attempts[: log.attempts.shape[0]] = log.attempts
    gpu = np.zeros(2 * log.attempt_gpu.shape[0], np.int32)
    gpu[: log.attempt_gpu.shape[0]] = log.attempt_gpu
    return log._replace(attempts=attempts, attempt_gpu=gpu)
