"""Unexpected errors, which must not end the daemon: logged once with a traceback, then counted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from traceback import extract_tb

LOG_EVERY = 1_000
"""A repeated error is logged again after this number of occurrences."""


class Mishaps:
    """Counts of unexpected errors, by type and by the line of code that raised them.

    Args:
        log: Logger of the errors.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[tuple[str, str, int], int] = {}

    @contextlib.contextmanager
    def set_aside(self, what: str) -> Iterator[None]:
        """Log an error of the `with` block, and continue. `what` names the failed action in the log."""
        try:
            yield
        except Exception as error:
            place = extract_tb(error.__traceback__)[-1]
            key = (type(error).__name__, place.filename, place.lineno or 0)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count == 1:
                self._log.exception("%s failed, the node goes on", what)
            elif count % LOG_EVERY == 0:
                self._log.error("%s failed, %d times so far: %s", what, count, error)
