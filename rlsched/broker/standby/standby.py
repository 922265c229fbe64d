"""A standby on the primary's journal: replays the journal while it waits for the journal's lock.

The kernel releases the lock only when the process that has it exits. Two brokers therefore never have the
same journal open, and a standby does not replace a broker that hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rlsched.broker.journal.journal import Journal
from rlsched.broker.standby.warm import JournalFollower, Warm
from rlsched.errors import InputError, JournalError
from rlsched.files.lock import Holder, boot_id, lock_file, take_lock

LOOK_S = 0.05
"""Interval at which a standby tries to lock the journal, and reads new commits, seconds."""
PAUSE_S = 5.0
"""Pause after a failed attempt to read the journal, seconds."""


@dataclass
class Taken:
    """A journal that this process has taken over.

    Attributes:
        warm: The policy, and the state after the last entry that was replayed.
        open: Function that opens the journal for writing.
        previous: Description of the broker that this process replaces, for the log; "" if the last broker
            ran in this directory.
        since_s: Time of the take-over, seconds of `time.monotonic`.
    """

    warm: Warm
    open: Callable[[Path], Journal]
    previous: str
    since_s: float = field(default_factory=time.monotonic)

    def line(self) -> str:
        """Return the line to log when the broker begins to serve."""
        took_ms = 1000 * (time.monotonic() - self.since_s)
        return f"took over from {self.previous}: {took_ms:.0f} ms until it serves"


def stand_by(
    path: Path, warm: Warm, say: Callable[[str], None], is_stopped: Callable[[], bool]
) -> Taken | None:
    """Replay a journal until this process gets the journal's lock. Return None if `is_stopped` ends the wait.

    Args:
        path: The journal.
        warm: The policy, and the state to which the journal's entries are applied.
        say: Function that logs a line.
        is_stopped: Function that returns whether to stop the wait; called every `LOOK_S`.

    Raises:
        InputError: there is no journal.
        JournalError: the journal's directory cannot be written.
    """
    if not path.exists():
        raise InputError(
            f"{path}: there is no journal to stand by for; start a broker there first, without --standby"
        )
    lock, waiting = lock_file(path), _JournalWatch(path, warm, say)
    try:
        while not is_stopped():
            holder = Holder.read(path)
            if take_lock(lock):
                previous = f"process {holder.process}" if holder.process else "another broker"
                return Taken(warm, lambda path: Journal(path, lock), previous)
            waiting.read_entries(holder)
            time.sleep(0.0 if waiting.has_more else LOOK_S)
    except BaseException:
        lock.close()
        raise
    finally:
        waiting.close()
    lock.close()
    return None


class _JournalWatch:
    """Replays a journal as long as its broker runs on this machine. Logs when the replay begins or fails."""

    def __init__(self, path: Path, warm: Warm, say: Callable[[str], None]) -> None:
        self._path, self._warm, self._say = path, warm, say
        self._follower = JournalFollower(path, warm)
        self._boot_id = boot_id()
        self._not_before_s = 0.0
        self._said = ""
        self.has_more = False

    def read_entries(self, holder: Holder) -> None:
        """Replay new entries. Do nothing if the broker that has the journal's lock is on another machine."""
        self.has_more = False
        if not holder.boot_id or holder.boot_id != self._boot_id:
            self._tell("the broker runs on another machine: its journal is read when it has exited")
            return
        if time.monotonic() < self._not_before_s:
            return
        try:
            self.has_more = self._follower.step()
        except JournalError as error:
            self._not_before_s = time.monotonic() + PAUSE_S
            self._tell(f"the journal cannot be read now: {error}")
            return
        if not self.has_more:
            self._tell(f"{self._warm.last:,} entries followed")

    def _tell(self, what: str) -> None:
        kind = what.partition(" ")[2]  # without the number of entries
        if kind != self._said:
            self._said = kind
            self._say(f"rlsched broker stands by, process {os.getpid()}, for {self._path}: {what}")

    def close(self) -> None:
        """Close the journal."""
        self._follower.close()
