"""A whole cluster on this machine: a broker and node daemons as child processes."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from types import FrameType

from rlsched.client.client import Client
from rlsched.client.restarts import MOST, Restarts
from rlsched.compile.compiling import SAYS
from rlsched.errors import BrokerUnavailableError, InputError, JournalError, RlschedError
from rlsched.files.lock import Holder, lock_file, take_lock
from rlsched.files.private import make_private, touch_private
from rlsched.signals import end_with_parent, on_signals
from rlsched.transport.dealer import dial_address
from rlsched.transport.keys import KeyHome

START_TIMEOUT_S = 120.0
SILENT_S, AGAIN_S = 1.0, 1.5
"""Time of waiting after which a message is printed, and time between two messages, seconds."""
STOP_TIMEOUT_S = 20.0
WATCH_S = 0.2
LAST_LINES = 5
BROKER = "broker"
"""Name of the broker among the child processes."""
_RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")


@dataclass
class _LocalProcess:
    name: str
    args: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path
    log_from: int
    """Position in the log, bytes, at which the output of this process begins."""
    began_s: float
    restarts: Restarts
    again_s: float | None = None
    """Time of the next start, seconds of the monotonic clock; None: the process runs; infinite: it is not
    started again."""

    def how(self, code: int) -> str:
        """Return a text on how the process ended, with the last lines of its log."""
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        tail = _tail(self.log, self.log_from)
        return f"{self.name} {ended}; its log {self.log} " + (f"ends with: {tail}" if tail else "is empty")


class LocalCluster:
    """One broker and some node daemons with simulated GPUs.

    Args:
        directory: Directory of the journal, the logs and the output of jobs.
        keys: Key directory.
        address: Address of the broker; port 0 selects a free port.
        nodes: Number of node daemons, named n0, n1, ...
        gpus: GPUs per node.
        gpu_types: GPU models, assigned to the nodes in turn; if empty, all nodes get the model `generic`.
        broker_options: Further options of `rlsched broker`.
        node_options: Further options of `rlsched node`.
        note: Text to print when the cluster is ready.
    """

    def __init__(
        self,
        *,
        directory: Path,
        keys: Path,
        address: str,
        nodes: int,
        gpus: int,
        gpu_types: Sequence[str] = (),
        broker_options: Sequence[str] = (),
        node_options: Sequence[str] = (),
        note: str = "",
    ) -> None:
        self._directory, self._keys, self._address = directory, keys, address
        self._num_nodes, self._gpus = nodes, gpus
        self._types = list(gpu_types) or ["generic"]
        self._broker_options, self._note = list(broker_options), note
        self._node_options = list(node_options)
        self._children: list[_LocalProcess] = []
        self._stopping = False

    def run(self, announce: Callable[[str], None], *, listens: Callable[[], object] = lambda: None) -> int:
        """Start the cluster, and run it until a signal arrives. Return the exit code.

        A node that exits while the cluster runs is started again (see `Restarts`).

        Args:
            announce: Function that is called with each message for the user.
            listens: Function that is called when the broker listens.

        Raises:
            RlschedError: a process did not start, the broker exited, or every node exited too often. The
                message contains the last lines of a log.
        """
        with self._alone(), on_signals(self._on_signal):
            try:
                address = self._start(announce, listens)
                if not self._stopping:
                    nodes = "1 node" if self._num_nodes == 1 else f"{self._num_nodes} nodes"
                    announce(
                        f"rlsched up ready: {nodes} x {self._gpus} GPUs at {address}, "
                        f"logs in {self._directory}; Ctrl-C stops it, jobs included (under `rlsched "
                        "broker` and `rlsched node`, jobs continue without the broker)"
                    )
                    if self._note:
                        announce(self._note)
                while not self._stopping:
                    self._supervise(announce)
                    time.sleep(WATCH_S)
                announce("stopping the cluster")
            finally:
                self._take_down()
        return 0

    def _alone(self) -> FileIO:
        """Lock the directory for this cluster, and return the lock file.

        The lock is released when the lock file is closed, or when this process ends.

        Raises:
            InputError: another cluster has the lock, or the directory is not writable.
        """
        try:
            make_private(self._directory)
            lock = lock_file(self._directory / "up")
        except OSError as error:
            raise InputError(f"{self._directory}: cannot write here: {error.strerror}") from error
        except JournalError as error:
            raise InputError(str(error)) from error
        if not take_lock(lock):
            lock.close()
            holder = Holder.read(self._directory / "up")
            raise InputError(
                f"another `rlsched up` runs in {self._directory}"
                + (f" (process {holder.process})" if holder.process else "")
                + "; stop it with Ctrl-C, or use another --dir and --address"
            )
        return lock

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._stopping = True

    # ---- start ------------------------------------------------------------------------------------

    def _start(self, announce: Callable[[str], None], listens: Callable[[], object]) -> str:
        broker_directory = self._directory / "broker"
        try:
            make_private(broker_directory)
            (broker_directory / "address").unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{self._directory}: cannot write here: {error.strerror}") from error
        KeyHome(self._keys).broker()
        self._spawn(
            BROKER,
            "broker",
            "--address",
            self._address,
            "--dir",
            str(broker_directory),
            "--keys",
            str(self._keys),
            *self._broker_options,
        )
        found = self._until(
            "the broker listens",
            lambda: _first_line(broker_directory / "address"),
            announce,
        )
        listens()
        address = dial_address(found)
        if address:
            for number in range(self._num_nodes):
                name = f"n{number}"
                self._spawn(
                    name,
                    "node",
                    "--broker",
                    address,
                    "--name",
                    name,
                    "--gpus",
                    str(self._gpus),
                    "--gpu-type",
                    self._types[number % len(self._types)],
                    "--simulated",
                    "--dir",
                    str(self._directory / name),
                    "--keys",
                    str(self._keys),
                    "--end-jobs-on-exit",
                    "--allow-root",  # jobs run as the user who started this
                    *self._node_options,
                )
            with Client(address, home=self._keys) as client:
                if self._until("all nodes are up", lambda: self._all_up(client), announce):
                    self._name_others(client, announce)
        return address

    def _spawn(self, name: str, *args: str) -> None:
        self._children.append(self._start_child(name, args, Restarts()))

    def _start_child(self, name: str, args: tuple[str, ...], restarts: Restarts) -> _LocalProcess:
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
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )
        return _LocalProcess(name, args, process, log, log_from, time.monotonic(), restarts)

    def _until(self, what: str, look: Callable[[], str], announce: Callable[[str], None]) -> str:
        """Call `look` repeatedly until it returns a text that is not empty, and return the text.

        A long wait is announced, with `what` as its reason. New lines about compilation in the broker's log
        are announced too, and restart the time-out. If the cluster is stopped meanwhile, return "".

        Raises:
            RlschedError: the time-out has passed, or a process has exited.
        """
        began_s = time.monotonic()
        deadline, speak_s, compiled = began_s + START_TIMEOUT_S, began_s + SILENT_S, ""
        while not self._stopping:
            self._check_children()
            found = look()
            if found:
                return found
            now_s = time.monotonic()
            if now_s > speak_s:
                speak_s = now_s + AGAIN_S
                announce(f"waiting until {what}, {now_s - began_s:.0f} s")
            compiles = self._last_compiled()
            if compiles not in ("", compiled):
                compiled, deadline = compiles, now_s + START_TIMEOUT_S
                speak_s = now_s + AGAIN_S
                announce(f"broker: {compiles}")
            if time.monotonic() > deadline:
                raise RlschedError(
                    f"waited {START_TIMEOUT_S:g} s until {what}; see the logs in {self._directory}"
                )
            time.sleep(0.05)
        return ""

    def _last_compiled(self) -> str:
        """Return the last line about compilation in the broker's log."""
        broker = self._children[0]
        with broker.log.open("rb") as log:
            log.seek(broker.log_from)
            said = log.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(said) if line.startswith(SAYS)), "")

    def _all_up(self, client: Client) -> str:
        """Return "up" if all started nodes have registered, even if they are drained; else ""."""
        try:
            here = {node.name for node in client.nodes() if node.state in ("up", "drained")}
        except BrokerUnavailableError:
            return ""
        return "up" if here.issuperset(f"n{number}" for number in range(self._num_nodes)) else ""

    def _name_others(self, client: Client, announce: Callable[[str], None]) -> None:
        """Announce drained nodes, and unreachable nodes that have jobs of an earlier `rlsched up`."""
        for node in client.nodes():
            if node.state == "drained":
                announce(f"node {node.name} starts no jobs: {node.reason}; see `rlsched nodes`")
            if node.state == "unreachable" and node.jobs:
                jobs = ", ".join(map(str, node.jobs))
                announce(
                    f"node {node.name} of an earlier start is not started, its jobs wait for it ({jobs}); "
                    f"`rlsched node down {node.name}` requeues them"
                )

    def _check_children(self) -> None:
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                raise _failure(child, code)

    def _supervise(self, announce: Callable[[str], None]) -> None:
        """Restart nodes that have exited, each after its back-off.

        Raises:
            RlschedError: the broker has exited, or no node can be restarted.
        """
        for at, child in enumerate(self._children):
            now_s = time.monotonic()
            if child.again_s is not None:
                if now_s >= child.again_s:
                    self._children[at] = self._start_child(child.name, child.args, child.restarts)
                    announce(f"{child.name} is started again, {child.restarts.in_a_row} of {MOST} in a row")
                continue
            code = child.process.poll()
            if code is None:
                continue
            if child.name == BROKER:
                raise _failure(child, code)
            wait_s = child.restarts.delay_s(now_s - child.began_s)
            child.again_s = now_s + wait_s
            if math.isfinite(wait_s):
                then = f"it is started again in {wait_s:g} s, and the others continue"
            else:
                then = f"it ended {MOST + 1} times in a row and stays down; the others continue"
            announce(f"{child.how(code)}; {then}")
            if all(one.again_s == math.inf for one in self._children if one.name != BROKER):
                raise _failure(child, code)

    # ---- stop -------------------------------------------------------------------------------------

    def _take_down(self) -> None:
        """Stop the broker first, so that no jobs start. Then stop the nodes, which end their jobs."""
        self._end([child for child in self._children if child.name == BROKER])
        self._end([child for child in self._children if child.name != BROKER])

    def _end(self, children: list[_LocalProcess]) -> None:
        for child in children:
            child.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _failure(child: _LocalProcess, code: int) -> RlschedError:
    kind = InputError if code == InputError.exit_code else RlschedError
    return kind(child.how(code))


def _first_line(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.partition("\n")[0] if text.endswith("\n") else ""


def _tail(path: Path, start: int) -> str:
    """Return the last lines of a log, without the bytes before `start`."""
    lines = path.read_bytes()[start:].decode(errors="replace").splitlines()
    return " | ".join(line for line in lines[-LAST_LINES:] if line.strip())
