"""Reads one consistent state of a journal, even while a broker has the journal open and commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rlsched.broker.base.rows import CheckedRow, JournalRow, read_rows, rows_after
from rlsched.broker.base.sqlite_errors import clearly
from rlsched.broker.journal import marks
from rlsched.errors import JournalError


class Reading:
    """One consistent state of a journal, without later commits of a broker.

    Attributes:
        version: Version of the journal.
        first: Entry number of the first entry.
        last: Entry number of the last entry; None in version 1.
        ended_at: Entry number up to which the table of ended jobs is complete; None before version 3.
        has_snapshots: Whether the journal has a table of snapshots.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path, self.db = path, db
        self.version = marks.version(path, db)
        self.first = 1 if self.version < marks.WITH_FIRST else marks.first_entry_number(path, db)
        self.last = None if self.version == 1 else marks.last_entry_number(path, db)
        self.ended_at = None if self.version < marks.WITH_ENDED else marks.ended_at(path, db)
        self.has_snapshots = bool(
            marks.one(db, "SELECT count(*) FROM sqlite_master WHERE name = 'snapshots'")
        )

    def rows(self) -> Iterator[JournalRow]:
        """Yield all entries in order.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            yield from read_rows(self.path, self.db, self.last, after=self.first - 1)

    def rows_after(self, n: int, most: int) -> Iterator[CheckedRow]:
        """Yield at most `most` entries with entry numbers above `n`, in order.

        Raises:
            JournalError: the file or an entry is damaged.
        """
        with clearly(self.path):
            yield from rows_after(self.path, self.db, n or self.first - 1, most)

    def crc_of(self, n: int) -> int | None:
        """Return the checksum of an entry; None if there is no such entry."""
        if n < self.first:
            return None
        found = self.db.execute("SELECT crc FROM entries WHERE n = ?", (n,)).fetchone()
        return None if found is None else int(found[0])


@contextmanager
def reading(path: str | Path) -> Iterator[Reading]:
    """Open a journal for reading, even if a broker has it open.

    Raises:
        JournalError: the journal is missing, of an unknown version, or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise JournalError(f"{path}: there is no journal here; expected the journal.sqlite of a broker")
    with clearly(path), closing(sqlite3.connect(path, isolation_level=None, timeout=5.0)) as db:
        db.execute("BEGIN")
        yield Reading(path, db)


def read_journal(path: str | Path) -> list[JournalRow]:
    """Return all entries of a journal, even if a broker has it open.

    Raises:
        JournalError: as `reading`.
    """
    with reading(path) as journal:
        return list(journal.rows())
