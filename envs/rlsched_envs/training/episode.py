"""Compiled training episodes: advance to the next contested decision, apply a choice, compute the regret.

An episode is a window of a trace. The reference rule first runs the whole window, and its numbers of waiting
jobs over time are recorded. Then the rule runs the warm-up again, and the agent continues from its end.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import WAITING, Records
from rlsched.cluster.placement import all_fit
from rlsched.compile.jit import compile_time, kernel
from rlsched.compile.reference import by_reference
from rlsched.decide.constants import MODELLED, PREEMPTING, RESERVING
from rlsched.decide.move import BY_OPTIONS, Move
from rlsched.decide.options import RuleOptions, energy_weight, policy_start
from rlsched.decide.plans.holds import any_released, first_sharing, first_startable, next_hold
from rlsched.decide.rows.arrays import WindowArrays
from rlsched.decide.rows.reasons import LEGAL
from rlsched.decide.rows.variants import has_one_way, num_variants, variant_window
from rlsched.decide.rows.windows import job_window, note_wait
from rlsched.decide.rules.gittins import next_age_look_s
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched_envs.sim.constants import FINISHED
from rlsched_envs.sim.events import next_instant, rewind, waiting_jobs
from rlsched_envs.sim.loop import Curve
from rlsched_envs.sim.moves import preempt, start
from rlsched_envs.sim.sim_arrays import SimArrays

DECIDE: Final = 0
DONE: Final = 1

TURN: Final = np.dtype(
    [
        ("partition", np.int64),  # partition of the decision
        ("chosen", np.int64),  # slot of the job whose variant is to be chosen, -1 in the first half
        ("reference_at", np.int64),  # index of the reference run's latest instant
        ("ahead", np.int64, (3,)),  # indices of its latest instants within each of `_LOOKAHEAD_S` from now
        ("drains", np.int64),  # 1: the policy decides to the last job; 0: the reference rule continues after
        # the agent's arrivals
        ("handover_row", np.int64),
        ("warmup_row", np.int64),
        ("decisions", np.int64),
        ("starts_before", np.int64),  # starts of the run at the start of the pass over the partitions
        ("preemptions_before", np.int64),  # preemptions at that time
        ("first_pass", np.int64),  # 1 during the first pass over the partitions at this instant
        ("entered", np.int64),  # current partition of this pass, -1 before the first
        ("hold_slot", np.int64),  # the job whose hold ends first: its slot, _NO_HOLD or _UNKNOWN
        ("hold_seq", np.int64),  # its number
        ("hold_end_s", np.float64),  # end of its hold
        ("regret", np.float64),  # queueing in excess of the reference's up to the last decision, job-seconds
        ("cost", np.float64),  # cost of the run up to the last decision in excess of the reference's, the
        # basis of the reward
        ("scale", np.float64),  # reward per job-second
        ("energy_scale", np.float64),  # reward per joule
        ("seen_s", np.float64),  # instant of the critic's columns about the reference
    ],
    align=True,
)
"""State of an episode, one entry."""
_NO_HOLD: Final = -1
_UNKNOWN: Final = -2

play_greedy: Final[Any] = compile_time("play_greedy")
"""`loop.run_rule` for each possible reference rule, with recorded costs."""
play_gittins: Final[Any] = compile_time("play_gittins")
play_backfill: Final[Any] = compile_time("play_backfill")

TRUE_LOG: Final = NUM_FEATURES + 3
"""The only critic column whose value differs between rows."""
_LOOKAHEAD_S: Final = (3600.0, 21_600.0, 86_400.0)


KNOWN: Final = np.dtype(
    [
        ("reference_start_s", np.float64),  # `delayed_to_s` in the reference's run
        ("true_gpu_s", np.float64),  # true run time x GPUs
        ("true_log", np.float32),  # the critic's column of that name
    ]
)
"""Properties of a row that are known before the agent starts."""


@by_reference
class EpisodeArrays(NamedTuple):
    """An episode with T jobs."""

    sim: SimArrays
    window: WindowArrays
    curve: Curve  # of the reference run, (2 T + 1,); (4 T + 1,) if jobs may be preempted
    quiet: NDArray[np.int64]  # (1,) -1: the length of a curve that records nothing
    known: Records  # (T,) KNOWN
    critic: NDArray[np.float32]  # (C,) the critic's columns shared by all rows
    turn: Records  # (1,) TURN


@kernel
def preempts(e: EpisodeArrays) -> bool:
    """Return whether jobs can be preempted in this episode."""
    return PREEMPTING and e.sim.state.config[0].preempts != 0


@kernel
def _new_pass(e: EpisodeArrays, first: int) -> None:
    """Start a pass over the partitions, beginning with partition `first`."""
    turn, run = e.turn[0], e.sim.progress.run[0]
    turn.partition, turn.entered, turn.first_pass = 0, -1, first
    turn.starts_before, turn.preemptions_before = run.starts, run.preemptions


@kernel
def delayed_to_s(e: EpisodeArrays, row: int) -> float:
    """Return the start with which a job, unshared and uninterrupted, would have had its actual end."""
    outcome = e.sim.progress.outcome
    return outcome.end_s[row] - e.sim.truth.duration_s[row] if preempts(e) else outcome.start_s[row]


@kernel
def prepare(e: EpisodeArrays) -> bool:
    """Run the reference, then its warm-up again. Returns False if no job waited, so that nothing is learned.

    `turn` then stores when the warm-up ended, and whether, and from which job on, the reference rule decides
    after the agent.

    The regret is scaled by the queueing time of all jobs after the warm-up in the reference: an episode
    without any queueing has a return of 100.
    """
    turn, rows, warmup_row = e.turn[0], e.sim.truth.shape[0], e.turn[0].warmup_row
    rewind(e.sim)
    e.curve.length[0] = 0
    _play(e, rows + 1, e.curve.length)
    if e.curve.length[0] <= 0:
        return False
    for row in range(rows):
        known = e.known[row]
        known.reference_start_s = delayed_to_s(e, row)
        known.true_gpu_s = e.sim.truth.duration_s[row] * e.sim.truth.gpus[row]
        known.true_log = math.log1p(e.sim.truth.duration_s[row]) / 12.0
    queued, work = 0.0, 0.0
    for row in range(warmup_row, rows):
        queued += e.known.reference_start_s[row] - e.sim.truth.submit_s[row]
        work += e.sim.truth.duration_s[row]
    for slot in range(e.window.own.shape[0]):
        e.window.own.seq[slot] = -1
    for k in range(3):
        turn.ahead[k] = 0
    turn.hold_slot, turn.seen_s = _NO_HOLD, np.nan
    rewind(e.sim)
    _play(e, warmup_row, e.quiet)
    _new_pass(e, 1)
    turn.partition = e.sim.state.derived.part.shape[0]
    turn.chosen, turn.reference_at = -1, 0
    turn.decisions = 0
    turn.regret = turn.cost = 0.0
    weight = energy_weight(e.sim.state)
    turn.scale = (1.0 - weight) * 100.0 / max(queued, 1.0)
    turn.energy_scale = 0.0
    if weight > 0.0:
        in_system, last = (queued + work) / max(queued, 1.0), e.curve.length[0] - 1
        turn.energy_scale = weight * 100.0 * in_system / max(e.curve.instant.energy_j[last], 1.0)
    return queued > 0.0


@kernel
def _play(e: EpisodeArrays, until_row: int, length: NDArray[np.int64]) -> None:
    """Run the reference until so many jobs have arrived; record its costs if `length` is not negative.

    With models, the reference can also share GPUs and set clocks (`decide.options.policy_start`).
    """
    s, curve = e.sim.state, Curve(e.curve.instant, length)
    options = _reference_options(e)
    if PREEMPTING and s.config[0].preempts:
        play_gittins(e.sim, options, until_row, curve)
    elif RESERVING and s.config[0].reserve_after_s < np.inf:
        play_backfill(e.sim, options, until_row, curve)
    else:
        play_greedy(e.sim, options, until_row, curve)


@kernel
def _reference_options(e: EpisodeArrays) -> RuleOptions:
    return RuleOptions(
        False,
        e.sim.state.config[0].reserve_after_s,
        math.inf,
        0.0,
        math.inf,
        0.0,
        True,
        policy_start(e.sim.state),
        e.curve.instant.at_s[:0],
    )


@kernel
def _reference_now(e: EpisodeArrays) -> int:
    """Return the index of the reference run's latest instant."""
    at, now_s = e.turn[0].reference_at, e.sim.progress.run[0].now_s
    while at + 1 < e.curve.length[0] and e.curve.instant.at_s[at + 1] <= now_s:
        at += 1
    e.turn[0].reference_at = at
    return at


@kernel
def _reference_cost(e: EpisodeArrays, over: bool) -> tuple[float, float]:
    """Return (queueing and lost time, job-seconds; energy of the jobs, J) of the reference run until now.

    `over`: whether all jobs have ended in this run. If so, returns the costs of the whole reference run.
    """
    if over:
        last = e.curve.instant[e.curve.length[0] - 1]
        return last.cost_s, last.energy_j
    latest = e.curve.instant[_reference_now(e)]
    since_s = e.sim.progress.run[0].now_s - latest.at_s
    return latest.cost_s + latest.slope * since_s, latest.energy_j + latest.power_w * since_s


@kernel
def regret_so_far(e: EpisodeArrays, over: bool) -> tuple[float, float]:
    """Return (queueing and lost time, job-seconds; energy, J) until now, in excess of the reference run's."""
    time_s, energy_j = _reference_cost(e, over)
    queued_s, books = e.sim.progress.run[0].queued_s, e.sim.progress.books[0]
    if not MODELLED or not e.sim.state.config[0].modelled:
        return queued_s - time_s, 0.0
    return queued_s + books.lost_s - time_s, books.jobs_j - energy_j


@kernel
def only_choice(w: WindowArrays) -> int:
    """Return the only legal row, -1 if there are several."""
    found = -1
    for row in range(w.info[0]):
        if w.reason[row] == LEGAL:
            if found >= 0:
                return -1
            found = row
    return found


@kernel
def _start(e: EpisodeArrays, slot: int, node: int, clock: float, partner: int) -> None:
    """Start a job that has a place."""
    move = Move(-1, slot, partner, -1, node, clock)
    start(e.sim, e.turn[0].partition, move, policy_start(e.sim.state))


@kernel
def _node_asked(e: EpisodeArrays, node: int) -> int:
    """Return the node to request for a variant, -1 if the placement rule chooses the node."""
    return -1 if has_one_way(e.sim.state, e.turn[0].partition, e.turn[0].chosen) else node


@kernel
def apply_choice(e: EpisodeArrays, row: int) -> bool:
    """Apply a legal row of the current window. Returns True if a second half of the decision is next."""
    s, w, turn = e.sim.state, e.window, e.turn[0]
    p, now_s = turn.partition, e.sim.progress.run[0].now_s
    if turn.chosen >= 0:
        _start(e, turn.chosen, _node_asked(e, w.node[row]), w.clock[row], w.partner[row])
        turn.chosen = -1
        return False
    if row == 0:
        note_wait(s, w, now_s)
        if turn.hold_slot == _NO_HOLD:
            turn.hold_slot = _UNKNOWN
        turn.partition = p + 1
        return False
    slot = w.slot[row]
    if PREEMPTING and w.out[row] >= 0:
        preempt(e.sim, w.out[row])
        return False
    if num_variants(s, p, slot, now_s) == 1:
        _start(e, slot, -1, BY_OPTIONS, w.partner[row])
        return False
    variant_window(s, p, slot, now_s, w)
    turn.chosen = slot
    return True


@kernel
def _next_hold_end_s(e: EpisodeArrays) -> float:
    """Return `holds.next_hold_end_s`; search the queue only if the hold that ended first no longer exists.

    New holds end later than older holds, so the hold that ends first stays the first while it exists.
    """
    job, turn, slot, now_s = e.sim.state.job, e.turn[0], e.turn[0].hold_slot, e.sim.progress.run[0].now_s
    if slot == _NO_HOLD:
        return np.inf
    stands = slot >= 0 and job.seq[slot] == turn.hold_seq and job.status[slot] == WAITING
    if not stands or job.held_until_s[slot] != turn.hold_end_s or turn.hold_end_s <= now_s:
        slot = next_hold(e.sim.state, now_s)
        turn.hold_slot = slot
        if slot < 0:
            return np.inf
        turn.hold_seq, turn.hold_end_s = job.seq[slot], job.held_until_s[slot]
    return turn.hold_end_s


@kernel
def _only_how(e: EpisodeArrays, slot: int) -> bool:
    """Start this job (all waiting jobs fit); or, if energy has a weight, offer its variants: True."""
    s, turn, now_s = e.sim.state, e.turn[0], e.sim.progress.run[0].now_s
    if MODELLED and energy_weight(s) > 0.0 and num_variants(s, turn.partition, slot, now_s) > 1:
        variant_window(s, turn.partition, slot, now_s, e.window)
        turn.chosen = slot
        return True
    _start(e, slot, -1, BY_OPTIONS, -1)
    return False


@kernel
def advance(e: EpisodeArrays) -> int:
    """Advance until there is a decision to take, and fill the window with it, or until the episode ends."""
    s, run, turn = e.sim.state, e.sim.progress.run[0], e.turn[0]
    partitions = s.derived.part.shape[0]
    while True:
        while turn.partition < partitions:
            p, now_s = turn.partition, run.now_s
            if turn.entered != p and turn.first_pass == 0 and not any_released(s, p, now_s):
                turn.partition = p + 1
                continue
            turn.entered = p
            position = first_startable(s, p, now_s)
            quiet = position < 0 and first_sharing(s, p, now_s) < 0
            if quiet and (s.derived.part.queue_len[p] == 0 or not preempts(e)):
                turn.partition = p + 1
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
        if PREEMPTING and run.preemptions > turn.preemptions_before:
            _new_pass(e, 1)
            continue
        if run.starts > turn.starts_before:
            _new_pass(e, 0)
            continue
        run.timer_s = _next_hold_end_s(e)
        if PREEMPTING and s.config[0].preempts:
            for p in range(partitions):
                run.timer_s = min(run.timer_s, next_age_look_s(s, p, run.now_s))
        if turn.drains == 0 and run.next_row >= turn.handover_row:
            _play(e, e.sim.truth.shape[0] + 1, e.quiet)
            return DONE
        if next_instant(e.sim) == FINISHED:
            return DONE
        _new_pass(e, 1)


@kernel
def begin(e: EpisodeArrays) -> tuple[int, float]:
    """Begin the episode. Returns (DONE if the episode has nothing to decide, otherwise DECIDE; 0.0)."""
    return advance(e) if prepare(e) else DONE, 0.0


@kernel
def step(e: EpisodeArrays, row: int) -> tuple[int, float]:
    """Apply a choice and advance. Returns (DECIDE or DONE, reward).

    reward = -(regret now - regret at the last decision) x 100 / (queueing of the reference, job-seconds);
    with models, (1 - weight) times this reward, less weight x 100 x (energy in excess of the reference) /
    (the reference's energy) x (the reference's time in the system / its queueing). Both terms have one unit.
    """
    turn = e.turn[0]
    turn.decisions += 1
    if apply_choice(e, row):
        return DECIDE, 0.0
    status = advance(e)
    regret, energy_j = regret_so_far(e, status == DONE)
    cost = regret * turn.scale + energy_j * turn.energy_scale
    reward = -(cost - turn.cost)
    turn.regret, turn.cost = regret, cost
    return status, reward


@kernel
def _reference_queueing(e: EpisodeArrays, at: int, at_s: float) -> float:
    """Return the reference run's queueing until `at_s`, job-seconds; `at`: its latest instant by then."""
    latest = e.curve.instant[at]
    return latest.cost_s + latest.slope * (at_s - latest.at_s)


@kernel
def _true_work(e: EpisodeArrays) -> tuple[float, float]:
    """Return the true GPU-seconds (remaining of running jobs, of waiting jobs) in the current partition."""
    s, truth, now_s, row_of = e.sim.state, e.sim.truth, e.sim.progress.run[0].now_s, e.sim.progress.ends.row
    p = e.turn[0].partition
    left, waiting = 0.0, 0.0
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        work_s = truth.duration_s[row_of[slot]] - s.job.saved_s[slot] + s.job.overhead_left_s[slot]
        end_s = s.job.start_s[slot] + work_s
        left += (end_s - now_s) * s.job.gpus[slot]
    for position in range(s.derived.part.queue_len[p]):
        waiting += e.known.true_gpu_s[row_of[s.derived.queue[p, position]]]
    return left, waiting


@kernel
def _look_ahead(e: EpisodeArrays) -> None:
    """Fill the critic's columns about the reference's future queue and future arrivals."""
    turn, now_s, total = e.turn[0], e.sim.progress.run[0].now_s, e.sim.truth.shape[0]
    now_at = _reference_now(e)
    before = _reference_queueing(e, now_at, now_s)
    e.critic[1] = math.log1p(max(e.curve.instant.slope[now_at], 0.0)) / 8.0  # cores can also win time
    e.critic[2] = (total - e.sim.progress.run[0].next_row) / total
    for k in range(3):
        at, at_s = max(turn.ahead[k], now_at), now_s + _LOOKAHEAD_S[k]
        while at + 1 < e.curve.length[0] and e.curve.instant.at_s[at + 1] <= at_s:
            at += 1
        turn.ahead[k] = at
        mean = (_reference_queueing(e, at, at_s) - before) / _LOOKAHEAD_S[k]
        e.critic[6 + k] = math.log1p(max(mean, 0.0)) / 8.0
    turn.seen_s = now_s


@kernel
def observe(e: EpisodeArrays, mask: NDArray[np.bool_]) -> None:
    """Append the critic's columns to the window, which is then (K, F + C), and write the (K,) mask."""
    w, rows, critic = e.window, e.window.info[0], e.critic
    if e.turn[0].seen_s != e.sim.progress.run[0].now_s:
        _look_ahead(e)
    gpus = max(e.sim.state.derived.part.open_gpus[e.turn[0].partition], 1)
    left, waiting = _true_work(e)
    critic[0] = (waiting_jobs(e.sim) - e.curve.instant.slope[e.turn[0].reference_at]) / 32.0
    critic[4] = math.log1p(max(left, 0.0) / gpus) / 15.0
    critic[5] = math.log1p(waiting / gpus) / 15.0
    for row in range(rows):
        for column in range(NUM_CRITIC):
            w.features[row, NUM_FEATURES + column] = critic[column]
        if w.slot[row] >= 0:
            w.features[row, TRUE_LOG] = e.known.true_log[e.sim.progress.ends.row[w.slot[row]]]
        mask[row] = w.reason[row] == LEGAL
    for row in range(rows, mask.shape[0]):
        mask[row] = False
