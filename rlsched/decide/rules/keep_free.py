"""The rule `reserve`, compiled: a long job may start only if it leaves a fraction of the GPUs free.

Jobs start in order of predicted run time x GPUs, and jobs that do not fit are skipped, as in `qssf-backfill`.
Short jobs, gangs included, can start on the GPUs that long jobs leave free, instead of waiting for days. In
telephony this is «trunk reservation» (Key, «Optimal Control and Trunk Reservation in Loss Networks»,
Probability in the Engineering and Informational Sciences 4(2), 1990).

A gang that could not leave this fraction free even on the idle partition is exempt, because otherwise it
could never start.
"""

from __future__ import annotations

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.choose import gpus_taken
from rlsched.cluster.placement import BY_RULE, NO_PREFERENCE, class_to_place, first_fitting
from rlsched.compile.jit import kernel
from rlsched.decide.move import Move, placed
from rlsched.decide.options import RuleOptions
from rlsched.decide.rules.greedy import or_share


@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Return the start of the first job in queue order that fits and that `leaves_share` allows to start.

    If there is no such job, return the start of a job that shares GPUs (`or_share`).
    """
    at, node = next_by_reserve(s, p, o.long_job_s, o.leave_frac)
    return placed(or_share(s, p, s.derived.queue[p, at] if at >= 0 else -1, o, now_s), node)


@kernel
def leaves_share(
    s: StateArrays, p: int, slot: int, longer_than_s: float, free_frac: float, node: int
) -> bool:
    """Return True if a job that fits is short, leaves enough GPUs free, or is exempt (see the module).

    `longer_than_s`: predicted run time above which a job is long. `free_frac`: fraction of the GPUs that a
    long job must leave free. `node`: a node, BY_RULE or NO_PREFERENCE, as in `choose`.
    """
    if s.job.predicted_s[slot] <= longer_than_s:
        return True
    gpus, share = gpus_taken(s, p, slot, node), free_frac * s.derived.part.open_gpus[p]
    return s.derived.part.free_gpus[p] - gpus >= share or s.derived.part.open_gpus[p] - gpus < share


@kernel
def next_by_reserve(s: StateArrays, p: int, longer_than_s: float, free_frac: float) -> tuple[int, int]:
    """Return (queue position, argument `node` of `choose`) for the next job that starts in partition `p`.

    `node` is BY_RULE or NO_PREFERENCE. The position is -1 if no job starts.
    """
    at = first_fitting(s, p, 0)
    while at >= 0:
        slot = s.derived.queue[p, at]
        if leaves_share(s, p, slot, longer_than_s, free_frac, BY_RULE):
            return at, BY_RULE
        preferring = class_to_place(s, p, slot, BY_RULE) != s.job.demand[slot]
        if preferring and leaves_share(s, p, slot, longer_than_s, free_frac, NO_PREFERENCE):
            return at, NO_PREFERENCE
        at = first_fitting(s, p, at + 1)
    return -1, BY_RULE
