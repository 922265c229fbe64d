"""Default retention of a journal."""

from __future__ import annotations

from typing import Final

import msgspec

KEEP_ENTRIES: Final = 4_000
"""Entries that stay if no days are given: a start that replays them and a base takes a few seconds."""
GROWN: Final = 3
"""Factor by which the entries must exceed that number before a base is made."""
KEEP_ENDED_DAYS: Final = 730.0


class Keeps(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of a journal.

    Attributes:
        days: Days of entries; None: the latest `entries`; infinite: all.
        entries: Number of entries, if no days are given.
        ended_days: Days of rows of ended jobs; infinite: all.
    """

    days: float | None = None
    entries: int = KEEP_ENTRIES
    ended_days: float = KEEP_ENDED_DAYS
