"""Runs replays for the tab «Decisions», one at a time, each in a separate process with a time limit.

The process runs `rlsched explain --instead`, so that TensorBoard's process imports neither the simulator nor
the compiler. A replay is stopped if the page no longer requests its state.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rlsched.errors import InputError
from rlsched.yielding import give_way

LIMIT_S: Final = 120.0
"""Time limit of a replay, seconds. The process of the replay enforces it."""
GRACE_S: Final = 240.0
"""Time from the time limit of a replay until its process is killed, seconds. It is long because the process
starts and compiles code at low CPU priority.
"""
UNWATCHED_S: Final = 10.0
"""A replay is stopped if its state is not requested for this time, seconds."""
_LOOK_S: Final = 0.2
_NICE: Final = 5
_COMMAND: Final = (sys.executable, "-m", "rlsched", "explain", "--json")


class ReplayRunner:
    """Runs replays, one at a time.

    Args:
        command: Command that runs a replay, without its options.
        limit_s: Time limit for a replay, seconds.
        unwatched_s: A replay is stopped if its state is not requested for this time, seconds.
    """

    def __init__(
        self,
        command: Sequence[str] = _COMMAND,
        *,
        limit_s: float = LIMIT_S,
        unwatched_s: float = UNWATCHED_S,
    ) -> None:
        self._command, self._limit_s, self._unwatched_s = command, limit_s, unwatched_s
        self._lock = threading.Lock()
        self._replay: _Replay | None = None
        self._last = 0

    def start(self, store: Path, number: int, candidate: int, hours: float) -> dict[str, Any]:
        """Start a replay, and return its state as `replay_state` does.

        Raises:
            InputError: another replay runs.
            OSError: the process cannot be started.
        """
        with self._lock:
            if self._replay is not None and self._replay.running:
                raise InputError("another replay runs: wait for it, or stop it")
            options = (
                *("--run", str(store), "--decision", str(number), "--hours", f"{hours:g}"),
                *("--instead", str(candidate) if candidate else "rule", "--within", f"{self._limit_s:g}"),
            )
            self._last += 1
            self._replay = _Replay([*self._command, *options], self._limit_s, self._unwatched_s)
        return self.replay_state(self._last)

    def replay_state(self, ticket: int) -> dict[str, Any]:
        """Return the state of a replay: `running`, `done` with the result `found`, or `failed` with `error`.

        Raises:
            InputError: `ticket` is not the number of the latest replay.
        """
        return {"ticket": ticket, "limit_s": self._limit_s, **self._of(ticket).state()}

    def stop(self, ticket: int) -> dict[str, Any]:
        """Stop a replay.

        Raises:
            InputError: `ticket` is not the number of the latest replay.
        """
        self._of(ticket).end("it was stopped")
        return {"ticket": ticket, "state": "failed", "error": "it was stopped"}

    def _of(self, ticket: int) -> _Replay:
        if self._replay is None or ticket != self._last:
            raise InputError(f"ticket: no replay {ticket}, or a later replay has replaced it; start it again")
        return self._replay


class _Replay:
    """The process of a replay. A thread reads the process's output, and kills the process at a time limit."""

    def __init__(self, command: list[str], limit_s: float, unwatched_s: float) -> None:
        self._began = self._looked = time.monotonic()
        self._limit_s, self._unwatched_s = limit_s, unwatched_s
        self._why, self._out, self._err = "", b"", b""
        self._over = threading.Event()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with suppress(OSError):  # the process can have ended already
            give_way(_NICE, self._process.pid)
        threading.Thread(target=self._watch, name="replay", daemon=True).start()
        atexit.register(self.end, "the board has ended")

    @property
    def running(self) -> bool:
        return not self._over.is_set()

    def state(self) -> dict[str, Any]:
        self._looked = time.monotonic()
        if self.running:
            return {"state": "running", "took_s": self._looked - self._began}
        if self._process.returncode == 0:
            with suppress(ValueError):
                return {"state": "done", "found": json.loads(self._out)}
        said = self._err.decode(errors="replace").strip().splitlines()
        return {"state": "failed", "error": self._why or (said[-1] if said else "the replay ended early")}

    def end(self, why: str) -> None:
        if self.running:
            self._kill(why)
            self._over.wait()

    def _kill(self, why: str) -> None:
        self._why = why
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        while True:
            try:
                self._out, self._err = self._process.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                now_s = time.monotonic()
            if now_s - self._began > self._limit_s + GRACE_S:
                self._kill(f"could not finish within {self._limit_s:g} s; ask for fewer hours")
            elif now_s - self._looked > self._unwatched_s:
                self._kill("its page was closed")
        atexit.unregister(self.end)
        self._over.set()
