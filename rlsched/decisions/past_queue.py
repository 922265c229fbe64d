"""The queue at a time of a store, in the queue's own order as far as decisions have recorded it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import numpy as np

from rlsched.decisions.reading import StoreReader
from rlsched.decisions.timeline import JobSeen

MOST_LOOKED: Final = 200
"""Number of decisions that are searched for the nearest one of each partition."""


def rows_around(reader: StoreReader, at_s: float) -> tuple[list[int], list[int]]:
    """Rows of decisions at or before a time, and rows of later decisions; the nearest first."""
    order = np.argsort(reader.times_s, kind="stable")
    middle = int(np.searchsorted(reader.times_s[order], at_s, side="right"))
    return order[:middle][::-1].tolist(), order[middle:].tolist()


def queue_at(reader: StoreReader, at_s: float) -> list[tuple[JobSeen, str]]:
    """Jobs that wait at a time, each with the partition whose queue it is known to be in, else "".

    Between two decisions of a partition jobs come and are cancelled, and none starts: the queue is the one
    that the later decision met, without jobs that came in between, and with jobs that had left by then.
    Partitions follow one another. At the end are jobs without a known position, the longest waiting first:
    they are further behind in a long queue, or came after the last decision, or their records are older than
    recorded queues.
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
    """By partition, the queue that the nearest decision met."""
    found: dict[str, list[str]] = {}
    for row in islice(rows, MOST_LOOKED):
        partition = reader.cells(row)["partition"]
        if partition not in found:
            found[partition] = reader.record(row).names.queue.split("\n")
    return found


def _merged(first: list[str], then: list[str]) -> list[str]:
    """The later order, with each job that it lacks inserted after its predecessor."""
    merged, there = list(then), set(then)
    for at, job in enumerate(first):
        if job not in there:
            merged.insert(merged.index(first[at - 1]) + 1 if at else 0, job)
            there.add(job)
    return merged
