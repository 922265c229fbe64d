"""Compiles kernels in advance, in several processes if there are several cores.

The work is a list of *pieces*: picklable functions without arguments that compile something. Each process
takes one piece after another, and writes the result to the cache (`rlsched.compile.kernel_cache`) for all
processes. If two processes need the same kernel, one compiles it and the other waits. No result depends on
these processes: a kernel that they do not compile is compiled at its first use.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from rlsched.compile.compiling import COMPILING
from rlsched.signals import exit_with_parent

Piece = Callable[[], object]
"""A function that compiles something; its return value is ignored."""
MOST_PROCESSES: Final = 8
"""Maximum number of processes that compile in advance; each needs about 300 MiB of memory."""
_EndOfChild = (EOFError, OSError)


def cores() -> int:
    """Return the number of cores that this process can use."""
    return len(os.sched_getaffinity(0))


def compile_pieces(pieces: Sequence[Piece], processes: int | None = None) -> None:
    """Compile pieces in other processes, while this process reports the progress.

    Does nothing if there is only one process or one piece, or if a user's script runs
    instead of an `rlsched` command (`Compiling.by_verb`).

    Args:
        pieces: Pieces to compile, the longest first.
        processes: Maximum number of processes; None: one per core.
    """
    count = min(cores() if processes is None else processes, len(pieces), MOST_PROCESSES)
    if count < 2 or not COMPILING.by_verb:
        return
    context, left = multiprocessing.get_context("spawn"), iter(pieces)
    children = list[_CompilerProcess]()
    COMPILING.starts_processes(count)
    try:
        with suppress(OSError):  # no resources for another process
            children.extend(_CompilerProcess(context) for _ in range(count))
        busy = [child for child in children if child.takes_next(left)]
        while busy:
            ready = wait([child.ours for child in busy])
            busy = [child for child in busy if child.ours not in ready or child.goes_on(left)]
    finally:
        for child in children:
            child.end()
        COMPILING.ends(())


class _CompilerProcess:
    """The parent's handle of a child process that compiles kernels."""

    def __init__(self, context: Any) -> None:
        self.ours, theirs = context.Pipe()
        self._process = context.Process(target=_compile, args=(theirs,), name="compile", daemon=True)
        # a terminal sends Ctrl-C to both; the parent ends the child, which prints nothing
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def takes_next(self, left: Iterator[Piece]) -> bool:
        """Send the next piece to the process. Return False if no piece is left, or the process has exited."""
        piece = next(left, None)
        if piece is None:
            return False
        try:
            self.ours.send(piece)
        except _EndOfChild:
            return False
        return True

    def goes_on(self, left: Iterator[Piece]) -> bool:
        """Handle one report of the process: show progress, or, after a finished piece, send the next piece.

        Return False if no piece is left, or the process has exited.
        """
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
        """Kill the process, even while it compiles."""
        self.ours.close()
        self._process.terminate()
        self._process.join()
        self._process.close()


# ---- in the child ---------------------------------------------------------------------------------


def _compile(parent: Connection) -> None:
    """Main function of a child process: run each piece (compile function) that the parent sends."""
    exit_with_parent()
    COMPILING.hand_on = parent.send
    with suppress(*_EndOfChild):
        while True:
            piece = parent.recv()
            with suppress(Exception):  # raised again where the kernel is needed, with the context
                piece()
            parent.send(None)
