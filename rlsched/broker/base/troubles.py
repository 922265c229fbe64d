"""What goes wrong beside the decisions and stops nothing: counted, with one line for the log of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable


class Troubles:
    """Troubles by kind. The first of a kind is said, the others are counted until it is over.

    Args:
        say: Gets the lines; where it cannot take one (the log is on the full disk, say), that line is lost.

    Attributes:
        lost: By kind, what was lost since the broker started.
        present: By kind, the line of those that are not over.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self.lost: dict[str, int] = {}
        self.present: dict[str, str] = {}
        self._lost_before: dict[str, int] = {}

    def count(self, kind: str, what: str, error: Exception | str, lost: int = 1) -> None:
        """Something went wrong.

        Args:
            kind: A word, as in `RecordsReport.lost`.
            what: What could not be done.
            error: Why.
            lost: How many things were lost by it.
        """
        self.lost[kind] = self.lost.get(kind, 0) + lost
        if kind not in self.present:
            self._lost_before[kind] = self.lost[kind] - lost
            self.present[kind] = f"{what}: {in_a_line(error)}"
            self.say(f"{self.present[kind]}; decisions go on without")

    def over(self, kind: str, what: str) -> None:
        """It works again, or always has."""
        if self.present.pop(kind, None) is not None:
            self.say(f"{what} again; {self.lost[kind] - self._lost_before[kind]} were lost")

    def say(self, line: str) -> None:
        """A line for the log."""
        with contextlib.suppress(OSError):
            self._say(line)


def in_a_line(error: Exception | str) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text if isinstance(error, str) else f"{type(error).__name__}: {text}"
