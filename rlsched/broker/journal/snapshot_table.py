"""The table `snapshots` of the journal. Its rows are validated when they are read."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlsched.broker.base.sqlite_errors import clearly

KEPT = 2
"""Number of snapshots kept: the newest, and the second newest in case the newest is damaged."""
CREATE = """
CREATE TABLE IF NOT EXISTS snapshots (
    n INTEGER PRIMARY KEY, now_s REAL NOT NULL, format INTEGER NOT NULL, made_for TEXT NOT NULL,
    entry_crc INTEGER NOT NULL, picture BLOB NOT NULL, crc INTEGER NOT NULL)
"""


class Snapshot(NamedTuple):
    """A row of the table `snapshots`, in the order of its columns.

    Attributes:
        n: Entry number of the last entry that the snapshot includes.
        now_s: Time of that entry, Unix seconds.
        format: `FORMAT` of the code that made the snapshot.
        made_for: Hash of the code, policy and predictor that made the snapshot
            (`rlsched.broker.journal.snapshots.made_for`).
        entry_crc: Checksum of entry `n`.
        picture: The serialised state of the broker.
    """

    n: int
    now_s: float
    format: int
    made_for: str
    entry_crc: int
    picture: bytes

    def checksum(self) -> int:
        """Return the CRC-32 of all columns."""
        head = struct.pack("<qdqI", self.n, self.now_s, self.format, self.entry_crc)
        return zlib.crc32(self.picture, zlib.crc32(head + self.made_for.encode()))


class SnapshotTable:
    """The table `snapshots` of an open journal.

    Args:
        path: Path of the journal, for error messages.
        db: Open connection to the journal, which has the table.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db

    def store_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot, and remove all snapshots except the latest `KEPT`.

        Raises:
            JournalError: the snapshot cannot be written; earlier snapshots are unchanged.
        """
        with clearly(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                row = (*snapshot, snapshot.checksum())
                self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                newest = "SELECT n FROM snapshots ORDER BY n DESC LIMIT ?"
                self._db.execute(f"DELETE FROM snapshots WHERE n NOT IN ({newest})", (KEPT,))
                self._db.execute("COMMIT")
                # keeps the write-ahead log short: a start after a crash checks it word by word
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def clear(self) -> None:
        """Remove all snapshots, so that the next start replays the entries.

        Raises:
            JournalError: the snapshots cannot be removed.
        """
        with clearly(self._path):
            self._db.execute("DELETE FROM snapshots")

    def newest_first(self) -> Iterator[Snapshot | str]:
        """Yield the snapshots, newest first.

        For a snapshot that is damaged or belongs to another journal, yield an error text instead.
        """
        with clearly(self._path):
            numbers = [n for (n,) in self._db.execute("SELECT n FROM snapshots ORDER BY n DESC")]
            for n in numbers:
                yield self._read(n)

    def _read(self, n: int) -> Snapshot | str:
        columns = "s.n, s.now_s, s.format, CAST(s.made_for AS BLOB), s.entry_crc, CAST(s.picture AS BLOB)"
        query = f"SELECT {columns}, s.crc, e.crc FROM snapshots s LEFT JOIN entries e ON e.n = s.n "
        query += "WHERE s.n = ?"
        *raw, crc, of_entry = self._db.execute(query, (n,)).fetchone()
        try:
            raw[3] = raw[3].decode()
            snapshot = Snapshot(*raw)
            sound = snapshot.checksum() == crc
        except (AttributeError, UnicodeDecodeError, struct.error, TypeError):
            sound = False
        if not sound:
            return f"the snapshot after entry {n} is damaged: its checksum does not fit"
        if snapshot.entry_crc != of_entry:
            return f"the snapshot after entry {n} belongs to another journal"
        return snapshot
