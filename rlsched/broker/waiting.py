"""Why queued jobs wait, in one line: worked out once for all jobs that ask for the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlsched.broker.book import Book
from rlsched.broker.jobs import Job
from rlsched.cluster.arrays import NODE_UP


class Room(NamedTuple):
    """What is free in one partition, on nodes that are up."""

    partition: int
    free_gpus: int
    largest_hole: int
    gpus: int


def rooms(book: Book, vc: str) -> list[Room]:
    """Room in each partition that serves this VC: its own first, then the shared one."""
    # a record array takes ten times as long to find a column
    node = book.cluster.arrays.node.view(np.ndarray)
    up = node["status"] == NODE_UP
    found = []
    for partition in book.cluster.partitions_of(vc):
        if partition >= 0:
            here = up & (node["part_of"] == partition)
            free = node["free"][here]
            total = int(node["gpus"][here].sum())
            found.append(Room(partition, int(free.sum()), int(free.max(initial=0)), total))
    return found


def asked_again_s(book: Book, among: Sequence[Room]) -> float:
    """When the policy has asked to decide again in one of these partitions, Unix seconds; 0: it has not."""
    names = book.cluster.partition_names
    return min(
        (
            book.asked_for_s[names[room.partition]]
            for room in among
            if names[room.partition] in book.asked_for_s
        ),
        default=0.0,
    )


def fits_now(book: Book, num_gpus: int, room: Room) -> bool:
    """Whether a gang could start in this partition now."""
    from rlsched.cluster.placement import fits

    return bool(fits(book.cluster.arrays, room.partition, num_gpus))


def ineligible(book: Book, job: Job) -> list[str]:
    """Why a queued job is no candidate, a line for each reason that keeps it out of the queue."""
    if "Quota" not in book.eligibility.of(job.seq):
        return []
    lines = book.quotas.reasons(job.seq, book.now_s) or ["there is room again, and it is about to be queued"]
    return [f"Quota: {'; '.join(lines)}"]


class WaitingReasons:
    """One line on why a queued job waits; `explain` says more.

    Jobs of one virtual cluster that ask for as many GPUs wait for the same reason. It is kept until an entry
    changes the book.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._of_s = -1.0
        self._rooms: dict[str, list[Room]] = {}
        self._reasons: dict[tuple[str, int], str] = {}

    def of(self, job: Job) -> str:
        """Why this queued job waits."""
        again = f"{job.reason}; queued again; " if job.reason else ""
        barred = ineligible(self._book, job)
        return again + "; ".join(barred) if barred else again + self._of_class(job.spec.vc, job.spec.num_gpus)

    def _of_class(self, vc: str, num_gpus: int) -> str:
        if self._of_s != self._book.now_s:  # every batch of entries has a time of its own
            self._of_s = self._book.now_s
            self._rooms.clear()
            self._reasons.clear()
        reason = self._reasons.get((vc, num_gpus))
        if reason is None:
            reason = self._reasons[vc, num_gpus] = self._work_out(vc, num_gpus)
        return reason

    def _work_out(self, vc: str, num_gpus: int) -> str:
        book = self._book
        if not book.nodes:
            return "no node has registered yet"
        if not book.can_ever_run(vc, num_gpus):
            return "does not fit the nodes that have registered so far"
        if vc not in self._rooms:
            self._rooms[vc] = rooms(book, vc)
        open_rooms = self._rooms[vc]
        most = max(open_rooms, key=lambda room: room.free_gpus)
        if most.free_gpus < num_gpus:
            return f"needs {num_gpus} GPUs, {most.free_gpus} free"
        fitting = [room for room in open_rooms if fits_now(book, num_gpus, room)]
        if not fitting:
            return f"{most.free_gpus} GPUs free, but not together: {most.largest_hole} on one node at most"
        if asked_again_s(book, fitting) > book.now_s:
            return "held back until the policy decides again"
        return "held back: others were preferred"
