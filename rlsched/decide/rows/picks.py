"""Compiled selection of the queued jobs that get a row in the first half of a decision, with their states."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.arrays import Records, StateArrays
from rlsched.cluster.placement import class_fits, first_fitting
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.constants import MODELLED, PREEMPTING, RESERVING
from rlsched.decide.plans.best import LOOK_AT, partner_of
from rlsched.decide.plans.holds import half_free, is_held, is_overdue
from rlsched.decide.rows.arrays import NOT_ASKED, WindowArrays
from rlsched.decide.rows.features import own_columns
from rlsched.decide.rules.backfill import reserve_first
from rlsched.decide.rules.reservation import fits_beside, predicted_run_s
from rlsched.decide.schema import FEASIBLE_ROWS, OLDEST_ROWS, WINDOW_ROWS

NO_FIT: Final = 0
KEPT: Final = 1
CAN_START: Final = 2
LATE: Final = 3
CLAIMS: Final = 4
DELAYS: Final = -1
"""State of a job in a window. NO_FIT: does not fit. KEPT: is held back. CAN_START: can start. LATE: can
start, and is overdue. CLAIMS: can start if other jobs are preempted. DELAYS: fits, but would delay the job
with the reservation."""
_SHOWN: Final = -2


@kernel
def sort_out(
    s: StateArrays, p: int, now_s: float, claims: int, w: WindowArrays
) -> tuple[int, int, int, int, int, float]:
    """Scan the whole queue once, and write the candidates for rows to `w.picks`.

    The first `claims` entries of `w.claim` are waiting jobs for which running jobs may be preempted.

    Returns (number of jobs that can start, already in rows 1 and on; number of jobs listed for their age;
    number of jobs listed because they cannot start; position of the blocked job or -1; GPUs requested;
    predicted GPU-seconds of all waiting jobs).
    """
    queue, job, own, picks = s.derived.queue[p], s.job, w.own, w.picks
    rows = w.slot.shape[0]
    feasible_rows, oldest_rows = rows * FEASIBLE_ROWS // WINDOW_ROWS, rows * OLDEST_ROWS // WINDOW_ROWS
    nothing_held = half_free(s, p)
    shadow_s = _reservation(s, p, now_s) if RESERVING else np.inf
    fit, old, rest, ahead, blocked, claimed = 0, 0, 0, 0, -1, 0
    looks = LOOK_AT if MODELLED and s.config[0].modelled else 0
    youngest = np.int64(0)
    demand, work = 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        slot = queue[position]
        at = own_columns(job, slot, own)
        demand += own.gpus[at]
        work += own.predicted_gpu_s[at]
        partner, fits = -1, class_fits(s, p, own.demand[at])
        if MODELLED and not fits and looks > 0:
            looks -= 1
            partner = partner_of(s, p, slot, now_s)
        if not fits and partner < 0:
            state = NO_FIT
            ahead += 1
            if blocked < 0:
                blocked = position
            if PREEMPTING:
                while claimed < claims and w.claim.position[claimed] < position:
                    claimed += 1
                if claimed < claims and w.claim.position[claimed] == position:
                    state = CLAIMS
        elif (
            RESERVING
            and shadow_s < np.inf
            and s.derived.class_queue.delays[p, own.demand[at]]
            and now_s + predicted_run_s(s, p, slot, -1) > shadow_s
        ):
            state = DELAYS
        elif not nothing_held and is_held(s, p, slot, now_s):
            state = KEPT
        else:
            state = LATE if is_overdue(s, slot, now_s) else CAN_START
        if state >= CAN_START and fit < feasible_rows:
            fit += 1
            picks.position[fit], picks.state[fit], picks.ahead[fit] = position, state, ahead
            picks.partner[fit] = partner
        if state < CAN_START and rest < rows:
            picks.rest[rest], picks.rest_state[rest] = position, state
            rest += 1
        if old < oldest_rows or state == LATE or own.seq[at] < youngest:
            old = _note_oldest(s, p, position, state, partner, w, old, oldest_rows)
            if old == oldest_rows:
                late = picks.old_state[old - 1] == LATE
                youngest = np.int64(0) if late else job.seq[queue[picks.old[old - 1]]]
    return fit, old, rest, blocked, demand, work


@array_kernel
def _reservation(s: StateArrays, p: int, now_s: float) -> float:
    """Return the time of the reservation of `rules.backfill` in partition `p`; infinite: none.

    Sets `class_queue.delays` for each demand class whose jobs would delay the reservation if they started now
    and still ran then. Classes without a job that would still run are not set.
    """
    at = first_fitting(s, p, 0) if s.config[0].reserve_after_s < np.inf else -1
    if at <= 0:
        return np.inf
    head, shadow_s, future = reserve_first(s, p, at, now_s, s.config[0].reserve_after_s)
    if head >= 0:
        classes = s.derived.class_queue
        for c in range(s.demand.shape[0]):
            classes.delays[p, c] = NOT_ASKED
        for position in range(s.derived.part.queue_len[p]):
            slot = s.derived.queue[p, position]
            c = s.job.demand[slot]
            if classes.delays[p, c] == NOT_ASKED and now_s + predicted_run_s(s, p, slot, -1) > shadow_s:
                alone = class_fits(s, p, c)
                classes.delays[p, c] = not (alone and fits_beside(s, future, p, head, slot, -1))
    return shadow_s


@kernel
def _note_oldest(
    s: StateArrays, p: int, position: int, state: int, partner: int, w: WindowArrays, found: int, limit: int
) -> int:
    """Store a queue position if it is among the `limit` oldest to show. Returns the number of stored ones.

    Overdue jobs that can start come first, then the others by arrival.
    """
    out, states, queue = w.picks.old, w.picks.old_state, s.derived.queue[p]
    partners = w.picks.old_partner
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
def pick(picks: Records, fit: int, old: int, rest: int) -> int:
    """Give rows to jobs listed for their age, then to jobs that cannot start. Returns the rows in use."""
    rows = fit + 1
    for k in range(old):
        position, state = picks.old[k], picks.old_state[k]
        if state < CAN_START or fit == 0 or position > picks.position[fit]:
            picks.position[rows], picks.state[rows], picks.ahead[rows] = position, state, 0
            picks.partner[rows] = picks.old_partner[k]
            rows += 1
        if state < CAN_START:
            low, high = 0, rest
            while low < high:
                middle = (low + high) // 2
                if picks.rest[middle] < position:
                    low = middle + 1
                else:
                    high = middle
            if low < rest and picks.rest[low] == position:
                picks.rest_state[low] = _SHOWN
    for k in range(rest):
        if rows == picks.shape[0]:
            break
        if picks.rest_state[k] != _SHOWN:
            picks.position[rows], picks.state[rows] = picks.rest[k], picks.rest_state[k]
            picks.ahead[rows], picks.partner[rows] = 0, -1
            rows += 1
    return rows
