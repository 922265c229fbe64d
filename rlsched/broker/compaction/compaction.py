"""Compaction of a journal: replaces old entries by a base, which is the state after these entries.

A process replays the entries, while a broker can have the journal open. One transaction then writes the
resulting state as a base (`rlsched.broker.state.base`), in place of the last of these entries. The earlier
entries are ignored from then on, and removed a few at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlsched.broker.base.entries import BasePart, BrokerStarted, JobSubmitted
from rlsched.broker.base.rows import CheckedRow, JournalRow
from rlsched.broker.journal.chosen_policy import choice_at
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import Reading, reading
from rlsched.broker.journal.recovery import forget_some
from rlsched.broker.state.base import Base, base_at_the_head, write_base
from rlsched.broker.state.base_learned import Noting
from rlsched.broker.state.base_state import base_of
from rlsched.broker.state.broker_state import BrokerState
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler, permit
from rlsched.errors import RlschedError

DAY_S: Final = 86_400.0
_PAGE: Final = 2_000
_WORTH: Final = 2
"""Minimum number of replaced entries per entry of the base. If there are fewer, no base is made."""


@dataclass(frozen=True)
class Cut:
    """A base (state that replaces old entries) that is ready to be written.

    Attributes:
        n: Entry number of the last entry that the base replaces.
        now_s: Time of that entry, Unix seconds.
        crc: Checksum of that entry.
        parts: The entries that store the base.
    """

    n: int
    now_s: float
    crc: int
    parts: list[BasePart]


def made(path: Path, before_s: float, half_life_s: float = math.inf, *, keep_entries: int = 0) -> Cut | None:
    """Return the base that replaces a journal's old entries; None if the base would save no space.

    A broker can use the journal at the same time.

    Args:
        path: The journal.
        before_s: Entries before this time are replaced, Unix seconds.
        half_life_s: The broker's half-life of a user's usage for fair share, seconds; infinite: it is off.
        keep_entries: Number of latest entries that are not replaced.

    Raises:
        JournalError: the journal is damaged, or an entry contradicts the entries before it.
    """
    with reading(path) as journal:
        cut = min(_last_before(journal, before_s), (journal.last or 0) - keep_entries)
        if cut - journal.first < _WORTH:
            return None
        scheduler = _scheduler(journal, cut)
    noting = Noting()
    state = BrokerState(noting, scheduler.order, half_life_s)
    state.on_finished = lambda _: forget_some(state)
    permit(state.cluster, scheduler)
    preemptible, crc, now_s = False, 0, 0.0
    for row in _rows(path, cut):
        state.follow([JournalRow(row.n, row.now_s, row.entry)], scheduler)
        crc, now_s = row.crc, row.now_s
        if isinstance(row.entry, JobSubmitted) and not row.entry.rejected and row.entry.preemptible:
            preemptible = True
    before = _base_before(path)
    if before is not None:
        preemptible = preemptible or before.ledger.preemptible
    base = base_of(
        state,
        noting,
        before.learned if before is not None else None,
        scheduler.policy_id,
        preemptible=preemptible,
    )
    parts = write_base(base)
    if cut - journal.first + 1 < _WORTH * len(parts):
        return None
    return Cut(cut, now_s, crc, parts)


def put(journal: Journal, cut: Cut) -> bool:
    """Write a base into its journal. Return False if the journal has changed too much.

    The base can be written if entry `cut.n` still has the checksum `cut.crc`, and if the table of ended jobs
    is complete up to entry `cut.n`.

    Raises:
        JournalError: the base cannot be written; the journal is unchanged.
    """
    if journal.checksum_of(cut.n) != cut.crc or journal.ended_at < cut.n:
        return False
    journal.put_base(cut.parts, cut.n, cut.now_s)
    return True


def _rows(path: Path, cut: int) -> Iterator[CheckedRow]:
    """Yield the entries up to entry `cut`, read in pages. No transaction stays open between pages."""
    after = 0
    while after < cut:
        with reading(path) as journal:
            page = list(journal.rows_after(after, min(_PAGE, cut - max(after, journal.first - 1))))
        if not page:
            return
        yield from page
        after = page[-1].n


def _base_before(path: Path) -> Base | None:
    with reading(path) as journal:
        return base_at_the_head(journal.rows())


def _last_before(journal: Reading, before_s: float) -> int:
    """Return the entry number of the last entry before `before_s` (Unix seconds) that can be replaced.

    The table of ended jobs must be complete up to this entry. If there is no such entry, return a number
    below the first entry's.
    """
    if before_s == math.inf:
        return min(journal.last or 0, journal.ended_at or 0)
    found = journal.db.execute(
        "SELECT max(n) FROM entries WHERE n >= ? AND now_s < ?", (journal.first, before_s)
    ).fetchone()[0]
    last = journal.first - 1 if found is None else int(found)
    return min(last, journal.ended_at or 0)


def _start_at(journal: Reading, cut: int) -> CheckedRow | None:
    """Return the last `BrokerStarted` entry up to entry `cut`, or else the first one after it.

    Return None if the journal has no such entry.
    """
    for order, bound in (("DESC", "n <= ?"), ("ASC", "n > ?")):
        found = journal.db.execute(
            f"SELECT n FROM entries WHERE kind = 'broker_started' AND {bound} AND n >= ? ORDER BY n {order}",
            (cut, journal.first),
        ).fetchone()
        if found is not None:
            [row] = journal.rows_after(int(found[0]) - 1, 1)
            return row
    return None


def _scheduler(journal: Reading, cut: int) -> Scheduler:
    """Load the policy in use at entry `cut`, or `fifo` if that policy cannot be loaded.

    With `fifo`, the base has default values for the dials (numbers that adjust a rule while it runs), and for
    predictions revised by bursts (similar jobs submitted in a row).
    """
    start = _start_at(journal, cut)
    if start is None:
        return load_scheduler("fifo")
    assert isinstance(start.entry, BrokerStarted)
    chosen = choice_at(journal.path, journal.db, journal.first, start.n)
    try:
        return load_scheduler(
            start.entry.policy if chosen is None else Policy.parse(chosen.policy, name=chosen.name)
        )
    except (RlschedError, ImportError, OSError):
        return load_scheduler("fifo")
