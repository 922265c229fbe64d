"""When a broker keeps a snapshot: seldom, in quiet turns, and for little of its time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.picture import PictureError
from rlsched.broker.journal.recovery import keep_snapshot
from rlsched.broker.state.book import Book
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import JournalError

ENTRIES = 20_000
"""One is due after so many entries, in a turn in which nothing is heard ..."""
ENTRIES_AT_LAST = 100_000
"""... and after so many in any, ..."""
SHARE = 0.005
"""... but no more of the broker's time goes into them than this."""


class SnapshotKeeper:
    """Keeps snapshots of one state machine. One that cannot be kept costs the next start time, and no more.

    Args:
        journal: Where they go.
        say: Gets a line for the log when one could not be kept.
        elapsed: A clock that never jumps, seconds.
    """

    def __init__(
        self,
        journal: Journal,
        say: Callable[[str], None],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._say, self._elapsed = journal, say, elapsed
        self._at = 0  # entries before this start may be in none that fits this policy
        self._not_before_s = -float("inf")

    def due(self, *, is_quiet: bool) -> bool:
        """Whether one is due; `is_quiet`: nothing is heard just now."""
        behind = self._journal.last - self._at
        if behind < ENTRIES_AT_LAST and not (is_quiet and behind >= ENTRIES):
            return False
        return self._elapsed() >= self._not_before_s

    def keep(self, book: Book, scheduler: Scheduler) -> None:
        """Keep the book as it is after the journal's last entry, unless that has been kept."""
        if self._at == self._journal.last:
            return
        self._at, began_s = self._journal.last, self._elapsed()
        try:
            keep_snapshot(self._journal, book, scheduler)
        except (PictureError, JournalError) as error:
            self._say(f"journal: no snapshot could be kept: {error}")
        give_back()
        now_s = self._elapsed()
        self._not_before_s = now_s + (now_s - began_s) / SHARE


def give_back() -> None:
    """Give memory that is free back to the machine; glibc keeps what a snapshot took, in pieces."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
