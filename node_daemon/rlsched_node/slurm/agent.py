"""An agent: runs the tasks of steps on a node other than the first."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from rlsched_node.processes.shim import STRAGGLER_GRACE_S
from rlsched_node.slurm.frames import BACKLOG_BYTES, Head, Link
from rlsched_node.slurm.key import AT_VARIABLE
from rlsched_node.slurm.loop import Loop
from rlsched_node.slurm.tasks import ENDING, Tasks

CONNECT_S: Final = 3.0
"""Maximum time of one try to connect, seconds."""
GIVE_UP_S: Final = 300.0
"""An agent that cannot reach the first node fails after this time, seconds."""
PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 2.0
EXIT_UNREACHABLE: Final = 1


class Agent:
    """Connects to the server on the first node, and carries out its orders.

    Args:
        loop: The loop.
        key: The job's key.
        terms: Data about the rank and the job's nodes, as in the argument TERMS of `batch.py`.
        environment: Function that returns the environment of this node's tasks, given the names of the job's
            nodes.
    """

    def __init__(
        self,
        loop: Loop,
        key: bytes,
        terms: dict[str, Any],
        environment: Callable[[list[str]], dict[str, str]],
    ) -> None:
        self._loop, self._key, self._terms, self._environment = loop, key, terms, environment
        self._link: Link | None = None
        self._tasks: Tasks | None = None
        self._code: int | None = None
        self._lost = ""
        self._signal = 0

    def run(self, signals: Sequence[int]) -> int:
        """Run until the server ends the job, and return 0. Return another exit code if the server is lost."""
        give_up_s = time.monotonic() + GIVE_UP_S
        pause_s = PAUSE_S
        while not self._connect():
            if time.monotonic() > give_up_s:
                return self._fail(f"not reached within {GIVE_UP_S:.0f} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        self._loop.listen(*signals)
        self._loop.on_signal = self._pass_on
        while self._code is None:
            self._loop.turn()
            if self._tasks is not None:
                self._tasks.watch_outputs()
                if self._lost and not self._tasks:
                    return 128 + self._signal if self._signal else self._fail(self._lost)
        return self._code

    def _connect(self) -> bool:
        """Try each port of the server. Return whether the server has answered."""
        for port in self._terms["ports"]:
            try:
                sock = socket.create_connection((self._terms["master"], port), CONNECT_S)
            except OSError:
                continue
            ended: list[str] = []
            link = Link(self._loop, sock, self._key, is_server=False, receive=self._obey, closed=ended.append)
            self._link, self._port = link, port
            link.send({"role": "agent", "rank": self._terms["rank"], "attempt": self._terms["attempt"]})
            give_up_s = time.monotonic() + CONNECT_S
            while not (ended or link.is_proven) and time.monotonic() < give_up_s:
                self._loop.turn(0.1)
            if link.is_proven and not ended:
                link.closed = self._lose
                return True
            link.close()
        return False

    def _fail(self, why: str) -> int:
        ports = self._terms["ports"]
        print(
            f"rlsched: the job's first node, {self._terms['master']} at the ports {ports}: {why}; "
            "check `rlsched node --host` there, and the firewall between the nodes",
            file=sys.stderr,
            flush=True,
        )
        return EXIT_UNREACHABLE

    def _pass_on(self, number: int) -> None:
        """Send to the tasks a signal that the job has received on this node."""
        if number in ENDING:
            self._signal = number
        if self._tasks is not None and number == signal.SIGCHLD:
            self._tasks.reap()
        elif self._tasks is not None:
            self._tasks.signal_all(number)
            if number == signal.SIGTERM:
                self._tasks.signal_all(signal.SIGCONT)

    def _obey(self, head: Head, data: bytes) -> None:
        """Handle a message of the server."""
        link = self._link
        assert link is not None
        if head["do"] == "welcome":
            env = self._environment(head["names"])
            env[AT_VARIABLE] = f"{self._terms['master']}:{self._port}"
            self._tasks = Tasks(self._loop, env, link.send, lambda _: link.backlog_bytes >= BACKLOG_BYTES)
            link.send({"is": "ready", "env": env})
        elif head["do"] == "end":
            self._kill()
            self._code = 0
        elif self._tasks is not None:
            self._tasks.handle(head, data)

    def _lose(self, why: str) -> None:
        """End the tasks, because the connection to the first node has ended before the job."""
        if self._code is not None or self._tasks is None:
            return
        self._lost = why or "it has closed the connection"
        self._tasks.signal_all(signal.SIGTERM)
        self._loop.after(STRAGGLER_GRACE_S, partial(self._kill))

    def _kill(self) -> None:
        if self._tasks is not None:
            self._tasks.signal_all(signal.SIGKILL)
