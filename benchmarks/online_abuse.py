"""Cost of abuse for other users: submissions and decisions under each kind of abuse.

    .venv/bin/python benchmarks/online_abuse.py             # 3 minutes
    .venv/bin/python benchmarks/online_abuse.py --only half flood

A broker with its defaults and a node with four simulated GPUs, on loopback, with real processes. One user
submits a job of one line ten times a second and times each answer, while another process does
harm. Undisturbed comes first and last. `decision p99`: of decision times, from the
broker's records. On a machine with few cores the harmful process also takes one of them, and the kernel makes
the broker wait: `loop cpu` is the CPU time of the broker's loop, and `loop waits` the time for which it was
ready and had no core, both in milliseconds of each second. `dropped`: messages that were not read, a second.

    `knock`     endless handshakes with keys that are not on the list
    `flood`     an authorised client sends malformed frames as fast as it can
    `large`     the same with frames above the size limit
    `half`      raw connections that send a byte of a greeting, and no more
    `idle`      1,000 silent authorised connections
    `frozen`    a client that requests long lists, and is stopped before it reads them
    `asking`    two clients that request `queue --all` without end
    `forbidden` a user that cancels others' jobs and sends orders to nodes without end
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq

from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.client.client import Client
from rlsched.decisions.reading import read_records
from rlsched.errors import InputError
from rlsched.transport.access import AccessEntry
from rlsched.transport.dealer import connect_dealer
from rlsched.transport.keys import KeyHome, KeyPair
from rlsched.transport.roles import Peer
from rlsched.wire.messages import Cancel, DrainNode, ListJobs, Message, encode

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
KINDS = ("knock", "flood", "large", "half", "idle", "frozen", "asking", "forbidden")
SECONDS, EVERY_S, SETTLE_S = 8.0, 0.1, 2.0
IDLE, HALF = 1_000, 400


def harm(kind: str, address: str, home: Path) -> None:
    """Do harm of this kind until the process is ended."""
    keys, context = KeyHome(home), zmq.Context()

    def connected(name: str) -> zmq.Socket[bytes]:
        return connect_dealer(context, address, keys.client(name), keys.broker_public())

    def say_without_end(*frames: bytes) -> None:
        door = connected("mallory")
        while True:
            for frame in frames:
                with contextlib.suppress(zmq.Again):
                    door.send(frame, zmq.NOBLOCK)
            with contextlib.suppress(zmq.Again):
                while True:
                    door.recv(zmq.NOBLOCK)

    def asked(*messages: Message) -> tuple[bytes, ...]:
        return tuple(encode(message, number + 1) for number, message in enumerate(messages))

    match kind:
        case "knock":
            while True:
                refused = []
                for _ in range(60):
                    pair = KeyPair(*zmq.curve_keypair())
                    refused.append(connect_dealer(context, address, pair, keys.broker_public()))
                time.sleep(0.25)
                for door in refused:
                    door.close(linger=0)
        case "flood":
            say_without_end(b"", b"\xff" * 40, b"\x93\x01\x01\x81\xa4type\xa3nix", os.urandom(300))
        case "large":
            while True:
                door = connected("mallory")
                with contextlib.suppress(zmq.Again):
                    door.send(b"\0" * (2 << 20), zmq.NOBLOCK)
                time.sleep(0.02)
                door.close(linger=0)
        case "half":
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            while True:
                raw = [socket.create_connection((host, int(port))) for _ in range(HALF)]
                for one in raw:
                    with contextlib.suppress(OSError):
                        one.send(b"\xff")
                time.sleep(1.0)
                for one in raw:
                    one.close()
        case "idle":
            doors_open = [connected("mallory") for _ in range(IDLE)]
            signal.pause()
            del doors_open
        case "frozen":
            door = connected("mallory")
            for _ in range(3_000):
                with contextlib.suppress(zmq.Again):
                    door.send(asked(ListJobs(finished=True))[0], zmq.NOBLOCK)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "asking":
            doors = [connected("mallory") for _ in range(2)]
            while True:
                for door in doors:
                    door.send(asked(ListJobs(finished=True))[0])
                for door in doors:
                    door.recv()
        case "forbidden":
            say_without_end(*asked(Cancel(job=1), DrainNode(node="n0")))


class Trial:
    """A broker and a node, and the figures of each period."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._home, self._hers = directory, directory / "home", directory / "hers"
        keys = KeyHome(self._home)
        keys.broker()
        keys.client()
        hers = KeyHome(self._hers)
        hers.trust(keys.broker_public())
        keys.put(AccessEntry.new(Peer("user", "mallory", "mallory"), hers.client("mallory").public))
        self._running = [
            self._start("broker", "--address", "tcp://127.0.0.1:0", "--dir", str(directory / "b"))
        ]
        self._address = self._wait_for_address()
        node = ("--broker", self._address, "--dir", str(directory / "n"), "--name", "n0", "--gpus", "4")
        self._running.append(self._start("node", *node, "--simulated", "--allow-root"))
        self._client = Client(self._address, home=self._home, timeout_s=60.0)
        self._client.wait(self._client.submit(["true"]))
        self.windows: dict[str, tuple[float, float]] = {}
        self.loops: dict[str, dict[str, float]] = {}

    def _loop(self) -> dict[str, float]:
        """CPU time and waiting of the broker's loop so far, milliseconds, and its dropped messages."""
        broker = self._running[0].pid
        cpu_ns, waits_ns, _ = Path(f"/proc/{broker}/task/{broker}/schedstat").read_text().split()
        dropped = self._client.stats().connections.get("dropped", 0)
        return {
            "loop_cpu_ms": int(cpu_ns) / 1e6,
            "loop_waits_ms": int(waits_ns) / 1e6,
            "dropped": float(dropped),
        }

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen([*RLSCHED, *words, "--keys", str(self._home)], stdout=log, stderr=log)

    def _wait_for_address(self) -> str:
        path, until_s = self._directory / "b" / "address", time.monotonic() + 180.0
        while not (path.exists() and path.read_text().endswith("\n")):
            if time.monotonic() > until_s or self._running[0].poll() is not None:
                raise TimeoutError((self._directory / "broker.log").read_text())
            time.sleep(0.05)
        return path.read_text().strip()

    def measure(self, name: str, kinds: tuple[str, ...]) -> list[float]:
        """Answer times of submissions, milliseconds, under these kinds of harm."""
        words = [sys.executable, __file__, "--address", self._address, "--home", str(self._hers), "--harm"]
        harming = [subprocess.Popen([*words, kind], stderr=subprocess.DEVNULL) for kind in kinds]
        try:
            time.sleep(SETTLE_S)
            before, began_s, taken = self._loop(), time.time(), []
            while time.time() < began_s + SECONDS:
                asked_s = time.perf_counter()
                try:
                    self._client.submit(["true"])
                    taken.append((time.perf_counter() - asked_s) * 1e3)
                except InputError:
                    taken.append(float("inf"))
                time.sleep(max(EVERY_S - (time.perf_counter() - asked_s), 0.0))
            self.windows[name] = (began_s, time.time())
            lasted_s = time.time() - began_s
            self.loops[name] = {what: (much - before[what]) / lasted_s for what, much in self._loop().items()}
        finally:
            for one in harming:
                one.kill()
                one.wait()
        return taken

    def close(self) -> dict[str, float]:
        """End everything; p99 of the decision time in each period, milliseconds."""
        self._client.close()
        for one in self._running:
            one.send_signal(signal.SIGTERM)
            one.wait(60.0)
        records = list(read_records(self._directory / "b" / STORE_FOLDER))
        found = {}
        for name, (from_s, to_s) in self.windows.items():
            took = sorted(record.took_us / 1e3 for record in records if from_s <= record.now_s <= to_s)
            found[name] = at(took, 0.99)
        return found


def at(ordered: list[float], share: float) -> float:
    """A quantile of sorted figures; nan if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--harm", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.harm:
        harm(args.harm, args.address, args.home)
        return
    with tempfile.TemporaryDirectory() as made:
        trial = Trial(Path(made))
        try:
            taken = {"undisturbed": sorted(trial.measure("undisturbed", ()))}
            for kind in args.only:
                taken[kind] = sorted(trial.measure(kind, (kind,)))
            taken["undisturbed again"] = sorted(trial.measure("undisturbed again", ()))
        finally:
            decisions = trial.close()
    found = {
        name: {
            "p50_ms": at(ms, 0.5),
            "p99_ms": at(ms, 0.99),
            "decision_p99_ms": decisions[name],
            **trial.loops[name],
        }
        for name, ms in taken.items()
    }
    if args.json:
        print(json.dumps({"load": os.getloadavg()[0], **found}))
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, milliseconds")
    heads = ("submit p50", "submit p99", "decision p99", "loop cpu", "loop waits", "dropped")
    print(f"{'':20}" + "".join(f"{head:>14}" for head in heads))
    for name, row in found.items():
        print(f"{name:20}" + "".join(f"{value:14.2f}" for value in row.values()))


if __name__ == "__main__":
    main()
