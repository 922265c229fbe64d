"""Starts shims: forked by a small process that is already running, or each with a new interpreter."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rlsched_node.processes import forker, shim
from rlsched_node.processes.spawning import ENVIRONMENT, spawn_process

ANSWER_S = 5.0
"""Time within which a forker must answer, seconds."""
KILLED_S = 1.0
"""Time for which the daemon waits until a killed forker has exited, seconds."""
_log = logging.getLogger("rlsched.node")


class Spawned(NamedTuple):
    """A started shim, and the pipe on which it reports its claim and its end."""

    pid: int
    pipe_fd: int


class Shims:
    """Starts shims. Each shim has its own session, and LANG is its only environment variable.

    Args:
        forks: Start shims with a forker (`forker.py`). If False, each start needs a new interpreter.
    """

    def __init__(self, *, forks: bool = False) -> None:
        self._forks = forks
        self._control: socket.socket | None = None
        self.forker_pid = 0
        if forks:
            self._stand_ready()

    def start(self, path: Path) -> Spawned:
        """Start the shim of an attempt.

        Args:
            path: Directory of the attempt's records.

        Raises:
            OSError: no process can be created.
        """
        told, tells = os.pipe()
        try:
            pid = self._forked(path, tells) or spawn_process(
                path, shim.__file__, passed=tells, blocked=shim.SIGNALS
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tells)
        os.set_blocking(told, False)
        return Spawned(pid, told)

    def close(self) -> None:
        """Stop the forker; its shims continue."""
        if self._control is not None:
            self._control.close()
            self._control = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.forker_pid, 0)
            self.forker_pid = 0

    def _stand_ready(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ANSWER_S)
        with theirs:
            self.forker_pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", forker.__file__, str(shim.PIPE_FD)],
                ENVIRONMENT,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), shim.PIPE_FD),
                ],
                setsid=True,
                setsigmask=shim.SIGNALS,
            )
        self._control = ours

    def _forked(self, path: Path, tells: int) -> int:
        """Start a shim with the forker. Return its process ID; 0 if the forker failed or there is none.

        After a failure, the next call starts a new forker.
        """
        if not self._forks:
            return 0
        if self._control is None:
            self._stand_ready()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [os.fsencode(path)], [tells])
            answer = self._control.recv(200).decode()
            return int(answer)
        except (OSError, ValueError) as error:
            _log.warning("the process that forks shims failed (%s); a new one replaces it", error)
            return self._killed_forker()

    def _killed_forker(self) -> int:
        """Kill the forker. Return the process ID of the shim that it has started in the meantime; 0: none.

        Without the kill, a slow forker would start a second shim later. If it started a shim and was killed
        before it answered, the attempt has two shims, of which one claims it (`LiveRanks`).
        """
        assert self._control is not None
        give_up_s = time.monotonic() + KILLED_S
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.forker_pid, signal.SIGKILL)
            while not os.waitpid(self.forker_pid, os.WNOHANG)[0] and time.monotonic() < give_up_s:
                time.sleep(0.01)
        control, self._control, self.forker_pid = self._control, None, 0
        with control:
            control.setblocking(False)
            try:
                return int(control.recv(200).decode())
            except (OSError, ValueError):
                return 0
