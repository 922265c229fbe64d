"""Kernels that will be needed soon, compiled in several processes where there are cores.

What is compiled is said as *pieces*: functions without arguments that compile something, and can be pickled.
Each process takes one piece after another. What it compiles lies in the cache
(`rlsched.compile.kernel_cache`) for whoever needs it; where two need the same kernel at once, one waits for
the other. Nothing depends on these processes: what one of them leaves undone is compiled by who needs it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from rlsched.compile.compiling import COMPILING

Piece = Callable[[], object]
"""Compiles something; what it gives back is dropped."""
MOST_PROCESSES: Final = 8
"""Each takes about 300 MiB."""
_EndOfChild = (EOFError, OSError)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def compile_pieces(pieces: Sequence[Piece], processes: int | None = None) -> None:
    """Compile pieces in processes beside this one, which says meanwhile how far they are.

    With one process, or one piece, nothing is done, nor is it where no verb runs (`Compiling.by_verb`).

    Args:
        pieces: What takes longest comes first.
        processes: How many there may be; None: one a core.
    """
    count = min(cores() if processes is None else processes, len(pieces), MOST_PROCESSES)
    if count < 2 or not COMPILING.by_verb:
        return
    context, left = multiprocessing.get_context("spawn"), iter(pieces)
    children = list[_Child]()
    try:
        with suppress(OSError):  # there is no room for another one
            children.extend(_Child(context) for _ in range(count))
        busy = [child for child in children if child.takes_next(left)]
        while busy:
            ready = wait([child.ours for child in busy])
            busy = [child for child in busy if child.ours not in ready or child.goes_on(left)]
    finally:
        for child in children:
            child.end()
        COMPILING.ends(())


class _Child:
    """A process that compiles, seen from the one that has started it."""

    def __init__(self, context: Any) -> None:
        self.ours, theirs = context.Pipe()
        self._process = context.Process(target=_compile, args=(theirs,), name="compile", daemon=True)
        # a terminal sends Ctrl-C to both; the parent ends this one, which says nothing
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def takes_next(self, left: Iterator[Piece]) -> bool:
        """Give it the next piece; whether there was one, and it lives."""
        piece = next(left, None)
        if piece is None:
            return False
        try:
            self.ours.send(piece)
        except _EndOfChild:
            return False
        return True

    def goes_on(self, left: Iterator[Piece]) -> bool:
        """Hear what it says, and give it more to do; whether it has anything to do."""
        try:
            said = self.ours.recv()
        except _EndOfChild:
            return False
        if said is None:
            return self.takes_next(left)
        method, *arguments = said
        getattr(COMPILING, method)(*arguments)
        return True

    def end(self) -> None:
        """End it, whatever it is at."""
        self.ours.close()
        self._process.terminate()
        self._process.join()
        self._process.close()


# ---- in the child ---------------------------------------------------------------------------------


def _compile(parent: Connection) -> None:
    """Compile what the parent asks for, until it is gone."""
    _end_with_parent()
    COMPILING.hand_on = parent.send
    with suppress(*_EndOfChild):
        while True:
            piece = parent.recv()
            with suppress(Exception):  # who needs it meets it again, and can say what it was needed for
                piece()
            parent.send(None)


def _end_with_parent() -> None:
    """End at once when the parent does, in the middle of a kernel too."""
    of_parent = multiprocessing.parent_process()
    assert of_parent is not None

    def watch() -> None:
        wait([of_parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
