"""Prints the progress of kernel compilation on standard error, if an `rlsched` command requests this.

`rlsched.compile.kernel_cache` reports every kernel that is compiled or found in the cache. This module does
not import numba, so that the command line can turn progress on before anything is compiled.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

FIRST_S: Final = 0.3
"""Duration below which a compilation is not reported, seconds."""
REWRITTEN_EVERY_S, LINES_EVERY_S = 0.1, 1.0
TICK_S: Final = 0.5
"""Interval at which the duration of a long compilation is printed, seconds."""
_CLEAR: Final = "\r\x1b[K"
SAYS: Final = "compiling, once for this version"
_OTHERS: Final = f"{SAYS}: another process is at it"


class Compiling:
    """Progress of compilation: one line that is rewritten on a terminal, an occasional line elsewhere.

    Args:
        clock: Returns seconds.
        stream: Stream to print to; None: the standard error stream at the time of printing.
        ticks: Whether to print from a second thread while a long compilation blocks the main thread.

    Attributes:
        told: Whether to print anything.
        by_verb: Whether an `rlsched` command compiles. If a user's script compiles, no child processes are
            started, because they would run the script again.
        tells: Function that gets each progress text immediately; None: no function is called.
        compiled: Number of kernels that this process has compiled.
        found: Number of kernels that this process has found in the cache.
        took_s: Time spent on compiling, or on waiting for another process that compiles, seconds.
        hand_on: In a process that compiles for its parent (`rlsched.compile.ahead`): function that sends each
            report to the parent, as (name of a method of `Compiling`, arguments). None: reports are printed.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        stream: TextIO | None = None,
        *,
        ticks: bool = False,
    ) -> None:
        self._clock, self._stream = clock, stream
        self._needed, self._done = set[Any](), set[Any]()
        self._began_s = self._said_s = -math.inf
        self._on_line = self.told = self.by_verb = False
        self.compiled = self.found = 0
        self.tells: Callable[[str], object] | None = None
        self._ticks, self._ticker = ticks, threading.Event()
        self._lock = threading.RLock()
        self._now, self._since_s, self._activity = "", 0.0, ""
        self.took_s, self._compiles_since_s = 0.0, math.nan
        self.hand_on: Callable[[tuple[Any, ...]], None] | None = None

    def begins(self, kernel: Any, needed: Iterable[Any]) -> None:
        """Report the start of a kernel's compilation; `needed` are the kernels that it calls."""
        if self.hand_on is not None:
            self.hand_on(("begins", kernel, set(needed)))
            return
        self._needed.update((kernel, *needed))
        self._at(f"{SAYS}: {len(self._done & self._needed)} of {len(self._needed)}")

    def restart_in_child(self) -> None:
        """Replace lock and thread in a forked process, which has none of its parent's other threads."""
        self._lock, self._ticker = threading.RLock(), threading.Event()

    def starts_processes(self, count: int) -> None:
        """Report that `count` processes start, which import the compiler and then compile."""
        if self._on_terminal():
            self._at(f"starting {count} compiler processes")

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Report another activity that blocks the main thread, if it takes long. Example: a slow import.

        It is reported on a terminal only, so that the output of a command in a script has no other lines.
        """
        if self.hand_on is not None:
            yield
            return
        before, self._activity = self._activity, activity
        if self._on_terminal():
            self._reports(activity, tell=False)
        try:
            yield
        finally:
            self._activity = before
            self.ends(())

    def waits(self) -> None:
        """Report that this process waits, because another process compiles the needed kernel."""
        if self.hand_on is not None:
            return
        self._at(_OTHERS)

    def report_available(self, kernel: Any, *, compiled: bool) -> None:
        """Report that a kernel is available: compiled by this process, or found in the cache."""
        if self.hand_on is not None:
            self.hand_on(("others", kernel, compiled))
            return
        self._done.add(kernel)
        if self._now == _OTHERS:
            self.ends(())
        self.compiled += compiled
        self.found += not compiled

    def others(self, kernel: Any, compiled: bool) -> None:
        """Report that a child process has compiled a kernel, or found the kernel in the cache."""
        self._done.add(kernel)
        self.compiled += compiled

    def ends(self, needed: Iterable[Any]) -> None:
        """Report that the kernels needed by a call from Python are available."""
        if self.hand_on is not None:
            return
        self._done.update(needed)
        with self._lock:
            now_s = self._clock()
            if not math.isnan(self._compiles_since_s):
                self.took_s += now_s - self._compiles_since_s
            self._compiles_since_s = math.nan
            self._now, self._since_s = self._activity, now_s
            if self._on_line:
                self._on_line = False
                self._write(_CLEAR)

    def _at(self, text: str) -> None:
        """Report a step of compilation."""
        with self._lock:
            if math.isnan(self._compiles_since_s):
                self._compiles_since_s = self._clock()
            self._reports(text)

    def _reports(self, text: str, *, tell: bool = True) -> None:
        """Store what blocks the main thread now. If `tell` is true, print it now, else at the next tick."""
        with self._lock:
            self._now, self._since_s = text, self._clock()
            if tell:
                self._say(text)
        if self._ticks and (self.told or self.tells is not None) and not self._ticker.is_set():
            self._ticker.set()
            threading.Thread(target=self._tick, name="compiling", daemon=True).start()

    def _tick(self) -> None:
        while True:
            time.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Print the current activity again. If the activity takes long, include its duration so far."""
        with self._lock:
            took_s = self._clock() - self._since_s
            if self._now:
                self._say(self._now if took_s < 1.0 else f"{self._now}, {took_s:.0f} s")

    def _say(self, text: str) -> None:
        now_s = self._clock()
        if self.tells is not None:
            self.tells(text)
        if self._began_s == -math.inf:
            self._began_s = now_s
        if not self.told or now_s < self._began_s + FIRST_S:
            return
        if math.isnan(self._compiles_since_s) and not self._on_terminal():
            return
        rewrites = self._rewrites()
        if now_s < self._said_s + (REWRITTEN_EVERY_S if rewrites else LINES_EVERY_S):
            return
        self._said_s, self._on_line = now_s, rewrites
        self._write(f"{_CLEAR}{text}" if rewrites else f"{text}\n")

    def _rewrites(self) -> bool:
        """Return whether the progress line can be rewritten in place.

        It cannot if stderr is not a terminal, or while `rich` replaces stderr to show progress bars.
        """
        return self._on_terminal() and (self._stream is not None or sys.stderr is sys.__stderr__)

    def _on_terminal(self) -> bool:
        return (self._stream or sys.stderr).isatty()

    def _write(self, text: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(text)
        stream.flush()


COMPILING: Final = Compiling(ticks=True)
"""The progress of compilation in this process."""
os.register_at_fork(after_in_child=COMPILING.restart_in_child)
