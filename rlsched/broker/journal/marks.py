"""Metadata of a journal, in its table `meta`: version, first and last entry."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from rlsched.broker.base.rows import MEND
from rlsched.errors import JournalError

SCHEMA_VERSION = 9
WITH_ENDED = 3
"""The first journal version with a table of ended jobs."""
WITH_FIRST = 4
"""The first journal version in which the entry number of the first entry can be above 1."""


def one(db: sqlite3.Connection, query: str) -> Any:
    """Return the single value that a query yields; None if it yields no row."""
    row = db.execute(query).fetchone()
    return None if row is None else row[0]


def _meta(db: sqlite3.Connection, key: str) -> str:
    """Return a value of the table `meta`, "" if it is missing."""
    found = db.execute("SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (key,)).fetchone()
    return "" if found is None else bytes(found[0]).decode(errors="replace")


def version(path: Path, db: sqlite3.Connection) -> int:
    """Return the journal version, 1 to `SCHEMA_VERSION`."""
    try:
        found = _meta(db, "version")
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        found = ""
    if not found:
        raise JournalError(
            f"{path}: an SQLite file, but not a journal of rlsched; choose another path, or, if it was "
            "a journal, restore a backup (`rlsched journal restore`)"
        )
    if found not in map(str, range(1, SCHEMA_VERSION + 1)):
        raise JournalError(
            f"{path}: journal version {found!r}, this rlsched writes {SCHEMA_VERSION}; "
            "run the rlsched that wrote the journal, or choose another path"
        )
    return int(found)


def last_entry_number(path: Path, db: sqlite3.Connection) -> int:
    """Return the entry number of the last entry, 0 before the first."""
    return _number(path, db, "entries", "number of entries")


def first_entry_number(path: Path, db: sqlite3.Connection) -> int:
    """Return the entry number of the first entry."""
    return _number(path, db, "first", "number of the first entry")


def set_first(db: sqlite3.Connection, first: int) -> None:
    """Set the entry number of the first entry."""
    db.execute("UPDATE meta SET value = ? WHERE key = 'first'", (str(first),))


def ended_at(path: Path, db: sqlite3.Connection) -> int:
    """Return the entry number up to which the table of ended jobs is complete."""
    return _number(path, db, "ended_at", "last entry in the table of ended jobs")


def _number(path: Path, db: sqlite3.Connection, key: str, what: str) -> int:
    found = _meta(db, key)
    if not (found.isascii() and found.isdigit()):
        raise JournalError(f"{path}: damaged: its {what} reads {found!r}, expected an integer; {MEND}")
    return int(found)
