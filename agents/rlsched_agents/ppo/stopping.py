"""Stops a run between two updates: on a signal, or if it has stopped learning."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlsched.signals import on_signals


class StopRun(Exception):  # noqa: N818  # a request, not an error
    """A stop of the run was requested, between two updates."""


class NothingGained(Exception):  # noqa: N818  # the end of a run, not an error
    """Several successive validations found no better policy."""


@dataclass
class StopRequest:
    """Whether a signal requested a stop of the run."""

    asked: bool = False

    @contextmanager
    def on_signals(self) -> Iterator[StopRequest]:
        """Turn SIGINT and SIGTERM into requests to stop; a second SIGINT interrupts. Restores handlers."""

        def handle(number: int, _frame: object) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.asked = True
            print("\nstopping after this update, a few seconds; Ctrl-C again stops at once", file=sys.stderr)

        with on_signals(handle):
            yield self
