"""Gates: holds, begin times and dependencies, which keep a waiting job out of the queue.

`rlsched.workload.dependencies` describes the kinds of dependencies. A job with a dependency that can never be
met is `hopeless`: the broker cancels it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from rlsched.broker.base.eligibility import Eligibility, Reason
from rlsched.broker.base.entries import JobHeld, JobSubmitted, JobUpdated
from rlsched.wire.messages import DependencyKind, DependsOn
from rlsched.wire.states import COMPLETED, RUNNING
from rlsched.workload.dependencies import COMPLETED as HAS_COMPLETED
from rlsched.workload.dependencies import ENDED_OTHERWISE, KINDS, MET, NOT_YET, RESULTS, STARTED

NEVER: Final = "DependencyNeverSatisfied"


def is_met(kind: DependencyKind, state: str) -> bool | None:
    """Return whether a dependency on a job is met when the job enters a state.

    Return None if only a later state of the job can meet the dependency.
    `state`: the job's final state, or `running` when the job starts.
    """
    event = {RUNNING: STARTED, COMPLETED: HAS_COMPLETED}.get(state, ENDED_OTHERWISE)
    result = RESULTS[event][KINDS.index(kind)]
    return None if result == NOT_YET else result == MET


class Gates:
    """The gates of all waiting jobs and arrays.

    In the methods, `seq` is the sequence number of the job in the ledger (`ClusterState`), or -1 for an
    array.

    Args:
        eligibility: Receives the reasons that keep jobs out of the queue.

    Attributes:
        hopeless: Reason why a job can never run, by job number; removed when the job is cancelled.
    """

    def __init__(self, eligibility: Eligibility) -> None:
        self._eligibility = eligibility
        self._held: dict[int, str] = {}  # job -> `user` or `admin`
        self._begins: dict[int, tuple[float, int]] = {}  # job -> (begin time, seq)
        self._waits: dict[int, tuple[int, list[DependsOn]]] = {}  # job -> (seq, unmet dependencies)
        self._awaited: dict[int, dict[int, None]] = {}  # job -> jobs that wait for it
        self.hopeless: dict[int, str] = {}
        self.due_s = math.inf
        """Earliest begin time, Unix seconds, at which `open_due_gates` must be called; infinite if none."""

    # ---- events of jobs ---------------------------------------------------------------------------

    def add_gates(self, seq: int, entry: JobSubmitted, now_s: float) -> None:
        """Register the gates of a waiting job or array."""
        if entry.held:
            self._hold(entry.job, seq, entry.held)
        if entry.begin_s is not None and entry.begin_s > now_s:
            self._begins[entry.job] = entry.begin_s, seq
            self.due_s = min(self.due_s, entry.begin_s)
            self._bar(seq, "BeginTime")
        if entry.depends_on:
            self.add_dependencies(seq, entry.job, entry.depends_on)

    def add_dependencies(self, seq: int, job: int, others: list[DependsOn]) -> None:
        """Register the unmet dependencies `others` of a job. The job must have no dependencies yet."""
        self._note_waits(seq, job, others)
        self._bar(seq, "Dependency")

    def set_hold(self, seq: int, entry: JobHeld, now_s: float) -> None:
        """Apply the hold or the release of a waiting job."""
        if entry.by and entry.job not in self._held:
            self._hold(entry.job, seq, entry.by)
        elif entry.by:
            self._held[entry.job] = entry.by
        elif self._held.pop(entry.job, ""):
            self._clear([seq], "Held", now_s)

    def update_gates(self, seq: int, entry: JobUpdated, now_s: float) -> None:
        """Apply a change of a job's begin time or dependencies."""
        job = entry.job
        if entry.begin_s is not None:
            waited = self._begins.pop(job, None) is not None
            if entry.begin_s > now_s:
                self._begins[job] = entry.begin_s, seq
            self._plan_review()
            self._update_reason(seq, "BeginTime", waited, job in self._begins, now_s)
        if entry.depends_on is not None:
            waited = self._forget_waits(job)
            self.hopeless.pop(job, None)
            if entry.depends_on:
                self._note_waits(seq, job, entry.depends_on)
            self._update_reason(seq, "Dependency", waited, job in self._waits, now_s)

    def resolve_start(self, job: int, now_s: float) -> None:
        """Update the jobs that depend on job `job`, which has started."""
        self._resolve(job, RUNNING, now_s)

    def resolve_end(self, job: int, state: str, now_s: float) -> None:
        """Update the jobs that depend on job `job`, which has ended, and remove the gates of `job` itself."""
        self._held.pop(job, None)
        self.remove_gates(job)
        self._resolve(job, state, now_s)
        self._awaited.pop(job, None)

    def remove_gates(self, job: int) -> None:
        """Remove dependencies and begin time of a finished job, or of an array that starts no more tasks."""
        self._forget_waits(job)
        if self._begins.pop(job, None):
            self._plan_review()
        self.hopeless.pop(job, None)

    def open_due_gates(self, now_s: float) -> None:
        """Remove the begin times that have passed. Jobs without other gates enter the queue."""
        due = [job for job, (begin_s, _) in self._begins.items() if begin_s <= now_s]
        if due:
            self._clear([self._begins.pop(job)[1] for job in due], "BeginTime", now_s)
            self._plan_review()

    # ---- queries ----------------------------------------------------------------------------------

    def holder(self, job: int) -> str:
        """Return who holds a job, `user` or `admin`; "" if it is not held."""
        return self._held.get(job, "")

    def held_among(self, jobs: Iterable[int]) -> int:
        """Return the number of held jobs among `jobs`."""
        return sum(job in self._held for job in jobs) if self._held else 0

    def begins_s(self, job: int) -> float | None:
        """Return the begin time for which a job waits, Unix seconds; None if it does not wait for one."""
        return self._begins[job][0] if job in self._begins else None

    def open_dependencies(self, job: int) -> list[DependsOn]:
        """Return the dependencies of a job that are not met yet."""
        return self._waits.get(job, (0, []))[1]

    def is_open(self, job: int) -> bool:
        """Return whether no gate keeps this job out of the queue."""
        return not (job in self._held or job in self._begins or job in self._waits)

    # ---- internals --------------------------------------------------------------------------------

    def _bar(self, seq: int, reason: Reason) -> None:
        if seq >= 0:  # an array is not in the ledger, only its tasks are
            self._eligibility.bar([seq], reason)

    def _clear(self, seqs: list[int], reason: Reason, now_s: float) -> None:
        inside = [seq for seq in seqs if seq >= 0]
        if inside:
            self._eligibility.clear(inside, reason, now_s)

    def _update_reason(self, seq: int, reason: Reason, waited: bool, waits: bool, now_s: float) -> None:
        if waits and not waited:
            self._bar(seq, reason)
        elif waited and not waits:
            self._clear([seq], reason, now_s)

    def _note_waits(self, seq: int, job: int, others: list[DependsOn]) -> None:
        self._waits[job] = (seq, list(others))
        for one in others:
            self._awaited.setdefault(one.job, {})[job] = None

    def _forget_waits(self, job: int) -> bool:
        """Remove a job's dependencies. Return whether the job had any."""
        found = self._waits.pop(job, None)
        for one in found[1] if found else ():
            self._awaited.get(one.job, {}).pop(job, None)
        return found is not None

    def _plan_review(self) -> None:
        self.due_s = min((begin_s for begin_s, _ in self._begins.values()), default=math.inf)

    def _hold(self, job: int, seq: int, by: str) -> None:
        self._held[job] = by
        self._bar(seq, "Held")

    def _resolve(self, other: int, state: str, now_s: float) -> None:
        """Remove the dependencies on job `other` that are met now that `other` has the state `state`.

        Jobs without further gates enter the queue. Jobs whose dependency can no longer be met are `hopeless`.
        """
        enter: list[int] = []
        for job in list(self._awaited.get(other, ())):
            seq, waits = self._waits[job]
            for one in [one for one in waits if one.job == other]:
                met = is_met(one.kind, state)
                if met:
                    waits.remove(one)
                elif met is False:
                    self.hopeless.setdefault(job, f"{NEVER}: {one.kind}:{other} is {state}")
            if not any(one.job == other for one in waits):
                del self._awaited[other][job]
            if not waits:
                del self._waits[job]
                enter.append(seq)
        if enter:
            self._clear(enter, "Dependency", now_s)
