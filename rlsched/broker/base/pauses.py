"""Python's garbage collector in the broker: short looks at what is new, none at what has long been there."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

EVERY_S = 5.0
NEW = 10_000
"""New objects after which Python itself looks at them, in between: cycles are few, and 700 are one turn's."""


class ShortPauses:
    """Keeps full collections short.

    A full collection looks at every object: 75 ms with 12,000 jobs, in the middle of whatever the loop does.
    Every few seconds what is new is collected instead, and what is left of it is never looked at again.
    Jobs, nodes and records go by reference counts; they are in no cycles.

    Args:
        elapsed: A clock that never jumps, seconds.
    """

    def __init__(self, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._elapsed = elapsed
        self._last_s = -EVERY_S
        gc.set_threshold(NEW)

    def step(self) -> None:
        """Collect, if it is time."""
        now_s = self._elapsed()
        if now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            gc.collect()
            gc.freeze()
