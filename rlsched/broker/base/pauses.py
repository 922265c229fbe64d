"""Control of Python's garbage collector in the broker: short runs that visit only new objects."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

EVERY_S = 5.0
NEW = 10_000
"""Number of new objects after which Python itself runs the collector. It is high because reference cycles
are rare; an iteration of the broker's loop creates 700 objects.
"""


class ShortPauses:
    """Garbage collection without long pauses.

    A full collection visits every object: 75 ms with 12,000 jobs, in the middle of the loop's work. Instead,
    only objects created since the previous collection are visited, every few seconds. Objects that survive
    are never visited again. Jobs, nodes and records are freed by reference counts because they are in no
    cycles.

    Args:
        elapsed: A monotonic clock, seconds.
    """

    def __init__(self, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._elapsed = elapsed
        self._last_s = -EVERY_S
        gc.set_threshold(NEW)

    def step(self) -> None:
        """Collect garbage among the objects created since the last run, if `EVERY_S` seconds have passed."""
        now_s = self._elapsed()
        if now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            gc.collect()
            gc.freeze()
