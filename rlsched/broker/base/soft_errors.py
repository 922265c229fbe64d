"""Errors outside of decisions that stop nothing: counted, with one log line for each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable


class SoftErrors:
    """Troubles by kind. The first of a kind is logged; further ones are counted until the trouble ends.

    Args:
        say: Receives the log lines; a line that it cannot write (the log may be on the full disk) is lost.

    Attributes:
        lost: By kind, the number of things lost since the broker started.
        present: By kind, the line of each trouble that has not ended.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self.lost: dict[str, int] = {}
        self.present: dict[str, str] = {}
        self._lost_before: dict[str, int] = {}

    def count(self, kind: str, what: str, error: Exception | str, lost: int = 1) -> None:
        """Count a trouble.

        Args:
            kind, what: A word as in `RecordsReport.lost`, and a description of the action that failed.
            error: The reason.
            lost: Number of things that it lost.
        """
        self.lost[kind] = self.lost.get(kind, 0) + lost
        if kind not in self.present:
            self._lost_before[kind] = self.lost[kind] - lost
            self.present[kind] = f"{what}: {in_a_line(error)}"
            self.log_line(f"{self.present[kind]}; decisions go on without")

    def mark_recovered(self, kind: str, what: str) -> None:
        """Record that it works again, or always worked."""
        if self.present.pop(kind, None) is not None:
            self.log_line(f"{what} again; {self.lost[kind] - self._lost_before[kind]} were lost")

    def log_line(self, line: str) -> None:
        """Write a log line."""
        with contextlib.suppress(OSError):
            self._say(line)


def in_a_line(error: Exception | str) -> str:
    """Return an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text if isinstance(error, str) else f"{type(error).__name__}: {text}"
