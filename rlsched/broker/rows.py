"""Rows of the journal as they lie in SQLite: a checksum each, numbered without a gap, read with suspicion."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlsched.broker.entries import Entry, decode_entry, encode_entry, kind_of
from rlsched.errors import JournalError

MEND = "restore a backup (`rlsched journal restore`); `rlsched journal check` says what is damaged"
Stored = tuple[int, float, str, bytes, int]


class Row(NamedTuple):
    """One entry as it was journalled."""

    n: int
    now_s: float
    entry: Entry


def checksum(n: int, now_s: float, kind: bytes, payload: bytes) -> int:
    """CRC-32 of a row: number (int64) and time (float64), little-endian, kind, NUL, payload."""
    return zlib.crc32(payload, zlib.crc32(kind + b"\0", zlib.crc32(struct.pack("<qd", n, now_s))))


def stored(n: int, now_s: float, entry: Entry) -> Stored:
    """A row as the journal stores it: n, now_s, kind, payload, crc."""
    kind, payload = kind_of(entry), encode_entry(entry)
    return n, now_s, kind, payload, checksum(n, now_s, kind.encode(), payload)


def read_rows(path: Path, db: sqlite3.Connection, last: int | None, table: str = "entries") -> Iterator[Row]:
    """All entries in order.

    Args:
        path: What to call the journal.
        db: The journal, open.
        last: Number of the last entry; None for a journal of version 1, which has neither that nor checksums.
        table: Where they are.

    Raises:
        JournalError: an entry is missing or damaged.
    """
    expected = 1
    crc_column = "NULL" if last is None else "crc"
    query = (
        f"SELECT n, now_s, CAST(kind AS BLOB), CAST(payload AS BLOB), {crc_column} FROM {table} ORDER BY n"
    )
    for n, now_s, kind, payload, crc in db.execute(query):
        if n != expected:
            raise JournalError(
                f"{path}: entry {expected} is missing, entry {n} follows the one before; {MEND}"
            )
        if not (isinstance(now_s, float) and isinstance(kind, bytes) and isinstance(payload, bytes)):
            raise JournalError(f"{path}: entry {n}: damaged: its columns are of other types; {MEND}")
        if last is not None and crc != checksum(n, now_s, kind, payload):
            raise JournalError(f"{path}: entry {n}: damaged: its checksum does not fit; {MEND}")
        try:
            yield Row(n, now_s, decode_entry(payload))
        except JournalError as error:
            raise JournalError(f"{path}: entry {n}: {error}") from error
        expected += 1
    if last is not None and last != expected - 1:
        raise JournalError(
            f"{path}: expected {last} entries, found {expected - 1}: its end is missing or damaged; {MEND}"
        )
