"""Compaction of the journal while a broker serves. Another process makes the base that replaces old entries.

The broker's loop writes the base in one short transaction. It then removes the replaced entries, and old rows
of ended jobs, a few at a time.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rlsched.broker.compaction.compaction import DAY_S, Cut, put
from rlsched.broker.compaction.keeping import GROWN, Keeps
from rlsched.broker.journal.journal import Journal
from rlsched.errors import JournalError
from rlsched.yielding import background_command

FIRST_S: Final = 600.0
"""Time from the broker's start to the first check for old entries, seconds."""
EVERY_S: Final = DAY_S
"""Interval of later checks for old entries, seconds."""
GROWN_EVERY_S: Final = 30.0
"""Minimum time from the broker's start, or from a new base, to the next attempt to make a base, seconds.
Applies if `Keeps.days` is None.
"""
AGAIN_S: Final = 3600.0
"""Minimum time between attempts to make a base, seconds, if the earlier attempt failed or its base would have
saved no space. Applies if `Keeps.days` is None.
"""
PIECE: Final = 500
PIECE_EVERY_S: Final = 0.25
"""Minimum time between two removals of up to `PIECE` old rows, seconds."""
PIECE_BUSY_S: Final = 1.0
"""Time added to `PIECE_EVERY_S` while the loop receives messages, seconds."""
LIMIT_S: Final = 4 * 3600.0
"""Time-out for the process that makes a base, seconds."""


def command(path: Path, before_s: float, half_life_s: float, keep_entries: int) -> list[str]:
    """Return the command of the process that makes a base. The arguments are as in `compaction.made`."""
    module = "rlsched.broker.compaction.process"
    words = (path, before_s, half_life_s, keep_entries)
    return background_command(module, *map(str, words))


class Compacting:
    """Compaction of one journal. The loop calls `step`, which never waits.

    Args:
        journal: The journal, locked by this process.
        keeps: Retention of entries and of rows of ended jobs.
        half_life_s: Half-life of a user's usage for fair share, seconds; infinite: fair share is off.
        say: Function that logs a line, called after each compaction, successful or failed.
        make: Function that returns the command of the process that makes a base.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(
        self,
        journal: Journal,
        keeps: Keeps,
        half_life_s: float,
        say: Callable[[str], None],
        make: Callable[[Path, float, float, int], Sequence[str]] = command,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._keeps, self._half_life_s, self._say = journal, keeps, half_life_s, say
        self._make, self._elapsed = make, elapsed
        self._process: subprocess.Popen[bytes] | None = None
        self._output = journal.path.with_name(journal.path.name + ".base")
        self._due_s = elapsed() + (GROWN_EVERY_S if keeps.days is None else FIRST_S)
        self._ended_due_s = elapsed() + FIRST_S
        self._ended_before_s = 0.0
        self._end_s = math.inf
        self._has_leftovers = journal.first > 1
        self._has_old_ended = False
        self._next_piece_s = -math.inf

    def step(self, now_s: float, *, is_quiet: bool) -> None:
        """Start or poll the process that makes a base, or remove a few old rows, whichever is due.

        Args:
            now_s: The broker's time, Unix seconds.
            is_quiet: Whether the loop received no messages in this turn. Rows are then removed faster.
        """
        elapsed_s = self._elapsed()
        if elapsed_s >= self._ended_due_s and self._keeps.ended_days < math.inf:
            self._ended_due_s = elapsed_s + EVERY_S
            self._ended_before_s, self._has_old_ended = now_s - self._keeps.ended_days * DAY_S, True
        if self._process is not None:
            if self._process.poll() is not None:
                self._pick_up(self._process.returncode)
            elif elapsed_s >= self._end_s:
                self.close()
                self._say(f"journal: not compacted: the compaction took longer than {LIMIT_S:.0f} s")
        elif elapsed_s >= self._due_s and self._is_grown():
            self._due_s = elapsed_s + (AGAIN_S if self._keeps.days is None else EVERY_S)
            self._begin(now_s)
        elif self._has_leftovers or self._has_old_ended:
            self._remove_piece_if_due(is_quiet=is_quiet)

    def _is_grown(self) -> bool:
        """Return whether to make a new base when the next attempt is due.

        If `Keeps.days` is None, this depends on the number of entries (`GROWN`). If `Keeps.days` is finite,
        the result is always True; if it is infinite, always False.
        """
        if self._keeps.days is not None:
            return self._keeps.days < math.inf
        return self._journal.last - self._journal.first >= GROWN * self._keeps.entries

    def close(self) -> None:
        """Kill the process that makes a base, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        with contextlib.suppress(OSError):
            self._output.unlink(missing_ok=True)

    def _begin(self, now_s: float) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        days, entries = self._keeps.days, self._keeps.entries
        before_s, keep_entries = (math.inf, entries) if days is None else (now_s - days * DAY_S, 0)
        try:
            with self._output.open("wb") as out:
                self._output.chmod(0o600)  # the base contains environments of jobs
                self._process = subprocess.Popen(
                    self._make(self._journal.path, before_s, self._half_life_s, keep_entries),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,  # Ctrl-C reaches only the broker, which ends this process
                )
        except OSError as error:
            self._say(f"journal: not compacted: {error.strerror}")
        self._end_s = self._elapsed() + LIMIT_S

    def _pick_up(self, code: int) -> None:
        self._process = None
        try:
            made = self._output.read_bytes()
            if code != 0:
                raise JournalError(
                    made.decode(errors="replace") or f"the compaction's process ended with exit code {code}"
                )
            cut = msgspec.msgpack.decode(made, type=Cut | None)
            if cut is not None and not put(self._journal, cut):
                self._say("journal: not compacted: the journal was replaced or restored in the meantime")
            elif cut is not None:
                self._has_leftovers = True
                if self._keeps.days is None:
                    self._due_s = self._elapsed() + GROWN_EVERY_S
                self._say(f"journal: a base replaces the entries up to {cut.n:,} from now on")
        except (OSError, msgspec.MsgspecError, JournalError) as error:
            self._say(f"journal: not compacted: {error}")
        with contextlib.suppress(OSError):
            self._output.unlink()

    def _remove_piece_if_due(self, *, is_quiet: bool) -> None:
        if self._elapsed() < self._next_piece_s + (0.0 if is_quiet else PIECE_BUSY_S):
            return
        self._next_piece_s = self._elapsed() + PIECE_EVERY_S
        try:
            if self._has_leftovers:
                self._has_leftovers = self._journal.drop(PIECE) > 0
            else:
                self._has_old_ended = self._journal.drop_ended(self._ended_before_s, PIECE) > 0
        except JournalError as error:  # the remaining rows do no harm; the next start tries again
            self._has_leftovers = self._has_old_ended = False
            self._say(f"journal: entries that a base has replaced could not be removed: {error}")
