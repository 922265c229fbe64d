"""Decides when a snapshot is stored: rarely, and if possible when the loop has no messages to process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from rlsched.broker.journal.codec import PictureError
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import keep_snapshot
from rlsched.broker.state.broker_state import BrokerState
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import JournalError

ENTRIES = 20_000
"""Number of entries since the last snapshot at which a new snapshot is due in a turn without messages."""
ENTRIES_AT_LAST = 100_000
"""Number of entries since the last snapshot at which a new snapshot is due in any turn of the loop."""
SHARE = 0.005
"""Maximum fraction of the broker's time spent on snapshots."""


class SnapshotKeeper:
    """Stores snapshots of a broker's state. A failed snapshot only makes the next start slower.

    Args:
        journal: The journal in which snapshots are stored.
        say: Function that logs a line, called if a snapshot fails.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(
        self,
        journal: Journal,
        say: Callable[[str], None],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._say, self._elapsed = journal, say, elapsed
        self._at = 0  # last entry in a snapshot; snapshots before this start may not fit this policy
        self._not_before_s = -float("inf")

    def is_snapshot_due(self, *, is_quiet: bool) -> bool:
        """Return whether a snapshot is due. `is_quiet`: this turn of the broker's loop had no messages."""
        behind = self._journal.last - self._at
        if behind < ENTRIES_AT_LAST and not (is_quiet and behind >= ENTRIES):
            return False
        return self._elapsed() >= self._not_before_s

    def keep(self, state: BrokerState, scheduler: Scheduler) -> None:
        """Store a snapshot of the state after the journal's last entry, unless there is such a snapshot."""
        if self._at == self._journal.last:
            return
        self._at, began_s = self._journal.last, self._elapsed()
        try:
            keep_snapshot(self._journal, state, scheduler)
        except (PictureError, JournalError) as error:
            self._say(f"journal: no snapshot could be kept: {error}")
        give_back()
        now_s = self._elapsed()
        self._not_before_s = now_s + (now_s - began_s) / SHARE


def give_back() -> None:
    """Return free memory to the operating system. Otherwise glibc keeps the memory that a snapshot used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
