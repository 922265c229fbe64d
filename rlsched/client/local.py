"""A whole cluster on this machine: a broker and node daemons as child processes, watched and taken down."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rlsched.broker.keys import KeyHome
from rlsched.broker.private import make_private, touch_private
from rlsched.client.client import Client
from rlsched.errors import BrokerUnavailableError, InputError, RlschedError
from rlsched.wire.dealer import dial_address

START_TIMEOUT_S = 120.0
SILENT_S = 3.0
"""A start that takes longer says why."""
STOP_TIMEOUT_S = 20.0
WATCH_S = 0.2
LAST_LINES = 5
_PR_SET_PDEATHSIG = 1
_RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")


@dataclass
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    log_from: int
    """Bytes of the log that earlier runs wrote."""


class LocalCluster:
    """One broker and some node daemons with simulated GPUs.

    Args:
        directory: Journal, logs and job output.
        keys: Key directory.
        address: Where the broker listens; port 0 takes a free one.
        nodes: Node daemons, called n0, n1, ...
        gpus: GPUs on each.
        broker_options: More options of `rlsched broker`.
    """

    def __init__(
        self,
        *,
        directory: Path,
        keys: Path,
        address: str,
        nodes: int,
        gpus: int,
        broker_options: Sequence[str] = (),
    ) -> None:
        self._directory, self._keys, self._address = directory, keys, address
        self._num_nodes, self._gpus = nodes, gpus
        self._broker_options = list(broker_options)
        self._children: list[_Child] = []
        self._stopping = False

    def run(self, announce: Callable[[str], None]) -> int:
        """Start, announce, watch until a signal or a death, take down. Returns the exit code.

        Raises:
            RlschedError: a part did not come up, or died; the message has the end of its log.
        """
        handlers = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            address = self._start(announce)
            if not self._stopping:
                announce(
                    f"rlsched up ready: {self._num_nodes} nodes x {self._gpus} GPUs at {address}, "
                    f"logs in {self._directory}; Ctrl-C takes it down"
                )
            while not self._stopping:
                self._check_children()
                time.sleep(WATCH_S)
            announce("taking the cluster down")
        finally:
            self._take_down()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 0

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._stopping = True

    # ---- start ------------------------------------------------------------------------------------

    def _start(self, announce: Callable[[str], None]) -> str:
        broker_directory = self._directory / "broker"
        try:
            make_private(broker_directory)
            (broker_directory / "address").unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{self._directory}: cannot write here: {error.strerror}") from error
        KeyHome(self._keys).broker()
        self._spawn(
            "broker",
            "broker",
            "--address",
            self._address,
            "--dir",
            str(broker_directory),
            "--keys",
            str(self._keys),
            *self._broker_options,
        )
        listens = self._until(
            "the broker listens",
            lambda: _first_line(broker_directory / "address"),
            lambda: announce(
                "the broker is being started; the first time on this machine its policy is compiled, for up "
                "to a minute"
            ),
        )
        address = dial_address(listens)
        if address:
            for name in (f"n{number}" for number in range(self._num_nodes)):
                self._spawn(
                    name,
                    "node",
                    "--broker",
                    address,
                    "--name",
                    name,
                    "--gpus",
                    str(self._gpus),
                    "--simulated",
                    "--dir",
                    str(self._directory / name),
                    "--keys",
                    str(self._keys),
                    "--end-jobs-on-exit",
                    "--allow-root",  # the jobs are those of whoever started this
                )
            with Client(address, home=self._keys) as client:
                self._until("all nodes are up", lambda: self._all_up(client))
        return address

    def _spawn(self, name: str, *args: str) -> None:
        log = self._directory / f"{name}.log"
        touch_private(log)
        log_from = log.stat().st_size
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*_RLSCHED, *args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ended_with_parent,
            )
        self._children.append(_Child(name, process, log, log_from))

    def _until(self, what: str, look: Callable[[], str], say_why: Callable[[], None] = lambda: None) -> str:
        """Look until there is something; "" if the cluster is to stop meanwhile. `say_why`: it takes long."""
        began_s = time.monotonic()
        deadline, has_said = began_s + START_TIMEOUT_S, False
        while not self._stopping:
            self._check_children()
            found = look()
            if found:
                return found
            if not has_said and time.monotonic() > began_s + SILENT_S:
                has_said = True
                say_why()
            if time.monotonic() > deadline:
                raise RlschedError(
                    f"waited {START_TIMEOUT_S:g} s until {what}; see the logs in {self._directory}"
                )
            time.sleep(0.05)
        return ""

    def _all_up(self, client: Client) -> str:
        try:
            up = sum(node.state == "up" for node in client.nodes())
        except BrokerUnavailableError:
            return ""
        return "up" if up >= self._num_nodes else ""

    def _check_children(self) -> None:
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                kind = InputError if code == InputError.exit_code else RlschedError
                raise kind(
                    f"{child.name} ended with exit code {code}; its log {child.log} ends "
                    f"with: {_tail(child.log, child.log_from)}"
                )

    # ---- stop -------------------------------------------------------------------------------------

    def _take_down(self) -> None:
        """The broker first, so that it starts nothing anew; the nodes keep their jobs' ends for the next."""
        self._end([child for child in self._children if child.name == "broker"])
        self._end([child for child in self._children if child.name != "broker"])

    def _end(self, children: list[_Child]) -> None:
        for child in children:
            child.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _ended_with_parent() -> None:
    """In a child: SIGTERM when the parent dies, whatever kills it (Linux; elsewhere nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _first_line(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.partition("\n")[0] if text.endswith("\n") else ""


def _tail(path: Path, start: int) -> str:
    """The last lines that this run has written to a log."""
    lines = path.read_bytes()[start:].decode(errors="replace").splitlines()
    return " | ".join(line for line in lines[-LAST_LINES:] if line.strip())
