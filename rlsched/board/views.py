"""Data of the tab «Decisions»: nodes and GPUs over time, the queue, and the times of decisions."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, Final

import numpy as np

from rlsched.collector import no_garbage
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.story import places, state_of, when
from rlsched.decisions.timeline import AttemptSeen, JobSeen

POINTS: Final = 400
MOST_BARS: Final = 20_000
MOST_MARKS: Final = 4_000
MOST_FOUND: Final = 50
MOST_FORECASTS: Final = 1_000


def summary(name: str, reader: StoreReader) -> dict[str, Any]:
    """Return the summary of a store for the list of stores."""
    timeline = reader.timeline
    return {
        "run": name,
        "of": reader.info.of,
        "time": reader.info.time,
        "decisions": len(reader),
        "jobs": len(timeline.jobs),
        "nodes": len(timeline.nodes),
        "first_s": timeline.first_s,
        "last_s": timeline.last_s,
        "forecasts": len(reader.foreseen),
        "cut_short": reader.cut_short(),
    }


def overview(reader: StoreReader, from_s: float, to_s: float) -> dict[str, Any]:
    """Return the data of the chart for the period from `from_s` to `to_s`, seconds.

    The chart has a row for each GPU, and a bar for each attempt. `bars` maps each property of a bar to a list
    with one value per bar. The property `rows` gives the chart rows that a bar covers (`_runs`). Only the
    `MOST_BARS` longest attempts have bars.
    """
    with no_garbage():
        return _overview(reader, from_s, to_s)


def _overview(reader: StoreReader, from_s: float, to_s: float) -> dict[str, Any]:
    timeline = reader.timeline
    first_row, rows, nodes = {}, 0, []
    for node in timeline.nodes.values():
        first_row[node.node] = rows
        spans = [
            {"from_s": max(a, from_s), "to_s": min(b, to_s), "state": state, "reason": reason}
            for a, b, state, reason in node.spans(timeline.last_s)
            if a < to_s and b > from_s
        ]
        nodes.append(
            {"node": node.node, "row": rows, "gpus": node.num_gpus, "type": node.gpu_type, "spans": spans}
        )
        rows += node.num_gpus
    seen = [one for one in timeline.attempts if one.start_s < to_s and one.end_s > from_s and one.gpus]
    drawn, omitted = _longest(seen, MOST_BARS)
    at_s = np.linspace(from_s, to_s, POINTS)
    power = timeline.power(at_s)
    jobs: dict[str, int] = {}
    for one in drawn:
        jobs.setdefault(one.job.job, len(jobs))
    return {
        "from_s": from_s,
        "to_s": to_s,
        "first_s": timeline.first_s,
        "last_s": timeline.last_s,
        "rows": rows,
        "nodes": nodes,
        "jobs": [_job(timeline.jobs[name]) for name in jobs],
        "bars": {
            "job": [jobs[one.job.job] for one in drawn],
            "start_s": [one.start_s for one in drawn],
            "end_s": [min(one.end_s, timeline.last_s) for one in drawn],
            "running": [one.end_s == math.inf for one in drawn],
            "share_milli": [one.share_milli for one in drawn],
            "clock_frac": [one.sm_clock_frac for one in drawn],
            "rows": [_runs(one, first_row) for one in drawn],
        },
        "omitted": omitted,
        "curves": {name: level.tolist() for name, level in timeline.curves(at_s).items()},
        "power": None if power is None else {name: level.tolist() for name, level in power.items()},
        "forecasts": reader.foreseen.outcomes_between(from_s, to_s, MOST_FORECASTS),
        "at_s": at_s.tolist(),
        "marks": _marks(reader, from_s, to_s),
    }


def _job(job: JobSeen) -> dict[str, Any]:
    return {"job": job.job, "name": job.name, "user": job.user, "vc": job.vc, "num_gpus": job.num_gpus}


def _longest(seen: list[AttemptSeen], most: int) -> tuple[list[AttemptSeen], int]:
    """Return the `most` longest attempts in the order of their starts, and the number of omitted attempts."""
    if len(seen) <= most:
        return seen, 0
    length = np.array([one.end_s - one.start_s for one in seen])
    kept = np.sort(np.argsort(-length, kind="stable")[:most])
    return [seen[k] for k in kept.tolist()], len(seen) - most


def _runs(one: AttemptSeen, first_row: dict[str, int]) -> list[int]:
    """Return the chart rows of an attempt's GPUs, as ranges of consecutive rows in one flat list.

    The list has two numbers for each range: the first row, and the number of rows.
    """
    rows = sorted(
        first_row[node] + gpu for node, gpu in zip(one.nodes, one.gpus, strict=True) if node in first_row
    )
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return [rows[0], len(rows)]
    runs: list[int] = []
    for _, group in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        mine = [row for _, row in group]
        runs += [mine[0], len(mine)]
    return runs


def _marks(reader: StoreReader, from_s: float, to_s: float) -> dict[str, Any]:
    """Return an evenly spaced sample of the decisions in a period, ordered by time.

    Keys of the result: `row` (the store's row of each sampled decision), `time_s` (time of each sampled
    decision), and `count` (number of all decisions in the period).
    """
    inside = np.flatnonzero((reader.times_s >= from_s) & (reader.times_s <= to_s))
    inside = inside[np.argsort(reader.times_s[inside], kind="stable")]
    step = max(1, math.ceil(len(inside) / MOST_MARKS))
    return {
        "row": inside[::step].tolist(),
        "time_s": reader.times_s[inside[::step]].tolist(),
        "count": len(inside),
    }


def search(reader: StoreReader, text: str) -> list[dict[str, Any]]:
    """Return at most `MOST_FOUND` jobs whose ID, user or VC is `text`, or whose name begins with `text`."""
    found = []
    for job in reader.timeline.jobs.values():
        starts = job.job == text or (job.name and job.name.startswith(text))
        if starts or text in (job.user, job.vc):
            last = job.attempts[-1] if job.attempts else None
            found.append(
                _job(job)
                | {
                    "state": state_of(job),
                    "submitted": when(reader, job.submit_s),
                    "start_s": job.submit_s if last is None else last.start_s,
                    "where": "" if last is None else places(last.nodes, last.gpus),
                }
            )
        if len(found) >= MOST_FOUND:
            break
    return found
