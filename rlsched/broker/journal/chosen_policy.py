"""Finds the policy set by `rlsched policy set` in the `BrokerStarted` entries of a journal."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rlsched.broker.base.entries import BrokerStarted, ChosenPolicy
from rlsched.broker.base.rows import read_rows, rows_after
from rlsched.broker.state.base import base_at_the_head

_STARTS = "SELECT n FROM entries WHERE kind = 'broker_started' AND n >= ? AND n <= ? ORDER BY n DESC"


def choice_at(path: Path, db: sqlite3.Connection, first: int, last: int) -> ChosenPolicy | None:
    """Return the chosen policy of the last broker that started at or before entry `last`; None if none.

    An entry omits the policy if the previous broker used the same policy (`goes_on`). If all entries omit the
    policy, it is in the base (the compacted start of the journal).

    Args:
        path: Path of the journal, for error messages.
        db: The open journal.
        first: Entry number of the first entry of the journal.
        last: Entry number of the last entry to consider.

    Raises:
        JournalError: an entry is missing or damaged.
    """
    for (n,) in db.execute(_STARTS, (first, last)).fetchall():
        [row] = rows_after(path, db, n - 1, 1)
        assert isinstance(row.entry, BrokerStarted)
        if not row.entry.goes_on:
            return row.entry.chosen
    base = base_at_the_head(read_rows(path, db, last, after=first - 1))
    return None if base is None else base.chosen
