"""The best plan (way to start) of a waiting job, and the next job of a queue that shares GPUs; compiled."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.capacity import will_do
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.placement import BY_RULE, class_to_place
from rlsched.compile.jit import kernel, shared
from rlsched.decide.constants import MODELLED
from rlsched.decide.move import Move, start_of
from rlsched.decide.options import BETTER, LUCID, NEVER, StartOptions, may_share
from rlsched.decide.plans.plan import (
    NO_ROOM,
    TAKEN_OR_OPEN,
    Plan,
    chooses_type,
    free_plan,
    later_worth,
    refused,
    type_worth,
)
from rlsched.decide.plans.shared import has_memory_beside, shared_plan

LOOK_AT: Final = 16
"""Maximum number of waiting jobs that are checked for sharing, a bound like Slurm's `bf_max_job_test`."""
MOST_WAITERS: Final = 4
"""Maximum number of fitting jobs that one decision skips because waiting for other GPUs is worth more."""


@shared
@kernel
def best_shared(
    s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float, above: float, among: int
) -> Plan:
    """Return the best plan on the GPUs of running jobs of partition `p` that is worth more than `above`.

    Of plans with equal worth, returns the plan on the GPUs of the job that arrived first. `among`: demand
    class that limits the GPU types: the class of the job, or the class of its preferred types.
    """
    best = refused(NO_ROOM, -1, -1)
    if s.demand.share_milli[s.job.demand[slot]] < WHOLE_GPU_MILLI or s.job.gpus[slot] == 0:
        return best
    if above > -math.inf and chooses_type(s, slot, o):
        return _best_above(s, p, slot, o, now_s, above, among)
    most, classes, narrow = above, s.derived.class_queue, among != s.job.demand[slot]
    for c in range(classes.shape[1]):
        share_with = classes.running[p, c]
        if share_with < 0 or s.demand.gpus[c] != s.job.gpus[slot]:
            continue
        if s.demand.share_milli[c] == WHOLE_GPU_MILLI:
            while share_with >= 0:
                wanted = not narrow or will_do(s, among, s.job.host[share_with])
                if wanted and has_memory_beside(s, slot, share_with):
                    plan = shared_plan(s, slot, share_with, o, now_s, most)
                    if _is_better(s, plan, best, most):
                        best, most = plan, plan.worth
                share_with = s.derived.slot.next_alike[share_with]
    return best


@kernel
def _is_better(s: StateArrays, plan: Plan, best: Plan, most: float) -> bool:
    """Return whether a plan is allowed and better than the best plan so far, which is worth `most`."""
    if plan.verdict != TAKEN_OR_OPEN or plan.worth < most:
        return False
    first = best.share_with >= 0 and s.job.seq[plan.share_with] < s.job.seq[best.share_with]
    return plan.worth > most or first


@kernel
def _best_above(
    s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float, above: float, among: int
) -> Plan:
    """Compute `best_shared` for rules that choose the GPU type of a job.

    Shared GPUs are worth at most as much as free GPUs of the same type. Therefore a type is skipped if its
    free GPUs are worth no more than the best plan so far.
    """
    best, most, kind, alone = refused(NO_ROOM, -1, -1), above, -1, math.inf
    narrow = among != s.job.demand[slot]
    for position in range(s.derived.running_len[0]):
        share_with = s.derived.slot.running[position]
        if s.job.placed_in[share_with] != p or s.job.gpus[share_with] != s.job.gpus[slot]:
            continue
        if narrow and not will_do(s, among, s.job.host[share_with]):
            continue
        if s.node.kind[s.job.host[share_with]] != kind:
            kind = s.node.kind[s.job.host[share_with]]
            alone = type_worth(s, p, slot, kind, o)
        if alone > most:
            plan = shared_plan(s, slot, share_with, o, now_s, most)
            if _is_better(s, plan, best, most):
                best, most = plan, plan.worth
    return best


@kernel
def _best_type_worth(s: StateArrays, p: int, slot: int, o: StartOptions, c: int) -> float:
    """Return the highest worth (`type_worth`) of a GPU type to a job.

    If `c` is the class of the job's preferred types, only these types are compared.
    """
    most, narrow = 0.0, c != s.job.demand[slot]
    for kind in range(s.models.gpu.shape[0]):
        if narrow and (s.demand.kinds[c] >> kind) & 1 == 0:
            continue
        most = max(most, type_worth(s, p, slot, kind, o))
    return most


@kernel
def best_partner(s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float) -> int:
    """Return the slot of the running job of partition `p` whose GPUs a waiting job should share, or -1.

    GPUs of preferred types come first.
    """
    return _partner(s, p, slot, o, now_s, -math.inf, s.job.demand[slot])


@kernel
def _partner(s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float, above: float, c: int) -> int:
    """Return the running job of the best shared plan that is worth more than `above`, -1 for none.

    `c`: demand class that limits the GPU types. If `c` is the job's own class, plans on GPUs of preferred
    types come before all other plans.
    """
    own = s.job.demand[slot]
    if c == own and s.demand.preferred[own] >= 0:
        found = best_shared(s, p, slot, o, now_s, -math.inf, s.demand.preferred[own]).share_with
        if found >= 0:
            return found
    return best_shared(s, p, slot, o, now_s, above, c).share_with


@kernel
def start_of_best(s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float) -> Move:
    """Return the move that starts a fitting job by its best plan, on free GPUs or on shared GPUs.

    Shared GPUs can be worth more than free GPUs only if they are of another type. If the job does not fit on
    free GPUs of its preferred types, sharing GPUs of these types comes before free GPUs of other types.
    """
    if not MODELLED or slot < 0 or o.share != BETTER or not may_share(s) or not chooses_type(s, slot, o):
        return start_of(slot, -1)
    c = class_to_place(s, p, slot, BY_RULE)
    free = free_plan(s, p, slot, o, -1, c)
    settled = c != s.job.demand[slot] or s.demand.preferred[c] < 0
    if settled and free.worth >= _best_type_worth(s, p, slot, o, c):
        return start_of(slot, -1)
    return start_of(slot, _partner(s, p, slot, o, now_s, free.worth, c))


@kernel
def waits_for_better(
    s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float, ends_s: NDArray[np.float64], node: int
) -> bool:
    """Return whether waiting (the plan *later*) is worth more to a job that fits than any start now.

    A job that can start on a preferred type does not wait. `ends_s`: result of `ends_by_gpu`. `node`: BY_RULE
    or NO_PREFERENCE (preferred GPU types are ignored), as in `choose`.
    """
    if not MODELLED or ends_s.shape[0] == 0 or not chooses_type(s, slot, o):
        return False
    c = s.job.demand[slot]
    if class_to_place(s, p, slot, node) != c:
        return False
    free = free_plan(s, p, slot, o, -1, c)
    if free.worth >= _best_type_worth(s, p, slot, o, c):
        return False
    later = later_worth(s, p, slot, o, ends_s, free.worth)
    if later <= free.worth:
        return False
    shares = o.share == BETTER and may_share(s)
    return not shares or _partner(s, p, slot, o, now_s, later, c) < 0


@kernel
def fails_as(s: StateArrays, p: int, slot: int, other: int, o: StartOptions) -> bool:
    """Return whether the check of another waiting job, `other`, already shows that a job cannot share GPUs.

    The job in `other` cannot share GPUs. The result is True if both jobs have the same request and workload,
    and the job in `slot` needs at least the gain (`Gate`) that the job in `other` needs.
    """
    job = s.job
    if job.demand[slot] != job.demand[other] or job.workload[slot] != job.workload[other] or o.share == LUCID:
        return False
    if not o.gate.is_shut:
        return True
    longer_s = job.predicted_s[slot] - job.predicted_s[other]
    tilt = o.gate.by_length + s.dials.dial[p].by_length
    return tilt * longer_s >= 0.0 and o.gate.by_hold * longer_s >= 0.0


@kernel
def next_to_share(s: StateArrays, p: int, blocks: bool, o: StartOptions, now_s: float) -> tuple[int, int]:
    """Return the next pair of jobs to share GPUs in partition `p`: (waiting slot, running slot), or (-1, -1).

    The waiting job is the first in queue order that has a partner; a rule that blocks checks only the first
    job.
    """
    if o.share == NEVER or not may_share(s):
        return -1, -1
    queue = s.derived.queue[p]
    for position in range(min(s.derived.part.queue_len[p], 1 if blocks else LOOK_AT)):
        known = False
        for before in range(position):
            known = known or fails_as(s, p, queue[position], queue[before], o)
        if known:
            continue
        share_with = best_partner(s, p, queue[position], o, now_s)
        if share_with >= 0:
            return queue[position], share_with
    return -1, -1
