"""Runs the operator's command that prints the file of prices, and replaces the file."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from rlsched.broker.server.site_command import SiteCommand
from rlsched.cluster.spec import EnergySignals
from rlsched.energy.series import Series
from rlsched.errors import InputError

EVERY_S: Final = 3600.0
"""Age of the file at which the command runs, and minimum time between two runs, seconds."""
MOST_S: Final = 120.0
"""Time after which the command is killed, seconds."""
START_S: Final = 10.0
"""Maximum time for which a starting broker waits for the command if the file does not exist, seconds."""
_POLL_S: Final = 0.05


class PriceCommand:
    """Renews the file of prices that policies follow. If the command fails, the file is unchanged.

    Args:
        energy: Table `[energy]` of a cluster file. It must have a command.
        say: Function that logs a line.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(
        self, energy: EnergySignals, say: Callable[[str], object], elapsed: Callable[[], float]
    ) -> None:
        self._words, self._file = energy.command_words, Path(energy.followed)
        self._say, self._elapsed = say, elapsed
        self._due_s = elapsed() + EVERY_S - min(_age_s(self._file), EVERY_S)
        self._running: tuple[SiteCommand, IO[Any]] | None = None
        self._failed = False

    def begin(self) -> None:
        """Start the command if it is due. If there is no file of prices yet, wait until the command ends.

        The wait takes at most `START_S`.
        """
        self.step()
        if self._running is None or self._file.exists():
            return
        self._say(
            f"price: {self._file} does not exist yet; waiting up to {START_S:g} s for the command of [energy]"
        )
        until_s = self._elapsed() + START_S
        while self._running is not None and self._elapsed() < until_s:
            time.sleep(_POLL_S)
            self.step()

    def step(self) -> None:
        """Start the command if it is due. If it has ended successfully, replace the file of prices.

        Of consecutive failures, only the first is logged.
        """
        if self._running is not None:
            command, printed = self._running
            error = command.error()
            if error is not None:
                self._running = None
                with printed:
                    self._note(error or self._replace(printed.name))
        elif self._elapsed() >= self._due_s:
            self._due_s = self._elapsed() + EVERY_S
            printed = tempfile.NamedTemporaryFile(suffix=".csv")  # noqa: SIM115 - closed when it has ended
            try:
                self._running = SiteCommand(self._words, MOST_S, self._elapsed, printed), printed
            except OSError as failure:
                printed.close()
                self._note(f"{self._words[0]} cannot be run: {failure.strerror or failure}")

    def _replace(self, printed: str) -> str:
        """Replace the file of prices with the command's output, file `printed`. Return an error, else ""."""
        part = self._file.with_name(f".new-{self._file.name}")  # the ending selects compression
        try:
            Series.read(printed).write(part)
            part.replace(self._file)
        except (InputError, OSError) as error:
            part.unlink(missing_ok=True)
            return str(error).replace(printed, "its output")
        return ""

    def _note(self, error: str) -> None:
        if error and not self._failed:
            applies = "the earlier values apply" if self._file.exists() else "no price is known"
            self._say(f"price: the command of [energy] failed: {error}; {applies}; it runs again in an hour")
        self._failed = bool(error)


def _age_s(path: Path) -> float:
    """Return the time since a file was written, seconds; infinite if there is no file."""
    try:
        return max(time.time() - os.stat(path).st_mtime, 0.0)
    except OSError:
        return math.inf
