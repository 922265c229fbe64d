"""Job names on the command line: a number, or ARRAY_TASK for a task of an array."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import JobInfo, PastJob, Tasks


class JobName(NamedTuple):
    """A job, or a task of the array `number`."""

    number: int
    task: int | None = None
    tasks: str = ""
    """Several tasks, such as `5-9`."""
    waiting: bool = False
    """Select only what waits: of an array, only its waiting tasks."""

    def __str__(self) -> str:
        """Return the name as it was typed."""
        if self.tasks:
            return f"{self.number}_[{self.tasks}]"
        return str(self.number) if self.task is None else f"{self.number}_{self.task}"

    def ranges(self) -> list[Tasks]:
        """Return the ranges of tasks that an order applies to; empty: the job or the whole array."""
        from rlsched.client.array_text import ranges_of

        return ranges_of(self.tasks or ("" if self.task is None else str(self.task)))

    def number_at(self, client: Client) -> int:
        """Return the job's number.

        Raises:
            InputError: there is no such array, or the task is not a job yet.
        """
        return self.number if self.task is None else client.job(self.number, self.task).job


class JobParam(click.ParamType[JobName]):
    """Parameter type of one job: `17`, or `17_3`."""

    name = "JOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JobName:
        """Parse the value."""
        found = re.fullmatch(r"(\d{1,15})(?:_(\d{1,9}))?", str(value))
        if found is None:
            self.fail(f"expected the number of a job, or ARRAY_TASK such as 17_3, got {value!r}", param, ctx)
        return JobName(int(found[1]), None if found[2] is None else int(found[2]))


class TasksParam(click.ParamType[JobName]):
    """Parameter type of jobs and tasks: `17`, `17_3`, or several tasks, `17_[3,5-9]`."""

    name = "JOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JobName:
        """Parse the value."""
        found = re.fullmatch(r"(\d{1,15})_\[([\d,:-]+)\]", str(value))
        if found is None:
            return JobParam().convert(value, param, ctx)
        job = JobName(int(found[1]), tasks=found[2])
        try:
            job.ranges()
        except InputError as error:
            self.fail(f"{value}: {error}", param, ctx)
        return job


def called(job: JobInfo | PastJob) -> str:
    """Return a job's number as text; for a task `17_3`, and for an array `17_[4-99%8]`."""
    if job.array:
        return f"{job.array}_{job.task}"
    tasks = getattr(job, "tasks", "")  # the history has tasks, not arrays
    return f"{job.job}_[{tasks}]" if tasks else str(job.job)
