"""Job IDs on the command line: the number of a job (`17`), or of an array and one of its tasks (`17_3`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import JobInfo, PastJob, Tasks


class JobName(NamedTuple):
    """ID of a job, an array, or tasks of an array.

    `number` is the number of the job or array. `task` is the number of a single task; None: no single task.
    """

    number: int
    task: int | None = None
    tasks: str = ""
    """Several tasks of the array, such as `5-9`; "" for a single task, a whole array or a job."""
    waiting: bool = False
    """Whether to select only a job that waits, or only the waiting tasks of an array."""

    def __str__(self) -> str:
        """Return the ID as the user typed it: `17`, `17_3` or `17_[3,5-9]`."""
        if self.tasks:
            return f"{self.number}_[{self.tasks}]"
        return str(self.number) if self.task is None else f"{self.number}_{self.task}"

    def ranges(self) -> list[Tasks]:
        """Return the selected ranges of tasks; empty if the ID selects a job or a whole array."""
        from rlsched.client.array_text import ranges_of

        return ranges_of(self.tasks or ("" if self.task is None else str(self.task)))

    def number_at(self, client: Client) -> int:
        """Return the job number. For a task, request it from the broker.

        Raises:
            InputError: there is no such array, or the task is not a job yet.
        """
        return self.number if self.task is None else client.job(self.number, self.task).job


class JobParam(click.ParamType[JobName]):
    """Parameter type of one job or one task: `17` or `17_3`."""

    name = "JOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JobName:
        """Return the ID in the text. Fail with a usage error if the text is not an ID."""
        found = re.fullmatch(r"(\d{1,15})(?:_(\d{1,9}))?", str(value))
        if found is None:
            self.fail(f"expected the number of a job, or ARRAY_TASK such as 17_3, got {value!r}", param, ctx)
        return JobName(int(found[1]), None if found[2] is None else int(found[2]))


class TasksParam(click.ParamType[JobName]):
    """Parameter type of a job, a task or several tasks: `17`, `17_3` or `17_[3,5-9]`."""

    name = "JOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JobName:
        """Return the ID in the text. Fail with a usage error if the text is not an ID."""
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
    """Return the ID of a job for users: its number, `17_3` for a task, `17_[4-99%8]` for an array."""
    if job.array:
        return f"{job.array}_{job.task}"
    tasks = getattr(job, "tasks", "")  # a job of the history can be a task, but not an array
    return f"{job.job}_[{tasks}]" if tasks else str(job.job)
