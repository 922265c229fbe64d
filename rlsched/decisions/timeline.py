"""Jobs, attempts and nodes as objects, rebuilt from events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from rlsched.decisions.schema import JobEvent, NodeChange
from rlsched.wire.states import QUEUED

SIZE_CLASSES: Final = (1.0, 8.0, math.inf)
"""Maximum number of GPUs of a job in each size class. Waiting jobs are counted by size class."""
CLASS_NAMES: Final = ("up to 1 GPU", "2 to 8 GPUs", "more than 8")
_JOB: Final = ("time_s", "job", "name", "user", "vc", "num_gpus")
JOB_COLUMNS: Final = {
    "submit": (*_JOB, "predicted_s"),
    "start": (
        *(*_JOB, "attempt", "nodes", "gpus", "share_milli", "sm_clock_frac"),
        *("predicted_speed_frac", "predicted_energy_j"),
    ),
    "end": (*_JOB, "state", "reason", "run_s", "energy_j", "speed_frac"),
}
"""Kind of an event of a job -> the fields of `JobEvent` that a timeline uses."""
NODE_COLUMNS: Final = ("time_s", "node", "num_gpus", "gpu_type", "state", "reason")
"""The fields of `NodeChange` that a timeline uses."""


def class_name(num_gpus: float) -> str:
    """Return the name of the size class of jobs with this number of GPUs."""
    return next(name for most, name in zip(SIZE_CLASSES, CLASS_NAMES, strict=True) if num_gpus <= most)


@dataclass(slots=True)
class AttemptSeen:
    """One attempt to run a job.

    Attributes:
        job: The job.
        number: Number of the attempt, from 1.
        start_s: Time of the start, seconds.
        end_s: Time of the end, seconds; infinite while the attempt runs.
        nodes: Name of the node of each GPU.
        gpus: Index of each GPU on its node.
        share_milli: Fraction of each GPU that the attempt has, in thousandths (500: half of a GPU).
        sm_clock_frac: SM clock, as a fraction of the maximum.
        state: State of the job after the attempt; "" while the attempt runs.
        reason: Reason for the end, for users.
        run_s: Run time, seconds; nan while the attempt runs.
        energy_j: Energy, joules; nan if not measured.
        predicted_speed_frac: Speed predicted at the start, as in `JobEvent`; nan if not predicted.
        predicted_energy_j: Predicted energy until the job ends, joules; nan if not predicted.
        speed_frac: Mean speed, known after the end; nan if not measured.
    """

    job: JobSeen
    number: int
    start_s: float
    nodes: list[str]
    gpus: list[int]
    share_milli: int
    sm_clock_frac: float
    end_s: float = math.inf
    state: str = ""
    reason: str = ""
    run_s: float = math.nan
    energy_j: float = math.nan
    predicted_speed_frac: float = math.nan
    predicted_energy_j: float = math.nan
    speed_frac: float = math.nan


@dataclass(slots=True)
class JobSeen:
    """A job with its attempts.

    Attributes:
        job: Displayed ID of the job.
        name: Name of the job.
        user: Owner of the job.
        vc: Virtual cluster of the job.
        num_gpus: Number of GPUs that the job requests.
        submit_s: Time of the submission, seconds; nan if the store begins later.
        predicted_s: Predicted run time at submission, seconds.
        attempts: Attempts of the job, in order.
        end_s: Time of the job's end, seconds; infinite until the job has finished.
        state: Final state of the job; "" until the job has finished.
        reason: Reason for the end, for users.
    """

    job: str
    name: str
    user: str
    vc: str
    num_gpus: float
    submit_s: float = math.nan
    predicted_s: float = math.nan
    attempts: list[AttemptSeen] = field(default_factory=list)
    end_s: float = math.inf
    state: str = ""
    reason: str = ""

    def waits_at(self, at_s: float) -> bool:
        """Return whether the job is in the queue at a time."""
        if not self.submit_s <= at_s < self.end_s:
            return False
        return not any(one.start_s <= at_s < one.end_s for one in self.attempts)

    def waited_since_s(self, at_s: float) -> float:
        """Return the time at which the job's present wait began, seconds. The job must wait at `at_s`."""
        return max([self.submit_s, *(one.end_s for one in self.attempts if one.end_s <= at_s)])


@dataclass(slots=True)
class NodeSeen:
    """A node. `changes` lists the changes of its state as (time, state, reason), in order."""

    node: str
    num_gpus: int
    gpu_type: str
    changes: list[tuple[float, str, str]] = field(default_factory=list)

    def spans(self, until_s: float) -> list[tuple[float, float, str, str]]:
        """Return the periods in which the node was not `up`, as (from, until, state, reason)."""
        ends = [*(when_s for when_s, _, _ in self.changes[1:]), until_s]
        return [
            (when_s, max(when_s, end_s), state, reason)
            for (when_s, state, reason), end_s in zip(self.changes, ends, strict=True)
            if state != "up"
        ]


class Timeline:
    """Jobs with their attempts, from events.

    Attributes:
        jobs: Jobs by displayed ID.
        attempts: Attempts in the order of their starts.
        last_s: Time of the last event passed to `add`, seconds; nan before the first.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, JobSeen] = {}
        self.attempts: list[AttemptSeen] = []
        self.last_s = math.nan

    def add(self, events: Sequence[JobEvent | NodeChange]) -> None:
        """Add events, in order. Of changes of nodes, only the times are used."""
        if events:
            last_s = max(one.time_s for one in events)
            self.last_s = last_s if math.isnan(self.last_s) else max(self.last_s, last_s)
        jobs = [one for one in events if isinstance(one, JobEvent)]
        rows = {
            kind: map(attrgetter(*fields), [one for one in jobs if one.kind == kind])
            for kind, fields in JOB_COLUMNS.items()
        }
        self.add_rows([one.kind for one in jobs], rows)

    def add_rows(self, kinds: Iterable[str], rows: Mapping[str, Iterator[tuple[Any, ...]]]) -> None:
        """Add events of jobs. Events of unknown kinds are ignored.

        Args:
            kinds: Kind of each event, in order.
            rows: Kind -> its events in order, as rows of `JOB_COLUMNS`.
        """
        happens: dict[str, Callable[..., None]] = {
            "submit": self._submit,
            "start": self._start,
            "end": self._end,
        }
        add = {kind: (happens[kind], rows[kind].__next__) for kind in JOB_COLUMNS}
        for kind in kinds:
            if kind in add:
                event, row = add[kind]
                event(*row())

    def _of(self, job: str, name: str, user: str, vc: str, num_gpus: float) -> JobSeen:
        seen = self.jobs.get(job)
        if seen is None:
            seen = self.jobs[job] = JobSeen(job, name, user, vc, num_gpus)
        return seen

    def _submit(
        self, time_s: float, job: str, name: str, user: str, vc: str, num_gpus: float, predicted_s: float
    ) -> None:
        seen = self._of(job, name, user, vc, num_gpus)
        if seen.submit_s == time_s:
            return  # a submission that is repeated at the beginning of a segment
        seen.submit_s, seen.predicted_s = time_s, predicted_s

    def _start(
        self,
        time_s: float,
        job: str,
        name: str,
        user: str,
        vc: str,
        num_gpus: float,
        number: int,
        nodes: list[str],
        gpus: list[int],
        share_milli: int,
        sm_clock_frac: float,
        predicted_speed_frac: float,
        predicted_energy_j: float,
    ) -> None:
        seen = self._of(job, name, user, vc, num_gpus)
        if seen.attempts and seen.attempts[-1].number == number and seen.attempts[-1].start_s == time_s:
            return
        attempt = AttemptSeen(seen, number, time_s, nodes, gpus, share_milli, sm_clock_frac)
        attempt.predicted_speed_frac, attempt.predicted_energy_j = predicted_speed_frac, predicted_energy_j
        seen.attempts.append(attempt)
        self.attempts.append(attempt)

    def _end(
        self,
        time_s: float,
        job: str,
        name: str,
        user: str,
        vc: str,
        num_gpus: float,
        state: str,
        reason: str,
        run_s: float,
        energy_j: float,
        speed_frac: float,
    ) -> None:
        seen = self._of(job, name, user, vc, num_gpus)
        running = bool(seen.attempts) and seen.attempts[-1].end_s == math.inf
        if running:
            attempt = seen.attempts[-1]
            attempt.end_s, attempt.state, attempt.reason = time_s, state, reason
            attempt.run_s, attempt.energy_j, attempt.speed_frac = run_s, energy_j, speed_frac
        if state != QUEUED:
            seen.end_s, seen.state, seen.reason = time_s, state, reason
