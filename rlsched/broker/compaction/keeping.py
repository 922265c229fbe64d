"""Default retention of a journal."""

from __future__ import annotations

from typing import Final

import msgspec

KEEP_ENTRIES: Final = 4_000
"""Number of entries that stay by default: replaying them and a base takes a few seconds at a start."""
GROWN: Final = 3
"""A base is made when the journal has this many times the number of entries that stay."""
KEEP_ENDED_DAYS: Final = 730.0


class Keeps(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of a journal.

    Attributes:
        days: Days for which entries stay; None: only the latest `entries` stay; infinite: all.
        entries: Number of entries that stay, if `days` is None.
        ended_days: Days for which rows of ended jobs stay; infinite: all.
    """

    days: float | None = None
    entries: int = KEEP_ENTRIES
    ended_days: float = KEEP_ENDED_DAYS
