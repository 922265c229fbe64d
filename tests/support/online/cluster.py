"""A broker and nodes as separate processes, which a test may kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlsched.client.client import Client
from rlsched.transport.keys import KeyHome
from tests.support.moved_clock import MovedClock

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
DEADLINE_S = 60.0
LEAST_PAUSE_S, MOST_PAUSE_S = 0.01, 0.1


def cpu_s(pid: int) -> int:
    """CPU time of a process, whole seconds; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) // os.sysconf("SC_CLK_TCK")


def until(
    look: Callable[[], object],
    what: str,
    patience_s: float = DEADLINE_S,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Poll until a condition is true; the time-out restarts whenever `progress` returns another value."""
    seen, deadline, pause_s = progress(), time.monotonic() + patience_s, LEAST_PAUSE_S
    while time.monotonic() < deadline:
        if look():
            return
        if (now := progress()) != seen:
            seen, deadline, pause_s = now, time.monotonic() + patience_s, LEAST_PAUSE_S
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, MOST_PAUSE_S)  # polls cost the broker more than the tested work
    raise AssertionError(f"waited in vain until {what}")


class Cluster:
    """A broker, and nodes with 4 simulated GPUs each.

    Args:
        directory: Directory of all files.
        nodes: Names of the nodes.
        broker_options: Options of `rlsched broker`.
        node_options: Options of `rlsched node`.
        address: Address at which the broker listens.
        known: Addresses given to nodes and clients; "": the broker's.
        clock: Clock of broker, nodes and shims; None: the kernel's.

    Attributes:
        running: Each process by name: `broker`, and the nodes.
        address: Address of the broker.
        broker_options: As given; they may change between two starts.
        gpu_options: Options of `rlsched node` for its GPUs.
    """

    gpu_options: Sequence[str] = ("--gpus", "4", "--simulated")

    def __init__(
        self,
        directory: Path,
        *,
        nodes: Sequence[str] = ("n0", "n1"),
        broker_options: Sequence[str] = (),
        node_options: Sequence[str] = (),
        address: str = "tcp://127.0.0.1:0",
        known: str = "",
        clock: MovedClock | None = None,
    ) -> None:
        self._clock = clock
        self.directory, self.keys = directory, directory / "home"
        self.journal = directory / "broker" / "journal.sqlite"
        self.address, self.known = address, known
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.broker_options, self._node_options = broker_options, node_options
        KeyHome(self.keys).broker()
        try:
            for name in ("broker", *nodes):
                self.start(name)
        except BaseException:
            self.close()
            raise

    def start(self, name: str) -> None:
        """Start the broker, and wait until it listens; or start a node.

        A broker that compiles kernels prints its progress or uses CPU time, and may take long.
        """
        if name != "broker":
            options = (*self.gpu_options, "--allow-root", *self._node_options)
            place = ("--broker", self.known or self.address, "--dir", str(self.directory / name))
            self._spawn(name, "node", "--name", name, *place, *options)
            return
        found = self.directory / "broker" / "address"
        found.unlink(missing_ok=True)
        place = ("--address", self.address, "--dir", str(self.directory / "broker"))
        self._spawn(name, "broker", *place, *self.broker_options)
        until(
            lambda: (
                (found.exists() and found.read_text().endswith("\n")) or self.running[name].poll() is not None
            ),
            "the broker listens",
            3 * DEADLINE_S,  # tests that write gigabytes block its disk
            progress=lambda: ((self.directory / f"{name}.log").stat().st_size, cpu_s(self.running[name].pid)),
        )
        assert self.running[name].poll() is None, self.log(name)
        self.address = found.read_text().strip()

    def _spawn(self, name: str, *args: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.command(name, *args, "--keys", str(self.keys)),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def command(self, name: str, *args: str) -> list[str]:  # noqa: ARG002 - subclasses look at it
        """The command of `name` for these arguments of `rlsched`."""
        return self._clock.command(RLSCHED[-1], *args) if self._clock else [*RLSCHED, *args]

    def log(self, name: str) -> str:
        """Log of a process."""
        return (self.directory / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        """kill -9."""
        self.running[name].kill()
        self.running[name].wait(DEADLINE_S)

    def signal(self, name: str, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT and similar."""
        self.running[name].send_signal(number)

    def client(self, timeout_s: float = 10.0) -> Client:
        """A client; close it."""
        return Client(self.known or self.address, home=self.keys, timeout_s=timeout_s)

    def close(self) -> None:
        """End all processes."""
        for child in self.running.values():
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.terminate()
        for child in self.running.values():
            child.wait(DEADLINE_S)


def all_up(client: Client, nodes: int = 2) -> None:
    """Wait until this many nodes are up."""
    until(lambda: sum(node.state == "up" for node in client.nodes()) == nodes, f"{nodes} nodes are up")
