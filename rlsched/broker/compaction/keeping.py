"""Retention of a journal: how many entries and rows are kept, and the defaults."""

from __future__ import annotations

from typing import Final

import msgspec

KEEP_ENTRIES: Final = 4_000
"""Default of `Keeps.entries`. A broker replays these entries in a few seconds when it starts."""
GROWN: Final = 3
"""Number of entries in the journal at which a base is made, as a multiple of `Keeps.entries`."""
KEEP_ENDED_DAYS: Final = 730.0


class Keeps(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of a journal.

    Attributes:
        days: Days for which entries are kept; infinite: all entries are kept; None: `entries` applies.
        entries: Number of latest entries that are kept if `days` is None.
        ended_days: Days for which rows of ended jobs are kept; infinite: all rows are kept.
    """

    days: float | None = None
    entries: int = KEEP_ENTRIES
    ended_days: float = KEEP_ENDED_DAYS
