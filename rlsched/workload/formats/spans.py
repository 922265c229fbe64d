"""Times of a job from the columns `submit_time`, `start_time`, `end_time` and `duration`."""

from __future__ import annotations

from typing import NamedTuple

from rlsched.workload.formats.account import Account, LeftOutError, MalformedError
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.lines import TextRow

_SLACK_S = 1.0
"""Largest difference between end - start and the recorded duration that rounding can explain, s."""


class Span(NamedTuple):
    """Submission of a job, seconds since 1970; its run time, s; and its waiting time, s (None: unknown)."""

    submit_s: float
    duration_s: float
    queue_s: float | None


def read_span(row: TextRow, clock: TimeParser, account: Account) -> Span:
    """Read the times of a job.

    If the file has start and end times, the run time is end - start, even if the column `duration` differs.

    Raises:
        MalformedError: a time is invalid, or the end is before the start.
        LeftOutError: the job never started, or has no end.
    """
    submit_s = clock.read(row.word("submit_time"), "submit_time")
    if submit_s is None:
        raise MalformedError("submit_time", "'submit_time': expected a time, got a blank")
    recorded_s = row.number("duration")
    if "start_time" not in row.places or "end_time" not in row.places:
        if recorded_s is None:
            raise MalformedError("duration", "'duration': expected seconds, got a blank")
        return Span(submit_s, recorded_s, row.number("queue"))
    start_s = clock.read(row.word("start_time"), "start_time", submit_s)
    if start_s is None:
        raise LeftOutError("never started")
    end_s = clock.read(row.word("end_time"), "end_time", start_s)
    if end_s is None:
        raise LeftOutError("no end recorded")
    if recorded_s is not None and abs(recorded_s - (end_s - start_s)) > _SLACK_S:
        account.note(row.line, "the column duration is not end - start, which is used")
    return Span(submit_s, end_s - start_s, queueing(submit_s, start_s, row.line, account))


def queueing(submit_s: float, start_s: float | None, line: int, account: Account) -> float | None:
    """Return the waiting time, seconds; None if the start is unknown or before the submission."""
    if start_s is None:
        return None
    if start_s < submit_s:
        account.note(line, "started before it was submitted, queue_s left blank")
        return None
    return start_s - submit_s


def enforced_limit(
    limit_s: float | None, duration_s: float, line: int, account: Account
) -> tuple[float | None, float | None]:
    """Return (time limit for a replay, limit that the recorded job exceeded), seconds.

    A job that ran longer than its limit gets no limit for the replay, so that it keeps its recorded run time.
    A requested limit of 0 means no limit, in Slurm and in the Standard Workload Format.

    Args:
        limit_s: Requested limit, seconds; None: no limit.
        duration_s: Recorded run time, seconds.
        line: Line number of the job.
        account: Row counts of the file; a job that ran longer than its limit is noted there.
    """
    if not limit_s:
        return None, None
    if duration_s <= limit_s:
        return limit_s, None
    account.note(line, "ran longer than its time limit, which is in x_time_limit_s; time_limit is blank")
    return None, limit_s
