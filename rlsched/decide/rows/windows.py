"""The first half of a decision, compiled: *wait* or a job; which rows are legal, and why others are not.

`job_window` fills the buffers from row 0 on and sets the other rows to zero. `rows.variants.variant_window`
fills them for the second half, the variants of the chosen job. Simulator and broker call both functions.
"""

from __future__ import annotations

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED, PREEMPTING
from rlsched.decide.options import energy_weight, job_energy_weight
from rlsched.decide.plans.holds import half_free, pass_over
from rlsched.decide.rows.arrays import (
    NOT_ASKED,
    WindowArrays,
    first_host,
    look_at,
    set_own,
    set_place,
    use_rows,
)
from rlsched.decide.rows.columns import (
    ENERGY_WEIGHT,
    FEASIBLE,
    FIT_IN,
    FREE,
    FREE_AFTER,
    INFEASIBLE_AHEAD,
    IS_JOB,
    IS_REFERENCE,
    IS_WAIT,
    PREEMPTS,
    RANK,
    WAITED,
)
from rlsched.decide.rows.columns import HELD as HELD_FOR
from rlsched.decide.rows.features import (
    TIME_SCALE,
    against_blocked,
    blocked_columns,
    count_log,
    fit_in_log,
    index_columns,
    own_columns,
    partition_columns,
    partner_columns,
    preemption_columns,
    release_profile,
    workload_columns,
)
from rlsched.decide.rows.logs import scaled_log1p
from rlsched.decide.rows.picks import (
    CAN_START,
    CLAIMS,
    DELAYS,
    KEPT,
    LATE,
    pick,
    sort_out,
)
from rlsched.decide.rows.reasons import (
    GUARD_HALF_FREE,
    GUARD_HOLD,
    HELD,
    LEGAL,
    NO_HOLE,
    RESERVED,
    TOO_FEW_FREE,
)
from rlsched.decide.rules.gittins import preemptions
from rlsched.decide.schema import NUM_FEATURES


@kernel
def job_window(s: StateArrays, p: int, now_s: float, w: WindowArrays) -> None:
    """Fill the window of the first half: *wait*, then jobs of partition `p`.

    The jobs are the first that fit, the oldest, and the first that do not fit. Of K rows, at most the shares
    FEASIBLE_ROWS / WINDOW_ROWS and OLDEST_ROWS / WINDOW_ROWS are of the first two kinds. The reference
    (`qssf-backfill`) chooses the first job of the queue order that fits on free GPUs; with models, if no job
    fits, the first that can share the GPUs of a running job (`options.policy_start`).

    If jobs may be preempted, the queue is in index order, and a job that does not fit can start by
    preempting: its row preempts the first victim, and decisions that follow at once preempt the others. The
    reference is then `gittins`: the first job of the order that can start in any way.
    """
    shared = w.shared
    preempts, claims = False, 0
    if PREEMPTING and s.config[0].preempts:
        preempts, claims = True, preemptions(s, p, now_s, w.claim)
    fit, old, rest, blocked, demand, work = sort_out(s, p, now_s, claims, w)
    w.info[2] = s.derived.queue[p, blocked] if blocked >= 0 else -1
    for c in range(w.places.shape[0]):
        w.places.node[c] = NOT_ASKED
    release_profile(s, p, now_s, w.profile)
    for column in range(NUM_FEATURES):
        shared[column] = 0.0
    partition_columns(s, p, demand, work, shared)
    blocked_columns(s, p, w.info[2], now_s, shared)
    shared[ENERGY_WEIGHT] = energy_weight(s)
    shared[PREEMPTS] = 1.0 if preempts else 0.0

    first = w.features[0]
    for column in range(NUM_FEATURES):
        first[column] = shared[column]
    first[IS_WAIT], first[FREE_AFTER] = 1.0, shared[FREE]
    w.slot[0], w.node[0], w.reason[0] = -1, -1, LEGAL
    w.partner[0] = w.out[0] = -1
    shared[IS_JOB] = 1.0
    rows = pick(w.picks, fit, old, rest)
    _fill_rows(s, p, rows, now_s, w)
    use_rows(w, rows)
    w.info[1] = 1 if fit > 0 else 0
    startable = False
    for row in range(fit, 0, -1):
        if not preempts and w.picks.partner[row] < 0:
            w.info[1] = row
        startable = startable or w.picks.state[row] != CLAIMS
    w.features[w.info[1], IS_REFERENCE] = 1.0
    _guard(s, p, startable, w)


@kernel
def _fill_rows(s: StateArrays, p: int, rows: int, now_s: float, w: WindowArrays) -> None:
    """Fill the rows from 1 on, for the jobs in `w.picks`."""
    queue, job, own, picks, shared, logs = s.derived.queue[p], s.job, w.own, w.picks, w.shared, w.logs
    held_at, free = w.slot.shape[0], s.derived.part.free_gpus[p]
    for row in range(1, rows):
        slot = queue[picks.position[row]]
        held_s = now_s - job.held_since_s[slot]
        logs.x[row] = max(now_s - job.submit_s[slot], 0.0)
        logs.x[held_at + row] = held_s if held_s == held_s else 0.0
        w.slot[row] = slot
    scaled_log1p(logs, 1, rows, TIME_SCALE)
    scaled_log1p(logs, held_at + 1, held_at + rows, TIME_SCALE)
    for at in range(1, rows):
        slot, state, row = w.slot[at], picks.state[at], w.features[at]
        for column in range(NUM_FEATURES):
            row[column] = shared[column]
        row[INFEASIBLE_AHEAD] = count_log(picks.ahead[at])
        row[RANK] = count_log(picks.position[at])
        row[WAITED], row[HELD_FOR] = logs.out[at], logs.out[held_at + at]
        mine = own_columns(job, slot, own)
        gpus = own.gpus[mine]
        set_own(s, p, mine, own, row)
        node = -1
        w.partner[at], w.out[at] = picks.partner[at], -1
        if MODELLED and s.config[0].modelled:
            workload_columns(s, p, slot, row)
            row[ENERGY_WEIGHT] = job_energy_weight(s, slot)
        if PREEMPTING and row[PREEMPTS] > 0.0:
            index_columns(s, slot, now_s, row)
        if PREEMPTING and state == CLAIMS:
            w.reason[at] = LEGAL
            node = _set_claim(s, p, picks.position[at], at, w)
            row[FREE_AFTER] = shared[FREE]
        elif MODELLED and state >= CAN_START and w.partner[at] >= 0:
            w.reason[at] = LEGAL
            node = job.host[w.partner[at]]
            row[FEASIBLE], row[FREE_AFTER] = 1.0, shared[FREE]
            partner_columns(s, slot, w.partner[at], now_s, row)
        elif state >= CAN_START:
            w.reason[at] = LEGAL
            node = set_place(s, p, gpus, _host_by_class(s, p, slot, now_s, w), w.places, row)
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
    """Fill the row of a job that can start by preemption. Returns a node of the job to preempt first."""
    for k in range(w.claim.shape[0]):
        if w.claim.position[k] == position:
            w.out[at] = w.claim.out[k]
            preemption_columns(s, p, w.claim.gpus[k], w.claim.lead[k], w.features[at])
            break
    return s.job.host[w.out[at]]


@kernel
def _host_by_class(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> int:
    """Return the entry of `w.places` for a job's demand class; compute it by the placement rule if needed."""
    demand = s.job.demand[slot]
    at = demand + 1 if demand + 1 < w.places.shape[0] else 0
    if at == 0 or w.places.node[at] == NOT_ASKED:
        look_at(s, first_host(s, p, slot), s.job.gpus[slot], now_s, w.places, at)
    return at


@kernel
def _guard(s: StateArrays, p: int, any_fits: bool, w: WindowArrays) -> None:
    """Mask *wait* while half of the partition is free, and all rows but overdue jobs if there are any."""
    late, states = 0, w.picks.state
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
def note_wait(s: StateArrays, w: WindowArrays, now_s: float) -> None:
    """Hold back, after a *wait*, the jobs of this window that could have started.

    Jobs that could have started only by preemption are not held back; they are considered at the next
    instant.
    """
    for row in range(1, w.info[0]):
        if w.reason[row] == LEGAL and w.out[row] < 0:
            pass_over(s, w.slot[row], w.info[2], now_s)
