"""Compares two schedules of the same jobs after a decision: waiting times, completion times and ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from rlsched.decisions.stored_timeline import StoredTimeline
from rlsched.decisions.story_lines import LEAST_S
from rlsched.decisions.timeline import JobSeen, Timeline

MOST_JOBS: Final = 10


def difference(
    was: Timeline | StoredTimeline, other: Timeline | StoredTimeline, from_s: float, to_s: float
) -> dict[str, Any]:
    """Return how a second schedule differs from the actual schedule between two times.

    Only jobs that wait or run between `from_s` and `to_s` are compared. Waiting time is time in the queue
    between these times. The mean job completion times are of jobs that end by `to_s` in both schedules.
    In the result, `less` lists jobs that wait less in `other`, and `more` lists jobs that wait longer, each
    by at least `LEAST_S`.

    Args:
        was: The actual schedule.
        other: The schedule to compare with the actual one.
        from_s: Time at which the schedules begin to differ, seconds.
        to_s: Time until which both schedules are known, seconds.
    """
    rows, ends = [], []
    for name, job in was.jobs.items():
        twin = other.jobs.get(name)
        if twin is None or not job.submit_s < to_s or (job.end_s <= from_s and twin.end_s <= from_s):
            continue
        rows.append(_row(job, twin, from_s, to_s))
        ends.append((job, twin, job.end_s <= to_s, twin.end_s <= to_s))
    both = [
        (job, twin) for job, twin, mine, theirs in ends if mine and theirs and not math.isnan(job.submit_s)
    ]
    by_gain = sorted(rows, key=lambda row: float(row["change_s"]))
    less = [row for row in by_gain if row["change_s"] <= -LEAST_S]
    more = [row for row in reversed(by_gain) if row["change_s"] >= LEAST_S]
    return {
        "from_s": from_s,
        "to_s": to_s,
        "same": all(_same(was.jobs[row["job"]], other.jobs[row["job"]], to_s) for row in rows),
        "jobs": len(rows),
        "num_less": len(less),
        "num_more": len(more),
        "less": less[:MOST_JOBS],
        "more": more[:MOST_JOBS],
        "waited_s": sum(row["waited_s"] for row in rows),
        "other_waited_s": sum(row["other_waited_s"] for row in rows),
        "ended": sum(mine for *_, mine, _ in ends),
        "other_ended": sum(theirs for *_, theirs in ends),
        "ended_in_both": len(both),
        "jct_mean_s": _mean([job.end_s - job.submit_s for job, _ in both]),
        "other_jct_mean_s": _mean([twin.end_s - twin.submit_s for _, twin in both]),
    }


def _row(job: JobSeen, twin: JobSeen, from_s: float, to_s: float) -> dict[str, Any]:
    waited_s, other_waited_s = (waiting_s(one, from_s, to_s) for one in (job, twin))
    return {
        "job": job.job,
        "name": job.name,
        "user": job.user,
        "num_gpus": job.num_gpus,
        "start_s": _start_s(job, from_s, to_s),
        "other_start_s": _start_s(twin, from_s, to_s),
        "waited_s": waited_s,
        "other_waited_s": other_waited_s,
        "change_s": other_waited_s - waited_s,
        "still_waits": job.waits_at(to_s),
        "other_still_waits": twin.waits_at(to_s),
    }


def waiting_s(job: JobSeen, from_s: float, to_s: float) -> float:
    """Return the time that a job spends in the queue between two times, seconds."""
    since_s = from_s if math.isnan(job.submit_s) else max(job.submit_s, from_s)
    total = max(min(job.end_s, to_s) - since_s, 0.0)
    for one in job.attempts:
        total -= max(min(one.end_s, to_s) - max(one.start_s, since_s), 0.0)
    return max(total, 0.0)


def _start_s(job: JobSeen, from_s: float, to_s: float) -> float | None:
    """Return the time of a job's first start between two times, seconds; None: no start between them."""
    return next((one.start_s for one in job.attempts if from_s <= one.start_s < to_s), None)


def _same(job: JobSeen, twin: JobSeen, to_s: float) -> bool:
    """Return whether the job's attempts before `to_s` have the same times and GPUs in both schedules."""
    return list(_attempts(job, to_s)) == list(_attempts(twin, to_s))


def _attempts(job: JobSeen, to_s: float) -> Iterator[tuple[Any, ...]]:
    for one in job.attempts:
        if one.start_s < to_s:
            ended = one.end_s <= to_s
            yield (
                one.start_s,
                one.end_s if ended else math.inf,
                one.nodes,
                one.gpus,
                one.share_milli if ended else 0,
                one.sm_clock_frac if ended else 0.0,
            )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
