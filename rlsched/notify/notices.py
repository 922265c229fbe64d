"""From facts of the journal to notices: what is told of the jobs that asked for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from rlsched.broker.entries import (
    AttemptOver,
    BrokerStarted,
    Entry,
    JobCancelled,
    JobSubmitted,
    RankLaunched,
)
from rlsched.broker.rows import CheckedRow


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is told.

    Attributes:
        id: The same whenever the same thing is told again.
        event: `start`, `requeue`, `end`, or `fail` for an end with state `failed`.
        cluster: Of the journal.
        job: Number.
        name, user, vc, num_gpus: As submitted.
        attempt: Number of the attempt that started, ended or was the last; 0: there was none.
        state: Of the job from now on.
        exit_code: Of the job, where it has one.
        reason: Why; "": nothing is to be said.
        time: When it was journalled, RFC 3339 in UTC.
        time_s: The same, Unix seconds.
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

    @property
    def body(self) -> bytes:
        """One line of JSON in ASCII: no text of a user can end it."""
        return json.dumps(msgspec.to_builtins(self)).encode("ascii") + b"\n"


@dataclass(slots=True)
class _Watched:
    """A live job that asked for notices; `since`: number of the entry that submitted it."""

    submitted: JobSubmitted
    since: int
    attempt: int = 0


class JobWatch:
    """Knows the live jobs that asked for notices.

    Attributes:
        cluster: Of the journal, "" before its first entry.
    """

    def __init__(self) -> None:
        self.cluster = ""
        self._jobs: dict[int, _Watched] = {}

    def since(self, now: int) -> int:
        """The first entry that has to be read again to know these jobs; `now`: the next entry."""
        return next((job.since for job in self._jobs.values()), now)

    def apply(self, row: CheckedRow) -> Notice | None:
        """Take note of a fact, and say what is to be told of it, if anything."""
        match row.entry:
            case BrokerStarted(cluster=cluster):
                self.cluster = cluster
            case JobSubmitted(notify=asked, rejected="") as submitted if asked:
                small = msgspec.structs.replace(submitted, command=[], env={}, cwd="", said=b"")
                self._jobs[submitted.job] = _Watched(small, row.n)
            case RankLaunched(job=number, attempt=attempt) if number in self._jobs:
                job = self._jobs[number]
                if job.attempt != attempt:
                    job.attempt = attempt
                    return self._told(row, job, "start", "running")
            case AttemptOver(job=number, outcome="queued", attempt=attempt) if number in self._jobs:
                job = self._jobs[number]
                if job.attempt == attempt:  # one that never ran is no news
                    return self._told(row, job, "requeue", "queued")
            case AttemptOver(job=number, outcome=outcome) if number in self._jobs:
                event = "fail" if outcome == "failed" else "end"
                return self._told(row, self._jobs.pop(number), event, outcome)
            case JobCancelled(job=number) if number in self._jobs:
                return self._told(row, self._jobs.pop(number), "end", "cancelled")
        return None

    def _told(self, row: CheckedRow, job: _Watched, event: str, state: str) -> Notice | None:
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
        )
