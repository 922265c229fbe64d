"""The journal: SQLite (WAL, synchronous=FULL), a row a fact, one commit a batch, before anything leaves."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from rlsched.broker import ended_table
from rlsched.broker.ended import EndedJob
from rlsched.broker.ended_table import EndedTable
from rlsched.broker.entries import Entry, decode_entry
from rlsched.broker.private import make_private, touch_private
from rlsched.broker.rows import MEND, CheckedRow, Row, Stored, checksum, read_rows, rows_after, stored
from rlsched.broker.snapshot_table import CREATE as CREATE_SNAPSHOTS
from rlsched.broker.snapshot_table import SnapshotTable
from rlsched.broker.sqlite_errors import clear_error, clearly
from rlsched.broker.wal import check_wal
from rlsched.errors import JournalError, JournalHeldError

JOURNAL_FILE = "journal.sqlite"
"""Its name in the directory of a broker."""
SCHEMA_VERSION = 3
_WITH_ENDED = 3
_FULL = 2
_CREATE = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('entries', '0');
"""
_CREATE_ENTRIES = """
CREATE TABLE entries (
    n INTEGER PRIMARY KEY, now_s REAL NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL,
    crc INTEGER NOT NULL);
"""
_SELECT = "SELECT n, now_s, kind, payload, crc FROM entries WHERE n > ? ORDER BY n LIMIT ?"
MOST_OF_PAGE = 2_000
_INSERT = "INSERT INTO entries (n, now_s, kind, payload, crc) VALUES (?, ?, ?, ?, ?)"


class Journal:
    """An open journal, held by one broker at a time. One of an earlier version becomes one of this version.

    Args:
        path: The SQLite file; made if missing, its directory too. Beside it stand `-wal`, `-shm` and `.lock`.
        lock: Its lock, where it is held already; the journal lets go of it.

    Attributes:
        last: Number of the last entry, 0 before the first.
        ended_at: Number of the entry up to which the table of ended jobs holds.
        ended: That table, to be read.
        snapshots: What quick starts begin with.

    Raises:
        JournalHeldError: another broker holds it.
        JournalError: it is of an unknown version, damaged, or cannot be written.
    """

    def __init__(self, path: str | Path, lock: FileIO | None = None) -> None:
        self.path = Path(path)
        self._lock = locked(self.path) if lock is None else lock
        try:
            check_wal(self.path)
            with clearly(self.path):
                # One thread at a time uses it, but not always the one that opened it.
                self._db = sqlite3.connect(
                    self.path, isolation_level=None, timeout=5.0, check_same_thread=False
                )
                self._prepare()
                self._db.execute(CREATE_SNAPSHOTS)
                self.snapshots = SnapshotTable(self.path, self._db)
            self.ended = EndedTable(self.path, self._db)
        except BaseException:
            self._lock.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA synchronous=FULL")
        mode = _one(self._db, "PRAGMA journal_mode=WAL")
        level = _one(self._db, "PRAGMA synchronous")
        if mode != "wal" or level != _FULL:
            raise JournalError(
                f"{self.path}: expected journal_mode wal, synchronous {_FULL}, got {mode}, "
                f"{level}: this file system cannot keep a durable journal, use a local disk"
            )
        if (
            not _one(self._db, "SELECT count(*) FROM sqlite_master")
            and _one(self._db, "PRAGMA page_count") <= 1
        ):
            version = f"INSERT INTO meta VALUES ('version', '{SCHEMA_VERSION}');"
            self._db.executescript(
                f"BEGIN; {_CREATE} {_CREATE_ENTRIES} {ended_table.CREATE} {version} COMMIT;"
            )
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # from now on an empty schema is damage
        found = _version(self.path, self._db)
        if found < SCHEMA_VERSION:
            self._migrate(found)
        self.last = _last(self.path, self._db)
        self.ended_at = _ended_at(self.path, self._db)

    def _migrate(self, version: int) -> None:
        """In one transaction: version 1 has no checksums, and neither 1 nor 2 a table of ended jobs."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if version == 1:
                self._add_checksums()
            for statement in ended_table.CREATE.split(";"):
                self._db.execute(statement)
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(SCHEMA_VERSION),))
            self._db.execute("COMMIT")
        except (JournalError, sqlite3.Error) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            reason = error if isinstance(error, JournalError) else clear_error(self.path, error)
            raise JournalError(f"{reason}; it stays a journal of version {version}, as it was") from error

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
        """Make a batch durable, whole or not at all.

        Args:
            entries: The facts.
            now_s: When, Unix seconds.
            over: Jobs that are over by them. None: whoever writes does not know; the next broker finds out.

        Raises:
            JournalFullError: nothing of this batch was written, for want of space; it can be tried again.
            JournalError: nothing of this batch was written; the broker must stop.
        """
        if not entries:
            return
        rows = [stored(self.last + 1 + place, now_s, entry) for place, entry in enumerate(entries)]
        self._write(rows, over)

    def append(self, rows: Sequence[Stored]) -> list[Row]:
        """Make rows of another journal durable that follow those of this one; what they hold.

        Raises:
            JournalFullError, JournalError: as `commit`; or a row is damaged, or does not follow.
        """
        found: list[Row] = []
        for n, now_s, kind, payload, crc in rows:
            if n != self.last + 1 + len(found) or crc != checksum(n, now_s, kind.encode(), payload):
                raise JournalError(f"{self.path}: entry {n}, as it was sent, is damaged or does not follow")
            found.append(Row(n, now_s, decode_entry(payload)))
        if rows:
            self._write(rows)
        return found

    def _write(self, rows: Sequence[Stored], over: Sequence[EndedJob] | None = None) -> None:
        last = self.last + len(rows)
        holds = over is not None and self.ended_at == self.last
        with clearly(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(_INSERT, rows)
                self._db.execute("UPDATE meta SET value = ? WHERE key = 'entries'", (str(last),))
                if over:
                    ended_table.put(self._db, over)
                if holds:
                    ended_table.holds_at(self._db, last)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        self.last = last
        if holds:
            self.ended_at = last

    def add_ended(self, rows: Sequence[EndedJob], holds_at: int | None = None) -> None:
        """Add rows to the table of ended jobs that it lacks.

        Args:
            rows: The rows.
            holds_at: The entry up to which the table holds now; None: there are more to come.

        Raises:
            JournalError: they cannot be written; none of them was.
        """
        with clearly(self.path):
            self._db.execute("SAVEPOINT ended")  # whoever replays has a SELECT open
            try:
                ended_table.put(self._db, rows)
                if holds_at is not None:
                    ended_table.holds_at(self._db, holds_at)
            except BaseException:
                self._db.execute("ROLLBACK TO ended")
                raise
            finally:
                self._db.execute("RELEASE ended")
        self.ended_at = self.ended_at if holds_at is None else holds_at

    def forget_ended(self) -> None:
        """Empty the table of ended jobs; the next to replay the facts fills it."""
        with clearly(self.path):
            self._db.executescript(
                "BEGIN; DELETE FROM ended_jobs; UPDATE meta SET value = '0' WHERE key = 'ended_at'; COMMIT;"
            )
        self.ended_at = 0

    def rows(self, after: int = 0) -> Iterator[Row]:
        """All entries in order, or those after one of them.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            yield from read_rows(self.path, self._db, self.last, after=after)

    def checksum_of(self, n: int) -> int | None:
        """The checksum of an entry, by which two journals are told apart; None where there is none."""
        with clearly(self.path):
            found = self._db.execute("SELECT crc FROM entries WHERE n = ?", (n,)).fetchone()
        return None if found is None else int(found[0])

    def page(self, after: int, most_bytes: int) -> list[Stored]:
        """Rows as they lie here, with a higher number than `after`; one at least, if there is one.

        Raises:
            JournalError: the file cannot be read.
        """
        page: list[Stored] = []
        left = most_bytes
        with clearly(self.path):
            found = self._db.execute(_SELECT, (after, MOST_OF_PAGE))
            for row in found:
                left -= len(row[3])
                if page and left < 0:
                    break
                page.append(row)
            found.close()
        return page

    def compact(self) -> None:
        """Give unused space back to the disk.

        Raises:
            JournalError: it cannot be; the journal is as it was.
        """
        with clearly(self.path):
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close, and let another broker take it up."""
        self._db.close()
        self._lock.close()


class Reading:
    """One state of a journal, read whatever a broker commits meanwhile. Made by `reading`.

    Attributes:
        version: Of its form.
        last: Number of its last entry; None in version 1.
        ended_at: Number of the entry up to which its table of ended jobs holds; None before version 3.
        has_snapshots: Whether it has a table of them.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path, self.db = path, db
        self.version = _version(path, db)
        self.last = None if self.version == 1 else _last(path, db)
        self.ended_at = None if self.version < _WITH_ENDED else _ended_at(path, db)
        self.has_snapshots = bool(_one(db, "SELECT count(*) FROM sqlite_master WHERE name = 'snapshots'"))

    def rows(self) -> Iterator[Row]:
        """All entries in order.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            yield from read_rows(self.path, self.db, self.last)

    def rows_after(self, n: int, most: int) -> Iterator[CheckedRow]:
        """So many of the entries behind entry `n`, in order.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            yield from rows_after(self.path, self.db, n, most)

    def crc_of(self, n: int) -> int | None:
        """Checksum of an entry; None: there is no such entry."""
        found = self.db.execute("SELECT crc FROM entries WHERE n = ?", (n,)).fetchone()
        return None if found is None else int(found[0])


@contextmanager
def reading(path: str | Path) -> Iterator[Reading]:
    """Open a journal to read it, also one that a broker has open.

    Raises:
        JournalError: there is none, it is of an unknown version, or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise JournalError(f"{path}: there is no journal here")
    with clearly(path), closing(sqlite3.connect(path, isolation_level=None, timeout=5.0)) as db:
        db.execute("BEGIN")
        yield Reading(path, db)


def read_journal(path: str | Path) -> list[Row]:
    """All entries of a journal, also of one that a broker has open.

    Raises:
        JournalError: as `reading`.
    """
    with reading(path) as journal:
        return list(journal.rows())


def _one(db: sqlite3.Connection, query: str) -> Any:
    """The one value that a query gives; None where it gives none."""
    row = db.execute(query).fetchone()
    return None if row is None else row[0]


def _meta(db: sqlite3.Connection, key: str) -> str:
    """A value of the table `meta`, "" where it is missing."""
    found = db.execute("SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (key,)).fetchone()
    return "" if found is None else bytes(found[0]).decode(errors="replace")


def _version(path: Path, db: sqlite3.Connection) -> int:
    """1 to `SCHEMA_VERSION`."""
    try:
        found = _meta(db, "version")
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        found = ""
    if not found:
        raise JournalError(
            f"{path}: an SQLite file, but not a journal of rlsched; choose another path, or, where it was "
            "one, restore a backup (`rlsched journal restore`)"
        )
    if found not in map(str, range(1, SCHEMA_VERSION + 1)):
        raise JournalError(
            f"{path}: journal version {found!r}, this rlsched writes {SCHEMA_VERSION}; "
            "run the rlsched that wrote it, or choose another path"
        )
    return int(found)


def _last(path: Path, db: sqlite3.Connection) -> int:
    return _number(path, db, "entries", "number of entries")


def _ended_at(path: Path, db: sqlite3.Connection) -> int:
    return _number(path, db, "ended_at", "mark of ended jobs")


def _number(path: Path, db: sqlite3.Connection, key: str, what: str) -> int:
    found = _meta(db, key)
    if not (found.isascii() and found.isdigit()):
        raise JournalError(f"{path}: damaged: its {what} reads {found!r}; {MEND}")
    return int(found)


def lock_file(path: Path) -> FileIO:
    """The file beside a journal whose lock is the journal's.

    Raises:
        JournalError: it cannot be made.
    """
    try:
        touch_private(path.with_name(path.name + ".lock"))
        return FileIO(path.with_name(path.name + ".lock"), "a")
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error


def take_lock(lock: FileIO) -> bool:
    """Lock it, and write into it who holds it (`Holder`); False: another process does."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(OSError):  # on a full disk nobody learns who
        lock.truncate(0)
        lock.write(f"{boot_id()} {os.getpid()}\n".encode())
    return True


class Holder(NamedTuple):
    """Who holds a journal's lock, by its own word; "" and 0 where that is not known."""

    boot_id: str
    process: int

    @classmethod
    def of(cls, path: Path) -> Holder:
        """What the lock's file says; a process that let go of it stays named there."""
        try:
            boot, process = path.with_name(path.name + ".lock").read_text(encoding="ascii").split()
            return cls(boot, int(process))
        except (OSError, ValueError):
            return cls("", 0)


def boot_id() -> str:
    """What tells this machine, as it was booted last, from all others; "" where nothing does."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def locked(path: Path) -> FileIO:
    """An exclusive lock beside the journal, released by the kernel if the broker dies."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size and not (path.exists() and path.stat().st_size):
        raise JournalError(f"{log}: a write-ahead log without its journal; put both back, or move both away")
    try:
        make_private(path.parent)
        touch_private(path)
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error
    lock = lock_file(path)
    if not take_lock(lock):
        lock.close()
        raise JournalHeldError(
            f"{path}: another broker holds this journal; stop it first, or give this one another --dir"
        )
    return lock
