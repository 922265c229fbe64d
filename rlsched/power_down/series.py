"""Node demand over time, as recorded in logs: number of busy nodes, and of all nodes."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import TraceError
from rlsched.workload.predict.node_demand import DAY_SLOTS, SLOT_S

_BUSY, _TOTAL = ("busy", "active"), "total"
_MONDAY_S = 4 * 86400.0
"""The first Monday after the epoch, which was a Thursday."""


@dataclass(frozen=True)
class NodeDemand:
    """A demand series, in order of time.

    Attributes:
        time_s: (N,) seconds; dates are Unix seconds, read as UTC.
        busy: (N,) nodes that ran a job.
        total: (N,) nodes in total.
        has_calendar: Whether times were dates.
    """

    time_s: NDArray[np.float64]
    busy: NDArray[np.float64]
    total: NDArray[np.float64]
    has_calendar: bool

    @classmethod
    def read(cls, path: Path) -> NodeDemand:
        """Read CSV (also .gz) with the columns `time`, `busy` (or `active`) and `total`.

        `time` is a date (`2017-10-03 00:00:00`) or seconds; `philly_node_sequence.csv` of Helios reads as is.

        Raises:
            TraceError: a column is missing, a value is not a number, times do not rise, or there are no rows.
        """
        rows = csv.DictReader(io.StringIO(_text(path)))
        names = rows.fieldnames or []
        busy = next((name for name in _BUSY if name in names), None)
        if busy is None or "time" not in names or _TOTAL not in names:
            raise TraceError(
                f"{path}: expected the columns time, busy (or active) and total, "
                f"got {', '.join(names) or 'none'}"
            )
        times, values = [], []
        for number, row in enumerate(rows, start=2):
            try:
                times.append(_seconds(row["time"]))
                values.append((float(row[busy]), float(row[_TOTAL])))
            except (TypeError, ValueError) as error:
                raise TraceError(
                    f"{path}, line {number}: expected a time, nodes busy and nodes in total, "
                    f"got {','.join(str(item) for item in row.values())}"
                ) from error
        if not times:
            raise TraceError(f"{path}: expected rows below the header, found none")
        time_s = np.array([time for time, _ in times])
        nodes = np.array(values)
        early = np.flatnonzero(np.diff(time_s) <= 0)
        if len(early):
            raise TraceError(f"{path}, line {early[0] + 3}: times must rise from row to row, sort the file")
        bad = np.flatnonzero(~np.isfinite(nodes).all(axis=1) | (nodes < 0).any(axis=1))
        if len(bad):
            raise TraceError(f"{path}, line {bad[0] + 2}: nodes must be finite numbers >= 0")
        return cls(time_s, nodes[:, 0], nodes[:, 1], times[0][1])

    @classmethod
    def of_run(cls, path: Path, nodes: int | None = None) -> NodeDemand:
        """Return the busy nodes of a run, from a table of attempts or jobs of `rlsched evaluate --jobs-out`.

        A node is busy while anything runs on it, sampled every minute. If jobs were preempted, use the table
        of attempts (`NAME.segments.csv`): the table of jobs has their first start and last end.

        Args:
            path: CSV with the columns `start_time`, `end_time` and `node` (gangs as `n3;n7`).
            nodes: Nodes in total; default: all nodes that were ever busy.

        Raises:
            TraceError: a column is missing, a value is not a number, no node is used, or more than
                `nodes` are.
        """
        rows = csv.DictReader(io.StringIO(_text(path)))
        if not {"start_time", "end_time", "node"} <= set(rows.fieldnames or ()):
            raise TraceError(
                f"{path}: expected the columns time, busy and total, or start_time, end_time and node, "
                f"got {', '.join(rows.fieldnames or ['none'])}"
            )
        spans: dict[str, list[tuple[float, float]]] = {}
        for number, row in enumerate(rows, start=2):
            if not row["node"]:
                continue  # never started
            try:
                span = float(row["start_time"]), float(row["end_time"])
            except (TypeError, ValueError) as error:
                raise TraceError(f"{path}, line {number}: start_time and end_time must be seconds") from error
            if not (math.isfinite(span[0]) and span[0] <= span[1] < math.inf):
                raise TraceError(f"{path}, line {number}: a start at or before the end, both finite")
            for node in row["node"].split(";"):
                spans.setdefault(node, []).append(span)
        if not spans:
            raise TraceError(f"{path}: expected rows that ran on a node, found none")
        if nodes is not None and nodes < len(spans):
            raise TraceError(f"{path}: {len(spans)} nodes ran jobs, more than the {nodes} in total")
        return cls.of_spans(spans, nodes or len(spans))

    @classmethod
    def of_spans(cls, spans: Mapping[str, Sequence[tuple[float, float]]], nodes: int) -> NodeDemand:
        """Return the busy nodes, sampled every minute, from the spans in which something ran on each node.

        Args:
            spans: (start, end) of everything that ran on a node, seconds, by node name; at least one in all.
            nodes: Nodes in total.
        """
        first_s = min(start for some in spans.values() for start, _ in some) // 60 * 60
        last_s = max(end for some in spans.values() for _, end in some)
        time_s = np.arange(first_s, last_s + 60.0, 60.0)
        busy = np.zeros(len(time_s))
        for some in spans.values():
            steps = np.zeros(len(time_s) + 1)
            start, end = np.ceil((np.array(some).T - first_s) / 60.0).astype(np.int64)
            np.add.at(steps, start, 1.0)
            np.add.at(steps, end, -1.0)
            busy += np.cumsum(steps)[:-1] > 0
        return cls(time_s, busy, np.full(len(time_s), float(nodes)), False)

    def rows_between(self, since_s: float, until_s: float) -> NodeDemand:
        """Return the rows with since_s <= time < until_s."""
        rows = (self.time_s >= since_s) & (self.time_s < until_s)
        return NodeDemand(self.time_s[rows], self.busy[rows], self.total[rows], self.has_calendar)

    def slots(self) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        """Return ten-minute slots without gaps: (M,) highest demand, (M,) most nodes, first slot's number.

        A slot without a row repeats the previous one. The number is that within the week, with 0 for Monday
        at midnight; without a calendar, the series starts on a Monday.
        """
        number = np.floor((self.time_s - (_MONDAY_S if self.has_calendar else 0.0)) / SLOT_S).astype(np.int64)
        slot = number - number[0]
        busy, total = np.full((2, int(slot[-1]) + 1), -1.0)
        np.maximum.at(busy, slot, self.busy)
        np.maximum.at(total, slot, self.total)
        latest = np.maximum.accumulate(np.where(busy >= 0, np.arange(len(busy)), 0))
        return busy[latest], total[latest], int(number[0]) % (7 * DAY_SLOTS)


def is_run(path: Path) -> bool:
    """Return whether a file has the columns of a run's attempts (`NodeDemand.of_run`), not of a log.

    Raises:
        TraceError: the file cannot be read.
    """
    header = next(csv.reader(io.StringIO(_text(path))), [])
    return "start_time" in header and "time" not in header


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as CSV or CSV.gz: {error}") from error


def _seconds(text: str) -> tuple[float, bool]:
    """Parse a date or seconds; return seconds, and whether it was a date."""
    try:
        value = float(text)
    except ValueError:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp(), True
    if not math.isfinite(value):
        raise ValueError(text)
    return value, False
