"""Runs Python's garbage collector in the broker often, and only on new objects, so that pauses are short."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

EVERY_S = 5.0
NEW = 10_000
"""Number of new objects after which Python itself runs the collector. A turn of the broker's loop creates 700
objects. The number is high because reference cycles are rare.
"""


class ShortPauses:
    """Garbage collection without long pauses.

    A full collection would pause the loop (75 ms with 12,000 jobs). Instead, each collection visits only the
    objects created since the previous one. Surviving objects are never visited again: jobs, nodes and records
    are in no reference cycles, so reference counts free them.

    Args:
        elapsed: A monotonic clock, seconds.
    """

    def __init__(self, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._elapsed = elapsed
        self._last_s = -EVERY_S
        gc.set_threshold(NEW)

    def step(self) -> None:
        """Collect garbage if `EVERY_S` seconds have passed since the last collection."""
        now_s = self._elapsed()
        if now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            gc.collect()
            gc.freeze()
