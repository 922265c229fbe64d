"""Why queued jobs wait, in one line: computed once for all jobs with the same request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.state.asked import beside_count, needs
from rlsched.broker.state.book import Book
from rlsched.broker.state.jobs import Job, called
from rlsched.cluster.arrays import NODE_UP
from rlsched.cluster.demand import Demand

_HOLDERS: Final = {"user": "its user", "admin": "an admin"}


class Room(NamedTuple):
    """Free GPUs in one partition, on nodes that are up."""

    partition: int
    free_gpus: int
    largest_hole: int
    gpus: int
    absent_gpus: int
    """Free GPUs on nodes that are down, away or drained."""


def rooms(book: Book, vc: str) -> list[Room]:
    """Room in each partition that serves this VC: its own first, then the shared one."""
    # access to a column of a record array takes ten times longer
    node = book.cluster.arrays.node.view(np.ndarray)
    up = node["status"] == NODE_UP
    there = np.ones(len(node), bool)
    there[list(book.gone())] = False
    found = []
    for partition in book.cluster.partitions_of(vc):
        if partition >= 0:
            inside = node["part_of"] == partition
            here = up & inside
            free = node["free"][here]
            absent = int(node["free"][inside & there & ~up].sum())
            total = int(node["gpus"][here].sum())
            found.append(Room(partition, int(free.sum()), int(free.max(initial=0)), total, absent))
    return found


def places(book: Book, vc: str) -> bool:
    """Whether the broker places the jobs of this VC; False: an engine does."""
    part_of, serves = book.cluster.arrays.node.part_of, book.cluster.partitions_of(vc)
    return not serves or any(
        node.spec.capabilities.places for node in book.nodes.values() if part_of[node.number] in serves
    )


def asked_again_s(book: Book, among: Sequence[Room]) -> float:
    """Time at which the policy asked to decide again in one of these partitions, Unix seconds; 0: none."""
    names = book.cluster.partition_names
    return min(
        (
            book.asked_for_s[names[room.partition]]
            for room in among
            if names[room.partition] in book.asked_for_s
        ),
        default=0.0,
    )


def fits_now(book: Book, demand: Demand, room: Room) -> bool:
    """Whether a waiting job with this demand could start in this partition now."""
    from rlsched.cluster.placement import class_fits

    return bool(class_fits(book.cluster.arrays, room.partition, book.cluster.demand_number(demand)))


def gpus_fit_now(book: Book, num_gpus: int, room: Room) -> bool:
    """Whether this number of GPUs could be allocated now, without regard to cores and memory."""
    from rlsched.cluster.placement import fits

    return bool(fits(book.cluster.arrays, room.partition, num_gpus))


def absent_of_types(book: Book, demand: Demand, among: Sequence[Room]) -> list[str]:
    """Nodes with GPUs of the requested types that get no new jobs now; empty if the job accepts any type."""
    inside, part_of = {room.partition for room in among}, book.cluster.arrays.node.part_of
    return [
        name
        for name, node in book.nodes.items()
        if demand.gpu_types and node.state != "up" and not node.removed and part_of[node.number] in inside
        if node.spec.gpus and demand.accepts(node.spec.gpu_type)
    ]


def sleeping_for(book: Book, demand: Demand, among: Sequence[Room]) -> str:
    """Sleeping nodes that a job waits for, in words; "" if it waits for none."""
    inside, part_of = {room.partition for room in among}, book.cluster.arrays.node.part_of
    specs = book.cluster.nodes
    for state, doing in (("waking", "to wake"), ("asleep", "to be woken")):
        names = [
            name
            for name, node in book.nodes.items()
            if node.state == state and not node.drained and part_of[node.number] in inside
            if demand.places_on_node(specs[node.number])
        ]
        if names:
            more = ", ..." if len(names) > 5 else ""
            which = f"node {names[0]}" if len(names) == 1 else f"nodes {', '.join(names[:5])}{more}"
            return f"waits for {which} {doing}"
    return ""


def kept_out(book: Book, spec: JobSubmitted) -> list[str]:
    """Holds, begin time and dependencies that keep a waiting job out of the queue, a line for each."""
    lines = []
    holder = book.gates.holder(spec.job)
    if holder:
        lines.append(f"Held: by {_HOLDERS[holder]}; `rlsched release {called(spec)}` lets it into the queue")
    begin_s = book.gates.begins_s(spec.job)
    if begin_s is not None:
        when = datetime.fromtimestamp(begin_s, UTC)
        lines.append(f"BeginTime: not before {when:%Y-%m-%d %H:%M:%S} UTC")
    others = book.gates.awaited(spec.job)
    if others:
        named = ", ".join(f"{one.kind}:{book.called(one.job)}" for one in others[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        lines.append(f"Dependency: waits for {named}{more}")
    return lines


def ineligible(book: Book, job: Job) -> list[str]:
    """Why a queued job is no candidate, a line for each reason that keeps it out of the queue."""
    own = kept_out(book, job.spec)
    if "Quota" not in book.eligibility.of(job.seq):
        return own
    lines = book.quotas.reasons(job.seq, book.now_s) or ["there is room again, and it is about to be queued"]
    return [*own, f"Quota: {'; '.join(lines)}"]


class WaitingReasons:
    """One line on why a queued job waits; `explain` gives details. The line begins with one of these words:

    - `Resources`: the requested GPUs, cores or memory are not free, or not together.
    - `NodeAsleep`: they are on nodes that sleep and are woken for the job.
    - `NodeDown`: they would be free with the GPUs of nodes that are down, away or drained.
    - `Reservation`: they are free, and are kept for a job that is ahead.
    - `Priority`: they are free, and other jobs go first.
    - `Quota`, `Held`, `BeginTime`, `Dependency`: the job is kept out of the queue.

    Jobs of one virtual cluster with the same request wait for the same reason. The reason is cached until an
    entry changes the book.

    Attributes:
        book: The state.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self._of_s = -1.0
        self._rooms: dict[str, list[Room]] = {}
        self._reasons: dict[tuple[str, Demand], str] = {}

    def of(self, job: Job) -> str:
        """Return why this queued job waits."""
        again = f"; queued again: {job.reason}" if job.reason else ""
        barred = ineligible(self.book, job)
        return ("; ".join(barred) if barred else self._of_one(job)) + again

    def _of_one(self, job: Job) -> str:
        reason = self._of_class(job.spec.vc, needs(job))
        if reason.startswith(("Priority", "Reservation")):
            return self._kept_back(job) or reason
        return reason

    def _kept_back(self, job: Job) -> str:
        """Return the reason if an earlier *wait* keeps this job back, else ""."""
        from rlsched.decide.plans.holds import is_held

        book, state = self.book, self.book.cluster.arrays
        slot = book.cluster.slot_of(job.seq)
        until_s = float(state.job.held_until_s[slot])
        if until_s <= book.now_s:
            return ""
        if not any(is_held(state, room.partition, slot, book.now_s) for room in self._rooms_of(job.spec.vc)):
            return ""
        ahead = book.job_of_seq.get(int(state.job.held_for[slot]))
        return f"Reservation: kept back for {'a while' if ahead is None else f'job {ahead.called}'}"

    def _of_class(self, vc: str, demand: Demand) -> str:
        if self._of_s != self.book.now_s:  # every batch of entries has its own time
            self._of_s = self.book.now_s
            self._rooms.clear()
            self._reasons.clear()
        reason = self._reasons.get((vc, demand))
        if reason is None:
            reason = self._reasons[vc, demand] = self._work_out(vc, demand)
        return reason

    def _rooms_of(self, vc: str) -> list[Room]:
        if vc not in self._rooms:
            self._rooms[vc] = rooms(self.book, vc)
        return self._rooms[vc]

    def _work_out(self, vc: str, demand: Demand) -> str:
        book = self.book
        if not book.nodes:
            return "Resources: no node has registered yet"
        if not book.can_ever_run(vc, demand):
            return "Resources: does not fit the nodes that have registered so far"
        if not places(book, vc):
            return "Priority: its engine starts it, by the order of the queue"
        open_rooms = self._rooms_of(vc)
        fitting = [room for room in open_rooms if fits_now(book, demand, room)]
        if not fitting:
            return self._no_room(demand, open_rooms)
        if asked_again_s(book, fitting) > book.now_s:
            return "Priority: held back until the policy decides again"
        for room in fitting:
            first = book.job_of_seq[book.cluster.waiting(room.partition)[0]]
            if not fits_now(book, needs(first), room):
                return f"Reservation: GPUs are kept for job {first.called}, which needs {first.spec.num_gpus}"
        return "Priority: it would fit, and others go first"

    def _no_room(self, demand: Demand, open_rooms: Sequence[Room]) -> str:
        sleeping = sleeping_for(self.book, demand, open_rooms)
        if sleeping:
            return f"NodeAsleep: {sleeping}"
        more = beside_count(demand)
        if more and any(gpus_fit_now(self.book, demand.gpus, room) for room in open_rooms):
            absent = absent_of_types(self.book, demand, open_rooms)
            if absent:
                return f"NodeDown: needs {more}, and nodes with such GPUs are absent: {', '.join(absent)}"
            return f"Resources: needs {more}, which are not free with as many GPUs"
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
