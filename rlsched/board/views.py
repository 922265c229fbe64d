"""Data of the tab «Decisions»: nodes and GPUs over time, the queue, and the times of decisions."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from rlsched.collector import no_garbage
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.stored_timeline import Attempts, Ints, StoredTimeline
from rlsched.decisions.story import places, state_of, when
from rlsched.decisions.timeline import JobSeen

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
        "jobs": len(timeline),
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
    at_s = np.linspace(from_s, to_s, POINTS)
    power = timeline.power(at_s)
    table = timeline.table
    drawn = np.flatnonzero((table.start_s < to_s) & (table.end_s > from_s) & (table.num_gpus > 0.0))
    drawn, omitted = _longest(table, drawn, MOST_BARS)
    jobs, job = np.unique(table.job[drawn], return_inverse=True)
    return {
        "from_s": from_s,
        "to_s": to_s,
        "first_s": timeline.first_s,
        "last_s": timeline.last_s,
        "rows": rows,
        "nodes": nodes,
        "jobs": timeline.about(jobs),
        "bars": {
            "job": job.tolist(),
            "start_s": table.start_s[drawn].tolist(),
            "end_s": np.minimum(table.end_s[drawn], timeline.last_s).tolist(),
            "running": np.isinf(table.end_s[drawn]).tolist(),
            "share_milli": table.share_milli[drawn].astype(int).tolist(),
            "clock_frac": table.sm_clock_frac[drawn].tolist(),
            "rows": _runs(timeline, drawn, first_row),
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


def _longest(table: Attempts, shown: Ints, most: int) -> tuple[Ints, int]:
    """Return the `most` longest of the shown attempts in their order, and the number of omitted attempts."""
    if len(shown) <= most:
        return shown, 0
    length = table.end_s[shown] - table.start_s[shown]
    kept = np.sort(np.argsort(-length, kind="stable")[:most])
    return shown[kept], len(shown) - most


def _runs(timeline: StoredTimeline, drawn: Ints, first_row: dict[str, int]) -> list[list[int]]:
    """Return the chart rows of each attempt's GPUs, as ranges of consecutive rows in one flat list.

    The list has two numbers for each range: the first row, and the number of rows.
    """
    owner, row = timeline.rows_of_gpus(drawn, first_row)
    order = np.lexsort((row, owner))
    owner, row = owner[order], row[order]
    begins = np.ones(len(row), np.bool_)
    begins[1:] = (owner[1:] != owner[:-1]) | (row[1:] != row[:-1] + 1)
    first = np.flatnonzero(begins)
    pairs = np.stack([row[first], np.diff([*first.tolist(), len(row)])], axis=1).ravel().tolist()
    bounds = 2 * np.searchsorted(owner[first], drawn), 2 * np.searchsorted(owner[first], drawn, side="right")
    return [pairs[begin:end] for begin, end in zip(*(one.tolist() for one in bounds), strict=True)]


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
    for job in reader.timeline.find(text, MOST_FOUND):
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
    return found
