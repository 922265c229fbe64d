"""Backfill until a job declares itself preemptible, and preemption by the index from then on, compiled.

The strongest rule under what jobs permit: as long as no job may be preempted, those that do not fit have
reservations. Its order says when that changes (`decide.order.queue`).
"""

from __future__ import annotations

import math

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.move import Move
from rlsched.decide.options import RuleOptions
from rlsched.decide.rules import backfill, gittins

LOOKS = True

_backfill = backfill.next_move
_weigh, _preempt, _after, _look_s = gittins.begin, gittins.next_move, gittins.after, gittins.next_look_s


@kernel
def begin(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> None:
    """Work out what speaks for preempting each running job."""
    if s.config[0].preempts:
        _weigh(s, p, o, now_s)


@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """What the rule of the hour says."""
    if s.config[0].preempts:
        return _preempt(s, p, o, now_s)
    return _backfill(s, p, o, now_s)


@kernel
def after(s: StateArrays, p: int, o: RuleOptions, move: Move, now_s: float) -> None:
    """A job that has just started, or been preempted, is not preempted at this instant."""
    if s.config[0].preempts:
        _after(s, p, o, move, now_s)


@kernel
def next_look_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """When ages next change what the rule says of partition `p`; infinite: never."""
    return _look_s(s, p, o, now_s) if s.config[0].preempts else math.inf
