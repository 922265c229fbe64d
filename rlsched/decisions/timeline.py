"""History of jobs, attempts and nodes, rebuilt from the events in a store. Returns the state at any time."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decisions.schema import JobEvent, NodeChange
from rlsched.wire.states import QUEUED

SIZE_CLASSES: Final = (1.0, 8.0, math.inf)
"""Maximum number of GPUs of a job in each size class. Waiting jobs are counted by size class."""
CLASS_NAMES: Final = ("up to 1 GPU", "2 to 8 GPUs", "more than 8")


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
    """All jobs, attempts and nodes of a store.

    Attributes:
        jobs: Jobs by displayed ID.
        attempts: Attempts in the order of their starts.
        nodes: Nodes by name, in the order of their first events.
        first_s: Start of the period with events, seconds; nan before the first event.
        last_s: End of the period with events, seconds; nan before the first event.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, JobSeen] = {}
        self.attempts: list[AttemptSeen] = []
        self.nodes: dict[str, NodeSeen] = {}
        self.first_s = self.last_s = math.nan
        self._waiting = [array("d") for _ in SIZE_CLASSES]  # per curve: time, change, time, change, ...
        self._busy, self._there = array("d"), array("d")
        self._power, self._measured = array("d"), array("d")

    def add(self, jobs: Sequence[JobEvent], nodes: Sequence[NodeChange]) -> None:
        """Add events of jobs and nodes, in order."""
        self.add_nodes(map(msgspec.structs.astuple, nodes))
        self.add_jobs(map(msgspec.structs.astuple, jobs))

    def add_nodes(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add events of nodes, given as rows with the fields of `NodeChange` in order."""
        for row in rows:
            self.saw(row[0])
            self._node(*row)

    def add_jobs(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add events of jobs, given as rows with the fields of `JobEvent` in order."""
        first_s, last_s = math.inf, -math.inf
        happens = {"submit": self._submit, "start": self._start, "end": self._end}
        for row in rows:
            time_s = row[0]
            if time_s < first_s:
                first_s = time_s
            if time_s > last_s:
                last_s = time_s
            happens[row[1]](*row)
        if first_s <= last_s:
            self.saw(first_s, last_s)

    def saw(self, *times_s: float) -> None:
        """Extend the period from `first_s` to `last_s` so that it includes `times_s`."""
        self.first_s = min(times_s if math.isnan(self.first_s) else (self.first_s, *times_s))
        self.last_s = max(times_s if math.isnan(self.last_s) else (self.last_s, *times_s))

    def _node(self, time_s: float, node: str, num_gpus: int, gpu_type: str, state: str, reason: str) -> None:
        seen = self.nodes.get(node)
        before = 0
        if seen is None:
            seen = self.nodes[node] = NodeSeen(node, num_gpus, gpu_type)
        elif seen.changes[-1][1] in _THERE:
            before = seen.num_gpus
        if num_gpus:
            seen.num_gpus, seen.gpu_type = num_gpus, gpu_type or seen.gpu_type
        seen.changes.append((time_s, state, reason))
        now = seen.num_gpus if state in _THERE else 0
        self._there.extend((time_s, now - before))

    def _of(self, job: str, name: str, user: str, vc: str, num_gpus: float) -> JobSeen:
        seen = self.jobs.get(job)
        if seen is None:
            seen = self.jobs[job] = JobSeen(job, name, user, vc, num_gpus)
        return seen

    def _queue(self, job: JobSeen, time_s: float, by: int) -> None:
        self._waiting[bisect.bisect_left(SIZE_CLASSES, job.num_gpus)].extend((time_s, by))

    def _submit(
        self,
        time_s: float,
        kind: str,  # noqa: ARG002
        job: str,
        name: str,
        user: str,
        vc: str,
        num_gpus: float,
        predicted_s: float,
        *_: Any,
    ) -> None:
        seen = self._of(job, name, user, vc, num_gpus)
        if seen.submit_s == time_s:
            return  # a submission that is repeated at the beginning of a segment
        seen.submit_s, seen.predicted_s = time_s, predicted_s
        self._queue(seen, time_s, 1)

    def _start(
        self,
        time_s: float,
        kind: str,  # noqa: ARG002
        job: str,
        name: str,
        user: str,
        vc: str,
        num_gpus: float,
        predicted_s: float,  # noqa: ARG002
        number: int,
        nodes: list[str],
        gpus: list[int],
        share_milli: int,
        sm_clock_frac: float,
        *more: Any,
    ) -> None:
        seen = self._of(job, name, user, vc, num_gpus)
        if seen.attempts and seen.attempts[-1].number == number and seen.attempts[-1].start_s == time_s:
            return
        attempt = AttemptSeen(seen, number, time_s, nodes, gpus, share_milli, sm_clock_frac)
        attempt.predicted_speed_frac, attempt.predicted_energy_j, _ = more[-3:]
        seen.attempts.append(attempt)
        self.attempts.append(attempt)
        self._queue(seen, time_s, -1)
        self._busy.extend((time_s, _held(attempt)))

    def _end(
        self, time_s: float, kind: str, job: str, name: str, user: str, vc: str, num_gpus: float, *more: Any
    ) -> None:
        del kind
        state, reason, run_s, energy_j, _, _, speed_frac = more[-7:]
        seen = self._of(job, name, user, vc, num_gpus)
        running = bool(seen.attempts) and seen.attempts[-1].end_s == math.inf
        if running:
            attempt = seen.attempts[-1]
            attempt.end_s, attempt.state, attempt.reason = time_s, state, reason
            attempt.run_s, attempt.energy_j, attempt.speed_frac = run_s, energy_j, speed_frac
            self._busy.extend((time_s, -_held(attempt)))
            if run_s > 0.0 and energy_j >= 0.0:
                self._drew(attempt)
        if state == QUEUED:
            self._queue(seen, time_s, 1)
            return
        if not running and not math.isnan(seen.submit_s):
            self._queue(seen, time_s, -1)
        seen.end_s, seen.state, seen.reason = time_s, state, reason

    def _drew(self, attempt: AttemptSeen) -> None:
        power_w, held = attempt.energy_j / attempt.run_s, _held(attempt)
        self._power.extend((attempt.start_s, power_w, attempt.end_s, -power_w))
        self._measured.extend((attempt.start_s, held, attempt.end_s, -held))

    def queue_at(self, at_s: float) -> list[JobSeen]:
        """Return the jobs that wait at a time, ordered by submission."""
        waiting = [job for job in self.jobs.values() if job.waits_at(at_s)]
        return sorted(waiting, key=lambda job: job.submit_s)

    def running_at(self, at_s: float) -> list[AttemptSeen]:
        """Return the attempts that run at a time."""
        return [one for one in self.attempts if one.start_s <= at_s < one.end_s]

    def sharing_with(self, attempt: AttemptSeen) -> list[AttemptSeen]:
        """Return the other attempts that used a GPU of this attempt while this attempt ran."""
        mine = set(zip(attempt.nodes, attempt.gpus, strict=True))
        return [
            other
            for other in self.attempts
            if other is not attempt
            and other.start_s < attempt.end_s
            and attempt.start_s < other.end_s
            and not mine.isdisjoint(zip(other.nodes, other.gpus, strict=True))
        ]

    def before_on(self, attempt: AttemptSeen) -> list[AttemptSeen]:
        """Return the earlier attempts that used GPUs of this attempt and had not ended before its start."""
        return [
            other
            for other in self.attempts
            if other.start_s < attempt.start_s <= other.end_s and _share_gpus(other, attempt)
        ]

    def started_on(self, attempt: AttemptSeen, at_s: float) -> list[AttemptSeen]:
        """Return the attempts of other jobs that started at `at_s`, and got a GPU of this attempt."""
        return [
            other
            for other in self.attempts
            if other.start_s == at_s and other.job is not attempt.job and _share_gpus(other, attempt)
        ]

    def left_free(self, attempt: AttemptSeen) -> dict[str, tuple[int, int]]:
        """Return a dict: node of an attempt -> (free GPUs, all GPUs), just after the start of the attempt.

        Attempts that start at the same time, but come later in `attempts`, are ignored. Nodes with
        an unknown number of GPUs are left out.
        """
        held = {node: set[int]() for node in attempt.nodes}
        for other in self.attempts:
            if other.start_s <= attempt.start_s < other.end_s or other is attempt:
                for node, gpu in zip(other.nodes, other.gpus, strict=True):
                    if node in held:
                        held[node].add(gpu)
            if other is attempt:
                break
        return {
            node: (self.nodes[node].num_gpus - len(gpus), self.nodes[node].num_gpus)
            for node, gpus in held.items()
            if node in self.nodes
        }

    def curves(self, at_s: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return the counts of waiting jobs by size class, of busy GPUs and of all GPUs at N times.

        `at_s`: (N,) times, seconds. The result is a dict: name of a count -> its (N,) values. `busy_gpus`
        adds up shares: two jobs with half of a GPU each are 1 busy GPU.
        """
        found = {
            f"waiting {name}": _level(changes, at_s)
            for name, changes in zip(CLASS_NAMES, self._waiting, strict=True)
        }
        return found | {"busy_gpus": _level(self._busy, at_s), "gpus": _level(self._there, at_s)}

    def power(self, at_s: NDArray[np.float64]) -> dict[str, NDArray[np.float64]] | None:
        """Return the total power of the attempts at N times; None: the energy of no attempt is known.

        `at_s`: (N,) times, seconds. `power_w` (N,) is the sum of the attempts' mean powers, which are known
        only after their ends, W. `measured_gpus` (N,) is the part of `busy_gpus` with known power; if it is
        less than `busy_gpus`, `power_w` is too low.
        """
        if not self._power:
            return None
        return {"power_w": _level(self._power, at_s), "measured_gpus": _level(self._measured, at_s)}


_THERE: Final = frozenset({"up", "drained", "unreachable", "asleep", "waking"})
"""States in which a node's GPUs count as part of the cluster."""


def _share_gpus(one: AttemptSeen, other: AttemptSeen) -> bool:
    mine = set(zip(one.nodes, one.gpus, strict=True))
    return not mine.isdisjoint(zip(other.nodes, other.gpus, strict=True))


def _held(attempt: AttemptSeen) -> float:
    return len(attempt.gpus) * attempt.share_milli / 1000.0


def _level(changes: array[float], at_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (N,) values of a counter at the times `at_s`: the sum of its changes so far, at least 0.

    `changes`: time of the first change, seconds, its amount, time of the second change, its amount, ...
    """
    if not changes:
        return np.zeros(len(at_s))
    when_s, by = np.array(changes).reshape(-1, 2).T
    order = np.argsort(when_s, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(by[order])])
    level: NDArray[np.float64] = np.maximum(sums[np.searchsorted(when_s[order], at_s, side="right")], 0.0)
    return level
