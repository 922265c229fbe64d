"""Cost of many idle nodes for a broker: registration and heartbeats.

    .venv/bin/python -m benchmarks.bench_nodes                  # 2,000 nodes of 8 GPUs: 1 minute
    .venv/bin/python -m benchmarks.bench_nodes --nodes 500 --json

Each node is the state machine of the node daemon, with its own socket and keys; all are in one process,
on loopback, so they share the machine with the broker, which has its defaults. `register_s`: from the first
connection to the last welcome. `cpu_register_s`: the broker's CPU time during the registration.
`beat_percent`: the broker's CPU time during heartbeats, percent of a core. `rss_mb`: resident memory of the
broker after the heartbeats.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq

from rlsched.broker.journal.mark import ADDRESS_FILE
from rlsched.transport.dealer import connect_dealer
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import Hello, decode, encode
from rlsched_node.lease_file import since_boot_s
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes.steps import Connected, Event, NodeTick, Received, Send

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
GPUS, DEADLINE_S, BEAT_S, TICK_S = 8, 120.0, 20.0, 0.2
TARGETS = {"register_s": "< 5", "cpu_register_s": "", "beat_percent": "< 10", "rss_mb": "< 300"}


class Node:
    """A node without GPUs or ranks.

    Args:
        name: Name of the node.
        socket: Connection to the broker.
    """

    def __init__(self, name: str, socket: zmq.Socket[bytes]) -> None:
        uuids = [f"{name}-{gpu}" for gpu in range(GPUS)]
        hello = Hello(name=name, gpus=GPUS, gpu_uuids=uuids, cpus=64, memory_mib=500_000, boot_id=name)
        self.machine = NodeMachine(hello)
        self.socket = socket

    def feed(self, event: Event) -> None:
        """Apply an event, and send the resulting messages."""
        for effect in self.machine.handle(event, since_boot_s()):
            if isinstance(effect, Send):
                with contextlib.suppress(zmq.Again):
                    self.socket.send(encode(effect.message, effect.request), zmq.NOBLOCK)

    def receive(self) -> None:
        """Receive the waiting messages."""
        with contextlib.suppress(zmq.Again):
            while True:
                said = decode(self.socket.recv(zmq.NOBLOCK))
                self.feed(Received(said.message, said.request))  # type: ignore[arg-type]


class Nodes:
    """All nodes, in one loop."""

    def __init__(self, address: str, home: KeyHome, number: int) -> None:
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, number + 100)
        pairs = {name: home.node(name) for name in (f"n{k}" for k in range(number))}
        public = home.broker_public()
        self.began_s, self._ticked_s = time.monotonic(), 0.0
        self._nodes: dict[zmq.Socket[bytes], Node] = {}
        self._poller = zmq.Poller()
        for name, pair in pairs.items():
            socket = connect_dealer(self._context, address, pair, public)
            self._nodes[socket] = Node(name, socket)
            self._poller.register(socket, zmq.POLLIN | zmq.POLLOUT)

    @property
    def registered(self) -> int:
        """Number of nodes that the broker has welcomed."""
        return sum(node.machine.is_registered for node in self._nodes.values())

    def step(self) -> None:
        """Handle new messages and due ticks."""
        for socket, what in self._poller.poll(20):
            node = self._nodes[socket]
            if what & zmq.POLLOUT:
                self._poller.modify(socket, zmq.POLLIN)
                node.feed(Connected())
            if what & zmq.POLLIN:
                node.receive()
        now_s = since_boot_s()
        if now_s - self._ticked_s < TICK_S:
            return
        self._ticked_s = now_s
        for node in self._nodes.values():
            if node.machine.is_connected and node.machine.next_tick_s() <= now_s:
                node.feed(NodeTick())

    def close(self) -> None:
        """Close all connections."""
        self._context.destroy(0)


def cpu_s(pid: int) -> float:
    """CPU time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1e3


def measure(directory: Path, number: int) -> dict[str, float]:
    """Register this many nodes, and let them send heartbeats.

    Raises:
        TimeoutError: The nodes do not register.
    """
    where, home = directory / "broker", KeyHome(directory / "home")
    log = directory / "log"
    words = ("--address", "tcp://127.0.0.1:0", "--dir", str(where), "--keys", str(home.directory))
    with log.open("w") as output:
        broker = subprocess.Popen([*RLSCHED, "broker", *words], stdout=output, stderr=output)
    try:
        while "ready" not in log.read_text():
            if broker.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        began_cpu_s = cpu_s(broker.pid)
        nodes = Nodes((where / ADDRESS_FILE).read_text().strip(), home, number)
        while (registered := nodes.registered) < number:
            if time.monotonic() - nodes.began_s > DEADLINE_S:
                raise TimeoutError(f"{registered} of {number} nodes registered in {DEADLINE_S:g} s")
            nodes.step()
        found = {"register_s": time.monotonic() - nodes.began_s}
        found["cpu_register_s"] = cpu_s(broker.pid) - began_cpu_s
        _let_pass(nodes, BEAT_S / 4)
        began_s, began_cpu_s = time.monotonic(), cpu_s(broker.pid)
        _let_pass(nodes, BEAT_S)
        found["beat_percent"] = 100.0 * (cpu_s(broker.pid) - began_cpu_s) / (time.monotonic() - began_s)
        if nodes.registered < number:
            raise RuntimeError(f"{number - nodes.registered} nodes were lost during heartbeats")
        found["rss_mb"] = rss_mb(broker.pid)
        nodes.close()
        return found
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(60.0)


def _let_pass(nodes: Nodes, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        nodes.step()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as made:
        found = measure(Path(made), args.nodes)
    load = os.getloadavg()[0]
    if args.json:
        print(json.dumps({"load": load, "nodes": args.nodes, **found}))
        return
    print(f"load average {load:.1f} on {os.cpu_count()} cores; {args.nodes:,} nodes of {GPUS} GPUs")
    print("".join(f"{name:>16}" for name in TARGETS))
    print("".join(f"{found[name]:16.1f}" for name in TARGETS))
    print("".join(f"{target:>16}" for target in TARGETS.values()) + "   for 2,000 nodes")


if __name__ == "__main__":
    main()
