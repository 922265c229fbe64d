"""Stopping a run between two updates: by signal, or because it has stopped learning."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlsched.signals import on_signals


class StopRun(Exception):  # noqa: N818  # a request, not an error
    """The run was asked to stop, between two updates."""


class NothingGained(Exception):  # noqa: N818  # the end of a run, not an error
    """So many validations in a row found no better policy."""


@dataclass
class StopRequest:
    """Whether a signal asked the run to stop."""

    asked: bool = False

    @contextmanager
    def on_signals(self) -> Iterator[StopRequest]:
        """SIGINT and SIGTERM ask; a second SIGINT interrupts at once. Handlers are put back at the end."""

        def handle(number: int, _frame: object) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.asked = True
            print("\nstopping after this update, a few seconds; Ctrl-C again stops at once", file=sys.stderr)

        with on_signals(handle):
            yield self
