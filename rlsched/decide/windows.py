"""The rows of a decision, compiled: which candidates are shown, which are legal, and why the others are not.

`job_window` lists the first half of a decision (which job, or *wait*), `variant_window` the second (which
variant of that job). Both fill the same buffers: row 0 upwards, zeros behind. Simulator and broker call them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, StateArrays, records
from rlsched.cluster.placement import first_node_of, fits, largest_hole, node_with
from rlsched.decide.features import (
    FEASIBLE,
    FIT_IN,
    FREE,
    FREE_AFTER,
    GPU_TIME,
    GPUS,
    GPUS_FRAC,
    INFEASIBLE_AHEAD,
    IS_JOB,
    IS_REFERENCE,
    IS_VARIANT,
    IS_WAIT,
    LEFTOVER,
    NODE_ENDS,
    OPENS_NODE,
    OWN,
    PLACE,
    PREDICTED,
    PROFILE,
    RANK,
    SPREAD,
    TIME_SCALE,
    WAITED,
    against_blocked,
    blocked_columns,
    count_log,
    fit_in_log,
    own_columns,
    partition_columns,
    place_columns,
    release_profile,
)
from rlsched.decide.features import HELD as HELD_FOR
from rlsched.decide.holds import half_free, is_held, is_overdue, pass_over
from rlsched.decide.schema import FEASIBLE_ROWS, MAX_VARIANTS, NUM_FEATURES, OLDEST_ROWS, WINDOW_ROWS
from rlsched.jit import kernel

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


NO_FIT: Final = 0
KEPT: Final = 1
CAN_START: Final = 2
LATE: Final = 3
"""What a job is to a window: it does not fit; fits, and is held back; can start; can start, and is overdue."""
NOT_ASKED: Final = -2


class WindowArrays(NamedTuple):
    """Buffers of one window of K rows, and scratch. K is WINDOW_ROWS wherever a policy is served.

    `features` may be wider than F = NUM_FEATURES: columns behind those are the caller's, and are touched in
    rows alone that are no longer in use, which become zero. Rows that were never used are zero from the start.
    """

    slot: NDArray[np.int32]  # (K,) job slot, -1 for *wait* and padding
    node: NDArray[np.int32]  # (K,) first node of the placement, -1 where there is none
    reason: NDArray[np.int32]  # (K,) LEGAL or why not
    features: NDArray[np.float32]  # (K, F or more)
    info: NDArray[
        np.int32
    ]  # (3,) rows in use, row that the reference rule takes, slot of the blocked job or -1
    picks: NDArray[np.int32]  # (PICKS, K) scratch
    shared: NDArray[np.float32]  # (F,) scratch: what all rows have in common
    profile: NDArray[np.int64]  # (PROFILE,) scratch
    places: Records  # (SIZES,) PLACE, by the GPUs of a gang: scratch
    own: Records  # (a power of two,) OWN, by slot: kept as long as job numbers stay


_FIT, _AHEAD, _REST, _REST_STATE, _OLD, _OLD_STATE = range(6)
PICKS: Final = 6
SIZES: Final = 17
"""Gangs of up to 16 GPUs on one node share what is said about where they would go."""
OWN_ENTRIES: Final = 32


def empty_window(rows: int = WINDOW_ROWS, own: int = OWN_ENTRIES) -> WindowArrays:
    """Buffers for one window of so many rows that remembers so many jobs (a power of two)."""
    return WindowArrays(
        np.full(rows, -1, np.int32),
        np.full(rows, -1, np.int32),
        np.full(rows, PADDING, np.int32),
        np.zeros((rows, NUM_FEATURES), np.float32),
        np.zeros(3, np.int32),
        np.zeros((PICKS, rows), np.int32),
        np.zeros(NUM_FEATURES, np.float32),
        np.zeros(PROFILE, np.int64),
        records(SIZES, PLACE),
        nobody(records(own, OWN)),
    )


def nobody(own: Records) -> Records:
    """The same entries, which belong to no job from now on."""
    own.seq[:] = -1
    return own


@kernel
def _note_oldest(
    s: StateArrays, p: int, position: int, state: int, late: bool, w: WindowArrays, found: int, limit: int
) -> int:
    """Keep a queue position if it is among the `limit` to show for their age. Returns how many there are.

    Overdue jobs that fit come first, then the others by arrival. `state`: as in `_OLD_STATE`.
    """
    out, states, queue = w.picks[_OLD], w.picks[_OLD_STATE], s.derived.queue[p]
    seq = s.job.seq[queue[position]]
    at = found
    while at > 0:
        other_late = states[at - 1] == LATE
        if (late and not other_late) or (late == other_late and seq < s.job.seq[queue[out[at - 1]]]):
            if at < limit:
                out[at], states[at] = out[at - 1], states[at - 1]
            at -= 1
        else:
            break
    if at < limit:
        out[at], states[at] = position, LATE if late else state
        found = min(found + 1, limit)
    return found


@kernel
def _use_rows(w: WindowArrays, rows: int) -> None:
    """So many rows are in use: behind them is nothing but padding."""
    for row in range(rows, w.slot.shape[0]):
        w.slot[row], w.node[row], w.reason[row] = -1, -1, PADDING
    row, table = rows, w.features
    while row < w.slot.shape[0] and table[row, IS_WAIT] + table[row, IS_JOB] + table[row, IS_VARIANT] > 0.0:
        table[row, :] = 0.0
        row += 1
    w.info[0] = rows


@kernel
def _add_row(
    s: StateArrays,
    p: int,
    position: int,
    state: int,
    shorter_infeasible: float,
    now_s: float,
    w: WindowArrays,
) -> None:
    """Add the job at a queue position: `state` says whether it can start, is held back, or does not fit."""
    at, slot = w.info[0], s.derived.queue[p, position]
    own, row, job = own_columns(s.job, slot, w.own), w.features[at], s.job
    gpus, free = w.own.gpus[own], s.derived.part.free_gpus[p]
    for column in range(NUM_FEATURES):
        row[column] = w.shared[column]
    row[IS_JOB] = 1.0
    row[INFEASIBLE_AHEAD] = shorter_infeasible
    row[RANK] = count_log(position)
    _set_own(s, p, slot, own, now_s, w, row)
    node = -1
    if state >= CAN_START:
        w.reason[at] = LEGAL
        node = _set_place(s, p, gpus, first_node_by_size(s, p, gpus, now_s, w), w, row)
    elif state == KEPT:
        w.reason[at] = HELD
    else:
        w.reason[at] = TOO_FEW_FREE if gpus > free else NO_HOLE
    if node < 0:
        row[FREE_AFTER] = row[FREE]
        row[FIT_IN] = fit_in_log(w.profile, gpus - free)
    against_blocked(row)
    w.slot[at], w.node[at] = slot, node
    w.info[0] = at + 1


@kernel
def _set_own(
    s: StateArrays, p: int, slot: int, own: int, now_s: float, w: WindowArrays, row: NDArray[np.float32]
) -> None:
    """Fill the columns that are about the job alone."""
    row[PREDICTED] = w.own.predicted_log[own]
    row[SPREAD] = w.own.spread[own]
    row[GPU_TIME] = w.own.gpu_time_log[own]
    row[GPUS] = w.own.gpus_log[own]
    row[GPUS_FRAC] = w.own.gpus[own] / max(s.derived.part.open_gpus[p], 1)
    row[WAITED] = math.log1p(max(now_s - s.job.submit_s[slot], 0.0)) / TIME_SCALE
    held = s.job.held_since_s[slot]
    row[HELD_FOR] = math.log1p(now_s - held) / TIME_SCALE if held == held else 0.0


@kernel
def first_node_by_size(s: StateArrays, p: int, gpus: int, now_s: float, w: WindowArrays) -> int:
    """Entry of `w.places` that says where *consolidate* would put a gang of this size in this window."""
    known = gpus < SIZES and gpus <= s.derived.part.node_size[p]
    at = gpus if known else 0
    if not known or w.places.node[at] == NOT_ASKED:
        _look_at(s, first_node_of(s, p, gpus), gpus, now_s, w, at)
    return at


@kernel
def _look_at(s: StateArrays, node: int, gpus: int, now_s: float, w: WindowArrays, at: int) -> None:
    if node >= 0:
        place_columns(s, node, gpus, now_s, w.places, at)
    else:
        w.places.node[at] = -1


@kernel
def _set_place(s: StateArrays, p: int, gpus: int, at: int, w: WindowArrays, row: NDArray[np.float32]) -> int:
    """Fill the columns about where the gang would go, entry `at` of `w.places`. Returns the node, -1: none."""
    part, places = s.derived.part, w.places
    if places.node[at] >= 0:
        row[FEASIBLE] = 1.0
        row[FREE_AFTER] = (part.free_gpus[p] - gpus) / max(part.open_gpus[p], 1)
        row[LEFTOVER] = places.leftover[at]
        row[OPENS_NODE] = places.opens_node[at]
        row[NODE_ENDS] = places.node_ends[at]
    return places.node[at]


@kernel
def _sort_out(s: StateArrays, p: int, now_s: float, w: WindowArrays) -> tuple[int, int, int, int, int, float]:
    """Look at the whole queue once: what to show goes into `w.picks`.

    Returns (jobs picked that can start, picked for their age, picked that cannot start, position of the
    blocked job or -1, GPUs asked for, predicted GPU-seconds waiting).
    """
    queue, job, own, picks = s.derived.queue[p], s.job, w.own, w.picks
    rows = w.slot.shape[0]
    feasible_rows, oldest_rows = rows * FEASIBLE_ROWS // WINDOW_ROWS, rows * OLDEST_ROWS // WINDOW_ROWS
    size, largest, nothing_held = s.derived.part.node_size[p], largest_hole(s, p), half_free(s, p)
    fit, old, rest, ahead, blocked = 0, 0, 0, 0, -1
    demand, work = 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        slot = queue[position]
        at = own_columns(job, slot, own)
        gpus = own.gpus[at]
        demand += gpus
        work += own.predicted_gpu_s[at]
        state, late = CAN_START, False
        if not (gpus <= largest if gpus <= size else fits(s, p, gpus)):
            state = NO_FIT
            ahead += 1
            if blocked < 0:
                blocked = position
        elif not nothing_held and is_held(s, p, slot, now_s):
            state = KEPT
        else:
            late = is_overdue(s, slot, now_s)
            if fit < feasible_rows:
                picks[_FIT, fit], picks[_AHEAD, fit] = position, ahead
                fit += 1
        if state != CAN_START and rest < rows:
            picks[_REST, rest], picks[_REST_STATE, rest] = position, state
            rest += 1
        old = _note_oldest(s, p, position, state, late, w, old, oldest_rows)
    return fit, old, rest, blocked, demand, work


@kernel
def _is_picked(positions: NDArray[np.int32], count: int, position: int) -> bool:
    for k in range(count):
        if positions[k] == position:
            return True
    return False


@kernel
def job_window(s: StateArrays, p: int, now_s: float, w: WindowArrays) -> None:
    """First half: *wait*, then jobs of partition `p`: the first that fit, the oldest, the first that do not.

    Of K rows, a share of FEASIBLE_ROWS / WINDOW_ROWS and of OLDEST_ROWS / WINDOW_ROWS at most are of the first
    two kinds. The reference (`qssf-backfill`) takes the first job of the queue order that fits.
    """
    rows, picks, shared = w.slot.shape[0], w.picks, w.shared
    fit, old, rest, blocked, demand, work = _sort_out(s, p, now_s, w)
    w.info[2] = s.derived.queue[p, blocked] if blocked >= 0 else -1
    w.places.node[:] = NOT_ASKED
    release_profile(s, p, now_s, w.profile)
    shared[:] = 0.0
    partition_columns(s, p, demand, work, shared)
    blocked_columns(s, p, w.info[2], now_s, shared)

    first = w.features[0]
    for column in range(NUM_FEATURES):
        first[column] = shared[column]
    first[IS_WAIT], first[FREE_AFTER] = 1.0, shared[FREE]
    w.slot[0], w.node[0], w.reason[0], w.info[0] = -1, -1, LEGAL, 1
    for k in range(fit):
        _add_row(s, p, picks[_FIT, k], CAN_START, count_log(picks[_AHEAD, k]), now_s, w)
    for k in range(old):
        state = picks[_OLD_STATE, k]
        if not (state >= CAN_START and _is_picked(picks[_FIT], fit, picks[_OLD, k])):
            _add_row(s, p, picks[_OLD, k], state, 0.0, now_s, w)
    for k in range(rest):
        if w.info[0] == rows:
            break
        if not _is_picked(picks[_OLD], old, picks[_REST, k]):
            _add_row(s, p, picks[_REST, k], picks[_REST_STATE, k], 0.0, now_s, w)
    _use_rows(w, w.info[0])
    w.info[1] = 1 if fit > 0 else 0
    w.features[w.info[1], IS_REFERENCE] = 1.0
    _guard(s, p, now_s, fit > 0, w)


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


@kernel
def num_variants(s: StateArrays, p: int, slot: int) -> int:
    """How many rows `variant_window` has for a job that fits."""
    gpus = s.job.gpus[slot]
    if gpus > s.derived.part.node_size[p]:
        return 1
    found = 0
    for free in range(gpus, s.derived.holes.shape[1]):
        found += s.derived.holes[p, free] > 0
    return min(found, MAX_VARIANTS)


@kernel
def variant_window(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> None:
    """Second half: the ways to start a job that fits. Row 0 is best fit, the reference.

    A gang on one node has a row for each number of free GPUs on nodes that hold it: the fullest three and
    the emptiest; a gang over several nodes has one way.
    """
    gpus, shared, demand, work = s.job.gpus[slot], w.shared, 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        at = own_columns(s.job, s.derived.queue[p, position], w.own)
        demand += w.own.gpus[at]
        work += w.own.predicted_gpu_s[at]
    shared[:] = 0.0
    partition_columns(s, p, demand, work, shared)
    w.info[0] = 0
    if gpus > s.derived.part.node_size[p]:
        _add_variant(s, p, slot, first_node_of(s, p, gpus), now_s, w)
    else:
        emptiest = largest_hole(s, p)
        for free in range(gpus, emptiest + 1):
            if s.derived.holes[p, free] > 0 and (w.info[0] < MAX_VARIANTS - 1 or free == emptiest):
                _add_variant(s, p, slot, node_with(s, p, free), now_s, w)
    _use_rows(w, w.info[0])
    w.info[1], w.info[2] = 0, -1
    w.features[0, IS_REFERENCE] = 1.0


@kernel
def _add_variant(s: StateArrays, p: int, slot: int, node: int, now_s: float, w: WindowArrays) -> None:
    at, row = w.info[0], w.features[w.info[0]]
    own = own_columns(s.job, slot, w.own)
    gpus = w.own.gpus[own]
    for column in range(NUM_FEATURES):
        row[column] = w.shared[column]
    row[IS_VARIANT] = 1.0
    _set_own(s, p, slot, own, now_s, w, row)
    _look_at(s, node, gpus, now_s, w, 0)
    _set_place(s, p, gpus, 0, w, row)
    w.slot[at], w.node[at], w.reason[at] = slot, node, LEGAL
    w.info[0] = at + 1


@kernel
def note_wait(s: StateArrays, w: WindowArrays, now_s: float) -> None:
    """A *wait* was chosen in this window: the jobs in it that could have started are kept back."""
    for row in range(1, w.info[0]):
        if w.reason[row] == LEGAL:
            pass_over(s, w.slot[row], w.info[2], now_s)
