"""The journal: SQLite (WAL, synchronous=FULL), a row a fact, one commit a batch, before anything leaves."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from rlsched.broker.entries import Entry, decode_entry, encode_entry, kind_of
from rlsched.broker.private import make_private, touch_private
from rlsched.errors import JournalError, JournalHeldError

SCHEMA_VERSION = 1
_FULL = 2
_CREATE = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    n INTEGER PRIMARY KEY, now_s REAL NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL);
"""


class Row(NamedTuple):
    """One entry as it was journalled."""

    n: int
    now_s: float
    entry: Entry


class Journal:
    """An open journal, held by one broker at a time.

    Args:
        path: The SQLite file; made if missing, its directory too. Beside it stand `-wal`, `-shm` and `.lock`.

    Raises:
        JournalHeldError: another broker holds it.
        JournalError: it is of another version, damaged, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = _locked(self.path)
        try:
            # One thread at a time uses it, but not always the one that opened it.
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=5.0, check_same_thread=False)
            self._prepare()
        except BaseException as error:
            self._lock.close()
            if isinstance(error, sqlite3.Error):
                raise clear_error(self.path, error) from error
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA synchronous=FULL")
        mode = self._db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        level = self._db.execute("PRAGMA synchronous").fetchone()[0]
        if mode != "wal" or level != _FULL:
            raise JournalError(
                f"{self.path}: expected journal_mode wal, synchronous {_FULL}, got {mode}, "
                f"{level}: this file system cannot keep a durable journal, use a local disk"
            )
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            version = f"INSERT INTO meta VALUES ('version', '{SCHEMA_VERSION}');"
            self._db.executescript(f"BEGIN; {_CREATE} {version} COMMIT;")
        _check_version(self.path, self._db)

    def commit(self, entries: Sequence[Entry], now_s: float) -> None:
        """Make a batch durable, whole or not at all.

        Raises:
            JournalError: nothing of this batch was written; the broker must stop.
        """
        if not entries:
            return
        rows = [(now_s, kind_of(entry), encode_entry(entry)) for entry in entries]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT INTO entries (now_s, kind, payload) VALUES (?, ?, ?)", rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise clear_error(self.path, error) from error

    def rows(self) -> Iterator[Row]:
        """All entries in order.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        return _rows(self.path, self._db)

    def close(self) -> None:
        """Close, and let another broker take it up."""
        self._db.close()
        self._lock.close()


def read_journal(path: str | Path) -> list[Row]:
    """All entries of a journal, also of one that a broker has open.

    Raises:
        JournalError: there is none, it is of another version, or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise JournalError(f"{path}: there is no journal here")
    try:
        db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        try:
            _check_version(path, db)
            return list(_rows(path, db))
        finally:
            db.close()
    except sqlite3.Error as error:
        raise clear_error(path, error) from error


def _rows(path: Path, db: sqlite3.Connection) -> Iterator[Row]:
    try:
        for n, now_s, payload in db.execute("SELECT n, now_s, payload FROM entries ORDER BY n"):
            try:
                yield Row(n, now_s, decode_entry(payload))
            except JournalError as error:
                raise JournalError(f"{path}: entry {n}: {error}") from error
    except sqlite3.Error as error:
        raise clear_error(path, error) from error


def _check_version(path: Path, db: sqlite3.Connection) -> None:
    try:
        found = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        found = None
    if found is None:
        raise JournalError(f"{path}: an SQLite file, but not a journal of rlsched; choose another path")
    if found[0] != str(SCHEMA_VERSION):
        raise JournalError(
            f"{path}: journal version {found[0]}, this rlsched writes {SCHEMA_VERSION}; "
            "run the rlsched that wrote it, or choose another path"
        )


def _locked(path: Path) -> FileIO:
    """An exclusive lock beside the journal, released by the kernel if the broker dies."""
    try:
        make_private(path.parent)
        touch_private(path)
        touch_private(path.with_name(path.name + ".lock"))
        lock = FileIO(path.with_name(path.name + ".lock"), "a")
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise JournalHeldError(
            f"{path}: another broker holds this journal; stop it first, or give this one another --dir"
        ) from error
    return lock


def clear_error(path: Path, error: sqlite3.Error) -> JournalError:
    """What SQLite says, with what to do about it."""
    text = str(error)
    if "full" in text:
        advice = "free space, then start the broker again: all that was acknowledged is kept, jobs run on"
    elif "locked" in text or "busy" in text:
        advice = "another program has it open for writing; close that, then start the broker again"
    elif "malformed" in text or "not a database" in text:
        advice = "restore it from a copy, or move it away to begin anew"
    else:
        advice = "check the disk and its permissions"
    return JournalError(f"{path}: journal: {text}; {advice}")
