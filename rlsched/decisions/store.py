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
MOST_CARRIED: Final = HELD_ROWS
"""Maximum number of rows of each table in `CarriedRows.unwritten`."""
_OF_OTHERS: Final = 8
"""Ratio of a store's maximum size to the maximum size of each table except `decisions`."""
_EVENTS: Final = {"jobs": JobEvent, "nodes": NodeChange, "forecasts": ForecastSeen}

_encoder = msgspec.msgpack.Encoder()


class CarriedRows:
    """Rows that a store of decisions needs from the time before it was opened.

    A writer that opens a store again after a failed write passes the same object to the new `DecisionStore`.

    Attributes:
        live: Job -> its submission, and the start of its attempt if it runs, as rows of the table `jobs`.
        unwritten: Table (`jobs` or `nodes`) -> rows that could not be written because of the disk, oldest
            first. They are written with the next rows. There are at most `MOST_CARRIED` of each table.
    """

    def __init__(self) -> None:
        self.live: dict[str, list[list[Any]]] = {}
        self.unwritten: dict[str, list[list[Any]]] = {"jobs": [], "nodes": []}

    def add(self, events: Sequence[JobEvent | NodeChange | ForecastSeen]) -> None:
        """Add events that could not be passed to a store. Forecasts are not kept."""
        for table in self.unwritten:
            self.keep(table, _rows_of(table, events))

    def keep(self, table: str, rows: list[list[Any]]) -> None:
        """Add rows that could not be written, in order. The oldest rows above the limit are removed."""
        rows = self.unwritten[table] + rows
        if table == "jobs":
            self.note(rows[:-MOST_CARRIED])
        self.unwritten[table] = rows[-MOST_CARRIED:]

    def note(self, rows: list[list[Any]]) -> None:
        """Update `live` with rows of the table `jobs`, in order."""
        for row in rows:
            known = self.live.get(row[_JOB], [])
            match row[_KIND]:
                case "submit":
                    self.live[row[_JOB]] = [row]
                case "start":
                    self.live[row[_JOB]] = [*known[:1], row]
                case _ if row[_STATE] == QUEUED:
                    self.live[row[_JOB]] = known[:1]
                case _:
                    self.live.pop(row[_JOB], None)

    def note_standing(self, events: Sequence[JobEvent]) -> None:
        """Update `live` with the submissions and starts of live jobs, in order."""
        self.note(_rows_of("jobs", events))


_KIND, _JOB, _STATE = (JobEvent.__struct_fields__.index(name) for name in ("kind", "job", "state"))


def _rows_of(table: str, events: Sequence[JobEvent | NodeChange | ForecastSeen]) -> list[list[Any]]:
    """Return the events that belong to a table, as rows of the table."""
    kind = _EVENTS[table]
    return [list(msgspec.structs.astuple(event)) for event in events if isinstance(event, kind)]


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
        carried: Rows from the time before this store was opened; None: there are none.

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
        carried: CarriedRows | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._carried = carried or CarriedRows()
        begin_store(self.folder, info)
        self._held_s, self._clock = held_s, clock
        of_others = keep_bytes // _OF_OTHERS
        limits = {name: of_others for name in schemas() if name != "decisions"}
        limits["decisions"] = keep_bytes - sum(limits.values())
        self._tables: dict[str, _Table] = {}
        for name, schema in schemas().items():
            writer = SegmentWriter(
                self.folder,
                name,
                schema,
                keep_bytes=limits[name],
                keep_s=math.inf if name == "nodes" else keep_s,
                segment_bytes=min(SEGMENT_BYTES, limits[name] // PER_KEPT),
            )
            if name in self._carried.unwritten:
                self._tables[name] = _Events(writer, schema.names, name, self._carried)
            else:
                self._tables[name] = _Table(writer, schema.names)
        self._written_s = -math.inf

    def add_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Add decisions, in order. If at least `HELD_ROWS` decisions are in memory, write all rows.

        Raises:
            OSError, pyarrow.ArrowException: rows in memory could not be written, and are lost.
        """
        self.add_rows([decision_row(record) for record in records])

    def add_rows(self, rows: list[list[Any]]) -> None:
        """Add decisions, as rows from `decision_row`. Raises the same errors as `add_decisions`."""
        self._tables["decisions"].held += rows
        self._write_if_full()

    def add_events(self, events: Sequence[JobEvent | NodeChange | ForecastSeen]) -> None:
        """Add events of jobs and nodes, and forecasts with known outcomes.

        Raises:
            OSError, pyarrow.ArrowException: the same as `flush`.
        """
        for name in _EVENTS if events else ():
            self._tables[name].held += _rows_of(name, events)
        self._write_if_full()

    def note_standing(self, events: Sequence[JobEvent]) -> None:
        """Set the list of unfinished jobs, for a store that an earlier process has written.

        `events`: submissions and starts of these jobs, in order. They are not written now, but at the
        beginning of each new segment of job events.
        """
        self._carried.note_standing(events)

    def remove_old(self, now_s: float) -> None:
        """Remove files in which all rows are older than `keep_s` at `now_s`, except each table's newest file.

        The rows of a file span at most one sixteenth of `keep_s`. `now_s` has the unit of times in the store.

        Raises:
            OSError: a file cannot be removed.
        """
        for table in self._tables.values():
            table.writer.remove_older(now_s)

    def _write_if_full(self) -> None:
        if any(len(table.held) >= HELD_ROWS for table in self._tables.values()):
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
            OSError: some rows could not be written. Decisions and forecasts are lost, and events of jobs and
                nodes are kept in `CarriedRows`.
            pyarrow.ArrowException: a value does not fit its column; all rows of the table are lost.
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


class _Events(_Table):
    """A table of events of jobs or nodes. Rows that could not be written are written with the next rows.

    Each segment of job events begins with the submission of every unfinished job, and the start of its
    attempt if it runs, so that readers need no earlier segments.
    """

    def __init__(self, writer: SegmentWriter, columns: list[str], table: str, carried: CarriedRows) -> None:
        super().__init__(writer, columns)
        self._table, self._carried = table, carried
        self._time = columns.index("time_s")

    def write(self) -> int:
        rows, self.held = self._carried.unwritten[self._table] + self.held, []
        self._carried.unwritten[self._table] = []
        try:
            if rows:
                self._put(rows)
        except OSError:
            self._carried.keep(self._table, rows)
            raise
        finally:
            if self._table == "jobs" and not self._carried.unwritten["jobs"]:
                self._carried.note(rows)
        return len(rows)

    def _put(self, rows: list[list[Any]]) -> None:
        begins = self._table == "jobs" and self.writer.begins(rows[-1][self._time])
        standing = [row for known in self._carried.live.values() for row in known] if begins else []
        super()._put([*standing, *rows])


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
