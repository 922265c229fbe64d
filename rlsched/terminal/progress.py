"""Shows progress on standard error: as bars on a terminal, otherwise as occasional lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

LINES_EVERY_S: Final = 10.0


class Progress:
    """Progress bars on a terminal, which are removed at the end; without a terminal, lines for a log.

    Without a terminal, the first line is printed immediately, and then at most one line every ten seconds.

    Args:
        shown: Whether to print anything.
        lines: Whether to print lines if there is no terminal.
        clock: Function that returns a monotonic time, seconds.
    """

    def __init__(
        self, *, shown: bool = True, lines: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        notes = Console(stderr=True, highlight=False)
        self._has_bars = shown and notes.is_terminal
        self._has_lines = shown and lines and not notes.is_terminal
        self._clock, self._said_s = clock, -LINES_EVERY_S
        self._what: dict[Any, str] = {}
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=notes,
            transient=True,
            disable=not self._has_bars,
        )

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, what: str, total: float = 1.0) -> Any:
        """Begin a task. Return the handle to pass to `update`."""
        bar = self._bars.add_task(what, total=total, text="", visible=False)
        self._what[bar] = what
        return bar

    def update(self, bar: Any, done: float, text: str = "", what: str | None = None) -> None:
        """Report the finished amount of a task, out of its total.

        `text` is shown instead of the percentage, and `what` becomes the name of the task.
        """
        total = self._bars.tasks[bar].total or 1.0
        said = text or f"{done / total:.0%}"
        if what is not None:
            self._what[bar] = what
        self._bars.update(bar, completed=done, text=said, description=self._what[bar], visible=True)
        if self._has_lines and self._clock() - self._said_s >= LINES_EVERY_S:
            self._line(f"{self._what[bar]}: {said}")

    def print_line(self, line: str) -> None:
        """Print a line in addition to the progress. It is printed at once, also without a terminal."""
        if self._has_bars:
            self._bars.console.print(line, markup=False)
        elif self._has_lines:
            self._line(line)

    def _line(self, text: str) -> None:
        self._said_s = self._clock()
        print(text, file=sys.stderr, flush=True)
