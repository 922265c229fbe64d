"""Makes notices from journal entries, for jobs whose users have requested notices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from rlsched.broker.base.entries import (
    AttemptOver,
    BasePart,
    BrokerStarted,
    Entry,
    JobCancelled,
    JobSubmitted,
    JobUpdated,
    RankLaunched,
    TasksCancelled,
    TaskSubmitted,
)
from rlsched.broker.base.rows import CheckedRow
from rlsched.broker.state.base import Base, read_base
from rlsched.broker.state.jobs import called
from rlsched.broker.state.tasks import Head, count
from rlsched.broker.state.updates import updated
from rlsched.wire.states import CANCELLED, FAILED, QUEUED, RUNNING


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice about an event of a job.

    Attributes:
        id: Identifier, which is the same in every try to send the notice.
        event: `start`, `requeue`, `end`, or `fail` for an end with state `failed`.
        cluster: Cluster of the journal.
        job: Job ID.
        called: Job ID as displayed to users, such as `17_3` for task 3 of array 17.
        name, user, vc, num_gpus: Values from the job's submission.
        attempt: Number of the attempt that started or ended, else of the last attempt; 0 before the first.
        state: New state of the job.
        exit_code: Exit code of the job, if it has one.
        reason: Reason for the event; "" if there is no reason.
        time: Time of the journal entry, RFC 3339 in UTC.
        time_s: The same time, Unix seconds.
    """

    id: str
    event: str
    cluster: str
    job: int
    name: str
    user: str
    vc: str
    num_gpus: int
    attempt: int
    state: str
    exit_code: int | None
    reason: str
    time: str
    time_s: float
    called: str = ""

    @property
    def body(self) -> bytes:
        """Return the notice as one line of JSON in ASCII, so that text from users cannot break the line."""
        return json.dumps(msgspec.to_builtins(self)).encode("ascii") + b"\n"


def _small(submitted: JobSubmitted) -> JobSubmitted:
    return msgspec.structs.replace(submitted, command=[], env={}, cwd="", said=b"")


@dataclass(slots=True)
class _Watched:
    """A live job with requested notices.

    `since`: number of the journal entry from which the job was read: its submission, or the journal's base.
    """

    submitted: JobSubmitted
    since: int
    attempt: int = 0


@dataclass(slots=True)
class _WatchedArray:
    """An array with requested notices. `come`: number of its tasks that became jobs or were cancelled."""

    head: Head
    since: int
    come: int = 0


class JobWatch:
    """Tracks the live jobs with requested notices.

    Attributes:
        cluster: Cluster of the journal, "" before its first entry.
    """

    def __init__(self) -> None:
        self.cluster = ""
        self._jobs: dict[int, _Watched] = {}
        self._arrays: dict[int, _WatchedArray] = {}
        self._parts: list[BasePart] = []

    def _read_base(self, base: Base, n: int) -> None:
        """Watch the live jobs in a journal's base (its compacted start).

        `n`: number of the last of the journal entries that contain the base.
        """
        self.cluster = base.identity
        for one in base.jobs:
            if one.submitted.notify:
                attempt = one.job.get("attempt", {}).get("number", 0)
                self._jobs[one.submitted.job] = _Watched(_small(one.submitted), n, attempt)

    def since(self, now: int) -> int:
        """Return the number of the first entry that a restarted process must read to find the watched jobs.

        `now`: number of the next entry, which is the result if no jobs are watched.
        """
        return min(next((one.since for one in some.values()), now) for some in (self._jobs, self._arrays))

    def apply(self, row: CheckedRow) -> Notice | None:
        """Process a journal entry. Return the notice for it, or None."""
        match row.entry:
            case BrokerStarted(cluster=cluster):
                self.cluster = cluster
            case BasePart() as part:
                self._parts.append(part)
                if part.part == part.parts:
                    self._read_base(read_base(self._parts), row.n)
                    self._parts = []
            case JobSubmitted(notify=asked, rejected="") as submitted if asked and submitted.tasks:
                self._arrays[submitted.job] = _WatchedArray(Head(_small(submitted)), row.n)
            case JobSubmitted(notify=asked, rejected="") as submitted if asked:
                self._jobs[submitted.job] = _Watched(_small(submitted), row.n)
            case TaskSubmitted(array=number) as task if number in self._arrays:
                one = self._arrays[number].head.task(task)
                self._jobs[one.job] = _Watched(one, row.n)
                self._note_entered(number, 1)
            case TasksCancelled(array=number, tasks=tasks) if number in self._arrays:
                self._note_entered(number, count(tasks))
            case JobUpdated(job=number) as change if number in self._arrays:
                self._arrays[number].head.update(change)
            case JobUpdated(job=number) as change if number in self._jobs:
                self._jobs[number].submitted = updated(self._jobs[number].submitted, change)
            case RankLaunched(job=number, attempt=attempt) if number in self._jobs:
                job = self._jobs[number]
                if job.attempt != attempt:
                    job.attempt = attempt
                    return self._notice_of(row, job, "start", RUNNING)
            case AttemptOver(outcome=outcome) as over if outcome == QUEUED and over.job in self._jobs:
                job = self._jobs[over.job]
                if job.attempt == over.attempt:  # an attempt that never ran needs no notice
                    return self._notice_of(row, job, "requeue", QUEUED)
            case AttemptOver(job=number, outcome=outcome) if number in self._jobs:
                event = "fail" if outcome == FAILED else "end"
                return self._notice_of(row, self._jobs.pop(number), event, outcome)
            case JobCancelled(job=number) if number in self._arrays:
                del self._arrays[number]
            case JobCancelled(job=number) if number in self._jobs:
                return self._notice_of(row, self._jobs.pop(number), "end", CANCELLED)
        return None

    def _note_entered(self, number: int, tasks: int) -> None:
        array = self._arrays[number]
        array.come += tasks
        if array.come == count(array.head.spec.tasks):
            del self._arrays[number]

    def _notice_of(self, row: CheckedRow, job: _Watched, event: str, state: str) -> Notice | None:
        wanted = job.submitted.notify.split(",")
        if event not in wanted and not (event == "fail" and "end" in wanted):
            return None
        entry: Entry = row.entry
        when = datetime.fromtimestamp(row.now_s, UTC).isoformat(timespec="milliseconds")
        return Notice(
            id=f"{self.cluster}-{row.n}-{row.crc:08x}",
            event=event,
            cluster=self.cluster,
            job=job.submitted.job,
            name=job.submitted.name,
            user=job.submitted.user,
            vc=job.submitted.vc,
            num_gpus=job.submitted.num_gpus,
            attempt=job.attempt,
            state=state,
            exit_code=getattr(entry, "exit_code", None),
            reason=getattr(entry, "reason", ""),
            time=when.replace("+00:00", "Z"),
            time_s=row.now_s,
            called=called(job.submitted),
        )
