"""The rows of a decision, compiled: which candidates are shown, which are legal, and why the others are not.

`job_window` lists the first half of a decision (which job, or *wait*), `variant_window` the second (which
variant of that job). Both fill the same buffers: row 0 upwards, zeros behind. Simulator and broker call them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import first_node_of, fits, largest_hole, node_with
from rlsched.decide.features import (
    BLOCKED_FIT_IN,
    BLOCKED_GPUS,
    COUNT_SCALE,
    FREE,
    FREE_AFTER,
    INFEASIBLE_AHEAD,
    IS_JOB,
    IS_REFERENCE,
    IS_VARIANT,
    IS_WAIT,
    PROFILE,
    against_blocked,
    blocked_columns,
    job_columns,
    partition_columns,
    release_profile,
)
from rlsched.decide.holds import half_free, is_held, is_overdue, pass_over
from rlsched.decide.schema import FEASIBLE_ROWS, MAX_VARIANTS, NUM_FEATURES, OLDEST_ROWS, WINDOW_ROWS
from rlsched.jit import allocating_kernel, kernel

LEGAL: Final = 0
TOO_FEW_FREE: Final = 1
NO_HOLE: Final = 2
GUARD_HALF_FREE: Final = 3
GUARD_HOLD: Final = 4
PADDING: Final = 5
HELD: Final = 6

REASON_TEXT: Final = {
    LEGAL: "can start",
    TOO_FEW_FREE: "fewer GPUs are free than the gang needs",
    NO_HOLE: "enough GPUs are free, but not together",
    GUARD_HALF_FREE: "no waiting while half of the GPUs are free and a job can start",
    GUARD_HOLD: "another job has been held back for too long",
    PADDING: "empty row",
    HELD: "kept back by an earlier wait",
}


class WindowArrays(NamedTuple):
    """Buffers of one window; K = WINDOW_ROWS, F = NUM_FEATURES."""

    slot: NDArray[np.int32]  # (K,) job slot, -1 for *wait* and padding
    node: NDArray[np.int32]  # (K,) first node of the placement, -1 where there is none
    reason: NDArray[np.int32]  # (K,) LEGAL or why not
    features: NDArray[np.float32]  # (K, F)
    info: NDArray[
        np.int32
    ]  # (3,) rows in use, row that the reference rule takes, slot of the blocked job or -1


def empty_window() -> WindowArrays:
    """Buffers for one window."""
    return WindowArrays(
        np.full(WINDOW_ROWS, -1, np.int32),
        np.full(WINDOW_ROWS, -1, np.int32),
        np.full(WINDOW_ROWS, PADDING, np.int32),
        np.zeros((WINDOW_ROWS, NUM_FEATURES), np.float32),
        np.zeros(3, np.int32),
    )


@kernel
def _oldest(s: StateArrays, p: int, now_s: float, feasible: NDArray[np.bool_], out: NDArray[np.int32]) -> int:
    """Queue positions of the jobs to show for their age: overdue ones that fit first, then by arrival."""
    found = 0
    for position in range(s.derived.part.queue_len[p]):
        slot = s.derived.queue[p, position]
        late = feasible[position] and is_overdue(s, slot, now_s)
        at = found
        while at > 0:
            other = out[at - 1]
            other_late = feasible[other] and is_overdue(s, s.derived.queue[p, other], now_s)
            if (late and not other_late) or (
                late == other_late and s.job.seq[slot] < s.job.seq[s.derived.queue[p, other]]
            ):
                if at < OLDEST_ROWS:
                    out[at] = other
                at -= 1
            else:
                break
        if at < OLDEST_ROWS:
            out[at] = position
            found = min(found + 1, OLDEST_ROWS)
    return found


@kernel
def _add_row(
    s: StateArrays,
    p: int,
    position: int,
    can_start: bool,
    held: bool,
    now_s: float,
    profile: NDArray[np.int64],
    shared: NDArray[np.float64],
    w: WindowArrays,
) -> None:
    at = w.info[0]
    slot = s.derived.queue[p, position]
    node = first_node_of(s, p, s.job.gpus[slot]) if can_start else -1
    w.slot[at], w.node[at] = slot, node
    row = w.features[at]
    row[IS_JOB] = 1.0
    job_columns(s, p, slot, node, position, now_s, profile, row)
    for column in range(FREE, INFEASIBLE_AHEAD + 1):
        row[column] = shared[column]
    if can_start:
        w.reason[at] = LEGAL
    elif held:
        w.reason[at] = HELD
    elif s.job.gpus[slot] > s.derived.part.free_gpus[p]:
        w.reason[at] = TOO_FEW_FREE
    else:
        w.reason[at] = NO_HOLE
    w.info[0] = at + 1


@kernel
def clear_window(w: WindowArrays) -> None:
    """Nothing but padding."""
    w.slot[:] = -1
    w.node[:] = -1
    w.reason[:] = PADDING
    w.features[:] = 0.0
    w.info[0] = 0
    w.info[1] = 0
    w.info[2] = -1


@allocating_kernel
def job_window(s: StateArrays, p: int, now_s: float, w: WindowArrays) -> None:
    """First half: *wait*, then jobs of partition `p`: the first that fit, the oldest, the first that do not.

    The reference (`qssf-backfill`) takes the first job of the queue order that fits.
    """
    clear_window(w)
    waiting = s.derived.part.queue_len[p]
    feasible = np.zeros(waiting, np.bool_)
    held = np.zeros(waiting, np.bool_)
    largest = largest_hole(s, p)
    for position in range(waiting):
        gpus = s.job.gpus[s.derived.queue[p, position]]
        if gpus <= s.derived.part.node_size[p]:
            feasible[position] = gpus <= largest
        else:
            feasible[position] = fits(s, p, gpus)
        held[position] = feasible[position] and is_held(s, p, s.derived.queue[p, position], now_s)
        feasible[position] = feasible[position] and not held[position]
    profile = np.zeros(PROFILE, np.int64)
    release_profile(s, p, now_s, profile)
    shared = np.zeros(NUM_FEATURES, np.float64)
    partition_columns(s, p, shared)
    oldest = np.zeros(OLDEST_ROWS, np.int32)
    num_oldest = _oldest(s, p, now_s, feasible, oldest)

    w.info[0] = 1
    w.reason[0] = LEGAL
    w.features[0, IS_WAIT] = 1.0
    w.features[0, FREE_AFTER] = shared[FREE]
    shown_feasible, ahead, first_blocked = 0, 0, -1
    chosen = np.zeros(waiting, np.bool_)
    for position in range(waiting):
        if feasible[position]:
            if shown_feasible < FEASIBLE_ROWS:
                shared[INFEASIBLE_AHEAD] = math.log1p(ahead) / COUNT_SCALE
                _add_row(s, p, position, True, False, now_s, profile, shared, w)
                chosen[position] = True
                shown_feasible += 1
        elif not held[position]:
            ahead += 1
            if first_blocked < 0:
                first_blocked = position
    for k in range(num_oldest):
        if not chosen[oldest[k]]:
            shared[INFEASIBLE_AHEAD] = 0.0
            _add_row(s, p, oldest[k], feasible[oldest[k]], held[oldest[k]], now_s, profile, shared, w)
            chosen[oldest[k]] = True
    shared[INFEASIBLE_AHEAD] = 0.0
    for position in range(waiting):
        if w.info[0] == WINDOW_ROWS:
            break
        if not feasible[position] and not chosen[position]:
            _add_row(s, p, position, False, held[position], now_s, profile, shared, w)
    w.info[2] = s.derived.queue[p, first_blocked] if first_blocked >= 0 else -1
    blocked_columns(s, p, w.info[2], now_s, shared)
    for row in range(w.info[0]):
        for column in range(BLOCKED_GPUS, BLOCKED_FIT_IN + 1):
            w.features[row, column] = shared[column]
        if row > 0:
            against_blocked(w.features[row])
    for column in range(FREE, INFEASIBLE_AHEAD):
        w.features[0, column] = shared[column]
    w.info[1] = 1 if shown_feasible > 0 else 0
    w.features[w.info[1], IS_REFERENCE] = 1.0
    _guard(s, p, now_s, shown_feasible > 0, w)


@kernel
def _guard(s: StateArrays, p: int, now_s: float, any_fits: bool, w: WindowArrays) -> None:
    """The promises that are part of the mask: no *wait* on a half-empty partition, a longest hold."""
    late = False
    for row in range(1, w.info[0]):
        late = late or (w.reason[row] == LEGAL and is_overdue(s, w.slot[row], now_s))
    if late:
        for row in range(w.info[0]):
            if w.reason[row] == LEGAL and (row == 0 or not is_overdue(s, w.slot[row], now_s)):
                w.reason[row] = GUARD_HOLD
        if w.reason[w.info[1]] != LEGAL:
            w.features[w.info[1], IS_REFERENCE] = 0.0
            for row in range(1, w.info[0]):
                if w.reason[row] == LEGAL:
                    w.info[1] = row
                    w.features[row, IS_REFERENCE] = 1.0
                    break
    elif any_fits and half_free(s, p):
        w.reason[0] = GUARD_HALF_FREE


@allocating_kernel
def variant_window(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> None:
    """Second half: the ways to start a job that fits. Row 0 is best fit, the reference.

    A gang on one node has a row for each number of free GPUs on nodes that hold it: the fullest three and
    the emptiest; a gang over several nodes has one way.
    """
    clear_window(w)
    gpus = s.job.gpus[slot]
    profile = np.zeros(PROFILE, np.int64)
    shared = np.zeros(NUM_FEATURES, np.float64)
    partition_columns(s, p, shared)
    size = s.derived.part.node_size[p]
    if gpus > size:
        _add_variant(s, p, slot, first_node_of(s, p, gpus), now_s, profile, shared, w)
    else:
        emptiest = largest_hole(s, p)
        for free in range(gpus, emptiest + 1):
            if s.derived.holes[p, free] > 0 and (w.info[0] < MAX_VARIANTS - 1 or free == emptiest):
                _add_variant(s, p, slot, node_with(s, p, free), now_s, profile, shared, w)
    w.features[0, IS_REFERENCE] = 1.0


@kernel
def _add_variant(
    s: StateArrays,
    p: int,
    slot: int,
    node: int,
    now_s: float,
    profile: NDArray[np.int64],
    shared: NDArray[np.float64],
    w: WindowArrays,
) -> None:
    at = w.info[0]
    w.slot[at], w.node[at], w.reason[at] = slot, node, LEGAL
    row = w.features[at]
    row[IS_VARIANT] = 1.0
    job_columns(s, p, slot, node, 0, now_s, profile, row)
    for column in range(FREE, INFEASIBLE_AHEAD + 1):
        row[column] = shared[column]
    w.info[0] = at + 1


@kernel
def note_wait(s: StateArrays, w: WindowArrays, now_s: float) -> None:
    """A *wait* was chosen in this window: the jobs in it that could have started are kept back."""
    for row in range(1, w.info[0]):
        if w.reason[row] == LEGAL:
            pass_over(s, w.slot[row], w.info[2], now_s)
