"""States of jobs and ranks, and the legal transitions between states.

    queued -> launching                      the scheduler starts the job
    launching -> running                     all ranks run
    launching, running -> queued             the attempt ended, and the job waits for the next attempt
    launching, running -> completed, failed, cancelled
    queued -> cancelled

A rejected job is never queued. `Job.become` and `Rank.become` raise `JournalError` for all other transitions,
so the replay of a journal stops at an illegal transition.
"""

from __future__ import annotations

from typing import Final, Literal

from rlsched.errors import JournalError
from rlsched.wire.states import JobState, RankState

Outcome = Literal["queued", "completed", "failed", "cancelled"]
"""State of a job after one of its attempts has ended."""
Ending = Literal["", "queued", "preempted", "failed", "cancelled"]
"""State that a job gets after the broker has ordered its attempt to end; "": there is no such order. With
`preempted`, the job is queued again, unless all ranks exited by themselves.
"""
PREEMPTED: Final = "preempted"
PRECEDENCE: Final[dict[Ending, int]] = {"": 0, "queued": 1, "preempted": 1, "failed": 2, "cancelled": 3}
"""Precedence of each `Ending`. The ending of an attempt changes only to an ending with higher precedence."""

_JOB: Final[frozenset[tuple[JobState, JobState]]] = frozenset(
    {
        ("queued", "launching"),
        ("queued", "cancelled"),
        ("launching", "running"),
        ("launching", "queued"),
        ("launching", "completed"),
        ("launching", "failed"),
        ("launching", "cancelled"),
        ("running", "queued"),
        ("running", "completed"),
        ("running", "failed"),
        ("running", "cancelled"),
    }
)
_RANK: Final[frozenset[tuple[RankState, RankState]]] = frozenset(
    {("launching", "running"), ("launching", "ended"), ("running", "ended")}
)


def check_job(job: str, before: JobState, after: JobState) -> None:
    """Check a transition of a job.

    Raises:
        JournalError: the transition is not legal.
    """
    if (before, after) not in _JOB:
        raise JournalError(f"job {job} is {before} and cannot become {after}")


def check_rank(before: RankState, after: RankState) -> None:
    """Check a transition of a rank.

    Raises:
        JournalError: the transition is not legal.
    """
    if (before, after) not in _RANK:
        raise JournalError(f"a rank that is {before} cannot become {after}")
