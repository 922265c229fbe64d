"""Signals that ask a process to end: handled while something runs, and put back after it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

END: Final = (signal.SIGTERM, signal.SIGINT)
"""A supervisor's and Ctrl-C."""


@contextmanager
def on_signals(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, numbers: Iterable[signal.Signals] = END
) -> Iterator[None]:
    """Call `handler` at these signals; before and after, what there was.

    Whoever calls a verb from a process of his own, as tests do, keeps his handlers.

    Raises:
        ValueError: not in the main thread.
    """
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, was in before.items():
            # None: something that is not Python's; it cannot be put back.
            signal.signal(number, signal.SIG_DFL if was is None else was)
