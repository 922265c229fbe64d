"""The rows of a decision, compiled: which candidates are shown, which are legal, and why the others are not.

`job_window` lists the first half of a decision (which job, or *wait*), `variant_window` the second (which
variant of that job). Both fill the same buffers: row 0 upwards, zeros behind. Simulator and broker call them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import (
    INDEX,
    MAX_TENANTS,
    MODELLED,
    ORDER,
    PLACEMENT,
    SIZE,
    SPREAD,
    Records,
    StateArrays,
    records,
)
from rlsched.cluster.choose import host_of
from rlsched.cluster.gittins import default_code
from rlsched.cluster.placement import class_fits, first_fitting, fits_slot, largest_hole, node_with
from rlsched.decide.abilities import (
    LOOK_AT,
    clock_for,
    energy_weight,
    job_energy_weight,
    partner_of,
    policy_abilities,
)
from rlsched.decide.easy import PATIENCE_S, reserve_first
from rlsched.decide.features import (
    ENERGY_WEIGHT,
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
    PREEMPTS,
    PROFILE,
    RANK,
    TIME_SCALE,
    WAITED,
    against_blocked,
    blocked_columns,
    clock_columns,
    count_log,
    fit_in_log,
    index_columns,
    own_columns,
    partition_columns,
    partner_columns,
    place_columns,
    preemption_columns,
    release_profile,
    workload_columns,
)
from rlsched.decide.features import HELD as HELD_FOR
from rlsched.decide.features import SPREAD as SPREAD_COLUMN
from rlsched.decide.foresight import fits_beside
from rlsched.decide.holds import half_free, is_held, is_overdue, pass_over
from rlsched.decide.index_walk import PREEMPTION, preemptions
from rlsched.decide.logs import LogArrays, log_arrays, scaled_log1p
from rlsched.decide.schema import (
    FEASIBLE_ROWS,
    MAX_VARIANTS,
    NUM_FEATURES,
    OLDEST_ROWS,
    PREEMPTING_ROWS,
    WINDOW_ROWS,
)
from rlsched.jit import array_kernel, kernel, large_kernel
from rlsched.models.arrays import NUM_LEVELS
from rlsched.models.speed import gpu_kind

LEGAL: Final = 0
TOO_FEW_FREE: Final = 1
NO_HOLE: Final = 2
GUARD_HALF_FREE: Final = 3
GUARD_HOLD: Final = 4
PADDING: Final = 5
HELD: Final = 6
RESERVED: Final = 7

REASON_TEXT: Final = {
    LEGAL: "can start",
    TOO_FEW_FREE: "fewer GPUs are free than the gang needs",
    NO_HOLE: "enough GPUs are free, but not together",
    GUARD_HALF_FREE: "no waiting while half of the GPUs are free and a job can start",
    GUARD_HOLD: "another job has been held back for too long",
    PADDING: "empty row",
    HELD: "kept back by an earlier wait",
    RESERVED: "would delay the job that GPUs are reserved for",
}


NO_FIT: Final = 0
KEPT: Final = 1
CAN_START: Final = 2
LATE: Final = 3
CLAIMS: Final = 4
DELAYS: Final = -1
"""What a job is to a window: it does not fit; is held back; can start; can start, and is overdue; can start
if others are preempted; fits, and would delay the job with the reservation."""
NOT_ASKED: Final = -2
_SHOWN: Final = -2


class WindowArrays(NamedTuple):
    """Buffers of one window of K rows, and scratch. K is WINDOW_ROWS wherever a policy is served.

    `features` may be wider than F = NUM_FEATURES. Columns behind those are the caller's; here they are only
    set to zero, in rows that are no longer in use. Rows that were never used are zero from the start.
    """

    slot: NDArray[np.int32]  # (K,) job slot, -1 for *wait* and padding
    node: NDArray[np.int32]  # (K,) first node of the placement, -1 where there is none
    reason: NDArray[np.int32]  # (K,) LEGAL or why not
    features: NDArray[np.float32]  # (K, F or more)
    info: NDArray[
        np.int32
    ]  # (3,) rows in use, row that the reference rule takes, slot of the blocked job or -1
    clock: NDArray[np.float64]  # (K,) SM clock of each row
    beside: NDArray[np.int32]  # (K,) slot of the running job that each row shares GPUs with, -1: none
    out: NDArray[np.int32]  # (K,) slot of the running job that each row preempts first, -1: none
    picks: NDArray[np.int32]  # (PICKS, K) scratch
    logs: LogArrays  # (2 K,) scratch: what waiting and held-back times come to
    shared: NDArray[np.float32]  # (F,) scratch: what all rows have in common
    profile: NDArray[np.int64]  # (PROFILE,) scratch
    places: Records  # (PLACES,) PLACE, by demand class + 1; 0 is for classes beyond: scratch
    own: Records  # (a power of two,) OWN, by slot: kept as long as job numbers stay
    claim: Records  # (PREEMPTING_ROWS,) PREEMPTION: scratch


_POSITION, _STATE, _AHEAD, _PARTNER, _OLD, _OLD_STATE, _OLD_PARTNER, _REST, _REST_STATE = range(9)
PICKS: Final = 9
"""By row: queue position, what the job is, jobs ahead that do not fit, whose GPUs it would share. Then what
may still be shown."""
PLACES: Final = 33
"""Jobs of one of the first 32 demand classes share what is said about where they would go."""
OWN_ENTRIES: Final = 32


def empty_window(rows: int = WINDOW_ROWS, own: int = OWN_ENTRIES) -> WindowArrays:
    """Buffers for one window of so many rows that remembers so many jobs (a power of two)."""
    return WindowArrays(
        np.full(rows, -1, np.int32),
        np.full(rows, -1, np.int32),
        np.full(rows, PADDING, np.int32),
        np.zeros((rows, NUM_FEATURES), np.float32),
        np.zeros(3, np.int32),
        np.ones(rows),
        np.full(rows, -1, np.int32),
        np.full(rows, -1, np.int32),
        np.zeros((PICKS, rows), np.int32),
        log_arrays(2 * rows),
        np.zeros(NUM_FEATURES, np.float32),
        np.zeros(PROFILE, np.int64),
        records(PLACES, PLACE),
        nobody(records(own, OWN)),
        records(PREEMPTING_ROWS, PREEMPTION),
    )


def nobody(own: Records) -> Records:
    """The same entries, which belong to no job from now on."""
    own.seq[:] = -1
    return own


@kernel
def _use_rows(w: WindowArrays, rows: int) -> None:
    """So many rows are in use: behind them is nothing but padding."""
    for row in range(rows, w.slot.shape[0]):
        w.slot[row], w.node[row], w.reason[row] = -1, -1, PADDING
        w.clock[row], w.beside[row], w.out[row] = 1.0, -1, -1
    row, table = rows, w.features
    while row < w.slot.shape[0] and table[row, IS_WAIT] + table[row, IS_JOB] + table[row, IS_VARIANT] > 0.0:
        table[row, :] = 0.0
        row += 1
    w.info[0] = rows


@kernel
def _sort_out(
    s: StateArrays, p: int, now_s: float, claims: int, w: WindowArrays
) -> tuple[int, int, int, int, int, float]:
    """Look at the whole queue once, and note in `w.picks` what may be shown.

    So many jobs of the queue stand in `w.claim`: others may be preempted for them.

    Returns (jobs that can start, which have rows 1 and on already; noted for their age; noted because they
    cannot start; position of the blocked job or -1; GPUs asked for; predicted GPU-seconds waiting).
    """
    queue, job, own, picks = s.derived.queue[p], s.job, w.own, w.picks
    rows = w.slot.shape[0]
    feasible_rows, oldest_rows = rows * FEASIBLE_ROWS // WINDOW_ROWS, rows * OLDEST_ROWS // WINDOW_ROWS
    nothing_held = half_free(s, p)
    shadow_s = _reservation(s, p, now_s)
    fit, old, rest, ahead, blocked, claimed = 0, 0, 0, 0, -1, 0
    looks = LOOK_AT if s.counters[MODELLED] else 0
    youngest = np.int64(0)
    demand, work = 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        slot = queue[position]
        at = own_columns(job, slot, own)
        demand += own.gpus[at]
        work += own.predicted_gpu_s[at]
        partner, fits = -1, class_fits(s, p, own.demand[at])
        if not fits and looks > 0:
            looks -= 1
            partner = partner_of(s, p, slot)
        if not fits and partner < 0:
            state = NO_FIT
            ahead += 1
            if blocked < 0:
                blocked = position
            while claimed < claims and w.claim.position[claimed] < position:
                claimed += 1
            if claimed < claims and w.claim.position[claimed] == position:
                state = CLAIMS
        elif now_s + job.predicted_s[slot] > shadow_s and s.derived.lane.delays[p, own.demand[at]]:
            state = DELAYS
        elif not nothing_held and is_held(s, p, slot, now_s):
            state = KEPT
        else:
            state = LATE if is_overdue(s, slot, now_s) else CAN_START
        if state >= CAN_START and fit < feasible_rows:
            fit += 1
            picks[_POSITION, fit], picks[_STATE, fit], picks[_AHEAD, fit] = position, state, ahead
            picks[_PARTNER, fit] = partner
        if state < CAN_START and rest < rows:
            picks[_REST, rest], picks[_REST_STATE, rest] = position, state
            rest += 1
        if old < oldest_rows or state == LATE or own.seq[at] < youngest:
            old = _note_oldest(s, p, position, state, partner, w, old, oldest_rows)
            if old == oldest_rows:
                late = picks[_OLD_STATE, old - 1] == LATE
                youngest = np.int64(0) if late else job.seq[queue[picks[_OLD, old - 1]]]
    return fit, old, rest, blocked, demand, work


@array_kernel
def _reservation(s: StateArrays, p: int, now_s: float) -> float:
    """The time of what `decide.easy` reserves in partition `p`, infinite: nothing, or not by this order.

    `lane.delays` is set for the classes whose jobs would delay it if they started now and still ran then; of
    classes without a job that would still run nothing is said.
    """
    at = first_fitting(s, p, 0) if s.counters[ORDER] == SIZE else -1
    if at <= 0:
        return np.inf
    head, shadow_s, future = reserve_first(s, p, at, now_s, PATIENCE_S)
    if head >= 0:
        lane = s.derived.lane
        for c in range(s.demand.shape[0]):
            lane.delays[p, c] = NOT_ASKED
        for position in range(s.derived.part.queue_len[p]):
            slot = s.derived.queue[p, position]
            c = s.job.demand[slot]
            if lane.delays[p, c] == NOT_ASKED and now_s + s.job.predicted_s[slot] > shadow_s:
                alone = class_fits(s, p, c)
                lane.delays[p, c] = not (alone and fits_beside(s, future, p, head, slot))
    return shadow_s


@kernel
def _note_oldest(
    s: StateArrays, p: int, position: int, state: int, partner: int, w: WindowArrays, found: int, limit: int
) -> int:
    """Keep a queue position if it is among the `limit` to show for their age. Returns how many there are.

    Overdue jobs that can start come first, then the others by arrival.
    """
    out, states, queue = w.picks[_OLD], w.picks[_OLD_STATE], s.derived.queue[p]
    partners = w.picks[_OLD_PARTNER]
    seq = s.job.seq[queue[position]]
    at = found
    while at > 0:
        late, other_late = state == LATE, states[at - 1] == LATE
        if (late and not other_late) or (late == other_late and seq < s.job.seq[queue[out[at - 1]]]):
            if at < limit:
                out[at], states[at], partners[at] = out[at - 1], states[at - 1], partners[at - 1]
            at -= 1
        else:
            break
    if at < limit:
        out[at], states[at], partners[at] = position, state, partner
        found = min(found + 1, limit)
    return found


@kernel
def _pick(picks: NDArray[np.int32], fit: int, old: int, rest: int) -> int:
    """Give rows to jobs noted for their age, then to those that cannot start. Returns the rows in use."""
    rows = fit + 1
    for k in range(old):
        position, state = picks[_OLD, k], picks[_OLD_STATE, k]
        if state < CAN_START or fit == 0 or position > picks[_POSITION, fit]:
            picks[_POSITION, rows], picks[_STATE, rows], picks[_AHEAD, rows] = position, state, 0
            picks[_PARTNER, rows] = picks[_OLD_PARTNER, k]
            rows += 1
        if state < CAN_START:
            low, high = 0, rest
            while low < high:
                middle = (low + high) // 2
                if picks[_REST, middle] < position:
                    low = middle + 1
                else:
                    high = middle
            if low < rest and picks[_REST, low] == position:
                picks[_REST_STATE, low] = _SHOWN
    for k in range(rest):
        if rows == picks.shape[1]:
            break
        if picks[_REST_STATE, k] != _SHOWN:
            picks[_POSITION, rows], picks[_STATE, rows] = picks[_REST, k], picks[_REST_STATE, k]
            picks[_AHEAD, rows], picks[_PARTNER, rows] = 0, -1
            rows += 1
    return rows


@large_kernel
def job_window(s: StateArrays, p: int, now_s: float, w: WindowArrays) -> None:
    """First half: *wait*, then jobs of partition `p`: the first that fit, the oldest, the first that do not.

    Of K rows, shares of FEASIBLE_ROWS / WINDOW_ROWS and of OLDEST_ROWS / WINDOW_ROWS at most are of the first
    two kinds. The reference (`qssf-backfill`) takes the first job of the queue order that fits on free GPUs;
    with models, where none does, the first that can share those of a running job (`policy_abilities`).

    Where jobs may be preempted the queue goes by the index, and a job that does not fit can start by
    preempting: its row preempts the first of those who have to give way, and the others are for the decisions
    that follow at once. The reference is `gittins` then: the first of the order that can start in any way.
    """
    shared = w.shared
    preempts = s.counters[ORDER] == INDEX
    claims = preemptions(s, p, now_s, default_code(), w.claim) if preempts else 0
    fit, old, rest, blocked, demand, work = _sort_out(s, p, now_s, claims, w)
    w.info[2] = s.derived.queue[p, blocked] if blocked >= 0 else -1
    w.places.node[:] = NOT_ASKED
    release_profile(s, p, now_s, w.profile)
    shared[:] = 0.0
    partition_columns(s, p, demand, work, shared)
    blocked_columns(s, p, w.info[2], now_s, shared)
    shared[ENERGY_WEIGHT] = energy_weight(s)
    shared[PREEMPTS] = 1.0 if preempts else 0.0

    first = w.features[0]
    for column in range(NUM_FEATURES):
        first[column] = shared[column]
    first[IS_WAIT], first[FREE_AFTER] = 1.0, shared[FREE]
    w.slot[0], w.node[0], w.reason[0] = -1, -1, LEGAL
    w.beside[0] = w.out[0] = -1
    shared[IS_JOB] = 1.0
    rows = _pick(w.picks, fit, old, rest)
    _fill_rows(s, p, rows, now_s, w)
    _use_rows(w, rows)
    w.info[1] = 1 if fit > 0 else 0
    startable = False
    for row in range(fit, 0, -1):
        if not preempts and w.picks[_PARTNER, row] < 0:
            w.info[1] = row
        startable = startable or w.picks[_STATE, row] != CLAIMS
    w.features[w.info[1], IS_REFERENCE] = 1.0
    _guard(s, p, startable, w)


@kernel
def _fill_rows(s: StateArrays, p: int, rows: int, now_s: float, w: WindowArrays) -> None:
    """Write the rows from 1 on, of the jobs that stand in `w.picks`."""
    queue, job, own, picks, shared, logs = s.derived.queue[p], s.job, w.own, w.picks, w.shared, w.logs
    held_at, free = w.slot.shape[0], s.derived.part.free_gpus[p]
    for row in range(1, rows):
        slot = queue[picks[_POSITION, row]]
        held_s = now_s - job.held_since_s[slot]
        logs.x[row] = max(now_s - job.submit_s[slot], 0.0)
        logs.x[held_at + row] = held_s if held_s == held_s else 0.0
        w.slot[row] = slot
    scaled_log1p(logs, 1, rows, TIME_SCALE)
    scaled_log1p(logs, held_at + 1, held_at + rows, TIME_SCALE)
    for at in range(1, rows):
        slot, state, row = w.slot[at], picks[_STATE, at], w.features[at]
        for column in range(NUM_FEATURES):
            row[column] = shared[column]
        row[INFEASIBLE_AHEAD] = count_log(picks[_AHEAD, at])
        row[RANK] = count_log(picks[_POSITION, at])
        row[WAITED], row[HELD_FOR] = logs.out[at], logs.out[held_at + at]
        mine = own_columns(job, slot, own)
        gpus = own.gpus[mine]
        _set_own(s, p, mine, own, row)
        node = -1
        w.beside[at], w.out[at] = picks[_PARTNER, at], -1
        if s.counters[MODELLED]:
            workload_columns(s, p, slot, row)
            row[ENERGY_WEIGHT] = job_energy_weight(s, slot)
        if row[PREEMPTS] > 0.0:
            index_columns(s, slot, now_s, row)
        if state == CLAIMS:
            w.reason[at] = LEGAL
            node = _set_claim(s, p, picks[_POSITION, at], at, w)
            row[FREE_AFTER] = shared[FREE]
        elif state >= CAN_START and w.beside[at] >= 0:
            w.reason[at] = LEGAL
            node = job.host[w.beside[at]]
            row[FEASIBLE], row[FREE_AFTER] = 1.0, shared[FREE]
            partner_columns(s, slot, w.beside[at], now_s, row)
        elif state >= CAN_START:
            w.reason[at] = LEGAL
            node = _set_place(s, p, gpus, _host_by_class(s, p, slot, now_s, w), w.places, row)
        elif state == KEPT:
            w.reason[at] = HELD
        elif state == DELAYS:
            w.reason[at] = RESERVED
        else:
            w.reason[at] = TOO_FEW_FREE if gpus > free else NO_HOLE
        if node < 0:
            row[FREE_AFTER] = shared[FREE]
            row[FIT_IN] = fit_in_log(w.profile, gpus - free)
        w.node[at] = node
        against_blocked(row)


@kernel
def _set_claim(s: StateArrays, p: int, position: int, at: int, w: WindowArrays) -> int:
    """Fill a row whose job starts by preempting. Returns a node of the job that gives way first."""
    for k in range(w.claim.shape[0]):
        if w.claim.position[k] == position:
            w.out[at] = w.claim.out[k]
            preemption_columns(s, p, w.claim.gpus[k], w.claim.margin[k], w.features[at])
            break
    return s.job.host[w.out[at]]


@kernel
def _set_own(s: StateArrays, p: int, mine: int, own: Records, row: NDArray[np.float32]) -> None:
    """Fill the columns that stay with a job, entry `mine` of `own`."""
    row[PREDICTED] = own.predicted_log[mine]
    row[SPREAD_COLUMN] = own.spread[mine]
    row[GPU_TIME] = own.gpu_time_log[mine]
    row[GPUS] = own.gpus_log[mine]
    row[GPUS_FRAC] = own.gpus[mine] / max(s.derived.part.open_gpus[p], 1)


@array_kernel
def _host(s: StateArrays, p: int, slot: int) -> int:
    """First node that the placement rule would use for a job that fits."""
    return host_of(s, p, slot, np.empty(s.job.gpus[slot], np.int32))


@kernel
def _host_by_class(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> int:
    """Entry of `w.places` that says where the placement rule would put such a job in this window."""
    demand = s.job.demand[slot]
    at = demand + 1 if demand + 1 < w.places.shape[0] else 0
    if at == 0 or w.places.node[at] == NOT_ASKED:
        _look_at(s, _host(s, p, slot), s.job.gpus[slot], now_s, w.places, at)
    return at


@kernel
def _look_at(s: StateArrays, node: int, gpus: int, now_s: float, places: Records, at: int) -> None:
    if node >= 0:
        place_columns(s, node, gpus, now_s, places, at)
    else:
        places.node[at] = -1


@kernel
def _set_place(s: StateArrays, p: int, gpus: int, at: int, places: Records, row: NDArray[np.float32]) -> int:
    """Fill the columns about where a gang would go, entry `at` of `places`. Returns the node, -1: none."""
    if places.node[at] >= 0:
        row[FEASIBLE] = 1.0
        row[FREE_AFTER] = (s.derived.part.free_gpus[p] - gpus) / max(s.derived.part.open_gpus[p], 1)
        row[LEFTOVER] = places.leftover[at]
        row[OPENS_NODE] = places.opens_node[at]
        row[NODE_ENDS] = places.node_ends[at]
    return places.node[at]


@kernel
def _guard(s: StateArrays, p: int, any_fits: bool, w: WindowArrays) -> None:
    """The promises that are part of the mask: no *wait* on a half-empty partition, a longest hold."""
    late, states = 0, w.picks[_STATE]
    for row in range(1, w.info[0]):
        late += states[row] == LATE
    if late > 0:
        for row in range(w.info[0]):
            if w.reason[row] == LEGAL and (row == 0 or states[row] != LATE):
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
def _has_one_way(s: StateArrays, p: int, slot: int) -> bool:
    """Whether it is for the placement rule to say where a job goes."""
    many = s.job.gpus[slot] > s.derived.part.node_size[p]
    return many or s.demand.plain[s.job.demand[slot]] == 0 or s.counters[PLACEMENT] == SPREAD


@kernel
def num_variants(s: StateArrays, p: int, slot: int) -> int:
    """How many rows `variant_window` has for a job that can start."""
    if s.counters[MODELLED] and s.job.gpus[slot] > 0:
        found = _num_clocks(s, slot) * (_num_places(s, p, slot) if fits_slot(s, p, slot) else 0)
        return found + (partner_of(s, p, slot) >= 0)
    return _num_places(s, p, slot)


@kernel
def _num_places(s: StateArrays, p: int, slot: int) -> int:
    """Places that a job that fits can go to."""
    if _has_one_way(s, p, slot):
        return 1
    found = 0
    for free in range(s.job.gpus[slot], s.derived.holes.shape[1]):
        found += s.derived.holes[p, free] > 0
    return min(found, MAX_VARIANTS)


@kernel
def _num_clocks(s: StateArrays, slot: int) -> int:
    """SM clocks that a job can be given; where energy counts nothing, lower ones are of no use."""
    return NUM_LEVELS if job_energy_weight(s, slot) > 0.0 else 1


@large_kernel
def variant_window(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> None:
    """Second half: the ways to start a job that can.

    A gang on one node has a place for each number of free GPUs on nodes that hold it: the fullest three and
    the emptiest; a gang over several nodes, and a job that asks for more than whole GPUs, has one. Where
    energy counts, each place comes with every SM clock; with models, sharing with one running job is the last
    row. The reference is best fit at the clock that `policy_abilities` give, or sharing where nothing fits.
    """
    gpus, shared, demand, work = s.job.gpus[slot], w.shared, 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        at = own_columns(s.job, s.derived.queue[p, position], w.own)
        demand += w.own.gpus[at]
        work += w.own.predicted_gpu_s[at]
    shared[:] = 0.0
    partition_columns(s, p, demand, work, shared)
    shared[IS_VARIANT] = 1.0
    shared[PREEMPTS] = 1.0 if s.counters[ORDER] == INDEX else 0.0
    w.info[0], w.info[1], w.info[2] = 0, 0, -1
    modelled = s.counters[MODELLED] != 0
    if modelled:
        shared[ENERGY_WEIGHT] = job_energy_weight(s, slot)
    if not modelled or fits_slot(s, p, slot):
        if _has_one_way(s, p, slot):
            _add_variants(s, p, slot, _host(s, p, slot), now_s, w)
        else:
            emptiest, places = largest_hole(s, p), 0
            for free in range(gpus, emptiest + 1):
                if s.derived.holes[p, free] > 0 and (places < MAX_VARIANTS - 1 or free == emptiest):
                    _add_variants(s, p, slot, node_with(s, p, free), now_s, w)
                    places += 1
    if modelled and gpus > 0:
        _add_sharing(s, p, slot, now_s, w)
    _use_rows(w, w.info[0])
    w.features[w.info[1], IS_REFERENCE] = 1.0


@kernel
def _add_variants(s: StateArrays, p: int, slot: int, node: int, now_s: float, w: WindowArrays) -> None:
    """A row for each clock that the job can have on this node; the first node's reference clock is noted."""
    first = w.info[0] == 0
    if not s.counters[MODELLED] or s.job.gpus[slot] == 0:
        _add_variant(s, p, slot, node, 1.0, -1, now_s, w)
        return
    kind, clocks = s.derived.part.kind[p], _num_clocks(s, slot)
    if node >= 0 and s.models.gpu.sliced[s.node.kind[node]]:
        kind, clocks = s.node.kind[node], 1
    clock = clock_for(s, p, slot, kind, policy_abilities(s))
    if node >= 0 and s.node.fixed_clock[node]:
        clock, clocks = 1.0, 1
    for level in range(clocks):
        x = s.models.gpu.levels_frac[kind, level]
        if first and x == clock:
            w.info[1] = w.info[0]
        _add_variant(s, p, slot, node, x, -1, now_s, w)


@kernel
def _add_sharing(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> None:
    """A row for sharing the GPUs of a running job, where there is one to share with."""
    beside = partner_of(s, p, slot)
    if beside >= 0:
        kind = gpu_kind(s, s.job.head[beside] // MAX_TENANTS)
        clock = clock_for(s, p, slot, kind, policy_abilities(s))
        _add_variant(s, p, slot, s.job.host[beside], clock, beside, now_s, w)


@large_kernel
def _add_variant(
    s: StateArrays, p: int, slot: int, node: int, clock: float, beside: int, now_s: float, w: WindowArrays
) -> None:
    at, row = w.info[0], w.features[w.info[0]]
    mine = own_columns(s.job, slot, w.own)
    for column in range(NUM_FEATURES):
        row[column] = w.shared[column]
    _set_own(s, p, mine, w.own, row)
    row[WAITED] = math.log1p(max(now_s - s.job.submit_s[slot], 0.0)) / TIME_SCALE
    held_s = now_s - s.job.held_since_s[slot]
    row[HELD_FOR] = math.log1p(held_s) / TIME_SCALE if held_s == held_s else 0.0
    if s.counters[MODELLED]:
        workload_columns(s, p, slot, row)
    if row[PREEMPTS] > 0.0:
        index_columns(s, slot, now_s, row)
    if beside >= 0:
        row[FEASIBLE], row[FREE_AFTER] = 1.0, w.shared[FREE]
        partner_columns(s, slot, beside, now_s, row)
    else:
        _look_at(s, node, w.own.gpus[mine], now_s, w.places, 0)
        _set_place(s, p, w.own.gpus[mine], 0, w.places, row)
    if s.counters[MODELLED] and s.job.gpus[slot] > 0:
        clock_columns(s, p, slot, clock, row)
    w.slot[at], w.node[at], w.reason[at] = slot, node, LEGAL
    w.clock[at], w.beside[at], w.out[at] = clock, beside, -1
    w.info[0] = at + 1


@kernel
def note_wait(s: StateArrays, w: WindowArrays, now_s: float) -> None:
    """A *wait* was chosen in this window: the jobs in it that could have started are kept back.

    Those that others would have been preempted for are not: they are asked about again at the next instant.
    """
    for row in range(1, w.info[0]):
        if w.reason[row] == LEGAL and w.out[row] < 0:
            pass_over(s, w.slot[row], w.info[2], now_s)
