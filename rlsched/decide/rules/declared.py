"""The rule `declared`, compiled: backfill until a preemptible job is submitted, then preemption by index.

The queue's order determines when the rule switches to preemption (`decide.order.queue`).
"""

from __future__ import annotations

import math

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel, shared
from rlsched.decide.move import Move
from rlsched.decide.options import RuleOptions
from rlsched.decide.rules import backfill, gittins

LOOKS = True

_backfill = backfill.next_move
_weigh, _preempt, _after, _look_s = gittins.begin, gittins.next_move, gittins.after, gittins.next_look_s


@kernel
def begin(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> None:
    """Compute the preemption score of each running job (`gittins.begin`), if preemption is allowed."""
    if s.config[0].preempts:
        _weigh(s, p, o, now_s)


@shared
@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Return the next move: by `gittins` if a preemptible job was ever submitted, else by `backfill`."""
    if s.config[0].preempts:
        return _preempt(s, p, o, now_s)
    return _backfill(s, p, o, now_s)


@kernel
def after(s: StateArrays, p: int, o: RuleOptions, move: Move, now_s: float) -> None:
    """Exclude the job that the move started or preempted from further preemption at this instant."""
    if s.config[0].preempts:
        _after(s, p, o, move, now_s)


@kernel
def next_look_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """Return the next time at which the age of a running job changes a decision; infinite: never."""
    return _look_s(s, p, o, now_s) if s.config[0].preempts else math.inf
