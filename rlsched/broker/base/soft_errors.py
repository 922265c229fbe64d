"""Non-fatal errors: counts the errors that do not stop the broker, and logs the first of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable


class SoftErrors:
    """Counts of errors by kind. Of each kind, the first error and the first after a recovery are logged.

    Args:
        say: Function that writes a log line. If it raises `OSError`, the line is lost.

    Attributes:
        lost: Number of items (such as records) lost since the broker started, by kind of error.
        present: Log line of the first error since the last recovery, by kind of error. A kind that has
            recovered has no entry.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self.lost: dict[str, int] = {}
        self.present: dict[str, str] = {}
        self._lost_before: dict[str, int] = {}

    def count(self, kind: str, what: str, error: Exception | str, lost: int = 1) -> None:
        """Count an error, and log it if it is the first of its kind since the last recovery.

        Args:
            kind: Kind of the error, a key of `RecordsReport.lost`.
            what: Description of the action that failed.
            error: Reason for the failure.
            lost: Number of lost items.
        """
        self.lost[kind] = self.lost.get(kind, 0) + lost
        if kind not in self.present:
            self._lost_before[kind] = self.lost[kind] - lost
            self.present[kind] = f"{what}: {in_a_line(error)}"
            self.log_line(f"{self.present[kind]}; decisions continue")

    def mark_recovered(self, kind: str, what: str) -> None:
        """Record that the action `what` has succeeded. Log a recovery if its last attempt failed."""
        if self.present.pop(kind, None) is not None:
            self.log_line(f"{what} again; {self.lost[kind] - self._lost_before[kind]} were lost")

    def log_line(self, line: str) -> None:
        """Write a log line."""
        with contextlib.suppress(OSError):
            self._say(line)


def in_a_line(error: Exception | str) -> str:
    """Return the text of an error as one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text if isinstance(error, str) else f"{type(error).__name__}: {text}"
