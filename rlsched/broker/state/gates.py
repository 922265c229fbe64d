"""What keeps a waiting job out of the queue by its user's own word: a hold, a time to begin, other jobs.

The words are Slurm's. `after` waits until the other job has started, `afterany` until it is over, `afterok`
until it has completed, `afternotok` until it is over in any other way. A job whose others can no longer do
what it waits for can never run: it is `hopeless`, and the broker cancels it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from rlsched.broker.base.eligibility import Eligibility, Reason
from rlsched.broker.base.entries import JobHeld, JobSubmitted, JobUpdated
from rlsched.wire.messages import DependsOn

COMPLETED: Final = "completed"
NEVER: Final = "DependencyNeverSatisfied"


def is_met(kind: str, state: str) -> bool | None:
    """Whether a job that is over in this state, or has just started (`running`), is what `kind` waits for.

    None: it may still become that.
    """
    if state == "running":
        return True if kind == "after" else None
    if kind in ("after", "afterany"):
        return True
    return (state == COMPLETED) == (kind == "afterok")


class Gates:
    """Bars waiting jobs, and lets them in.

    Args:
        eligibility: Is told which.

    Attributes:
        hopeless: Job -> why it can never run; whoever cancels them takes them out of here.
    """

    def __init__(self, eligibility: Eligibility) -> None:
        self._eligibility = eligibility
        self._held: dict[int, str] = {}  # job -> `user` or `admin`
        self._begins: dict[int, tuple[float, int]] = {}  # job -> when, and its seq
        self._waits: dict[int, tuple[int, list[DependsOn]]] = {}  # job -> its seq, and what it waits for
        self._awaited: dict[int, dict[int, None]] = {}  # job -> those that wait for it
        self.hopeless: dict[int, str] = {}
        self.due_s = math.inf
        """When `review` will let somebody in, Unix seconds; infinite where there is nobody."""

    # ---- what happens to jobs ---------------------------------------------------------------------

    def submitted(self, seq: int, entry: JobSubmitted, now_s: float) -> None:
        """A job has come to the ledger and waits."""
        if entry.held:
            self._hold(entry.job, seq, entry.held)
        if entry.begin_s is not None and entry.begin_s > now_s:
            self._begins[entry.job] = entry.begin_s, seq
            self.due_s = min(self.due_s, entry.begin_s)
            self._bar(seq, "BeginTime")
        if entry.depends_on:
            self.waits_for(seq, entry.job, entry.depends_on)

    def waits_for(self, seq: int, job: int, others: list[DependsOn]) -> None:
        """It waits for these, none of which has done yet what it waits for."""
        self._note_waits(seq, job, others)
        self._bar(seq, "Dependency")

    def held(self, seq: int, entry: JobHeld, now_s: float) -> None:
        """Somebody has held a waiting job, or released it."""
        if entry.by and entry.job not in self._held:
            self._hold(entry.job, seq, entry.by)
        elif entry.by:
            self._held[entry.job] = entry.by
        elif self._held.pop(entry.job, ""):
            self._clear([seq], "Held", now_s)

    def changed(self, seq: int, entry: JobUpdated, now_s: float) -> None:
        """It waits for another time, or for other jobs, than it did."""
        job = entry.job
        if entry.begin_s is not None:
            waited = self._begins.pop(job, None) is not None
            if entry.begin_s > now_s:
                self._begins[job] = entry.begin_s, seq
            self._plan()
            self._turned(seq, "BeginTime", waited, job in self._begins, now_s)
        if entry.depends_on is not None:
            waited = self._forget_waits(job)
            self.hopeless.pop(job, None)
            if entry.depends_on:
                self._note_waits(seq, job, entry.depends_on)
            self._turned(seq, "Dependency", waited, job in self._waits, now_s)

    def started(self, job: int, now_s: float) -> None:
        """It has got its GPUs."""
        self._settle(job, "running", now_s)

    def over(self, job: int, state: str, now_s: float) -> None:
        """It is over; it may have waited still."""
        self._held.pop(job, None)
        self.stopped(job)
        self._settle(job, state, now_s)
        self._awaited.pop(job, None)

    def stopped(self, job: int) -> None:
        """It waits for nothing any more: it is over, or an array of which no more comes."""
        self._forget_waits(job)
        if self._begins.pop(job, None):
            self._plan()
        self.hopeless.pop(job, None)

    def review(self, now_s: float) -> None:
        """Let those in whose time has come."""
        due = [job for job, (begin_s, _) in self._begins.items() if begin_s <= now_s]
        if due:
            self._clear([self._begins.pop(job)[1] for job in due], "BeginTime", now_s)
            self._plan()

    # ---- questions --------------------------------------------------------------------------------

    def holder(self, job: int) -> str:
        """Who holds it, `user` or `admin`; "": nobody."""
        return self._held.get(job, "")

    def held_among(self, jobs: Iterable[int]) -> int:
        """How many of these are held."""
        return sum(job in self._held for job in jobs) if self._held else 0

    def begins_s(self, job: int) -> float | None:
        """Until when it waits, Unix seconds; None where it does not, or no longer."""
        return self._begins[job][0] if job in self._begins else None

    def awaited(self, job: int) -> list[DependsOn]:
        """What it still waits for."""
        return self._waits.get(job, (0, []))[1]

    def is_open(self, job: int) -> bool:
        """Whether nothing of this keeps it."""
        return not (job in self._held or job in self._begins or job in self._waits)

    # ---- within -----------------------------------------------------------------------------------

    def _bar(self, seq: int, reason: Reason) -> None:
        if seq >= 0:  # an array is not in the ledger
            self._eligibility.bar([seq], reason)

    def _clear(self, seqs: list[int], reason: Reason, now_s: float) -> None:
        inside = [seq for seq in seqs if seq >= 0]
        if inside:
            self._eligibility.clear(inside, reason, now_s)

    def _turned(self, seq: int, reason: Reason, waited: bool, waits: bool, now_s: float) -> None:
        if waits and not waited:
            self._bar(seq, reason)
        elif waited and not waits:
            self._clear([seq], reason, now_s)

    def _note_waits(self, seq: int, job: int, others: list[DependsOn]) -> None:
        self._waits[job] = (seq, list(others))
        for one in others:
            self._awaited.setdefault(one.job, {})[job] = None

    def _forget_waits(self, job: int) -> bool:
        """It waits for no others any more; whether it did."""
        found = self._waits.pop(job, None)
        for one in found[1] if found else ():
            self._awaited.get(one.job, {}).pop(job, None)
        return found is not None

    def _plan(self) -> None:
        self.due_s = min((begin_s for begin_s, _ in self._begins.values()), default=math.inf)

    def _hold(self, job: int, seq: int, by: str) -> None:
        self._held[job] = by
        self._bar(seq, "Held")

    def _settle(self, other: int, state: str, now_s: float) -> None:
        """What this says to those that wait for it."""
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
