"""What no event may do: end the daemon. An error is logged with its traceback once, and set aside."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from traceback import extract_tb

LOG_EVERY = 1_000
"""An error that comes again and again is counted, and told of again after so many."""


class Mishaps:
    """Errors that nobody foresaw, by where they were raised.

    Args:
        log: Where they are told.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[tuple[str, str, int], int] = {}

    @contextlib.contextmanager
    def set_aside(self, what: str) -> Iterator[None]:
        """Go on after an error in the block. `what` it was, for the log."""
        try:
            yield
        except Exception as error:
            place = extract_tb(error.__traceback__)[-1]
            key = (type(error).__name__, place.filename, place.lineno or 0)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count == 1:
                self._log.exception("%s is set aside, the node goes on", what)
            elif count % LOG_EVERY == 0:
                self._log.error("%s is set aside, %d times by now: %s", what, count, error)
