"""Monitors the journal's disk. New jobs are refused if little space is free, and a full disk loses no data.

If the disk becomes full, the broker deletes a reserve file, so that it can still commit the ends of jobs.
When there is space, the broker creates the file again. If a batch still cannot be committed, the broker
retries, and sends the batch's output only after the commit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlsched.broker.base.entries import Entry
from rlsched.broker.queries.loop_metrics import CommitsEntries
from rlsched.broker.state.finished_job import EndedJob
from rlsched.errors import JournalFullError
from rlsched.files.private import touch_private

MIB = 1 << 20
RESERVE_FILE = "reserve"
RESERVE_MIB = 8
LOOK_S = 1.0
"""Interval at which the free space is checked, seconds."""
RETRY_S = 0.25
"""Interval at which a commit is retried while the disk is full, seconds."""


class Disk:
    """Monitors the free space of the journal's disk, and keeps a reserve file that is deleted on a full disk.

    Args:
        directory: The journal's directory.
        min_free_mib: Free space below which new jobs are refused, MiB; 0: new jobs are never refused.
        say: Function that logs a line, called when refusals begin or end.
    """

    def __init__(self, directory: Path, min_free_mib: int, say: Callable[[str], None]) -> None:
        self._directory, self._min_free_mib, self._say = directory, min_free_mib, say
        self._reserve = directory / RESERVE_FILE
        self._looked_s = -LOOK_S
        self._refusal = ""

    def refusal(self) -> str:
        """Return the error message with which new submissions are refused; "" if they are accepted."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            self._look()
        return self._refusal

    def _look(self) -> None:
        free_mib = self.free_mib()
        short = free_mib < self._min_free_mib
        if short != bool(self._refusal):
            self._say(
                f"disk: {free_mib:.0f} MiB free at {self._directory}, --min-free-mib {self._min_free_mib}: "
                + (
                    "new jobs are refused, everything else continues"
                    if short
                    else "new jobs are accepted again"
                )
            )
        self._refusal = ""
        if short:
            self._refusal = (
                f"the broker's disk is nearly full: {free_mib:.0f} MiB free at {self._directory}, expected "
                f"{self._min_free_mib} (--min-free-mib); free space there, then submit again"
            )
        elif free_mib >= self._min_free_mib + 2 * RESERVE_MIB:
            self._make_reserve()

    def free_mib(self) -> float:
        """Return the free disk space that is available to the broker's user, MiB."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize / MIB

    def make_room(self) -> None:
        """Delete the reserve file if less than 1 MiB is free. Call this before opening a journal."""
        if self._directory.is_dir() and self.free_mib() < 1.0:
            self.give_up_reserve()

    def give_up_reserve(self) -> bool:
        """Delete the reserve file. Return True if it existed: then there is space to retry a commit."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        self._say(
            f"disk: full at {self._directory}; deleted the reserve of {RESERVE_MIB} MiB; free space there"
        )
        return True

    def _make_reserve(self) -> None:
        if self._reserve.exists():
            return
        with suppress(OSError):  # tried again at the next check
            try:
                touch_private(self._reserve)
                with self._reserve.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, RESERVE_MIB * MIB)
            except OSError:
                self._reserve.unlink(missing_ok=True)


class PatientCommits:
    """Commits to a journal, and retries while the disk is full.

    Args:
        disk: The journal's disk.
        meanwhile: Function that is called after each failed attempt, with its error. If the function returns
            False, the commit is given up.
        say: Function that logs a line, called after the first failed attempt, and when the commit succeeds.
    """

    def __init__(
        self,
        journal: CommitsEntries,
        disk: Disk,
        meanwhile: Callable[[JournalFullError], bool],
        say: Callable[[str], None],
    ) -> None:
        self._journal, self._disk, self._meanwhile, self._say = journal, disk, meanwhile, say

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        """Commit a batch; retry while the disk is full.

        Raises:
            JournalFullError: the disk is full, and `meanwhile` returned False. Nothing was written.
            JournalError: as `Journal.commit`.
        """
        waited = False
        while True:
            try:
                self._journal.commit(entries, now_s, over)
            except JournalFullError as error:
                if self._disk.give_up_reserve():
                    continue
                if not waited:
                    self._say(f"disk: full, nothing is acknowledged until there is space: {error}")
                waited = True
                if not self._meanwhile(error):
                    raise
            else:
                if waited:
                    self._say("disk: there is space again; the waiting batch is committed")
                return
