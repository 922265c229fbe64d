"""Converts the periods in which nodes were down or drained (`sacctmgr show event`) to node events."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rlsched.errors import InputError, TraceError
from rlsched.workload.formats.account import MalformedError
from rlsched.workload.formats.clock import TimeParser

_FIELDS: Final = {
    "node": ("NodeName",),
    "start": ("TimeStart", "Start"),
    "end": ("TimeEnd", "End"),
    "state": ("State",),
}
_ASLEEP: Final = "POWER"


class _Change(NamedTuple):
    time_s: float
    order: int
    node: str
    event: str


@dataclass(frozen=True)
class Downtimes:
    """Node events imported from the output of `sacctmgr show event`.

    Attributes:
        changes: (seconds of the trace, name of the node in the cluster file, event), in order of time.
        skipped: Number of events left out, by reason.
    """

    changes: list[tuple[float, str, str]]
    skipped: dict[str, int]

    def write(self, path: Path) -> None:
        """Write the events as the `node_events` file of a cluster.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            with path.open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                rows.writerow(("time", "node", "event"))
                rows.writerows((f"{time_s:.15g}", node, event) for time_s, node, event in self.changes)
        except OSError as error:
            raise InputError(f"{path}: cannot write node events here: {error.strerror}") from error


def downtimes(
    text: str, names: Mapping[str, str], origin_s: float, clock: TimeParser, where: str
) -> Downtimes:
    """Convert the output of `sacctmgr show event --parsable2` to node events.

    Args:
        text: The output.
        names: Name of a node in the cluster file, by its name in Slurm.
        origin_s: Time of the trace's second 0, in the seconds that `clock` returns.
        clock: Parser of the times in the output.
        where: Source to name in messages.

    Raises:
        InputError: a column is missing, or a value is malformed.
    """
    rows = list(csv.reader(text.splitlines(), delimiter="|"))
    if not rows:
        raise InputError(f"{where}: expected the output of `sacctmgr --parsable2 show event`, got nothing")
    header = [cell.replace(" ", "") for cell in rows[0]]
    places: dict[str, int] = {}
    for what, known in _FIELDS.items():
        at = next((header.index(name) for name in known if name in header), None)
        if at is None:
            raise InputError(
                f"{where}: line 1: expected the column {' or '.join(known)}, got {', '.join(header)[:120]}; "
                "print it with `sacctmgr --parsable2 show event`"
            )
        places[what] = at
    changes: list[_Change] = []
    skipped: dict[str, int] = {}
    for number, cells in enumerate(rows[1:], start=2):
        if not cells:
            continue
        if len(cells) < len(header):
            raise InputError(f"{where}: line {number}: expected {len(header)} values, got {len(cells)}")
        node, state = cells[places["node"]].strip(), cells[places["state"]].strip().upper()
        event = _event(state)
        reason = _left_out(node, state, event, names)
        start_s = _time(clock, cells[places["start"]], f"{where}: line {number}", "TimeStart")
        end_s = _time(clock, cells[places["end"]], f"{where}: line {number}", "TimeEnd")
        if not reason and end_s is not None and end_s <= origin_s:
            reason = "over before the trace begins"
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        if start_s is None:
            raise InputError(f"{where}: line {number}: TimeStart: expected a time, got a blank")
        changes.append(_Change(max(start_s - origin_s, 0.0), 1, names[node], event))
        if end_s is not None:
            changes.append(_Change(end_s - origin_s, 0, names[node], "up"))
    changes.sort(key=lambda one: (one.time_s, one.order))
    return Downtimes([(one.time_s, one.node, one.event) for one in _joined(changes)], skipped)


def _joined(changes: list[_Change]) -> list[_Change]:
    """Remove an `up` event of a node if another event takes the node out of service at the same time."""
    again = {(one.time_s, one.node) for one in changes if one.event != "up"}
    return [one for one in changes if one.event != "up" or (one.time_s, one.node) not in again]


def _event(state: str) -> str:
    if _ASLEEP in state:
        return ""
    if "DOWN" in state or "FAIL" in state:
        return "down"
    return "drain" if "DRAIN" in state else ""


def _left_out(node: str, state: str, event: str, names: Mapping[str, str]) -> str:
    if not node:
        return "of the whole cluster"
    if not event:
        return f"state {state or 'unknown'}"
    return "" if node in names else "of a node that is not in the cluster"


def _time(clock: TimeParser, text: str, at: str, column: str) -> float | None:
    text = text.strip()
    if text.isdecimal():
        return float(text)
    try:
        return clock.read(text, column)
    except (MalformedError, TraceError) as error:
        raise InputError(f"{at}: {error}") from error
