"""`Plan`: one way to start a waiting job, with a reason if the plan is not allowed; plans on free GPUs.

With several GPU types in a partition, the worth of a GPU is (speed of the job on it) / (speed of the usual
workload on it)^price. A price of 0 means fastest first. A price of 1 means comparative advantage (Ricardo):
fast GPUs go to the jobs that gain most from them.

Plans on GPU types that a job prefers come first, even if other types are worth more. Plans on other types,
and waiting, are considered only if the job cannot start on a preferred type now.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import CLOCKS_ALONE, MAX_TENANTS, NODE_UP, StateArrays
from rlsched.cluster.capacity import open_places, will_do
from rlsched.cluster.choose import gang_of_kind
from rlsched.cluster.placement import class_to_place
from rlsched.cluster.speed import speed_alone
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.constants import MODELLED
from rlsched.decide.options import StartOptions
from rlsched.decide.remaining import remaining_s

TAKEN_OR_OPEN: Final = 0
NO_ROOM: Final = 1
ANOTHER_SIZE: Final = 2
NOT_WHOLE: Final = 3
NODES_DIFFER: Final = 4
FULL: Final = 5
NO_MEMORY: Final = 6
TOO_SLOW: Final = 7
ADDS_TOO_LITTLE: Final = 8
LUCID_SAYS_NO: Final = 9
NOT_THE_FIRST: Final = 10
WAITS_FOR_BETTER: Final = 11
WORTH_LESS: Final = 12
KEPT_APART: Final = 13
NO_CORES: Final = 14
VERDICT_TEXT: Final = {
    TAKEN_OR_OPEN: "",
    NO_ROOM: "no room",
    ANOTHER_SIZE: "has another number of GPUs",
    NOT_WHOLE: "one of them requests a part of a GPU, or GPU memory",
    NODES_DIFFER: "its nodes take no new jobs, are of several GPU types, or do not fit the job",
    FULL: "its GPUs hold the most jobs allowed",
    NO_MEMORY: "GPU memory does not suffice",
    TOO_SLOW: "a job would fall below its minimum speed",
    ADDS_TOO_LITTLE: "it would add less than is asked",
    LUCID_SAYS_NO: "Lucid's rule keeps them apart",
    NOT_THE_FIRST: "shown with the first job on its GPUs",
    WAITS_FOR_BETTER: "worth less than GPUs that come free",
    WORTH_LESS: "worth less than another plan",
    NO_CORES: "its nodes have too few cores to spare, or its GPUs have no more of their part of the cores",
    KEPT_APART: "one of them shares its GPUs with no other job",
}
"""Text for each verdict: the reason why a plan is not used."""


class Plan(NamedTuple):
    """One way to start a waiting job now, on free GPUs or on GPUs of a running job.

    Attributes:
        verdict: TAKEN_OR_OPEN: the plan is allowed. Other values of `VERDICT_TEXT`: the reason why it is not
            allowed.
        node: Node of a plan on free GPUs (of a gang: the first node); -1: the placement rule chooses it.
        share_with: Slot of the running job whose GPUs the plan shares; -1: none.
        kind: Type of the GPUs; -1: the placement rule chooses it.
        tenants: Number of jobs on the GPUs, this job included.
        own: Predicted speed of the job on the GPUs; 1: the speed on the same GPUs without co-tenants.
        gain: `own` less the speed that the co-tenants lose.
        asked: Least gain required; -1: no gain is required.
        slowest: Predicted speed of the slowest job on the GPUs.
        worth: Value by which plans are compared.
    """

    verdict: int
    node: int
    share_with: int
    kind: int
    tenants: int
    own: float
    gain: float
    asked: float
    slowest: float
    worth: float


@kernel
def refused(verdict: int, share_with: int, kind: int) -> Plan:
    """Return a plan that is not allowed, with `verdict` as the reason."""
    return Plan(verdict, -1, share_with, kind, 0, 0.0, 0.0, -1.0, 0.0, 0.0)


@kernel
def on_free(node: int, kind: int, worth: float) -> Plan:
    """Return an allowed plan on free GPUs."""
    return Plan(TAKEN_OR_OPEN, node, -1, kind, 1, 1.0, 1.0, -1.0, 1.0, worth)


@kernel
def chooses_type(s: StateArrays, slot: int, o: StartOptions) -> bool:
    """Return whether a waiting job gets the GPU type of highest worth to it (`type_worth`)."""
    if not MODELLED or not o.chooses_type or s.config[0].modelled in (0, CLOCKS_ALONE):
        return False
    return s.models.gpu.shape[0] > 1 and s.job.gpus[slot] > 0


@kernel
def type_worth(s: StateArrays, p: int, slot: int, kind: int, o: StartOptions) -> float:
    """Return the worth of GPU type `kind` to a waiting job.

    The worth is (the job's speed on this type) / (the usual workload's speed on this type)^price. The price
    is the option `type_price` plus the dial `type_price`.
    """
    price = o.type_price + s.dials.dial[p].type_price
    return max(speed_alone(s, slot, kind), 1e-6) / s.models.gpu.usual_speed[kind] ** price


@kernel
def node_to_place(s: StateArrays, p: int, slot: int, o: StartOptions, node: int) -> int:
    """Return the node of the best plan on free GPUs for a job that fits (argument `node` of `choose`).

    If the placement rule chooses the node, return the argument `node`: BY_RULE or NO_PREFERENCE (preferred
    GPU types are ignored).
    """
    if not chooses_type(s, slot, o):
        return node
    plan = free_plan(s, p, slot, o, -1, class_to_place(s, p, slot, node))
    return plan.node if plan.node >= 0 else node


@kernel
def free_plan(s: StateArrays, p: int, slot: int, o: StartOptions, only: int, c: int) -> Plan:
    """Return the best plan on free GPUs for a job that fits.

    If the rule does not choose GPU types, the plan leaves node and type to the placement rule.

    Args:
        s: The state.
        p: The partition.
        slot: Slot of the job.
        o: Start options.
        only: GPU type to which plans are restricted; -1: no restriction.
        c: Demand class that limits the GPU types: the class of the job, or the class of its preferred types
            (`class_to_place`).

    Of the nodes of one type on which the job fits, the node with the fewest free GPUs is chosen. A gang of
    several nodes gets nodes of one type if possible, because it runs at the speed of its slowest GPU.
    """
    if not chooses_type(s, slot, o):
        return on_free(-1, -1, 1.0)
    gpus = s.job.gpus[slot]
    if gpus > s.derived.class_queue.node_size[p, c]:
        return _gang_plan(s, p, slot, o, only, c)
    best, most, kind, worth = -1, -math.inf, -1, 0.0
    for n in range(s.node.shape[0]):
        if (only >= 0 and s.node.kind[n] != only) or open_places(s, c, p, n) < gpus:
            continue
        if s.node.kind[n] != kind:
            kind = s.node.kind[n]
            worth = type_worth(s, p, slot, kind, o)
        if worth > most or (worth == most and s.node.free[n] < s.node.free[best]):
            best, most = n, worth
    return on_free(best, s.node.kind[best], most) if best >= 0 else refused(NO_ROOM, -1, -1)


@array_kernel
def _gang_plan(s: StateArrays, p: int, slot: int, o: StartOptions, only: int, c: int) -> Plan:
    """Compute `free_plan` for a gang of several nodes."""
    gpus, narrow = np.empty(s.job.gpus[slot], np.int32), c != s.job.demand[slot]
    best, most = -1, -math.inf
    for kind in range(s.models.gpu.shape[0]):
        worth = type_worth(s, p, slot, kind, o)
        if worth > most and only in (-1, kind):
            host = gang_of_kind(s, p, c, kind, gpus)
            if host >= 0:
                best, most = host, worth
    if best >= 0:
        return on_free(best, s.node.kind[best], most)
    if only >= 0:
        return refused(NO_ROOM, -1, -1)
    least = math.inf  # on nodes of several types the gang runs at the speed of the slowest
    for n in range(s.node.shape[0]):
        if narrow and not will_do(s, c, n):
            continue
        if s.node.part_of[n] == p and s.node.status[n] == NODE_UP and s.node.free[n] > 0:
            least = min(least, type_worth(s, p, slot, s.node.kind[n], o))
    return on_free(-1, -1, least)


@kernel
def waits_for_types(s: StateArrays, o: StartOptions) -> bool:
    """Return whether a job may wait for GPUs of another type."""
    return MODELLED and o.later < math.inf and o.chooses_type and s.models.gpu.shape[0] > 1


@array_kernel
def ends_by_gpu(s: StateArrays, p: int, now_s: float, o: StartOptions) -> NDArray[np.float64]:
    """Return (G,) predicted seconds until each GPU of partition `p` is free; 0 for a free GPU.

    The array is empty if jobs never wait for GPUs of another type: the times are then not needed.
    """
    if not waits_for_types(s, o):
        return np.empty(0)
    ends_s = np.zeros(s.gpu.shape[0])
    for position in range(s.derived.running_len[0]):
        slot = s.derived.slot.running[position]
        if s.job.placed_in[slot] == p:
            left_s, place = remaining_s(s, slot, now_s), s.job.head[slot]
            exclusive = s.demand.exclusive[s.job.demand[slot]] != 0
            while place >= 0:
                g = place // MAX_TENANTS
                ends_s[g] = max(ends_s[g], left_s)
                place = s.gpu.link[g, place % MAX_TENANTS]
                if exclusive:
                    _end_together(s, s.gpu.node[g], ends_s, left_s)
            if exclusive and s.job.head[slot] < 0:
                _end_together(s, s.job.host[slot], ends_s, left_s)
    return ends_s


@kernel
def _end_together(s: StateArrays, n: int, ends_s: NDArray[np.float64], left_s: float) -> None:
    """Set `ends_s` of all GPUs of node `n` to `left_s`, because one job has the whole node."""
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        ends_s[g] = left_s


@kernel
def later_worth(
    s: StateArrays, p: int, slot: int, o: StartOptions, ends_s: NDArray[np.float64], above: float
) -> float:
    """Return the worth of the plan *later* to a job: to wait for better GPUs of one node.

    Returns 0 if this worth is at most `above`, or if the job needs several nodes. The worth is (worth of the
    GPUs) x (run time) / (run time + `o.later` x wait): jobs rarely end as predicted, and other jobs wait too.
    `ends_s`: result of `ends_by_gpu`.
    """
    c, gpus, most = s.job.demand[slot], s.job.gpus[slot], 0.0
    if not chooses_type(s, slot, o) or gpus > s.derived.class_queue.node_size[p, c]:
        return most
    left_s = max(s.job.predicted_s[slot] - s.job.saved_s[slot], 1.0)
    kind, worth, run_s = -1, 0.0, 0.0
    for n in range(s.node.shape[0]):
        if s.node.part_of[n] != p or s.node.status[n] != NODE_UP or s.node.gpus[n] < gpus:
            continue
        if s.node.kind[n] != kind:
            kind = s.node.kind[n]
            worth = type_worth(s, p, slot, kind, o)
            run_s = left_s / max(speed_alone(s, slot, kind), 1e-6)
        floor = max(above, most)
        if worth > floor and will_do(s, c, n):
            most_s = run_s * (worth / max(floor, 1e-9) - 1.0) / o.later
            needed = s.node.gpus[n] if s.demand.exclusive[c] else gpus
            wait_s = _free_in_s(s, n, needed, ends_s, most_s)
            if wait_s < most_s:
                most = worth * run_s / (run_s + o.later * wait_s)
    return most


@kernel
def _free_in_s(s: StateArrays, n: int, gpus: int, ends_s: NDArray[np.float64], most_s: float) -> float:
    """Return the predicted seconds until `gpus` GPUs of node `n` are free; infinite if above `most_s`."""
    first, end, found, wait_s = s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n], 0, 0.0
    for g in range(first, end):
        found += ends_s[g] < most_s
    if found < gpus:
        return math.inf
    while True:
        found, next_s = 0, math.inf
        for g in range(first, end):
            found += ends_s[g] <= wait_s
            if ends_s[g] > wait_s:
                next_s = min(next_s, ends_s[g])
        if found >= gpus:
            return wait_s
        wait_s = next_s
