"""Tasks of job arrays: lists of task numbers, their text format, and conversion of tasks to submissions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rlsched.broker.base.entries import Entry, JobSubmitted, JobUpdated, TaskSubmitted
from rlsched.broker.state.updates import updated
from rlsched.wire.messages import Tasks

MAX_TASKS: Final = 1_000_000
MAX_TASK: Final = 4_000_000
"""Highest task number, as in Slurm."""


def count(tasks: list[Tasks]) -> int:
    """Return the number of tasks in a list of ranges."""
    return sum((one.last - one.first) // one.step + 1 for one in tasks)


def in_words(tasks: list[Tasks], most_chars: int | None = None) -> str:
    """Format tasks as users write them: `8-99,200`.

    `most_chars`: length beyond which no further range is added; None: no limit.
    """
    parts, left = [], math.inf if most_chars is None else most_chars
    for one in tasks:
        if left < 0:
            break
        last = one.last - (one.last - one.first) % one.step
        step = f":{one.step}" if one.step > 1 else ""
        parts.append(f"{one.first}" if one.first == last else f"{one.first}-{last}{step}")
        left -= len(parts[-1]) + 1
    return ",".join(parts)


def numbers(tasks: list[Tasks]) -> Iterator[int]:
    """Yield the number of each task, in the order of the list."""
    for one in tasks:
        yield from range(one.first, one.last + 1, one.step)


def includes_task(tasks: list[Tasks], task: int) -> bool:
    """Return whether the list includes a task."""
    return any(task in range(one.first, one.last + 1, one.step) for one in tasks)


def are_distinct(tasks: list[Tasks]) -> bool:
    """Return whether no task occurs twice. Needs a byte of memory for each task number up to the highest."""
    seen = bytearray(max((one.last for one in tasks), default=0) + 1)
    for one in tasks:
        last = one.last + 1
        if any(seen[one.first : last : one.step]):
            return False
        seen[one.first : last : one.step] = b"\1" * len(range(one.first, last, one.step))
    return True


def joined(tasks: list[Tasks]) -> list[Tasks]:
    """Return the same tasks in fewer ranges. For example, the single tasks `0,2,4` become `0-4:2`."""
    found: list[Tasks] = []
    at = 0
    while at < len(tasks):
        one, end = tasks[at], at + 1
        if one.first == one.last and end < len(tasks):
            step = tasks[end].first - one.first
            while step > 0 and end < len(tasks) and tasks[end].first == tasks[end].last:
                if tasks[end].first - tasks[end - 1].first != step:
                    break
                end += 1
        if end - at > 2:
            found.append(Tasks(one.first, tasks[end - 1].first, tasks[end - 1].first - tasks[end - 2].first))
            at = end
        else:
            found.append(one)
            at += 1
    return found


def without(tasks: list[Tasks], task: int) -> list[Tasks]:
    """Return the list without task `task`. The call is fast if the task is near the start of the list."""
    for at, one in enumerate(tasks):
        mine = range(one.first, one.last + 1, one.step)
        if task in mine:
            place = mine.index(task)
            rest = [*_slice(mine, 0, place), *_slice(mine, place + 1, len(mine))]
            return [*tasks[:at], *rest, *tasks[at + 1 :]]
    return tasks


def minus(tasks: list[Tasks], gone: list[Tasks]) -> list[Tasks]:
    """Return the tasks that are not in `gone`, in the order of `tasks`."""
    spans = _spans(gone)
    ends = [last for _, last in spans]
    found: list[Tasks] = []
    for one in tasks:
        mine, at = range(one.first, one.last + 1, one.step), 0
        for place in range(bisect_left(ends, one.first), len(spans)):
            first, last = spans[place]
            if first > one.last:
                break
            found += _slice(mine, at, max(-((one.first - first) // one.step), 0))
            at = max(at, (last - one.first) // one.step + 1)
        found += _slice(mine, at, len(mine))
    return found


def common(tasks: list[Tasks], others: list[Tasks]) -> list[Tasks]:
    """Return the tasks that are in both lists, in the order of `tasks`."""
    return minus(tasks, minus(tasks, others))


def _spans(tasks: list[Tasks]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of consecutive task numbers, ascending."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(span for one in tasks for span in _runs(one)):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _runs(one: Tasks) -> Iterator[tuple[int, int]]:
    if one.step == 1:
        yield one.first, one.last
    else:
        yield from ((task, task) for task in range(one.first, one.last + 1, one.step))


def _slice(mine: range, low: int, high: int) -> list[Tasks]:
    part = mine[low:high]
    return [Tasks(part[0], part[-1], mine.step if len(part) > 1 else 1)] if part else []


def task_of(head: JobSubmitted, entry: TaskSubmitted) -> JobSubmitted:
    """Return a task of an array as a submission. `head`: the array's submission."""
    number, task = str(head.job), str(entry.task)
    own = {"RLSCHED_ARRAY_JOB": number, "RLSCHED_ARRAY_TASK": task}
    slurms = {
        "SLURM_ARRAY_JOB_ID": number,
        "SLURM_ARRAY_TASK_ID": task,
        "SLURM_ARRAY_TASK_COUNT": str(count(head.tasks)),
        "SLURM_ARRAY_TASK_MIN": str(min((one.first for one in head.tasks), default=entry.task)),
        "SLURM_ARRAY_TASK_MAX": str(max((one.last for one in head.tasks), default=entry.task)),
        "SLURM_ARRAY_TASK_STEP": str(head.tasks[0].step if len(head.tasks) == 1 else 1),
    }
    return msgspec.structs.replace(
        head,
        job=entry.job,
        token=f"{head.token}/{task}",
        env=head.env | own | slurms,
        predicted_s=entry.predicted_s,
        spread=entry.spread,
        predicted_by=entry.predicted_by,
        said=entry.said,
        held="",
        begin_s=None,
        depends_on=[],
        tasks=[],
        array=head.job,
        task=entry.task,
    )


@dataclass(slots=True)
class Head:
    """Submission of an array, and later changes of its settings, for tasks that are not jobs yet.

    Attributes:
        spec: The submission after all changes of the whole array.
        changes: The first change of only some tasks, and all later changes, in order; empty if all changes
            were of the whole array.
    """

    spec: JobSubmitted
    changes: list[JobUpdated] = field(default_factory=list)

    def update(self, entry: JobUpdated) -> None:
        """Apply a change of settings to the array or to some of its tasks."""
        if not entry.tasks:
            self.spec = updated(self.spec, entry)
        if entry.tasks or self.changes:
            self.changes.append(entry)

    def task(self, entry: TaskSubmitted) -> JobSubmitted:
        """Return a task as a submission."""
        spec = task_of(self.spec, entry)
        for change in self.changes:
            if not change.tasks or includes_task(change.tasks, entry.task):
                own = msgspec.structs.replace(change, begin_s=None, depends_on=None, array_limit=None)
                spec = updated(spec, own)
        return spec


class Heads(dict[int, Head]):
    """Job number of an array -> its submission and later changes (`Head`), as read from a journal so far."""

    def note(self, entry: Entry) -> None:
        """Apply a journal entry if it submits or changes an array; ignore any other entry."""
        if isinstance(entry, JobSubmitted) and entry.tasks:
            self[entry.job] = Head(entry)
        elif isinstance(entry, JobUpdated) and entry.job in self:
            self[entry.job].update(entry)
