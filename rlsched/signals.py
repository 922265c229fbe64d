"""Signals that end a process: handlers installed for a block and restored after it, and the parent's end."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

END: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals of a supervisor and of Ctrl-C."""
_PR_SET_PDEATHSIG: Final = 1


@contextmanager
def on_signals(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, numbers: Iterable[signal.Signals] = END
) -> Iterator[None]:
    """Call `handler` at these signals; the previous handlers are restored at the end.

    Code that calls a verb in its own process, such as a test, keeps its handlers.

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
            # None: a handler that is not Python's; it cannot be restored.
            signal.signal(number, signal.SIG_DFL if was is None else was)


def end_with_parent(number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends for any reason (Linux; else no effect).

    The kernel sends it when the thread that started this process ends. prctl(2), PR_SET_PDEATHSIG.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
