"""Helpers for the end of a process: signal handlers for a block of code, and an end with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, Final

END: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals that end a process: sent by a supervisor (SIGTERM) and by Ctrl-C (SIGINT)."""
_PR_SET_PDEATHSIG: Final = 1


@contextmanager
def on_signals(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, numbers: Iterable[signal.Signals] = END
) -> Iterator[None]:
    """Call `handler` at these signals within a `with` block, and restore the previous handlers afterwards.

    Raises:
        ValueError: not called in the main thread.
    """
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, was in before.items():
            # None: the previous handler was not set by Python, and cannot be restored.
            signal.signal(number, signal.SIG_DFL if was is None else was)


def end_with_parent(number: signal.Signals) -> None:
    """Make the kernel send this process a signal when its parent exits; only on Linux.

    The parent is the thread that started this process (prctl(2), PR_SET_PDEATHSIG).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def exit_with_parent() -> None:
    """Make this process, started by `multiprocessing`, exit at once when its parent exits, whatever it does.

    Use it as the initializer of a process pool: otherwise the workers of a killed process continue.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
