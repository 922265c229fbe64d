"""Reads from a CSV file when nodes fail, are drained, or return during a run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError

STATUS: Final = {"down": NODE_DOWN, "drain": NODE_DRAINED, "up": NODE_UP}
COLUMNS: Final = ("time", "node", "event")


class NodeEvent(NamedTuple):
    """A change of a node's status.

    Attributes:
        time_s: Time of the change, seconds of the trace.
        node: Index of the node in `ClusterSpec.expand`.
        status: New status. NODE_DOWN: the node's jobs are requeued. NODE_DRAINED: the node accepts no new
            jobs. NODE_UP: the node accepts jobs again.
    """

    time_s: float
    node: int
    status: int


def read_node_events(path: str | Path, spec: ClusterSpec) -> tuple[NodeEvent, ...]:
    """Read a CSV file with the columns `time,node,event`; events of the same time keep their order.

    Args:
        path: The file. `time`: seconds of the trace. `node`: n0, n1, ... `event`: down, drain or up.
        spec: The simulated cluster.

    Raises:
        InputError: the file cannot be read, or a value is invalid. The message names the row, the column, the
            expected and the given value.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot read these node events: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, got other bytes") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names = {node.name: number for number, node in enumerate(spec.expand())}
    try:
        header = next(reader, [])
        if sorted(header) != sorted(COLUMNS):
            raise InputError(f"{path}: expected the columns {', '.join(COLUMNS)}, got {', '.join(header)}")
        events = [_event(header, cells, names, f"{path}: row {reader.line_num}") for cells in reader if cells]
    except csv.Error as error:
        raise InputError(f"{path}: row {reader.line_num}: not valid CSV: {error}") from error
    return tuple(sorted(events, key=lambda event: event.time_s))


def _event(header: Sequence[str], cells: Sequence[str], names: dict[str, int], where: str) -> NodeEvent:
    if len(cells) != len(header):
        raise InputError(f"{where}: expected {len(header)} values as in the header, got {len(cells)}")
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    time_s = _seconds(row["time"])
    if time_s is None:
        expected = "seconds, finite and 0 or more"
        raise InputError(f"{where}, column 'time': expected {expected}, got {row['time']!r}")
    if row["node"] not in names:
        expected = f"a node of the cluster, n0 to n{len(names) - 1}"
        raise InputError(f"{where}, column 'node': expected {expected}, got {row['node']!r}")
    if row["event"] not in STATUS:
        raise InputError(f"{where}, column 'event': expected {', '.join(STATUS)}, got {row['event']!r}")
    return NodeEvent(time_s, names[row["node"]], STATUS[row["event"]])


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
