"""Compares two runs of the same jobs: their waiting times, and the decisions that differ."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from rlsched.decide.record import DecisionRecord
from rlsched.decisions import story
from rlsched.decisions.candidates import as_another
from rlsched.decisions.decision_text import done
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.stored_timeline import Floats
from rlsched.decisions.story import decision, when
from rlsched.errors import InputError

MOST_JOBS: Final = 10
MOST_PARTINGS: Final = 20
"""Number of partings on a page."""
MOST_ACTS: Final = 5
_UNKNOWN: Final = (math.nan, math.nan)
Act = tuple[int, float, str, str]
"""A start or a preemption: (row of the decision in the store, time in seconds, kind of action, job)."""


def compare(reader: StoreReader, other: StoreReader) -> dict[str, Any]:
    """Compare the waiting times of the jobs that started in both runs.

    The waiting time of a job is its first start minus its submission. In the result, `less` lists jobs that
    wait less in run `reader` than in run `other`, and `more` lists jobs that wait longer. The job with the
    largest difference is first.

    Raises:
        InputError: the runs have different jobs: of the jobs that started in both, at least half have other
            submission times, or no job started in both.
    """
    names, waited_s, other_waited_s = _waits(reader, other)
    started, other_started = _started(reader), _started(other)
    if started and other_started and len(names) <= len(started & other_started) / 2:
        raise InputError(
            f"expected two runs of the same jobs: {len(names):,} of the {len(started):,} jobs started in "
            f"{reader.folder} have the same ID and submission time in {other.folder}; choose another run"
        )
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
    """Return the jobs with known waiting times in both runs, and these times in each run, seconds.

    Jobs are the same if their job IDs and submission times are equal.
    """
    names, submit_s, start_s = reader.timeline.first_starts()
    their_names, *their_times_s = other.timeline.first_starts()
    of_theirs = dict(zip(their_names, np.column_stack(their_times_s).tolist(), strict=True))
    theirs = np.array([of_theirs.get(name, _UNKNOWN) for name in names]).reshape(-1, 2)
    waited_s, other_waited_s = start_s - submit_s, theirs[:, 1] - theirs[:, 0]
    known = np.flatnonzero((submit_s == theirs[:, 0]) & np.isfinite(waited_s) & np.isfinite(other_waited_s))
    return [names[k] for k in known.tolist()], waited_s[known], other_waited_s[known]


def _started(reader: StoreReader) -> set[str]:
    """Return the jobs that have started."""
    names, _, start_s = reader.timeline.first_starts()
    return {names[k] for k in np.flatnonzero(np.isfinite(start_s)).tolist()}


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


class Partings:
    """All times at which the starts and preemptions of two runs differ.

    Only the period that both readers cover is compared. Two runs that differ once usually differ often,
    because later decisions depend on earlier ones.

    Args:
        reader: The run that is shown.
        other: The other run.
    """

    def __init__(self, reader: StoreReader, other: StoreReader) -> None:
        self._reader, self._other = reader, other
        both = _acts_of_both(reader, other)
        common = {act[1:] for act in both[0]}.intersection(act[1:] for act in both[1])
        found: dict[float, tuple[list[Act], list[Act]]] = {}
        for side, acts in enumerate(both):
            for act in acts:
                if act[1:] not in common:
                    found.setdefault(act[1], ([], []))[side].append(act)
        self._found = sorted(found.items())

    def __len__(self) -> int:
        return len(self._found)

    def page(self, first: int) -> dict[str, Any]:
        """Return `MOST_PARTINGS` partings from the index `first`, ordered by time, and the number of all.

        A parting has:
            this, other: The starts and preemptions of one run only, at most `MOST_ACTS`; `this_count` and
                `other_count` are their numbers. For a start, `elsewhere_s` is the start of the same attempt
                in the other run, seconds; None if there is none.
            same_state: Whether both runs were in the same state before: the same jobs ran since the same
                times, and the same jobs waited. Otherwise, an earlier difference can be the cause.
            worth: Result of `_worth`, from which a user can replay `reader` with the choice of `other`.
        """
        return {
            "first": first,
            "most": MOST_PARTINGS,
            "count": len(self._found),
            "partings": [
                self._parting(at_s, *acts) for at_s, acts in self._found[first : first + MOST_PARTINGS]
            ],
        }

    def _parting(self, at_s: float, mine: list[Act], theirs: list[Act]) -> dict[str, Any]:
        reader, other = self._reader, self._other
        acted = other.record(theirs[0][0]) if theirs else None
        return {
            "time_s": at_s,
            "when": when(reader, at_s),
            "this": [_act(reader, other, act) for act in mine[:MOST_ACTS]],
            "this_count": len(mine),
            "other": [_act(other, reader, act) for act in theirs[:MOST_ACTS]],
            "other_count": len(theirs),
            "same_state": _state(reader, at_s) == _state(other, at_s),
            "worth": _worth(reader, mine[0] if mine else None, acted),
        }


def _act(reader: StoreReader, other: StoreReader, act: Act) -> dict[str, Any]:
    row, at_s, kind, job = act
    seen, twin = reader.timeline.job(job), other.timeline.job(job)
    elsewhere_s = None
    if kind == "start" and seen is not None and twin is not None:
        attempts = zip(seen.attempts, twin.attempts, strict=False)
        elsewhere_s = next((there.start_s for here, there in attempts if here.start_s == at_s), None)
    return {"row": row, "job": job, "did": done(reader.record(row)), "elsewhere_s": elsewhere_s}


def _state(reader: StoreReader, at_s: float) -> tuple[list[str], list[tuple[str, float]]]:
    """Return the jobs that wait just before a time, and the jobs that run, with the times of their starts."""
    before_s = float(np.nextafter(at_s, -math.inf))
    waiting = sorted(job.job for job in reader.timeline.queue_at(before_s))
    return waiting, sorted((one.job.job, one.start_s) for one in reader.timeline.running_at(before_s))


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
