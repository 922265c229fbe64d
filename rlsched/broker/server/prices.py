"""Reads the price of electricity from the file that a broker's cluster file names, and renews the file."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from rlsched.broker.events import PricesRead
from rlsched.broker.server.site_command import SiteCommand
from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.energy.relative import PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError

EVERY_S: Final = 60.0
"""Interval at which the file is checked for changes, seconds."""
COMMAND_EVERY_S: Final = 3600.0
"""Interval at which the command that prints the file is run, seconds."""
COMMAND_MOST_S: Final = 120.0
"""Time after which the command is killed, seconds."""
_POLL_S: Final = 0.05
NO_FILE: Final = (0, 0)
"""Stamp of a file that does not exist."""


class PriceSource:
    """Source of the price that a broker's policy follows.

    A file that changes is read again. If that fails, the previous prices apply until they end. Where no price
    is known, jobs start as without a price. A command of the operator can print the file: it runs at the
    start and then once an hour. The start waits for it only if there is no file yet.

    Args:
        cluster_file: Cluster file with the table `[energy]`; None: no price is known.
        say: Logs a line.
        elapsed: A monotonic clock, seconds.

    Attributes:
        table: The prices; None: there is no file.

    Raises:
        InputError: a file cannot be read, or the cluster file has no table `[energy]`.
    """

    def __init__(
        self,
        cluster_file: Path | None,
        say: Callable[[str], object],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._elapsed, self._checked_s = say, elapsed, elapsed()
        self._energy = None if cluster_file is None else _energy_of(cluster_file)
        self._failed = self._has_ended = self._command_failed = False
        self._running: tuple[SiteCommand, IO[Any]] | None = None
        self._asked_s = -COMMAND_EVERY_S
        self._renew()
        if self._running is not None and not Path(self._followed).exists():
            say(f"price: {self._followed} does not exist yet; waiting for the command of [energy]")
        while self._running is not None and not Path(self._followed).exists():
            time.sleep(_POLL_S)
            self._renew()
        self._stamp, self.table = self._present_stamp(), None
        if self._energy is not None and not (self._energy.command and self._stamp == NO_FILE):
            self.table = _table_of(self._energy)

    def step(self, now_s: float) -> list[PricesRead]:
        """Read the file again if it has changed; log once that it cannot be read, and once that it has ended.

        `now_s`: current time, Unix seconds.
        """
        if self._energy is None or self._elapsed() - self._checked_s < EVERY_S:
            return []
        self._checked_s = self._elapsed()
        self._renew()
        found = self._read_again()
        if self.table is not None and now_s >= self.table.ends_s and not self._has_ended:
            self._say(
                f"price: {self.table.name} has no values for the present time any more; jobs start as "
                "without a price. Append values to the file"
            )
            self._has_ended = True
        return found

    def _read_again(self) -> list[PricesRead]:
        stamp = self._present_stamp()
        if stamp == self._stamp or self._energy is None:
            return []
        try:
            self.table = _table_of(self._energy)
        except InputError as error:
            if not self._failed:
                self._say(f"price: {error}; the earlier values apply")
            self._failed = True
            return []
        self._stamp, self._failed, self._has_ended = stamp, False, False
        return [PricesRead(self.table)]

    @property
    def _followed(self) -> str:
        return "" if self._energy is None else self._energy.followed

    def _present_stamp(self) -> tuple[int, int]:
        try:
            found = os.stat(self._followed)
        except OSError:
            return NO_FILE
        return found.st_mtime_ns, found.st_size

    def _renew(self) -> None:
        """Run the command that prints the file once an hour; log once that it fails."""
        if self._energy is None or not self._energy.command:
            return
        if self._running is None and self._elapsed() - self._asked_s >= COMMAND_EVERY_S:
            self._asked_s = self._elapsed()
            printed: IO[Any] = tempfile.NamedTemporaryFile(suffix=".csv")  # noqa: SIM115 - closed when it ends
            try:
                words = self._energy.command_words
                self._running = SiteCommand(words, COMMAND_MOST_S, self._elapsed, printed), printed
            except OSError as error:
                printed.close()
                self._note_command(f"cannot be run: {error.strerror or error}")
        elif self._running is not None:
            command, output = self._running
            failure = command.error()
            if failure is not None:
                self._running = None
                with output:
                    self._note_command(failure or self._put(output.name))

    def _put(self, printed: str) -> str:
        """Replace the file with what the command printed. Return the error, "" for none."""
        target = Path(self._followed)
        part = target.with_name(f".new-{target.name}")  # `Series` compresses by the end of the name
        try:
            Series.read(printed).write(part)
            part.replace(target)
        except (InputError, OSError) as error:
            part.unlink(missing_ok=True)
            return str(error).replace(printed, "its output")
        return ""

    def _note_command(self, error: str) -> None:
        if error and not self._command_failed:
            applies = "no price is known" if self._present_stamp() == NO_FILE else "the earlier values apply"
            self._say(f"price: the command of [energy] failed: {error}; {applies}; it runs again in an hour")
        self._command_failed = bool(error)


def _energy_of(cluster_file: Path) -> EnergySignals:
    energy = ClusterSpec.read(cluster_file).energy
    if energy is None:
        raise InputError(
            f"--energy {cluster_file}: expected a cluster file with the table [energy], which names a CSV "
            "file as price or carbon; it has no such table"
        )
    return energy


def _table_of(energy: EnergySignals) -> PriceTable:
    return PriceTable(Series.read(energy.followed), energy.known_ahead_h * HOUR_S)
