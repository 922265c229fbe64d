"""The table `ended_jobs` of the journal: one row for each finished job, derived only from entries.

A row is written in the same transaction as the entry that ends the job. `meta.ended_at` is the entry number
of the last entry that the table includes. If the journal has later entries, the broker adds their rows at its
next start.
"""

from __future__ import annotations

import fnmatch
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from rlsched.broker.base.sqlite_errors import clearly
from rlsched.broker.state.finished_job import EndedJob, differing
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
ANEW = "`rlsched journal compact --remake-ended` rebuilds the table, while no broker runs"
COLUMNS = ", ".join(EndedJob._fields)
_INSERT = f"INSERT OR REPLACE INTO ended_jobs VALUES ({', '.join('?' * (len(EndedJob._fields) + 1))})"


def put_finished(db: sqlite3.Connection, rows: Sequence[EndedJob]) -> None:
    """Write rows, and replace existing rows of the same jobs."""
    db.executemany(_INSERT, [(*row, row.checksum()) for row in rows])


def put_copied(db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
    """Write rows, each with its checksum, copied from another journal. Existing rows are not replaced.

    Raises:
        JournalError: a row is damaged.
    """
    for raw in rows:
        if len(raw) != len(EndedJob._fields) + 1 or EndedJob(*raw[:-1]).checksum() != raw[-1]:
            raise JournalError(
                f"the row of ended job {raw[0] if raw else '?'} was received damaged: its checksum or its "
                "number of columns is wrong"
            )
    db.executemany(_INSERT.replace("OR REPLACE", "OR IGNORE"), rows)


def copied_to(db: sqlite3.Connection) -> int:
    """Return the number of the last job whose row was copied from another journal; -1: all are copied."""
    found = db.execute("SELECT value FROM meta WHERE key = 'ended_copied'").fetchone()
    return -1 if found is None else int(found[0])


def set_copied_to(db: sqlite3.Connection, job: int) -> None:
    """Record the number of the last job whose row was copied from another journal; -1: all are copied."""
    db.execute("INSERT OR REPLACE INTO meta VALUES ('ended_copied', ?)", (str(job),))


def holds_at(db: sqlite3.Connection, last: int) -> None:
    """Record that the table is complete up to entry number `last`."""
    db.execute("UPDATE meta SET value = ? WHERE key = 'ended_at'", (str(last),))


def begins_at(db: sqlite3.Connection, from_s: float) -> None:
    """Record that the rows of jobs that ended before `from_s` (Unix seconds) may have been removed."""
    from_s = max(from_s, began_at(db))
    db.execute("INSERT OR REPLACE INTO meta VALUES ('ended_from_s', ?)", (repr(from_s),))


def began_at(db: sqlite3.Connection) -> float:
    """Return the time, Unix seconds, before which rows of ended jobs may have been removed; 0: never."""
    found = db.execute("SELECT value FROM meta WHERE key = 'ended_from_s'").fetchone()
    try:
        return 0.0 if found is None else float(found[0])
    except ValueError:
        return 0.0


def differences(
    db: sqlite3.Connection, expected: Iterator[EndedJob], over_before: Callable[[], int]
) -> Iterator[str]:
    """Compare the table of ended jobs with the journal's entries. Yield a line of text for each difference.

    Args:
        db: The journal.
        expected: Rows that the table must have, computed from the entries up to the last entry that the table
            includes (`meta.ended_at`), in any order.
        over_before: Function that returns the number of jobs that finished before the journal's base
            (compacted start). It is called after the last row of `expected`.
    """
    count = missing = 0
    from_s = began_at(db)
    for row in expected:
        count += 1
        raw = db.execute(f"SELECT {COLUMNS}, crc FROM ended_jobs WHERE job = ?", (row.job,)).fetchone()
        if raw is None:
            missing += 1
            if row.end_s < from_s:
                continue
            yield f"ended job {row.job}: its row is missing; {ANEW}"
        elif raw != (*row, row.checksum()):
            stored = EndedJob(*raw[:-1])
            names = differing(row, stored)
            if not names and raw[-1] == stored.checksum():
                continue
            what = ", ".join(names) or "crc"
            yield f"ended job {row.job}: its row differs from the entries: {what}; {ANEW}"
    rows = db.execute("SELECT count(*) FROM ended_jobs").fetchone()[0]
    before = over_before()
    found = rows + missing - count
    if from_s and found < before:
        return  # old rows were removed as configured
    if before and found < before:
        yield (
            f"ended jobs: {before} had finished before the journal's base, and {max(found, 0)} of them have "
            "rows; `history` lacks the others, an older backup may have them"
        )
    elif found != before:
        yield f"ended jobs: {rows} rows, the entries end {count + before} jobs; {ANEW}"


class Filter(NamedTuple):
    """Filter of rows. The values None, "" and () match all rows.

    Attributes:
        since_s: Only jobs that ended at this time or later, Unix seconds.
        until_s: Only jobs that ended before this time, Unix seconds.
        name: Glob pattern of job names.
    """

    since_s: float | None = None
    until_s: float | None = None
    user: str | None = None
    vc: str | None = None
    account: str | None = None
    states: tuple[str, ...] = ()
    name: str = ""


class EndedTable:
    """Reader of the table of ended jobs. Only `rows` takes longer as the table grows.

    Args:
        path: Name of the journal in messages.
        db: Open connection to the journal.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db

    def scan(
        self, wanted: Filter, before: tuple[float, int] | None, rows: int, most: int
    ) -> tuple[list[EndedJob], tuple[float, int] | None]:
        """Scan rows, newest first, for the rows that match a filter.

        Args:
            wanted: Filter of the rows to return.
            before: (end time in Unix seconds, job number) of the last row that the previous call scanned;
                None: begin with the newest row.
            rows: Maximum number of rows to scan.
            most: Maximum number of rows to return.

        Returns:
            (Matching rows, `before` for the next call). The second value is None if no rows are left.

        Raises:
            JournalError: a row is damaged.
        """
        index, bounds, values = _bounds(wanted, before)
        query = (
            f"SELECT {COLUMNS}, crc, {_MATCHES} FROM ended_jobs INDEXED BY {index} {bounds} "
            "ORDER BY end_s DESC, job DESC LIMIT :rows"
        )
        values |= {"rows": rows, "account": wanted.account, "user": wanted.user, "vc": wanted.vc}
        called = re.compile(fnmatch.translate(wanted.name or "*")).match
        found, looked_at, last = [], 0, None
        with clearly(self._path):
            for *raw, matches in self._db.execute(query, values):
                looked_at += 1
                last = raw[_END], raw[0]
                if matches and raw[_STATE] in (wanted.states or (raw[_STATE],)) and called(raw[_NAME]):
                    found.append(self._sound(raw))
                    if len(found) == most:
                        return found, last
        return found, last if looked_at == rows else None

    def rows(self) -> Iterator[EndedJob]:
        """Yield all rows, in order of job numbers.

        Raises:
            JournalError: a row is damaged.
        """
        query = f"SELECT {COLUMNS}, crc FROM ended_jobs ORDER BY job"
        with clearly(self._path), closing(self._db.execute(query)) as found:
            for raw in found:
                yield self._sound(raw)

    def page(self, after: int, most_bytes: int) -> tuple[list[tuple[Any, ...]], bool]:
        """Return the next rows, each with its checksum, of jobs with numbers above `after`.

        The rows have about `most_bytes` bytes at most. The first row is returned even if it is larger.

        Returns:
            (Rows, whether they are the last rows of the table.)

        Raises:
            JournalError: the file cannot be read.
        """
        page: list[tuple[Any, ...]] = []
        left = most_bytes
        query = f"SELECT {COLUMNS}, crc FROM ended_jobs WHERE job > ? ORDER BY job"
        with clearly(self._path), closing(self._db.execute(query, (after,))) as found:
            for row in found:
                left -= _ROW_BYTES + sum(len(one) for one in row if isinstance(one, str | bytes))
                if page and left < 0:
                    return page, False
                page.append(row)
        return page, True

    def row(self, number: int) -> EndedJob | None:
        """Return the row of a job; None: the job has not finished or does not exist.

        Raises:
            JournalError: the row is damaged.
        """
        return self._one("job", number)

    def row_of_token(self, token: str) -> EndedJob | None:
        """Return the row of the job that was submitted with this token; None: no finished job has this token.

        Raises:
            JournalError: the row is damaged.
        """
        return self._one("token", token)

    def _one(self, column: str, value: int | str) -> EndedJob | None:
        query = f"SELECT {COLUMNS}, crc FROM ended_jobs WHERE {column} = ?"
        with clearly(self._path):
            raw = self._db.execute(query, (value,)).fetchone()
        return None if raw is None else self._sound(raw)

    def _sound(self, raw: Sequence[Any]) -> EndedJob:
        row = EndedJob(*raw[:-1])
        if row.checksum() != raw[-1]:
            raise JournalError(f"{self._path}: the row of ended job {row.job} is damaged; {ANEW}")
        return row


_ROW_BYTES = 120
"""Estimated size of the numbers of a row (all columns except texts and `rest`) in a message, bytes."""
_NAME, _STATE, _END = map(EndedJob._fields.index, ("name", "state", "end_s"))
_MATCHES = (
    "(:account IS NULL OR account = :account) AND (:user IS NULL OR user = :user) "
    "AND (:vc IS NULL OR vc = :vc)"
)


def _bounds(wanted: Filter, before: tuple[float, int] | None) -> tuple[str, str, dict[str, Any]]:
    """Return the parts of the SQL query that scans rows for a filter, newest first.

    Returns:
        (Name of the database index to use, WHERE clause, values of the clause's parameters.)
    """
    index, wheres, values = "ended_by_end", [], {}
    if wanted.user is not None:
        index, wheres = "ended_by_user", ["user = :user"]
    elif wanted.vc is not None:
        index, wheres = "ended_by_vc", ["vc = :vc"]
    if wanted.since_s is not None:
        wheres.append("end_s >= :since_s")
        values["since_s"] = wanted.since_s
    if before is not None:
        wheres.append("(end_s, job) < (:before_s, :before)")
        values["before_s"], values["before"] = before
    elif wanted.until_s is not None:
        wheres.append("end_s < :until_s")
        values["until_s"] = wanted.until_s
    return index, f"WHERE {' AND '.join(wheres)}" if wheres else "", values
