"""The policy that `rlsched policy set` chose, as the starts of brokers in a journal tell it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rlsched.broker.compaction.base import base_at_the_head
from rlsched.broker.journal.entries import BrokerStarted, ChosenPolicy
from rlsched.broker.journal.rows import read_rows, rows_after

_STARTS = "SELECT n FROM entries WHERE kind = 'broker_started' AND n >= ? AND n <= ? ORDER BY n DESC"


def choice_at(path: Path, db: sqlite3.Connection, first: int, last: int) -> ChosenPolicy | None:
    """What the last start up to an entry had of `policy set`; None where it had nothing, or there is none.

    A start that goes on with the choice before it does not repeat it; a base has it where all starts do.

    Args:
        path: What to call the journal.
        db: The journal, open.
        first: Number of its first entry.
        last: Number of the entry.

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
