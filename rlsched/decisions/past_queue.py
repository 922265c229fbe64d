"""Restores the queue at a past time, in the order that the decision records show."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import numpy as np

from rlsched.decisions.reading import StoreReader
from rlsched.decisions.timeline import JobSeen

MOST_LOOKED: Final = 200
"""Maximum number of decision records, before a time and also after it, in which queues are looked up."""


def rows_around(reader: StoreReader, at_s: float) -> tuple[list[int], list[int]]:
    """Return the rows of decisions up to a time (newest first), and of later decisions (oldest first)."""
    order = np.argsort(reader.times_s, kind="stable")
    middle = int(np.searchsorted(reader.times_s[order], at_s, side="right"))
    return order[:middle][::-1].tolist(), order[middle:].tolist()


def queue_at(reader: StoreReader, at_s: float) -> list[tuple[JobSeen, str]]:
    """Return the jobs that wait at a time, in queue order, each with its partition ("" if unknown).

    No job starts between two decisions of a partition. The queue is therefore taken from the record of the
    next decision, without jobs submitted after `at_s`, and with jobs cancelled after `at_s`. Partitions are
    in the order of their names. Jobs without a recorded position come last, ordered by submission.
    """
    left = {job.job: job for job in reader.timeline.queue_at(at_s)}
    before, after = (_queues(reader, rows) if left else {} for rows in rows_around(reader, at_s))
    found: list[tuple[JobSeen, str]] = []
    for partition in sorted({*before, *after}):
        first = [job for job in before.get(partition, ()) if job in left]
        then = [job for job in after.get(partition, ()) if job in left]
        found += [(left.pop(job), partition) for job in _merged(first, then)]
    return found + [(job, "") for job in left.values()]


def _queues(reader: StoreReader, rows: Iterable[int]) -> dict[str, list[str]]:
    """Return a dict: partition -> job IDs of its queue, from the partition's first record among `rows`."""
    found: dict[str, list[str]] = {}
    for row in islice(rows, MOST_LOOKED):
        partition = reader.cells(row)["partition"]
        if partition not in found:
            found[partition] = reader.record(row).names.queue.split("\n")
    return found


def _merged(first: list[str], then: list[str]) -> list[str]:
    """Return the later queue `then` with the jobs that are only in the earlier queue `first`.

    Such a job is inserted directly after its predecessor in `first`.
    """
    merged, there = list(then), set(then)
    for at, job in enumerate(first):
        if job not in there:
            merged.insert(merged.index(first[at - 1]) + 1 if at else 0, job)
            there.add(job)
    return merged
