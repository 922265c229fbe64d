"""Writes a store of decisions. Rows are kept in memory for a short time, and then written in batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rlsched.decide.actions import Action, Preempt, Start
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.schema import (
    KEEP_MIB,
    ForecastSeen,
    JobEvent,
    NodeChange,
    StoreInfo,
    begin_store,
    schemas,
)
from rlsched.decisions.segments import PER_KEPT, SEGMENT_BYTES, SegmentWriter
from rlsched.wire.states import QUEUED

HELD_ROWS: Final = 1024
HELD_S: Final = 0.1
"""Default minimum time between two writes, seconds. A write of 1 to 100 rows takes half a millisecond."""
KEEP_BYTES: Final = KEEP_MIB << 20
"""Default maximum size of all tables together, bytes."""
_OF_OTHERS: Final = 8
"""Ratio of a store's maximum size to the maximum size of each table except `decisions`."""

_encoder = msgspec.msgpack.Encoder()


class DecisionStore:
    """Adds decisions and events to a store.

    Args:
        folder: Folder of the store; created if missing.
        info: Description of the store.
        keep_bytes: Maximum size of the store, bytes; the oldest rows are removed.
        keep_s: Age, seconds, above which `remove_old` removes rows; infinite: it removes no rows. Changes of
            nodes are always kept, because later rows need them.
        held_s: Minimum time between two writes, seconds (see `is_write_due`).
        clock: Function that returns a monotonic time, seconds.

    Raises:
        InputError: the folder has a store of another version, or with another `StoreInfo.time`.
        OSError: the store cannot be created.
    """

    def __init__(
        self,
        folder: str | Path,
        info: StoreInfo,
        *,
        keep_bytes: int = KEEP_BYTES,
        keep_s: float = math.inf,
        held_s: float = HELD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = Path(folder)
        begin_store(self.folder, info)
        self._held_s, self._clock = held_s, clock
        of_others = keep_bytes // _OF_OTHERS
        limits = {name: of_others for name in schemas() if name != "decisions"}
        limits["decisions"] = keep_bytes - sum(limits.values())
        self._tables = {
            name: (_Jobs if name == "jobs" else _Table)(
                SegmentWriter(
                    self.folder,
                    name,
                    schema,
                    keep_bytes=limits[name],
                    keep_s=math.inf if name == "nodes" else keep_s,
                    segment_bytes=min(SEGMENT_BYTES, limits[name] // PER_KEPT),
                ),
                [column.name for column in schema],
            )
            for name, schema in schemas().items()
        }
        self._written_s = -math.inf

    def add_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Add decisions, in order. If at least `HELD_ROWS` decisions are in memory, write all rows.

        Raises:
            OSError, pyarrow.ArrowException: rows in memory could not be written, and are lost.
        """
        self.add_rows([decision_row(record) for record in records])

    def add_rows(self, rows: list[list[Any]]) -> None:
        """Add decisions, as rows from `decision_row`. Raises the same errors as `add_decisions`."""
        self._take("decisions", rows)

    def add_events(self, events: Sequence[JobEvent | NodeChange | ForecastSeen]) -> None:
        """Add events of jobs and nodes, and forecasts with known outcomes.

        Raises:
            OSError, pyarrow.ArrowException: rows in memory could not be written, and are lost.
        """
        for name, kind in (("jobs", JobEvent), ("nodes", NodeChange), ("forecasts", ForecastSeen)):
            own = (event for event in events if isinstance(event, kind))
            self._take(name, [list(msgspec.structs.astuple(event)) for event in own])

    def note_standing(self, events: Sequence[JobEvent]) -> None:
        """Set the list of unfinished jobs, for a store that an earlier process has written.

        `events`: submissions and starts of these jobs, in order. They are not written now, but at the
        beginning of each new segment of job events.
        """
        jobs = self._tables["jobs"]
        assert isinstance(jobs, _Jobs)
        jobs.note([list(msgspec.structs.astuple(event)) for event in events])

    def remove_old(self, now_s: float) -> None:
        """Remove files in which all rows are older than `keep_s` at `now_s`, except each table's newest file.

        The rows of a file span at most one sixteenth of `keep_s`. `now_s` has the unit of times in the store.

        Raises:
            OSError: a file cannot be removed.
        """
        for table in self._tables.values():
            table.writer.remove_older(now_s)

    def _take(self, name: str, rows: list[list[Any]]) -> None:
        if not rows:
            return
        held = self._tables[name].held
        held += rows
        if len(held) >= HELD_ROWS:
            self.flush()

    def holds(self) -> bool:
        """Return whether there are rows in memory that are not written yet."""
        return any(table.held for table in self._tables.values())

    def is_write_due(self) -> bool:
        """Return whether there are rows in memory, and the last write was at least `held_s` ago."""
        return self.holds() and self._clock() - self._written_s >= self._held_s

    def flush(self) -> int:
        """Write all rows in memory; return their number.

        Raises:
            OSError, pyarrow.ArrowException: some rows could not be written, and are lost.
        """
        self._written_s = self._clock()
        written, failed = 0, list[Exception]()
        for table in self._tables.values():
            try:
                written += table.write()
            except Exception as error:  # the other tables are still written
                failed.append(error)
        if failed:
            raise failed[0]
        return written


class _Table:
    """A table of the store, with the rows that are not written yet."""

    def __init__(self, writer: SegmentWriter, columns: list[str]) -> None:
        self.writer, self._columns = writer, columns
        self.held: list[list[Any]] = []

    def write(self) -> int:
        rows, self.held = self.held, []
        if rows:
            self._put(rows)
        return len(rows)

    def _put(self, rows: list[list[Any]]) -> None:
        self.writer.add(dict(zip(self._columns, map(list, zip(*rows, strict=True)), strict=True)))


class _Jobs(_Table):
    """The table of job events, with the rows that are not written yet.

    Each segment begins with the submission of every unfinished job, and the start of its attempt if it runs,
    so that readers need no earlier segments.
    """

    def __init__(self, writer: SegmentWriter, columns: list[str]) -> None:
        super().__init__(writer, columns)
        self._live: dict[str, list[list[Any]]] = {}
        self._kind, self._job = columns.index("kind"), columns.index("job")
        self._state, self._time = columns.index("state"), columns.index("time_s")

    def _put(self, rows: list[list[Any]]) -> None:
        begins = self.writer.begins(rows[-1][self._time])
        standing = [row for known in self._live.values() for row in known] if begins else []
        super()._put([*standing, *rows])
        self.note(rows)

    def note(self, rows: list[list[Any]]) -> None:
        """Update the stored list of unfinished jobs from rows of events, in order."""
        for row in rows:
            known = self._live.get(row[self._job], [])
            match row[self._kind]:
                case "submit":
                    self._live[row[self._job]] = [row]
                case "start":
                    self._live[row[self._job]] = [*known[:1], row]
                case _ if row[self._state] == QUEUED:
                    self._live[row[self._job]] = known[:1]
                case _:
                    self._live.pop(row[self._job], None)


def acted_on(action: Action) -> int:
    """Return the sequence number of the job that an action starts or preempts; -1: the action is to wait."""
    return action.seq if isinstance(action, Start | Preempt) else -1


def decision_row(record: DecisionRecord) -> list[Any]:
    """Return a decision as a row: the columns for searches, and the record in MessagePack.

    Raises:
        Exception: an error of msgpack, because the record cannot be packed.
    """
    seq = acted_on(record.action)
    return [
        record.number,
        record.now_s,
        record.partition,
        record.source,
        record.policy_id,
        str(type(record.action).__struct_config__.tag),
        record.names.jobs.get(seq, ""),
        record.names.jobs.get(record.turn, ""),
        record.guard,
        record.took_us,
        _encoder.encode(record),
    ]
