"""The compiled event loop: events advance the clock, and a rule decides at each instant."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, StateArrays, records
from rlsched.cluster.dials import OUTSIDE
from rlsched.compile.jit import kernel, specialise
from rlsched.compile.reference import by_reference
from rlsched.decide.constants import DIALLED, PRICED, after, begin, next_look_s, next_move
from rlsched.decide.dials.turning import any_due, turn_due
from rlsched.decide.options import RuleOptions
from rlsched.decide.order.queue import rank_by_slack
from rlsched.decide.price import defer_jobs, next_to_pause, review_s
from rlsched.decide.rules.steps import Steps
from rlsched.objective import NUM_TERMS
from rlsched_envs.sim.constants import (
    DIALS_DUE,
    LOGGED,
    LOOKS,
    MOVED,
    NEED_ROOM,
    PHYSICS,
    RECORDS,
    SKIPS_QUIET,
    STOPPED,
)
from rlsched_envs.sim.costs import terms_so_far
from rlsched_envs.sim.events import next_instant, note_need
from rlsched_envs.sim.moves import has_room, hold_clocks, preempt, start
from rlsched_envs.sim.signals import read_price
from rlsched_envs.sim.sim_arrays import SimArrays

INSTANT: Final = np.dtype(
    [
        ("at_s", np.float64),
        ("terms", np.float64, (NUM_TERMS,)),  # results of `costs.terms_so_far`
    ]
)
"""Fields of a point of a cost curve: a time, and the terms of the run's cost up to this time."""


@by_reference
class Curve(NamedTuple):
    """Cost of a run up to each of its instants. The first `length` entries of `instant` are in use."""

    instant: Records  # (I,) INSTANT
    length: NDArray[np.int64]  # (1,) number of recorded instants; -1: the run had too many instants


@kernel
def _nothing_new(s: StateArrays, p: int) -> bool:
    """Return whether partition `p` has not changed since the rule was last called for it."""
    part = s.derived.part
    return part.seen_changes[p] == part.changes[p] and part.seen_arrivals[p] == part.arrivals[p]


@kernel
def decide(sim: SimArrays, o: Any) -> None:
    """Make all decisions of one instant, partition by partition. Repeat until no more jobs are preempted.

    `o`: options of the rule: `RuleOptions`, or another tuple with a field `start`.
    """
    s, run, again = sim.state, sim.progress.run[0], True
    now_s, part = run.now_s, s.derived.part
    rank_by_slack(s, now_s)
    if DIALLED:
        turn_due(s, now_s)
    if PRICED:
        defer_jobs(s, o.start.price, o.preempts, now_s)
    while again:
        again = False
        for p in range(part.shape[0]):
            if PRICED and pause_jobs(sim, p, o):
                again = True
            if part.queue_len[p] > 0 and not (SKIPS_QUIET and _nothing_new(s, p)):
                begin(s, p, o, now_s)
                move = next_move(s, p, o, now_s)
                while move.preempt >= 0 or move.start >= 0:
                    if move.preempt >= 0:
                        preempt(sim, move.preempt)
                        again = True
                        if PRICED:
                            defer_jobs(s, o.start.price, o.preempts, now_s)
                    elif not start(sim, p, move, o.start):
                        break
                    after(s, p, o, move, now_s)
                    if PRICED and s.config[0].limited:
                        defer_jobs(s, o.start.price, o.preempts, now_s)
                        if pause_jobs(sim, p, o):
                            again = True
                        begin(s, p, o, now_s)
                    move = next_move(s, p, o, now_s)
            if SKIPS_QUIET:
                part.seen_changes[p], part.seen_arrivals[p] = part.changes[p], part.arrivals[p]
    if LOOKS:
        run.timer_s = math.inf
        for p in range(part.shape[0]):
            run.timer_s = min(run.timer_s, next_look_s(s, p, o, now_s))
    if PRICED:
        if not LOOKS:
            run.timer_s = math.inf
        run.timer_s = min(run.timer_s, review_s(s, o.start.price))
        if PHYSICS:
            hold_clocks(sim)
    run.timer_s = min(run.timer_s, s.scratch[0].rank_s)


@kernel
def pause_jobs(sim: SimArrays, p: int, o: Any) -> bool:
    """Preempt the jobs of partition `p` that must pause because of the price or the power limit.

    Returns whether a job was preempted.
    """
    s, now_s = sim.state, sim.progress.run[0].now_s
    slot, paused = next_to_pause(s, p, o.start.price, o.preempts, now_s), False
    while slot >= 0:
        preempt(sim, slot)
        defer_jobs(s, o.start.price, o.preempts, now_s)
        slot, paused = next_to_pause(s, p, o.start.price, o.preempts, now_s), True
    return paused


@kernel
def run_rule(sim: SimArrays, o: RuleOptions, until_row: int, curve: Curve) -> int:
    """Run a rule until `until_row` jobs have arrived and all decisions of this instant are made.

    The run also stops at the end of the trace. `curve` receives the cost at each instant, if the run records
    costs (`RECORDS`). Returns STOPPED (`until_row` is reached), NEED_ROOM, DIALS_DUE, or a result of
    `next_instant` other than MOVED.
    """
    run = sim.progress.run[0]
    while run.next_row < until_row or run.undecided:
        arrived, started, running, preempted = run.next_row, run.starts, run.heap_len, run.preemptions
        resumed = run.undecided
        if not resumed:
            moved = next_instant(sim)
            if moved != MOVED:
                return moved
        run.undecided = 1
        if LOGGED and not has_room(sim, sim.state.counters[0].live_jobs):
            return NEED_ROOM
        if PRICED:
            read_price(sim)
        if DIALLED and sim.state.dials.controller[0] == OUTSIDE and any_due(sim.state):
            if RECORDS:
                _note(sim, curve)
            return DIALS_DUE
        decide(sim, o)
        run.undecided = 0
        if LOGGED:
            note_need(sim)
        if RECORDS:
            same = arrived == run.next_row and started == run.starts
            if resumed or not (same and running == run.heap_len and preempted == run.preemptions):
                _note(sim, curve)  # not if the rule was called without an event and decided nothing
    return STOPPED


@kernel
def _note(sim: SimArrays, curve: Curve) -> None:
    """Record the cost of the run up to now."""
    run, k = sim.progress.run[0], curve.length[0]
    if k < 0 or k == curve.instant.shape[0]:
        curve.length[0] = -1
        return
    note = curve.instant[k]
    note.at_s = run.now_s
    terms_so_far(sim, note.terms)
    curve.length[0] = k + 1


def new_curve(instants: int) -> Curve:
    """Return an empty curve with room for this number of instants."""
    return Curve(records(instants, INSTANT), np.zeros(1, np.int64))


NO_CURVE = new_curve(0)
"""Empty curve for runs without recorded costs."""


@cache
def for_run(
    template: Any,
    steps: Steps | None,
    *,
    logged: bool,
    modelled: bool,
    physics: bool = True,
    records: bool = False,
) -> Any:
    """Compile a kernel of the simulator for a run.

    Args:
        template: `run_rule`, or another kernel that uses the constants of `rlsched_envs.sim.constants` and
            `rlsched.decide.constants`.
        steps: Functions of the rule; None if the template calls no rule.
        logged: Whether attempts are logged.
        modelled: Whether there are models.
        physics: Whether the models, if any, determine the speed and power of jobs. If not, only decisions use
            them.
        records: Whether costs are recorded.
    """
    bound = steps.bound if steps is not None else {"DIALLED": False, "PRICED": False}
    looks = steps is not None and steps.looks
    skips = steps is not None and steps.skips_quiet
    return specialise(
        template,
        LOGGED=logged,
        MODELLED=modelled,
        PHYSICS=modelled and physics,
        RECORDS=records,
        LOOKS=looks,
        SKIPS_QUIET=skips,
        **bound,
    )
