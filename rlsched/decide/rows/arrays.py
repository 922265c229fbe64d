"""Buffers of a window, and the compiled functions that fill rows in both halves of a decision."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, StateArrays, records
from rlsched.cluster.choose import host_of
from rlsched.compile.jit import array_kernel, kernel
from rlsched.compile.reference import by_reference
from rlsched.decide.rows.columns import (
    FEASIBLE,
    FREE_AFTER,
    GPU_TIME,
    GPUS,
    GPUS_FRAC,
    IS_JOB,
    IS_VARIANT,
    IS_WAIT,
    LEFTOVER,
    NODE_ENDS,
    OPENS_NODE,
    PREDICTED,
    SPREAD,
)
from rlsched.decide.rows.features import (
    OWN,
    PLACE,
    PROFILE,
    place_columns,
)
from rlsched.decide.rows.logs import LogArrays, log_arrays
from rlsched.decide.rows.reasons import PADDING
from rlsched.decide.rules.gittins import CLAIM
from rlsched.decide.schema import NUM_FEATURES, PREEMPTING_ROWS, WINDOW_ROWS

NOT_ASKED: Final = -2
"""Value of a demand class whose place, or whose delay of other jobs, has not been computed yet."""


@by_reference
class WindowArrays(NamedTuple):
    """Buffers of one window of K rows, and scratch memory. For a served policy, K is WINDOW_ROWS.

    `features` may be wider than F = NUM_FEATURES. The columns after F belong to the caller; this module only
    sets them to zero, in rows that are no longer in use. Rows that were never used are zero from the start.
    """

    slot: NDArray[np.int32]  # (K,) job slot, -1 for *wait* and padding
    node: NDArray[np.int32]  # (K,) first node of the placement, -1 if none
    reason: NDArray[np.int32]  # (K,) LEGAL or a reason code
    features: NDArray[np.float32]  # (K, F or more)
    info: NDArray[
        np.int32
    ]  # (3,) rows in use, row that the reference rule takes, slot of the blocked job or -1
    clock: NDArray[np.float64]  # (K,) SM clock of each row
    partner: NDArray[np.int32]  # (K,) slot of the running job that each row shares GPUs with, -1: none
    out: NDArray[np.int32]  # (K,) slot of the running job that each row preempts first, -1: none
    picks: Records  # (K,) PICK: scratch
    logs: LogArrays  # (2 K,) scratch: logarithms of waiting and held-back times
    shared: NDArray[np.float32]  # (F,) scratch: values that all rows share
    profile: NDArray[np.int64]  # (PROFILE,) scratch
    places: Records  # (PLACES,) PLACE, by demand class + 1; 0 is for higher classes: scratch
    own: Records  # (a power of two,) OWN, by slot: valid as long as job numbers do not change
    claim: Records  # (PREEMPTING_ROWS,) CLAIM: scratch


PICK: Final = np.dtype(
    [
        ("position", np.int32),  # position in the queue of the job of a row
        ("state", np.int32),  # state of the job in the window (`rows.picks`)
        ("ahead", np.int32),  # jobs ahead of it that do not fit
        ("partner", np.int32),  # slot of the running job whose GPUs it would share, -1: none
        ("old", np.int32),  # separate list: queue positions of the oldest jobs to show
        ("old_state", np.int32),
        ("old_partner", np.int32),
        ("rest", np.int32),  # separate list: queue positions of jobs that do not fit
        ("rest_state", np.int32),
    ]
)
"""Candidates for rows, while rows are chosen."""
PLACES: Final = 33
"""Number of place entries: one for each of the first 32 demand classes, and one for all other classes."""
OWN_ENTRIES: Final = 32


def empty_window(rows: int = WINDOW_ROWS, own: int = OWN_ENTRIES) -> WindowArrays:
    """Return buffers for one window of `rows` rows that remembers `own` jobs (a power of two)."""
    return WindowArrays(
        np.full(rows, -1, np.int32),
        np.full(rows, -1, np.int32),
        np.full(rows, PADDING, np.int32),
        np.zeros((rows, NUM_FEATURES), np.float32),
        np.zeros(3, np.int32),
        np.ones(rows),
        np.full(rows, -1, np.int32),
        np.full(rows, -1, np.int32),
        records(rows, PICK),
        log_arrays(2 * rows),
        np.zeros(NUM_FEATURES, np.float32),
        np.zeros(PROFILE, np.int64),
        records(PLACES, PLACE),
        nobody(records(own, OWN)),
        records(PREEMPTING_ROWS, CLAIM),
    )


def nobody(own: Records) -> Records:
    """Mark all entries as belonging to no job."""
    own.seq[:] = -1
    return own


class _Thread(threading.local):
    """Scratch buffers of the windows of one thread."""

    def __init__(self) -> None:
        self.window = empty_window()


_THREAD = _Thread()
_BLANK: Final = empty_window()


def fresh_window() -> WindowArrays:
    """Return buffers for one window of a served policy: new rows, and the scratch buffers of this thread."""
    blank = _BLANK
    return _THREAD.window._replace(
        slot=blank.slot.copy(),
        node=blank.node.copy(),
        reason=blank.reason.copy(),
        features=blank.features.copy(),
        info=blank.info.copy(),
        clock=blank.clock.copy(),
        partner=blank.partner.copy(),
        out=blank.out.copy(),
        own=blank.own.copy(),
    )


@kernel
def use_rows(w: WindowArrays, rows: int) -> None:
    """Mark this many rows as in use; the rows after them are padding."""
    for row in range(rows, w.slot.shape[0]):
        w.slot[row], w.node[row], w.reason[row] = -1, -1, PADDING
        w.clock[row], w.partner[row], w.out[row] = 1.0, -1, -1
    row, table = rows, w.features
    while row < w.slot.shape[0] and table[row, IS_WAIT] + table[row, IS_JOB] + table[row, IS_VARIANT] > 0.0:
        table[row, :] = 0.0
        row += 1
    w.info[0] = rows


@kernel
def set_own(s: StateArrays, p: int, mine: int, own: Records, row: NDArray[np.float32]) -> None:
    """Fill the columns of `row` that do not change while a job waits, from entry `mine` of `own`."""
    row[PREDICTED] = own.predicted_log[mine]
    row[SPREAD] = own.spread[mine]
    row[GPU_TIME] = own.gpu_time_log[mine]
    row[GPUS] = own.gpus_log[mine]
    row[GPUS_FRAC] = own.gpus[mine] / max(s.derived.part.open_gpus[p], 1)


@array_kernel
def first_host(s: StateArrays, p: int, slot: int) -> int:
    """Return the first node that the placement rule would use for a job that fits."""
    return host_of(s, p, slot, np.empty(s.job.gpus[slot], np.int32))


@kernel
def look_at(s: StateArrays, node: int, gpus: int, now_s: float, places: Records, at: int) -> None:
    """Fill entry `at` of `places` for a gang of this size that would get `node`; -1: no node."""
    if node >= 0:
        place_columns(s, node, gpus, now_s, places, at)
    else:
        places.node[at] = -1


@kernel
def set_place(s: StateArrays, p: int, gpus: int, at: int, places: Records, row: NDArray[np.float32]) -> int:
    """Fill the columns about the place of a gang from entry `at` of `places`. Returns the node, -1: none."""
    if places.node[at] >= 0:
        row[FEASIBLE] = 1.0
        row[FREE_AFTER] = (s.derived.part.free_gpus[p] - gpus) / max(s.derived.part.open_gpus[p], 1)
        row[LEFTOVER] = places.leftover[at]
        row[OPENS_NODE] = places.opens_node[at]
        row[NODE_ENDS] = places.node_ends[at]
    return places.node[at]
