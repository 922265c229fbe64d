"""A broker keeps its journal within bounds while it serves: another process makes the base, now and then.

The loop starts that process, looks whether it is done, and puts what it made: one short transaction. Entries
that are replaced by it are removed in quiet turns, few at a time.
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
from rlsched.broker.journal.journal import Journal
from rlsched.errors import JournalError

FIRST_S: Final = 600.0
"""The first look is so long after the start ..."""
EVERY_S: Final = DAY_S
"""... and the next ones follow at such intervals."""
PIECE: Final = 500
PIECE_EVERY_S: Final = 0.25
LIMIT_S: Final = 4 * 3600.0
"""A process that takes longer is ended."""


def command(path: Path, before_s: float, half_life_s: float) -> list[str]:
    """The process that makes a base."""
    module = "rlsched.broker.compaction.process"
    return [sys.executable, "-P", "-m", module, str(os.getpid()), str(path), f"{before_s}", f"{half_life_s}"]


class Compacting:
    """Keeps one journal within bounds. `step` is called by the loop, and never waits.

    Args:
        journal: The journal, held by this process.
        keep_days: Days of entries that stay; None: all of them do.
        half_life_s: As of `Book`.
        say: Gets a line for the log when the journal was compacted, and when it could not be.
        make: The command of the process that makes a base.
        elapsed: A clock that never jumps, seconds.
    """

    def __init__(
        self,
        journal: Journal,
        keep_days: float | None,
        half_life_s: float,
        say: Callable[[str], None],
        make: Callable[[Path, float, float], Sequence[str]] = command,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._keep_days, self._half_life_s, self._say = journal, keep_days, half_life_s, say
        self._make, self._elapsed = make, elapsed
        self._process: subprocess.Popen[bytes] | None = None
        self._output = journal.path.with_name(journal.path.name + ".base")
        self._due_s = elapsed() + FIRST_S if keep_days is not None else math.inf
        self._end_s = math.inf
        self._has_leftovers = journal.first > 1
        self._next_piece_s = -math.inf

    def step(self, now_s: float, *, is_quiet: bool) -> None:
        """Do a little of what is due; `now_s`: the broker's time, Unix seconds."""
        elapsed_s = self._elapsed()
        if self._process is not None:
            if self._process.poll() is not None:
                self._pick_up(self._process.returncode)
            elif elapsed_s >= self._end_s:
                self.close()
                self._say(f"journal: not compacted: it took longer than {LIMIT_S:.0f} s")
        elif self._has_leftovers:
            if is_quiet and elapsed_s >= self._next_piece_s:
                self._remove_piece()
                self._next_piece_s = self._elapsed() + PIECE_EVERY_S
        elif elapsed_s >= self._due_s:
            self._due_s = elapsed_s + EVERY_S
            self._begin(now_s)

    def close(self) -> None:
        """End the process under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        with contextlib.suppress(OSError):
            self._output.unlink(missing_ok=True)

    def _begin(self, now_s: float) -> None:
        assert self._keep_days is not None
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        before_s = now_s - self._keep_days * DAY_S
        try:
            with self._output.open("wb") as out:
                self._output.chmod(0o600)  # it holds environments of jobs
                self._process = subprocess.Popen(
                    self._make(self._journal.path, before_s, self._half_life_s),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,  # Ctrl-C reaches the broker alone, which ends this
                )
        except OSError as error:
            self._say(f"journal: not compacted: {error.strerror}")
        self._end_s = self._elapsed() + LIMIT_S

    def _pick_up(self, code: int) -> None:
        self._process = None
        try:
            made = self._output.read_bytes()
            if code != 0:
                raise JournalError(made.decode(errors="replace") or f"its process ended with {code}")
            cut = msgspec.msgpack.decode(made, type=Cut | None)
            if cut is not None and put(self._journal, cut):
                self._has_leftovers = True
                self._say(f"journal: a base stands for the entries up to {cut.n:,} from now on")
        except (OSError, msgspec.MsgspecError, JournalError) as error:
            self._say(f"journal: not compacted: {error}")
        with contextlib.suppress(OSError):
            self._output.unlink()

    def _remove_piece(self) -> None:
        try:
            self._has_leftovers = self._journal.drop(PIECE) > 0
        except JournalError as error:  # those left are nobody's concern until the next start
            self._has_leftovers = False
            self._say(f"journal: replaced entries could not be removed: {error}")
