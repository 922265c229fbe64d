"""Rows of the journal in SQLite. Entry numbers have no gaps. Each row has a checksum, verified on reading."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlsched.broker.base.entries import Entry, decode_entry, encode_entry, kind_of
from rlsched.errors import JournalError

MEND = "`rlsched journal check` shows details, `rlsched journal restore` restores a backup"
_AT_ONCE = 1_000
Stored = tuple[int, float, str, bytes, int]


class JournalRow(NamedTuple):
    """One row of the journal: entry number, time (Unix seconds) and content of an entry."""

    n: int
    now_s: float
    entry: Entry


class CheckedRow(NamedTuple):
    """One row of the journal, including the stored checksum."""

    n: int
    now_s: float
    entry: Entry
    crc: int


def checksum(n: int, now_s: float, kind: bytes, payload: bytes) -> int:
    """Return the CRC-32 of these bytes: `n` (int64), `now_s` (float64), kind, NUL, payload; little-endian."""
    return zlib.crc32(payload, zlib.crc32(kind + b"\0", zlib.crc32(struct.pack("<qd", n, now_s))))


def stored(n: int, now_s: float, entry: Entry) -> Stored:
    """Return the values of a row in the order of the journal's columns: n, now_s, kind, payload, crc."""
    kind, payload = kind_of(entry), encode_entry(entry)
    return n, now_s, kind, payload, checksum(n, now_s, kind.encode(), payload)


def read_rows(
    path: Path, db: sqlite3.Connection, last: int | None, table: str = "entries", *, after: int = 0
) -> Iterator[JournalRow]:
    """Yield all entries in order.

    Args:
        path: Name of the journal in messages.
        db: Open connection to the journal.
        last: Entry number of the last entry; None for version 1, which stores neither this number nor
            checksums.
        table: Table with the entries.
        after: Yield only entries with a higher entry number.

    Raises:
        JournalError: an entry is missing or damaged.
    """
    for row in rows_and_damage(db, last, table, after=after):
        if isinstance(row, str):
            raise JournalError(f"{path}: {row}; {MEND}")
        yield row


def _in_pieces(db: sqlite3.Connection, query: str, after: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows after row `after`.

    The rows are read in pages, because SQLite cannot empty its write-ahead log while a SELECT is open.
    """
    while rows := db.execute(query, (after,)).fetchall():
        yield from rows
        after = rows[-1][0]


def rows_and_damage(
    db: sqlite3.Connection, last: int | None, table: str = "entries", *, after: int = 0
) -> Iterator[JournalRow | str]:
    """Yield the entries of `read_rows`. For a missing or damaged entry, yield an error text instead."""
    expected = after + 1
    crc_column = "NULL" if last is None else "crc"
    columns = f"n, now_s, CAST(kind AS BLOB), CAST(payload AS BLOB), {crc_column}"
    query = f"SELECT {columns} FROM {table} WHERE n > ? ORDER BY n LIMIT {_AT_ONCE}"
    for n, now_s, kind, payload, crc in _in_pieces(db, query, after or -(1 << 63)):
        if n != expected:
            yield f"entry {expected} is missing, got entry {n} instead"
        expected = n + 1
        if not (isinstance(now_s, float) and isinstance(kind, bytes) and isinstance(payload, bytes)):
            yield f"entry {n}: damaged: its columns have unexpected types"
        elif last is not None and crc != checksum(n, now_s, kind, payload):
            yield f"entry {n}: damaged: its checksum does not fit"
        else:
            try:
                yield JournalRow(n, now_s, decode_entry(payload))
            except JournalError as error:
                yield f"entry {n}: {error}"
    if last is not None and last != expected - 1:
        yield f"expected {last} entries, found {expected - 1}: the journal's end is missing or damaged"


def rows_after(path: Path, db: sqlite3.Connection, n: int, most: int) -> Iterator[CheckedRow]:
    """Yield at most `most` entries after entry `n`, in order. The journal must have version 2 or later.

    Raises:
        JournalError: an entry is missing or damaged.
    """
    query = (
        "SELECT n, now_s, CAST(kind AS BLOB), CAST(payload AS BLOB), crc FROM entries WHERE n > ? ORDER BY n"
    )
    for expected, (found, now_s, kind, payload, crc) in enumerate(
        db.execute(f"{query} LIMIT ?", (n, most)), start=n + 1
    ):
        try:
            fits = found == expected and crc == checksum(found, now_s, kind, payload)
        except (TypeError, struct.error):
            fits = False
        if not fits:
            raise JournalError(f"{path}: entry {expected}: missing or damaged; {MEND}")
        yield CheckedRow(found, now_s, decode_entry(payload), crc)
