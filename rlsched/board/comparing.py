"""Compares two runs of the same jobs: their waiting times, and the first decision that differs."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from rlsched.decide.record import DecisionRecord
from rlsched.decisions import story
from rlsched.decisions.candidates import as_another
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.stored_timeline import Floats
from rlsched.decisions.story import decision, when

MOST_JOBS: Final = 10
Act = tuple[int, float, str, str]
"""A start or a preemption: (row of the decision in the store, time in seconds, kind of action, job)."""


def compare(reader: StoreReader, other: StoreReader) -> dict[str, Any]:
    """Compare the waiting times of the jobs that started in both runs.

    The waiting time of a job is its first start minus its submission. In the result, `less` lists jobs that
    wait less in run `reader` than in run `other`, and `more` lists jobs that wait longer. The job with the
    largest difference is first.
    """
    names, waited_s, other_waited_s = _waits(reader, other)
    change_s = waited_s - other_waited_s
    order = np.argsort(change_s, kind="stable").tolist()
    return {
        "other": other.info.of,
        "jobs": len(names),
        "waited_mean_s": _mean(waited_s),
        "other_waited_mean_s": _mean(other_waited_s),
        "less": [_row(reader, other, names[k]) for k in order[:MOST_JOBS] if change_s[k] < 0.0],
        "more": [_row(reader, other, names[k]) for k in order[: -MOST_JOBS - 1 : -1] if change_s[k] > 0.0],
        "parting": _parting(reader, other),
    }


def _waits(reader: StoreReader, other: StoreReader) -> tuple[list[str], Floats, Floats]:
    """Return the jobs with known waiting times in both runs, and these times in each run, seconds."""
    names, *mine = reader.timeline.first_starts()
    their_names, *theirs = other.timeline.first_starts()
    of_theirs = dict(zip(their_names, (theirs[1] - theirs[0]).tolist(), strict=True))
    waited_s = mine[1] - mine[0]
    other_waited_s = np.array([of_theirs.get(name, math.nan) for name in names])
    known = np.flatnonzero(np.isfinite(waited_s) & np.isfinite(other_waited_s))
    return [names[k] for k in known.tolist()], waited_s[known], other_waited_s[known]


def _row(reader: StoreReader, other: StoreReader, name: str) -> dict[str, Any]:
    job, twin = story.job_of(reader, name), story.job_of(other, name)
    return {
        "job": job.job,
        "name": job.name,
        "num_gpus": job.num_gpus,
        "submitted": when(reader, job.submit_s),
        "start_s": job.attempts[0].start_s,
        "waited_s": job.attempts[0].start_s - job.submit_s,
        "other_waited_s": twin.attempts[0].start_s - twin.submit_s,
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _parting(reader: StoreReader, other: StoreReader) -> dict[str, Any] | None:
    """Compare the starts and preemptions of two runs one by one. Return None if they are all equal.

    Returns:
        this: The first start or preemption of run `reader` that differs from its counterpart in run `other`
            (the start or preemption with the same index); None if run `reader` has no more.
        other: The counterpart; None if run `other` has no more.
        worth: Result of `_worth`: a candidate in run `reader` that does the same as the counterpart.
    """
    for mine, theirs in zip_longest(*_acts_of_both(reader, other)):
        if mine is None or theirs is None or mine[1:] != theirs[1:]:
            return {
                "this": None if mine is None else decision(reader, mine[0]),
                "other": None if theirs is None else decision(other, theirs[0]),
                "worth": _worth(reader, mine, None if theirs is None else other.record(theirs[0])),
            }
    return None


def _worth(reader: StoreReader, mine: Act | None, theirs: DecisionRecord | None) -> dict[str, Any] | None:
    """Find a decision of run `reader` with an untaken candidate that does the same as the other run.

    If the other run did nothing at the time of the decision, the candidate that waits does the same.

    Args:
        reader: A run.
        mine: The first start or preemption of run `reader` that differs from its counterpart in the other
            run (the start or preemption with the same index); None: run `reader` has no more.
        theirs: Record of the counterpart; None: the other run has no more.

    Returns:
        The row of the decision, the candidate's number, and its description; None if there is no such
        candidate.
    """
    rows = [] if mine is None else [mine[0]]
    if theirs is not None and (
        mine is None or theirs.now_s < mine[1]
    ):  # `reader` decided to wait or did not decide
        rows = np.flatnonzero(reader.times_s == theirs.now_s).tolist()
    for row in rows:
        record = reader.record(row)
        acts = theirs if theirs is not None and theirs.now_s == record.now_s else None
        found = as_another(record, acts)
        if found is not None:
            return {"row": row, "number": found.number, "words": found.words}
    return None


def _acts_of_both(reader: StoreReader, other: StoreReader) -> tuple[list[Act], list[Act]]:
    """Return the starts and preemptions of two runs in the period that both readers cover, in order."""
    first_s = max(reader.period[0], other.period[0])
    last_s = min(reader.period[1], other.period[1])
    mine, theirs = ([act for act in _acts(one) if first_s <= act[1] < last_s] for one in (reader, other))
    return mine, theirs


def _acts(reader: StoreReader) -> list[Act]:
    """Return all starts and preemptions of a run, in order."""
    columns = zip(reader.times_s.tolist(), reader.column("kind"), reader.column("job"), strict=True)
    return [(row, *cells) for row, cells in enumerate(columns) if cells[1] != "wait"]
