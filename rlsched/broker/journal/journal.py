"""The journal: an SQLite file with one row (entry) per fact, in WAL mode with synchronous=FULL.

The broker commits a batch of facts before it sends the messages that result from this batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from rlsched.broker.base.entries import ChosenPolicy, Entry, decode_entry
from rlsched.broker.base.rows import JournalRow, Stored, checksum, read_rows, stored
from rlsched.broker.base.sqlite_errors import clear_error, clearly
from rlsched.broker.journal import marks
from rlsched.broker.journal.chosen_policy import choice_at
from rlsched.broker.journal.snapshot_table import CREATE as CREATE_SNAPSHOTS
from rlsched.broker.journal.snapshot_table import SnapshotTable
from rlsched.broker.journal.wal import check_wal
from rlsched.broker.state import finished_table
from rlsched.broker.state.base import BASE_KIND, base_at_the_head
from rlsched.broker.state.finished_job import EndedJob
from rlsched.broker.state.finished_table import EndedTable
from rlsched.errors import JournalError
from rlsched.files.lock import locked

JOURNAL_FILE = "journal.sqlite"
"""File name of the journal in the directory of a broker."""
_FULL = 2
_CREATE = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('entries', '0');
INSERT INTO meta VALUES ('first', '1');
"""
_CREATE_ENTRIES = """
CREATE TABLE entries (
    n INTEGER PRIMARY KEY, now_s REAL NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL,
    crc INTEGER NOT NULL);
"""
_SELECT = "SELECT n, now_s, kind, payload, crc FROM entries WHERE n > ? ORDER BY n LIMIT ?"
_CREATE_STARTS = """
CREATE INDEX IF NOT EXISTS starts ON entries (n) WHERE kind = 'broker_started'
"""
"""SQL for an index of the `BrokerStarted` entries, which finds them without reading all entries."""
MOST_OF_PAGE = 2_000
_INSERT = "INSERT INTO entries (n, now_s, kind, payload, crc) VALUES (?, ?, ?, ?, ?)"
_ENDS = "UPDATE meta SET value = ? WHERE key = 'entries'"
_HOLDS = "UPDATE meta SET value = ? WHERE key IN ('entries', 'ended_at')"
"""SQL that records the entry number of the journal's last entry, and marks the table of ended jobs as
complete up to this entry.
"""


class Journal:
    """An open journal. Only one process at a time can open it for writing. Earlier versions are migrated.

    Args:
        path: The SQLite file. The file and its directory are created if missing.
        lock: The journal's lock if the caller already holds it. `close` releases it.

    Attributes:
        first: Entry number of the first entry. Lower entries are replaced by a base (the compacted start of
            the journal), and are being removed.
        last: Entry number of the last entry, 0 before the first.
        ended_at: Entry number up to which the table of ended jobs is complete.
        ended: The table of ended jobs, for reading.
        snapshots: Snapshots of the state, for fast starts.

    Raises:
        JournalHeldError: another broker has the journal open.
        JournalError: the journal has an unknown version, is damaged, or cannot be written.
    """

    def __init__(self, path: str | Path, lock: FileIO | None = None) -> None:
        self.path = Path(path)
        self._lock = locked(self.path) if lock is None else lock
        self._last_crc: int | None = None  # checksum of the last row that this object wrote
        try:
            check_wal(self.path)
            with clearly(self.path):
                # One thread at a time uses the connection, but not always the thread that opened it.
                self._db = sqlite3.connect(
                    self.path, isolation_level=None, timeout=5.0, check_same_thread=False
                )
                self._prepare()
                self._db.execute(CREATE_SNAPSHOTS)
                self._db.execute(_CREATE_STARTS)
                self.snapshots = SnapshotTable(self.path, self._db)
            self.ended = EndedTable(self.path, self._db)
        except BaseException:
            self._lock.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA synchronous=FULL")
        mode = marks.one(self._db, "PRAGMA journal_mode=WAL")
        level = marks.one(self._db, "PRAGMA synchronous")
        if mode != "wal" or level != _FULL:
            raise JournalError(
                f"{self.path}: expected journal_mode wal, synchronous {_FULL}, got {mode}, "
                f"{level}: this file system cannot keep a durable journal; put the journal on a local disk"
            )
        if (
            not marks.one(self._db, "SELECT count(*) FROM sqlite_master")
            and marks.one(self._db, "PRAGMA page_count") <= 1
        ):
            version = f"INSERT INTO meta VALUES ('version', '{marks.SCHEMA_VERSION}');"
            self._db.executescript(
                f"BEGIN; {_CREATE} {_CREATE_ENTRIES} {finished_table.CREATE} {version} COMMIT;"
            )
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # an empty schema then means damage
        found = marks.version(self.path, self._db)
        if found < marks.SCHEMA_VERSION:
            self._migrate(found)
        self.first = marks.first_entry_number(self.path, self._db)
        self.last = marks.last_entry_number(self.path, self._db)
        self.ended_at = marks.ended_at(self.path, self._db)

    def _migrate(self, version: int) -> None:
        """Migrate a journal from an earlier version in one transaction.

        Additions by version: 2 checksums; 3 the table of ended jobs; 4 the entry number of the first entry;
        5 held jobs and dependencies; 6 changes of jobs, and orders for single tasks; 7 requested cores and
        memory, and resource use; 8 prices of electricity; 9 future prices.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if version == 1:
                self._add_checksums()
            if version < marks.WITH_ENDED:
                for statement in finished_table.CREATE.split(";"):
                    self._db.execute(statement)
            if version < marks.WITH_FIRST:
                self._db.execute("INSERT INTO meta VALUES ('first', '1')")
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(marks.SCHEMA_VERSION),))
            self._db.execute("COMMIT")
        except (JournalError, sqlite3.Error) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            reason = error if isinstance(error, JournalError) else clear_error(self.path, error)
            raise JournalError(
                f"{reason}; the journal is unchanged and stays a journal of version {version}"
            ) from error

    def _add_checksums(self) -> None:
        self._db.execute("ALTER TABLE entries RENAME TO entries_1")
        self._db.execute(_CREATE_ENTRIES)
        last = 0
        for row in read_rows(self.path, self._db, None, "entries_1"):
            last = row.n
            self._db.execute(_INSERT, stored(*row))
        self._db.execute("DROP TABLE entries_1")
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('entries', ?)", (str(last),))

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        """Commit a batch completely, or write nothing.

        Args:
            entries: The facts.
            now_s: Time of the batch, Unix seconds.
            over: Rows of the table of ended jobs, for the jobs that these facts end; None: the next broker
                that starts adds the rows.

        Raises:
            JournalFullError: the disk is full. The caller can try again.
            JournalError: the batch cannot be written. The broker must stop.
        """
        if not entries:
            return
        rows = [stored(self.last + 1 + place, now_s, entry) for place, entry in enumerate(entries)]
        self._write(rows, over)

    def append(self, rows: Sequence[Stored]) -> list[JournalRow]:
        """Commit the next rows of another journal, of which this journal is a copy. Return their contents.

        Raises:
            JournalFullError: as `commit`.
            JournalError: as `commit`; or a row is damaged, or its entry number is not the next one.
        """
        found: list[JournalRow] = []
        begins_at = None
        if rows and not self.last and rows[0][2] == BASE_KIND:
            begins_at = rows[0][0]
        for n, now_s, kind, payload, crc in rows:
            expected = (begins_at or self.last + 1) + len(found)
            if n != expected or crc != checksum(n, now_s, kind.encode(), payload):
                raise JournalError(f"{self.path}: entry {n} was received damaged or out of order")
            found.append(JournalRow(n, now_s, decode_entry(payload)))
        if rows:
            self._write(rows, begins_at=begins_at)
        return found

    def _write(
        self,
        rows: Sequence[Stored],
        over: Sequence[EndedJob] | None = None,
        begins_at: int | None = None,
    ) -> None:
        last = rows[-1][0]
        holds = over is not None and self.ended_at == self.last
        with clearly(self.path), self._transaction():
            self._db.executemany(_INSERT, rows)
            self._db.execute(_HOLDS if holds else _ENDS, (str(last),))
            if begins_at is not None:
                marks.set_first(self._db, begins_at)
                finished_table.set_copied_to(self._db, 0)
            if over:
                finished_table.put_finished(self._db, over)
        self.last, self._last_crc = last, rows[-1][4]
        if begins_at is not None:
            self.first = begins_at
        if holds:
            self.ended_at = last

    def put_base(self, parts: Sequence[Entry], cut: int, now_s: float) -> None:
        """Write a base (stored state) in place of the entries up to `cut`, which `drop` then removes.

        Args:
            parts: Parts of the base.
            cut: Entry number of the last replaced entry. The last part of the base gets this entry number.
            now_s: Time of entry `cut`, Unix seconds.

        Raises:
            JournalError: the base does not have fewer parts than it replaces entries, or the base cannot be
                written. The journal is unchanged.
        """
        first = cut - len(parts) + 1
        if not self.first < first <= cut <= min(self.last, self.ended_at):
            raise JournalError(f"{self.path}: expected a base of fewer parts than the {cut} replaced entries")
        rows = [stored(first + place, now_s, part) for place, part in enumerate(parts)]
        with clearly(self.path), self._transaction():
            self._db.executemany(f"INSERT OR REPLACE{_INSERT.removeprefix('INSERT')}", rows)
            self._db.execute("DELETE FROM snapshots WHERE n <= ?", (cut,))
            marks.set_first(self._db, first)
        self.first, self._last_crc = first, None

    def drop(self, most: int = MOST_OF_PAGE) -> int:
        """Remove up to `most` entries that a base has replaced. Return how many were removed.

        Raises:
            JournalError: the entries cannot be removed; the journal is unchanged.
        """
        chosen = "SELECT n FROM entries WHERE n < ? ORDER BY n LIMIT ?"
        with clearly(self.path), self._transaction():
            found = self._db.execute(f"DELETE FROM entries WHERE n IN ({chosen})", (self.first, most))
        return int(found.rowcount)

    def drop_ended(self, before_s: float, most: int = MOST_OF_PAGE) -> int:
        """Remove up to `most` rows of jobs that ended before `before_s` (Unix seconds). Return how many.

        Raises:
            JournalError: the rows cannot be removed; the journal is unchanged.
        """
        chosen = "SELECT job FROM ended_jobs INDEXED BY ended_by_end WHERE end_s < ? ORDER BY end_s LIMIT ?"
        with clearly(self.path), self._transaction():
            found = self._db.execute(f"DELETE FROM ended_jobs WHERE job IN ({chosen})", (before_s, most))
            if found.rowcount:
                finished_table.begins_at(self._db, before_s)
        return int(found.rowcount)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def add_ended(self, rows: Sequence[EndedJob], holds_at: int | None = None) -> None:
        """Add missing rows to the table of ended jobs.

        Args:
            rows: The rows.
            holds_at: Entry number up to which the table is complete after this call; None: unchanged, because
                more calls follow.

        Raises:
            JournalError: the rows cannot be written; the table is unchanged.
        """
        with clearly(self.path):
            self._db.execute("SAVEPOINT ended")  # the caller may have a SELECT open, as in a replay
            try:
                finished_table.put_finished(self._db, rows)
                if holds_at is not None:
                    finished_table.holds_at(self._db, holds_at)
            except BaseException:
                self._db.execute("ROLLBACK TO ended")
                raise
            finally:
                self._db.execute("RELEASE ended")
        self.ended_at = self.ended_at if holds_at is None else holds_at

    @property
    def ended_copied(self) -> int:
        """Job number up to which rows of ended jobs were copied from another journal; -1: all are copied."""
        with clearly(self.path):
            return finished_table.copied_to(self._db)

    def add_copied(self, rows: Sequence[Sequence[Any]], *, is_all: bool) -> None:
        """Add rows of ended jobs copied from another journal, in ascending order of job numbers.

        Raises:
            JournalError: a row is damaged, or the rows cannot be written; the table is unchanged.
        """
        with clearly(self.path), self._transaction():
            finished_table.put_copied(self._db, rows)
            if is_all or rows:
                finished_table.set_copied_to(self._db, -1 if is_all else int(rows[-1][0]))

    def forget_ended(self) -> None:
        """Remove rows from the table of ended jobs that a replay of the journal adds again.

        If the journal begins with a base, the rows of jobs that finished before the end of the base stay:
        the journal no longer has the entries of these jobs.
        """
        base = base_at_the_head(self.rows())
        with clearly(self.path), self._transaction():
            if base is None:
                self._db.execute("DELETE FROM ended_jobs")
            else:
                live = [(job.submitted.job,) for job in base.jobs]
                self._db.execute("DELETE FROM ended_jobs WHERE job > ?", (base.last_number,))
                self._db.executemany("DELETE FROM ended_jobs WHERE job = ?", live)
            finished_table.holds_at(self._db, 0)
        self.ended_at = 0

    def rows(self, after: int = 0) -> Iterator[JournalRow]:
        """Yield the entries with entry numbers above `after`, in order.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            yield from read_rows(self.path, self._db, self.last, after=after or self.first - 1)

    def chosen(self) -> ChosenPolicy | None:
        """Return the policy set by `rlsched policy set`; None if the last broker did not use such a policy.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            return choice_at(self.path, self._db, self.first, self.last)

    def checksum_of(self, n: int) -> int | None:
        """Return the checksum of entry `n`, None if there is no such entry."""
        if n < self.first:
            return None
        if n == self.last and self._last_crc is not None:
            return self._last_crc
        with clearly(self.path):
            found = self._db.execute("SELECT crc FROM entries WHERE n = ?", (n,)).fetchone()
        return None if found is None else int(found[0])

    def page(self, after: int, most_bytes: int) -> list[Stored]:
        """Return the stored rows with entry numbers above `after`, up to `most_bytes` bytes of payload.

        The first row is returned even if it is larger.

        Raises:
            JournalError: the file cannot be read.
        """
        page: list[Stored] = []
        left = most_bytes
        with clearly(self.path):
            found = self._db.execute(_SELECT, (max(after, self.first - 1), MOST_OF_PAGE))
            for row in found:
                left -= len(row[3])
                if page and left < 0:
                    break
                page.append(row)
            found.close()
        return page

    def compact(self) -> None:
        """Return the file's unused space to the file system.

        Raises:
            JournalError: the space cannot be returned; the journal is unchanged.
        """
        with clearly(self.path):
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the journal, so that another broker can open it."""
        self._db.close()
        self._lock.close()
