"""Reasons why queued jobs wait, one line for each job, computed once for all jobs with the same request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import beside_count, needs
from rlsched.broker.state.jobs import Job, called
from rlsched.cluster.arrays import DEFERRED, NODE_UP
from rlsched.cluster.demand import WHOLE_GPU_MILLI, Demand, nodes_of_gang
from rlsched.decide.clearing import latest_wait_s
from rlsched.decide.compiled import for_state
from rlsched.decide.limit import level_too_low, power_left_w, start_w
from rlsched.decide.order.slack import MOST_SLACK_FRAC
from rlsched.decide.price import planned_start
from rlsched.energy.relative import OUTLOOK
from rlsched.models.at_clock import MIN_CLOCK_FRAC

NAMED_GPUS: Final = 4
_HOLDERS: Final = {"user": "its user", "admin": "an admin"}


class Room(NamedTuple):
    """Numbers of GPUs in one partition. All fields except `absent_gpus` include only nodes that are up.

    Attributes:
        partition: Index of the partition.
        free_gpus: Number of free GPUs.
        largest_hole: Largest number of free GPUs on one node.
        gpus: Number of all GPUs.
        absent_gpus: Number of free GPUs on nodes that are down, unreachable, drained or asleep.
    """

    partition: int
    free_gpus: int
    largest_hole: int
    gpus: int
    absent_gpus: int


def rooms(state: BrokerState, vc: str) -> list[Room]:
    """Return the `Room` of each partition that serves a VC: the VC's own, then the shared partition."""
    # as a plain array: ten times faster than access to a column of a record array
    node = state.cluster.arrays.node.view(np.ndarray)
    up = node["status"] == NODE_UP
    there = np.ones(len(node), bool)
    there[list(state.removed_nodes())] = False
    found = []
    for partition in state.cluster.partitions_of(vc):
        if partition >= 0:
            inside = node["part_of"] == partition
            here = up & inside
            free = node["free"][here]
            absent = int(node["free"][inside & there & ~up].sum())
            total = int(node["gpus"][here].sum())
            found.append(Room(partition, int(free.sum()), int(free.max(initial=0)), total, absent))
    return found


def places(state: BrokerState, vc: str) -> bool:
    """Return whether the broker chooses the GPUs for jobs of this VC; if not, an engine does."""
    part_of, serves = state.cluster.arrays.node.part_of, state.cluster.partitions_of(vc)
    return not serves or any(
        node.spec.capabilities.places for node in state.nodes.values() if part_of[node.number] in serves
    )


def asked_again_s(state: BrokerState, among: Sequence[Room]) -> float:
    """Return the earliest time for which the policy has requested a decision in these partitions.

    The result is in Unix seconds; 0: the policy has requested none.
    """
    names = state.cluster.partition_names
    return min(
        (
            state.asked_for_s[names[room.partition]]
            for room in among
            if names[room.partition] in state.asked_for_s
        ),
        default=0.0,
    )


def fits_now(state: BrokerState, demand: Demand, room: Room) -> bool:
    """Return whether a waiting job with this demand could start in this partition now."""
    from rlsched.cluster.placement import class_fits

    number = state.cluster.demand_number(demand)  # before `arrays` is read: it may replace the arrays
    return bool(class_fits(state.cluster.arrays, room.partition, number))


def gpus_fit_now(state: BrokerState, num_gpus: int, room: Room) -> bool:
    """Return whether partition `room` has this number of free GPUs for a job; ignore cores and memory."""
    from rlsched.cluster.placement import fits

    return bool(fits(state.cluster.arrays, room.partition, num_gpus))


def short_of_memory(state: BrokerState, demand: Demand, room: Room) -> str:
    """Describe free GPUs with less free memory than a job requests; "" if the job does not lack memory."""
    s = state.cluster.arrays
    if not demand.gpu_free_mib or not s.config[0].limits_memory:
        return ""
    suitable, short = 0, list[str]()
    for name, node in state.nodes.items():
        n = s.node[node.number]
        if n.part_of != room.partition or n.status != NODE_UP or not demand.accepts(node.spec.gpu_type):
            continue
        usable_mib = state.cluster.usable_gpu_memory(node.number)
        for gpu in range(int(n.gpus)):
            if s.gpu.free_milli[n.first_gpu + gpu] == WHOLE_GPU_MILLI:
                free_mib = usable_mib.get(gpu, demand.gpu_free_mib)
                suitable += free_mib >= demand.gpu_free_mib
                if free_mib < demand.gpu_free_mib:
                    short.append(f"node {name}, GPU {gpu}: {free_mib} MiB")
    if not short or not (suitable < demand.gpus <= suitable + len(short) or suitable >= demand.gpus > 1):
        return ""
    more = f"; {len(short) - NAMED_GPUS} more" if len(short) > NAMED_GPUS else ""
    return (
        f"needs {demand.gpu_free_mib} MiB free on each GPU, and free GPUs have less: "
        f"{'; '.join(short[:NAMED_GPUS])}{more}"
    )


def absent_of_types(state: BrokerState, demand: Demand, among: Sequence[Room]) -> list[str]:
    """Return the names of nodes in the partitions `among` that are not up and have GPUs of requested types.

    The result is empty if the job accepts any GPU type.
    """
    inside, part_of = {room.partition for room in among}, state.cluster.arrays.node.part_of
    return [
        name
        for name, node in state.nodes.items()
        if demand.gpu_types and node.state != "up" and not node.removed and part_of[node.number] in inside
        if node.spec.gpus and demand.accepts(node.spec.gpu_type)
    ]


def whole_nodes(state: BrokerState, demand: Demand, room: Room) -> tuple[int, int, int, int] | None:
    """Count the nodes of a partition for a job with whole nodes; None if the job can never fit there.

    Returns:
        Four numbers of nodes: nodes that the job needs; nodes that are large enough; of these, nodes that are
        up and have no jobs; of these, nodes that are not up and have no jobs.
    """
    node, specs = state.cluster.arrays.node.view(np.ndarray), state.cluster.nodes
    inside = set(np.flatnonzero(node["part_of"] == room.partition).tolist()) - state.removed_nodes()
    places = {n: demand.places_on_node(specs[n]) for n in sorted(inside)}
    needed = nodes_of_gang(Counter(places.values()), demand.places)
    if not needed:
        return None
    able = [n for n, count in places.items() if count >= (demand.places if needed == 1 else 1)]
    empty = [n for n in able if node["free"][n] == node["gpus"][n]]
    up = sum(node["status"][n] == NODE_UP for n in empty)
    return needed, len(able), up, len(empty) - up


def needs_whole_nodes(state: BrokerState, demand: Demand, among: Sequence[Room]) -> str:
    """Describe the whole nodes for which a job waits; "" if the job does not fit into any partition."""
    found = [counts for room in among if (counts := whole_nodes(state, demand, room)) is not None]
    if not found:
        return ""
    needed, able, empty, absent = max(found, key=lambda counts: counts[2] - counts[0])
    word = "node" if needed == 1 else "nodes"
    said = f"waits for {needed} whole {word}, {empty} of {able} up without jobs"
    if empty < needed <= empty + absent:
        return f"NodeDown: {said}, {absent} more absent"
    return f"Resources: {said}" + (", which are too small together" if empty >= needed else "")


def sleeping_for(state: BrokerState, demand: Demand, among: Sequence[Room]) -> str:
    """Describe the sleeping or waking nodes for which a job waits; "" if it waits for none."""
    inside, part_of = {room.partition for room in among}, state.cluster.arrays.node.part_of
    specs = state.cluster.nodes
    for sleep, doing in (("waking", "to wake"), ("asleep", "to be woken")):
        names = [
            name
            for name, node in state.nodes.items()
            if node.state == sleep and not node.drained and part_of[node.number] in inside
            if demand.places_on_node(specs[node.number])
        ]
        if names:
            more = ", ..." if len(names) > 5 else ""
            which = f"node {names[0]}" if len(names) == 1 else f"nodes {', '.join(names[:5])}{more}"
            return f"waits for {which} {doing}"
    return ""


def kept_out(state: BrokerState, spec: JobSubmitted) -> list[str]:
    """Return why a job is kept out of the queue: one line for each of hold, begin time and dependencies."""
    lines = []
    holder = state.gates.holder(spec.job)
    if holder:
        lines.append(f"Held: by {_HOLDERS[holder]}; `rlsched release {called(spec)}` lets it into the queue")
    begin_s = state.gates.begins_s(spec.job)
    if begin_s is not None:
        when = datetime.fromtimestamp(begin_s, UTC)
        lines.append(f"BeginTime: not before {when:%Y-%m-%d %H:%M:%S} UTC")
    others = state.gates.open_dependencies(spec.job)
    if others:
        named = ", ".join(f"{one.kind}:{state.called(one.job)}" for one in others[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        lines.append(f"Dependency: waits for {named}{more}")
    return lines


def deferred(state: BrokerState, job: Job) -> list[str]:
    """Describe in one line why a job waits for power or for a lower price; empty if it does not."""
    s, slot = state.cluster.arrays, state.cluster.slot_of(job.seq)
    if s.job.status[slot] != DEFERRED:
        return []
    level = _level_too_low(state, slot)
    if level >= 0:
        needs_kw = float(start_w(s, slot, MIN_CLOCK_FRAC)) / 1e3
        left_kw = max(float(power_left_w(s, slot, level, state.now_s)) / 1e3, 0.0)
        limit_kw, when = float(s.config[0].limit_w) / 1e3, ""
        if level > 0:
            limit_kw = float(s.config[0].fall_w[level - 1]) / 1e3
            when = f" from {utc_minute(s.config[0].fall_s[level - 1])} on, before its predicted end,"
        return [
            f"Power: the job needs at least {needs_kw:.2f} kW, and the power limit of {limit_kw:g} kW{when} "
            f"leaves {left_kw:.2f} kW for it"
        ]
    spare = state.price_options.spare if state.price_options is not None else 0.0
    latest_s = float(latest_wait_s(s, slot, MOST_SLACK_FRAC, spare, state.now_s))
    line = f"Price: electricity costs {float(s.config[0].price_ratio):.2f} times its mean"
    lowest = float(s.config[0].price_outlook[OUTLOOK.index("price_lowest")])
    if state.price_options is not None:
        planned = planned_start(s, slot, state.price_options, state.now_s)
        if planned.start_s > state.now_s:
            saved = f", {100 * planned.saved_frac:.0f} % cheaper" if planned.saved_frac >= 0.005 else ""
            start = utc_minute(planned.start_s)
            return [f"{line}; waits for {start}{saved}, or until {utc_minute(latest_s)} at most"]
    if lowest < 0.0:
        line += f", and {-100 * math.expm1(lowest):.0f} % less within 24 h"
    return [f"{line}; waits until {utc_minute(latest_s)} at most"]


def utc_minute(at_s: float) -> str:
    """Return a time, Unix seconds, as text to the minute, in UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _level_too_low(state: BrokerState, slot: int) -> int:
    return int(for_state(level_too_low, state.cluster)(state.cluster.arrays, slot, state.now_s))


def waiting_for_power(state: BrokerState) -> list[int]:
    """Return the slots (indexes in the ledger's job array) of the jobs that wait for the power limit."""
    s = state.cluster.arrays
    if not state.models.limits_power or not s.scratch[0].deferred:
        return []
    slots = np.flatnonzero(s.job.status == DEFERRED).tolist()
    return [slot for slot in slots if _level_too_low(state, slot) >= 0]


def waiting_for_price(state: BrokerState) -> list[int]:
    """Return the slots of the jobs that wait for a lower price."""
    s = state.cluster.arrays
    if not s.scratch[0].deferred:
        return []
    deferred_slots: list[int] = np.flatnonzero(s.job.status == DEFERRED).tolist()
    for_power = set(waiting_for_power(state))
    return [slot for slot in deferred_slots if slot not in for_power]


def ineligible(state: BrokerState, job: Job) -> list[str]:
    """Describe why a queued job is not eligible (holds, quotas, ...), one line for each reason."""
    own = [*kept_out(state, job.spec), *deferred(state, job)]
    if "Quota" not in state.eligibility.barring_reasons(job.seq):
        return own
    lines = state.quotas.reasons(job.seq, state.now_s) or [
        "there is room again, and it is about to be queued"
    ]
    return [*own, f"Quota: {'; '.join(lines)}"]


class WaitingReasons:
    """One-line reasons why queued jobs wait; `explain` gives details.

    Each line begins with one of these words:

    - `Resources`: the requested GPUs, cores or memory are not free, or not free in the same place.
    - `NodeAsleep`: the requested resources are on sleeping nodes, which are woken for the job.
    - `NodeDown`: the requested resources would be free if the absent nodes (down, unreachable, drained) were
      up.
    - `Reservation`: the requested resources are free, but are kept for a job ahead in the queue.
    - `Priority`: the requested resources are free, but other jobs are ahead in the queue.
    - `Quota`, `Held`, `BeginTime`, `Dependency`: the job is kept out of the queue.
    - `Power`: the job would exceed the power limit.
    - `Price`: the policy defers the job until electricity is cheaper, within the job's slack.

    Jobs of one virtual cluster with the same request have the same reason, cached until an entry changes the
    state.
    """

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self._of_s = -1.0
        self._rooms: dict[str, list[Room]] = {}
        self._reasons: dict[tuple[str, Demand], str] = {}

    def waiting_reason(self, job: Job) -> str:
        """Return why this queued job waits, in one line."""
        again = f"; queued again: {job.reason}" if job.reason else ""
        barred = ineligible(self.state, job)
        return ("; ".join(barred) if barred else self._of_one(job)) + again

    def _of_one(self, job: Job) -> str:
        return self._of_class(job.spec.vc, needs(job))

    def _of_class(self, vc: str, demand: Demand) -> str:
        if self._of_s != self.state.now_s:  # every batch of entries has its own time
            self._of_s = self.state.now_s
            self._rooms.clear()
            self._reasons.clear()
        reason = self._reasons.get((vc, demand))
        if reason is None:
            reason = self._reasons[vc, demand] = self._work_out(vc, demand)
        return reason

    def _rooms_of(self, vc: str) -> list[Room]:
        if vc not in self._rooms:
            self._rooms[vc] = rooms(self.state, vc)
        return self._rooms[vc]

    def _work_out(self, vc: str, demand: Demand) -> str:
        state = self.state
        if not state.nodes:
            return "Resources: no node has registered yet"
        if not state.can_ever_run(vc, demand):
            return "Resources: does not fit the nodes that have registered so far"
        if not places(state, vc):
            return "Priority: the engine starts it, in the order of the queue"
        open_rooms = self._rooms_of(vc)
        fitting = [room for room in open_rooms if fits_now(state, demand, room)]
        if not fitting:
            return self._no_room(demand, open_rooms)
        if asked_again_s(state, fitting) > state.now_s:
            return "Priority: held back until the policy decides again"
        for room in fitting:
            first = state.job_of_seq[state.cluster.waiting(room.partition)[0]]
            if not fits_now(state, needs(first), room):
                return f"Reservation: GPUs are kept for job {first.called}, which needs {first.spec.num_gpus}"
        return "Priority: it would fit, but other jobs start first"

    def _no_room(self, demand: Demand, open_rooms: Sequence[Room]) -> str:
        sleeping = sleeping_for(self.state, demand, open_rooms)
        if sleeping:
            return f"NodeAsleep: {sleeping}"
        if demand.exclusive:
            return needs_whole_nodes(self.state, demand, open_rooms)
        for room in open_rooms:
            short = short_of_memory(self.state, demand, room)
            if short:
                return f"Resources: {short}"
        more = beside_count(demand)
        if more and any(gpus_fit_now(self.state, demand.gpus, room) for room in open_rooms):
            absent = absent_of_types(self.state, demand, open_rooms)
            if absent:
                return f"NodeDown: needs {more}, and nodes with such GPUs are absent: {', '.join(absent)}"
            return f"Resources: needs {more}, which are not free on nodes with enough free GPUs"
        return _no_room(demand.gpus, open_rooms)


def _no_room(num_gpus: int, open_rooms: Sequence[Room]) -> str:
    most = max(open_rooms, key=lambda room: room.free_gpus)
    needs = f"needs {num_gpus} GPU{'' if num_gpus == 1 else 's'}"
    with_absent = max(room.free_gpus + room.absent_gpus for room in open_rooms)
    if most.free_gpus < num_gpus <= with_absent:
        return f"NodeDown: {needs}, {most.free_gpus} free, {most.absent_gpus} on absent nodes"
    if most.free_gpus < num_gpus:
        return f"Resources: {needs}, {most.free_gpus} free"
    together = f"{most.free_gpus} GPUs free, but not together: {most.largest_hole} on one node at most"
    return f"{'NodeDown' if most.absent_gpus >= num_gpus else 'Resources'}: {together}"
