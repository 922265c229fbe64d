"""One training episode, compiled: advance to the next contested decision, apply a choice, account for regret.

An episode is a window of a trace. The reference rule runs all of it first and leaves its waiting-jobs
curve; then it plays the warm-up again, and the agent takes over in exactly that state.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import INDEX, SIZE, WAITING
from rlsched.cluster.placement import all_fit
from rlsched.decide.abilities import energy_weight, policy_abilities
from rlsched.decide.holds import any_released, first_sharing, first_startable, next_hold
from rlsched.decide.rules import PLAIN, SKIPPING, RuleCode
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched.decide.variants import has_one_way, num_variants, variant_window
from rlsched.decide.window_arrays import LEGAL, WindowArrays
from rlsched.decide.windows import job_window, note_wait
from rlsched.jit import kernel, large_kernel, wide
from rlsched_envs.able_starts import BY_RULE, join, place, run_able, run_able_recording
from rlsched_envs.physics import JOBS_J, LOST_S
from rlsched_envs.references import next_tick_s, run_reference, run_reference_recording
from rlsched_envs.simulation import (
    FINISHED,
    NEXT_ROW,
    NOW,
    PREEMPTIONS,
    QUEUED_S,
    STARTS,
    TIMER,
    SimArrays,
    next_instant,
    note_start,
    preempt_slot,
    rewind,
    run_rule,
    run_rule_recording,
    start_slot,
)

DECIDE: Final = 0
DONE: Final = 1

PARTITION: Final = 0
CHOSEN: Final = 1
"""Slot of the job whose variant is to be chosen, -1 in the first half."""
REFERENCE_LEN: Final = 2
REFERENCE_AT: Final = 3
DRAINS: Final = 4
"""1: the policy decides to the last job; 0: the reference rule takes over after the agent's arrivals."""
HANDOVER_ROW: Final = 5
WARMUP_ROW: Final = 6
DECISIONS: Final = 7
STARTS_BEFORE: Final = 8
"""Starts of the run when the current pass over the partitions began."""
FIRST_PASS: Final = 9
"""1 while the partitions are asked for the first time at this instant."""
ENTERED: Final = 10
"""Partition that is being asked in this pass, -1 before the first."""
AHEAD: Final = 11
"""Positions of the latest instants of the reference run, as far ahead of now as `_LOOKAHEAD_S` says."""
HOLD_SLOT: Final = 14
"""The job whose hold ends first: its slot, _NO_HOLD or _UNKNOWN; and its number."""
HOLD_SEQ: Final = 15
PREEMPTIONS_BEFORE: Final = 16
"""Preemptions of the run when the current pass began."""
NUM_INTS: Final = 17
_NO_HOLD: Final = -1
_UNKNOWN: Final = -2

REGRET: Final = 0
"""Queueing beyond the reference's up to the last decision, job-seconds."""
SCALE: Final = 1
SEEN_S: Final = 2
"""Instant that the critic's columns about the reference are of."""
HOLD_END_S: Final = 3
COST: Final = 4
"""Cost of the run up to the last decision beyond the reference's: what the reward is made of."""
ENERGY_SCALE: Final = 5
RESTART_S: Final = 6
"""What a preempted job pays to go on."""
NUM_FLOATS: Final = 7

TRUE_LOG: Final = NUM_FEATURES + 3
"""The one column of the critic that differs from row to row."""
_LOOKAHEAD_S: Final = (3600.0, 21_600.0, 86_400.0)


class EpisodeArrays(NamedTuple):
    """An episode; T rows."""

    sim: SimArrays
    window: WindowArrays
    reference_s: NDArray[np.float64]  # (2 T + 1,) instants of the reference run
    reference_queued_s: NDArray[np.float64]  # (2 T + 1,) its queueing and lost time so far, job-seconds
    reference_waiting: NDArray[
        np.float64
    ]  # (2 T + 1,) its waiting jobs, and time lost a second, from then on
    reference_energy_j: NDArray[np.float64]  # (2 T + 1,) energy of its jobs so far
    reference_power_w: NDArray[np.float64]  # (2 T + 1,) power of its jobs from then on
    reference_start_s: NDArray[np.float64]  # (T,) `delayed_to_s` of its jobs
    true_gpu_s: NDArray[np.float64]  # (T,) true run time x GPUs
    true_log: NDArray[np.float32]  # (T,) the critic's column `true_log`
    critic: NDArray[np.float32]  # (C,) the critic's columns that all rows share
    floats: NDArray[np.float64]  # (NUM_FLOATS,)
    ints: NDArray[np.int64]  # (NUM_INTS,)


@kernel
def preempts(e: EpisodeArrays) -> bool:
    """Whether jobs may be preempted in this episode."""
    return e.sim.state.config[0].order == INDEX


@kernel
def _has_own_reference(e: EpisodeArrays) -> bool:
    """Whether another rule than `qssf-backfill` is followed here (`references`)."""
    return e.sim.state.config[0].order == INDEX or e.sim.state.config[0].order == SIZE


@kernel
def _new_pass(e: EpisodeArrays, first: int) -> None:
    """Ask the partitions (again), from the first one on."""
    e.ints[PARTITION], e.ints[ENTERED], e.ints[FIRST_PASS] = 0, -1, first
    e.ints[STARTS_BEFORE] = e.sim.progress.tally[STARTS]
    e.ints[PREEMPTIONS_BEFORE] = e.sim.progress.tally[PREEMPTIONS]


@kernel
def delayed_to_s(e: EpisodeArrays, row: int) -> float:
    """When a job that is over would have had to start to end as it did, alone and without interruption."""
    outcome = e.sim.progress.outcome
    return outcome.end_s[row] - e.sim.truth.duration_s[row] if preempts(e) else outcome.start_s[row]


@large_kernel
def begin(e: EpisodeArrays, warmup_row: int, handover_row: int, drains: int) -> bool:
    """Play the reference, then its warm-up again. False if it kept nobody waiting: nothing to learn.

    The regret is scaled by the reference's queueing of all the rows after the warm-up: a return of 100
    would be an episode without any queueing at all.
    """
    rewind(e.sim)
    length = _play_reference(e)
    if length <= 0:
        return False
    for row in range(e.reference_start_s.shape[0]):
        e.reference_start_s[row] = delayed_to_s(e, row)
        e.true_gpu_s[row] = e.sim.truth.duration_s[row] * e.sim.truth.gpus[row]
        e.true_log[row] = math.log1p(e.sim.truth.duration_s[row]) / 12.0
    queued, work = 0.0, 0.0
    for row in range(warmup_row, e.reference_start_s.shape[0]):
        queued += e.reference_start_s[row] - e.sim.truth.submit_s[row]
        work += e.sim.truth.duration_s[row]
    e.window.own.seq[:] = -1
    e.ints[AHEAD : AHEAD + 3] = 0
    e.ints[HOLD_SLOT] = _NO_HOLD
    e.floats[SEEN_S] = np.nan
    rewind(e.sim)
    _play(e, warmup_row)
    _new_pass(e, 1)
    e.ints[PARTITION] = e.sim.state.derived.part.free_gpus.shape[0]
    e.ints[CHOSEN] = -1
    e.ints[REFERENCE_LEN], e.ints[REFERENCE_AT] = length, 0
    e.ints[DRAINS], e.ints[HANDOVER_ROW], e.ints[WARMUP_ROW] = drains, handover_row, warmup_row
    e.ints[DECISIONS] = 0
    e.floats[REGRET] = e.floats[COST] = 0.0
    weight = energy_weight(e.sim.state)
    e.floats[SCALE] = (1.0 - weight) * 100.0 / max(queued, 1.0)
    e.floats[ENERGY_SCALE] = 0.0
    if weight > 0.0:
        in_system = (queued + work) / max(queued, 1.0)
        e.floats[ENERGY_SCALE] = weight * 100.0 * in_system / max(e.reference_energy_j[length - 1], 1.0)
    return queued > 0.0


@large_kernel
def _play_reference(e: EpisodeArrays) -> int:
    """Let the reference play the whole episode, and note its costs. Returns how many instants there were."""
    if _has_own_reference(e):
        return run_reference_recording(
            e.sim,
            policy_abilities(e.sim.state),
            e.floats[RESTART_S],
            e.reference_s,
            e.reference_queued_s,
            e.reference_waiting,
            e.reference_energy_j,
            e.reference_power_w,
        )
    if e.sim.state.config[0].modelled:
        return run_able_recording(
            e.sim,
            _reference(e),
            e.reference_s,
            e.reference_queued_s,
            e.reference_waiting,
            e.reference_energy_j,
            e.reference_power_w,
        )
    return run_rule_recording(e.sim, SKIPPING, e.reference_s, e.reference_queued_s, e.reference_waiting)


@kernel
def _reference(e: EpisodeArrays) -> RuleCode:
    """The reference rule with what it may do here."""
    return RuleCode(PLAIN, False, np.inf, 0.0, policy_abilities(e.sim.state))


@large_kernel
def _play(e: EpisodeArrays, until_row: int) -> None:
    """Let the reference play until so many rows have arrived."""
    if _has_own_reference(e):
        run_reference(e.sim, policy_abilities(e.sim.state), e.floats[RESTART_S], until_row)
    elif e.sim.state.config[0].modelled:
        run_able(e.sim, _reference(e), until_row)
    else:
        run_rule(e.sim, SKIPPING, until_row)


@kernel
def _reference_now(e: EpisodeArrays) -> int:
    """Position of the reference run's latest instant."""
    at, now_s = e.ints[REFERENCE_AT], e.sim.progress.clock[NOW]
    while at + 1 < e.ints[REFERENCE_LEN] and e.reference_s[at + 1] <= now_s:
        at += 1
    e.ints[REFERENCE_AT] = at
    return at


@kernel
def _reference_cost(e: EpisodeArrays, over: bool) -> tuple[float, float]:
    """(queueing and lost time, job-seconds; energy of the jobs, J) of the reference run up to now.

    `over`: all jobs have ended here. The reference's last ones may still run: they count to their ends.
    """
    if over:
        last = e.ints[REFERENCE_LEN] - 1
        return e.reference_queued_s[last], e.reference_energy_j[last]
    at = _reference_now(e)
    since_s = e.sim.progress.clock[NOW] - e.reference_s[at]
    time_s = e.reference_queued_s[at] + e.reference_waiting[at] * since_s
    return time_s, e.reference_energy_j[at] + e.reference_power_w[at] * since_s


@kernel
def regret_so_far(e: EpisodeArrays, over: bool) -> tuple[float, float]:
    """(time, job-seconds; energy, J) beyond the reference run's up to now, each an integral."""
    time_s, energy_j = _reference_cost(e, over)
    if not e.sim.state.config[0].modelled:
        return e.sim.progress.clock[QUEUED_S] - time_s, 0.0
    sums = e.sim.progress.clock
    return e.sim.progress.clock[QUEUED_S] + sums[LOST_S] - time_s, sums[JOBS_J] - energy_j


@kernel
def only_choice(w: WindowArrays) -> int:
    """The one legal row, -1 if there are several."""
    found = -1
    for row in range(w.info[0]):
        if w.reason[row] == LEGAL:
            if found >= 0:
                return -1
            found = row
    return found


@kernel
def _start(sim: SimArrays, p: int, slot: int, node: int, clock: float, beside: int) -> None:
    """Start a job that can. All numbers are made alike first: other types would be compiled once more."""
    _start_any(sim, wide(p), wide(slot), wide(node), clock, wide(beside))


@large_kernel
def _start_any(sim: SimArrays, p: int, slot: int, node: int, clock: float, beside: int) -> None:
    """One copy of all ways to start a job for all who call it here."""
    if not sim.state.config[0].modelled:
        start_slot(sim, p, slot, node)
        return
    if beside >= 0:
        join(sim, p, slot, beside, clock, policy_abilities(sim.state))
        note_start(sim, slot)
    elif place(sim, p, slot, node, clock, policy_abilities(sim.state)):
        note_start(sim, slot)


@kernel
def _node_asked(e: EpisodeArrays, node: int) -> int:
    """The node of a variant as `choose` wants it: -1 where the placement rule alone says where."""
    return -1 if has_one_way(e.sim.state, e.ints[PARTITION], e.ints[CHOSEN]) else node


@large_kernel
def apply_choice(e: EpisodeArrays, row: int) -> bool:
    """Apply a legal row of the current window. True if the second half is to be decided next."""
    s, w, p = e.sim.state, e.window, e.ints[PARTITION]
    now_s = e.sim.progress.clock[NOW]
    if e.ints[CHOSEN] >= 0:
        _start(e.sim, p, e.ints[CHOSEN], _node_asked(e, w.node[row]), w.clock[row], w.beside[row])
        e.ints[CHOSEN] = -1
        return False
    if row == 0:
        note_wait(s, w, now_s)
        if e.ints[HOLD_SLOT] == _NO_HOLD:
            e.ints[HOLD_SLOT] = _UNKNOWN
        e.ints[PARTITION] = p + 1
        return False
    slot = w.slot[row]
    if w.out[row] >= 0:
        preempt_slot(e.sim, wide(w.out[row]), e.floats[RESTART_S])
        return False
    if num_variants(s, p, slot) == 1:
        _start(e.sim, p, slot, -1, BY_RULE, w.beside[row])
        return False
    variant_window(s, p, slot, now_s, w)
    e.ints[CHOSEN] = slot
    return True


@kernel
def _next_hold_end_s(e: EpisodeArrays) -> float:
    """`holds.next_hold_end_s`, which looks through the queue only if the hold that ended first is gone.

    A hold made later ends later, so the first stays the first as long as it stands.
    """
    job, slot, now_s = e.sim.state.job, e.ints[HOLD_SLOT], e.sim.progress.clock[NOW]
    if slot == _NO_HOLD:
        return np.inf
    stands = slot >= 0 and job.seq[slot] == e.ints[HOLD_SEQ] and job.status[slot] == WAITING
    if not stands or job.held_until_s[slot] != e.floats[HOLD_END_S] or e.floats[HOLD_END_S] <= now_s:
        slot = next_hold(e.sim.state, now_s)
        e.ints[HOLD_SLOT] = slot
        if slot < 0:
            return np.inf
        e.ints[HOLD_SEQ], e.floats[HOLD_END_S] = job.seq[slot], job.held_until_s[slot]
    return e.floats[HOLD_END_S]


@large_kernel
def _only_how(e: EpisodeArrays, slot: int) -> bool:
    """Everything that waits fits: start this job, or, where energy counts, let a variant be chosen (True)."""
    s, p = e.sim.state, e.ints[PARTITION]
    if energy_weight(s) > 0.0 and num_variants(s, p, slot) > 1:
        variant_window(s, p, slot, e.sim.progress.clock[NOW], e.window)
        e.ints[CHOSEN] = slot
        return True
    _start(e.sim, p, slot, -1, BY_RULE, -1)
    return False


@large_kernel
def advance(e: EpisodeArrays) -> int:
    """Go on until there is something to decide (the window is filled then), or the episode is over."""
    s = e.sim.state
    partitions = s.derived.part.free_gpus.shape[0]
    while True:
        while e.ints[PARTITION] < partitions:
            p = e.ints[PARTITION]
            now_s = e.sim.progress.clock[NOW]
            if e.ints[ENTERED] != p and e.ints[FIRST_PASS] == 0 and not any_released(s, p, now_s):
                e.ints[PARTITION] = p + 1
                continue
            e.ints[ENTERED] = p
            position = first_startable(s, p, now_s)
            quiet = position < 0 and first_sharing(s, p, now_s) < 0
            if quiet and (s.derived.part.queue_len[p] == 0 or not preempts(e)):
                e.ints[PARTITION] = p + 1
            elif position >= 0 and all_fit(s, p):
                if _only_how(e, s.derived.queue[p, position]):
                    return DECIDE
            else:
                job_window(s, p, now_s, e.window)
                single = only_choice(e.window)
                if single < 0:
                    return DECIDE
                if apply_choice(e, single):
                    return DECIDE
        if e.sim.progress.tally[PREEMPTIONS] > e.ints[PREEMPTIONS_BEFORE]:
            _new_pass(e, 1)
            continue
        if e.sim.progress.tally[STARTS] > e.ints[STARTS_BEFORE]:
            _new_pass(e, 0)
            continue
        e.sim.progress.clock[TIMER] = _next_hold_end_s(e)
        if preempts(e):
            tick_s = next_tick_s(s, e.sim.progress.clock[NOW])
            e.sim.progress.clock[TIMER] = min(e.sim.progress.clock[TIMER], tick_s)
        if e.ints[DRAINS] == 0 and e.sim.progress.tally[NEXT_ROW] >= e.ints[HANDOVER_ROW]:
            _play(e, e.sim.truth.shape[0] + 1)
            return DONE
        if next_instant(e.sim) == FINISHED:
            return DONE
        _new_pass(e, 1)


@large_kernel
def step(e: EpisodeArrays, row: int) -> tuple[int, float]:
    """Apply a choice and go on. Returns (DECIDE or DONE, reward).

    reward = -(regret now - regret at the last decision) x 100 / (queueing of the reference, job-seconds);
    with models, of time and energy each: (1 - weight) times that, less weight x 100 x (energy beyond the
    reference's) / (its energy) x (its time in the system / its queueing). Both are in the same unit then.
    """
    e.ints[DECISIONS] += 1
    if apply_choice(e, row):
        return DECIDE, 0.0
    status = advance(e)
    regret, energy_j = regret_so_far(e, status == DONE)
    cost = regret * e.floats[SCALE] + energy_j * e.floats[ENERGY_SCALE]
    reward = -(cost - e.floats[COST])
    e.floats[REGRET], e.floats[COST] = regret, cost
    return status, reward


@kernel
def _reference_queueing(e: EpisodeArrays, at: int, at_s: float) -> float:
    """Queueing of the reference run up to a time whose latest instant stands at `at`, job-seconds."""
    return e.reference_queued_s[at] + e.reference_waiting[at] * (at_s - e.reference_s[at])


@kernel
def _true_work(e: EpisodeArrays) -> tuple[float, float]:
    """True GPU-seconds (left on running jobs, waiting) in the current partition."""
    s, truth, now_s, row_of = e.sim.state, e.sim.truth, e.sim.progress.clock[NOW], e.sim.progress.ends.row
    p = e.ints[PARTITION]
    left, waiting = 0.0, 0.0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        work_s = truth.duration_s[row_of[slot]] - s.job.saved_s[slot] + s.job.overhead_left_s[slot]
        end_s = s.job.start_s[slot] + work_s
        left += (end_s - now_s) * s.job.gpus[slot]
    for position in range(s.derived.part.queue_len[p]):
        waiting += e.true_gpu_s[row_of[s.derived.queue[p, position]]]
    return left, waiting


@kernel
def _look_ahead(e: EpisodeArrays) -> None:
    """The critic's columns about the reference's queue and the arrivals to come, which change with time."""
    now_s, total = e.sim.progress.clock[NOW], e.sim.truth.shape[0]
    now_at = _reference_now(e)
    before = _reference_queueing(e, now_at, now_s)
    e.critic[1] = math.log1p(max(e.reference_waiting[now_at], 0.0)) / 8.0  # cores can win time as well
    e.critic[2] = (total - e.sim.progress.tally[NEXT_ROW]) / total
    for k in range(3):
        at, at_s = max(e.ints[AHEAD + k], now_at), now_s + _LOOKAHEAD_S[k]
        while at + 1 < e.ints[REFERENCE_LEN] and e.reference_s[at + 1] <= at_s:
            at += 1
        e.ints[AHEAD + k] = at
        mean = (_reference_queueing(e, at, at_s) - before) / _LOOKAHEAD_S[k]
        e.critic[6 + k] = math.log1p(max(mean, 0.0)) / 8.0
    e.floats[SEEN_S] = now_s


@large_kernel
def observe(e: EpisodeArrays, mask: NDArray[np.bool_]) -> None:
    """Put the critic's columns behind the window's, which then is (K, F + C), and write the (K,) mask."""
    w, rows, critic = e.window, e.window.info[0], e.critic
    if e.floats[SEEN_S] != e.sim.progress.clock[NOW]:
        _look_ahead(e)
    gpus = max(e.sim.state.derived.part.open_gpus[e.ints[PARTITION]], 1)
    left, waiting = _true_work(e)
    waiting_jobs = e.sim.progress.tally[NEXT_ROW] - e.sim.progress.tally[STARTS]
    critic[0] = (waiting_jobs - e.reference_waiting[e.ints[REFERENCE_AT]]) / 32.0
    critic[4] = math.log1p(max(left, 0.0) / gpus) / 15.0
    critic[5] = math.log1p(waiting / gpus) / 15.0
    for row in range(rows):
        for column in range(NUM_CRITIC):
            w.features[row, NUM_FEATURES + column] = critic[column]
        if w.slot[row] >= 0:
            w.features[row, TRUE_LOG] = e.true_log[e.sim.progress.ends.row[w.slot[row]]]
        mask[row] = w.reason[row] == LEGAL
    mask[rows:] = False
