"""The table `ended_jobs` beside the journal's entries: one row a job that is over, made from the facts alone.

It is written in the transaction of the facts that end a job. `meta.ended_at` is the number of the entry up to
which it holds; where that lags behind the entries, a start of the broker makes up for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlsched.broker.ended import EndedJob
from rlsched.broker.rows import MEND
from rlsched.errors import JournalError

CREATE = """
CREATE TABLE ended_jobs (
    job INTEGER PRIMARY KEY, token TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
    account TEXT NOT NULL, vc TEXT NOT NULL, submit_s REAL NOT NULL, start_s REAL, end_s REAL NOT NULL,
    state TEXT NOT NULL, exit_code INTEGER, reason TEXT NOT NULL, num_gpus INTEGER NOT NULL,
    gpu_types TEXT NOT NULL, nodes TEXT NOT NULL, gpu_s REAL NOT NULL, energy_j REAL,
    attempts INTEGER NOT NULL, preemptions INTEGER NOT NULL, wait_s REAL, rest BLOB NOT NULL,
    crc INTEGER NOT NULL);
CREATE INDEX ended_by_end ON ended_jobs (end_s, job);
CREATE INDEX ended_by_user ON ended_jobs (user, end_s, job);
CREATE INDEX ended_by_vc ON ended_jobs (vc, end_s, job);
CREATE INDEX ended_by_token ON ended_jobs (token);
INSERT OR REPLACE INTO meta VALUES ('ended_at', '0');
"""
COLUMNS = ", ".join(EndedJob._fields)
_INSERT = f"INSERT OR REPLACE INTO ended_jobs VALUES ({', '.join('?' * (len(EndedJob._fields) + 1))})"


def put(db: sqlite3.Connection, rows: Sequence[EndedJob]) -> None:
    """Write rows; one that is there already is replaced."""
    db.executemany(_INSERT, [(*row, row.checksum()) for row in rows])


def holds_at(db: sqlite3.Connection, last: int) -> None:
    """Let the table hold up to this entry."""
    db.execute("UPDATE meta SET value = ? WHERE key = 'ended_at'", (str(last),))


def found(path: Path, raw: tuple[object, ...]) -> EndedJob:
    """The row that a SELECT of `COLUMNS`, crc gives.

    Raises:
        JournalError: its checksum does not fit.
    """
    row = EndedJob(*raw[:-1])  # type: ignore[arg-type]
    if row.checksum() != raw[-1]:
        raise JournalError(
            f"{path}: the row of ended job {row.job}: damaged: its checksum does not fit; {MEND}"
        )
    return row


def differences(db: sqlite3.Connection, expected: Iterator[EndedJob]) -> Iterator[str]:
    """Lines on rows that are not what the facts say; `expected`: all rows up to `ended_at`, in any order."""
    count = 0
    for row in expected:
        count += 1
        raw = db.execute(f"SELECT {COLUMNS}, crc FROM ended_jobs WHERE job = ?", (row.job,)).fetchone()
        if raw is None:
            yield f"ended job {row.job}: its row is missing"
        elif raw != (*row, row.checksum()):
            names = [name for name, one, other in zip(row._fields, row, raw, strict=False) if one != other]
            yield f"ended job {row.job}: its row is not what the entries say: {', '.join(names) or 'crc'}"
    rows = db.execute("SELECT count(*) FROM ended_jobs").fetchone()[0]
    if rows > count:
        yield f"ended jobs: {rows} rows, the entries end {count} jobs"
