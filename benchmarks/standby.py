"""Time without a broker: from kill -9 of one until the next has answered a submission.

    python benchmarks/standby.py                          # 20,000 ended jobs in the journal: 2 minutes
    python benchmarks/standby.py --jobs 1000 --turns 3

`again`: a new broker is started at once, as systemd would. `standby`: a standby waits on the same journal.
`copy`: a standby has a copy of the journal, and receives SIGUSR1 at the kill. One client submits all the
time, to a cluster without nodes; the figure of a turn is the longest time of a submission. The last figures
are the time to copy the whole journal, and times of submissions with and without a standby that copies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench_journal import write
from rlsched.client.client import Client
from rlsched.transport.keys import KeyHome

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
OPTIONS = ("--policy", "fifo-backfill", "--prediction", "running-mean")
DEADLINE_S = 300.0
BEFORE_S = 1.0
SUBMISSIONS_S = 5.0


class Brokers:
    """Two brokers with directories of their own, and a client with both addresses."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self.directory = directory
        home = KeyHome(directory / "home")
        home.broker()
        home.client()
        shutil.copytree(directory / "home", directory / "home-b")
        self.places = {"a": (_free_address(), "home"), "b": (_free_address(), "home-b")}
        self.running: list[subprocess.Popen[bytes]] = []
        (directory / "a").mkdir(mode=0o700)
        write(directory / "a" / "journal.sqlite", jobs)

    def start(self, place: str, says: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a broker or a standby, and wait for a text in its output."""
        address, home = self.places[place]
        log = self.directory / f"log-{len(self.running)}"
        where = ("--address", address, "--dir", self.directory / place, "--keys", self.directory / home)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*RLSCHED, "broker", *map(str, where), *OPTIONS, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self.running.append(process)
        _until(lambda: says in log.read_text() or process.poll() is not None)
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        return process

    def client(self) -> Client:
        """A client with both addresses."""
        addresses = ",".join(address for address, _ in self.places.values())
        return Client(addresses, home=self.directory / "home", timeout_s=DEADLINE_S)

    def close(self) -> None:
        """End all brokers."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


def longest_s(brokers: Brokers, change: Callable[[], object]) -> float:
    """Longest time of a submission around a change, seconds."""
    took_s: list[float] = []
    changed, enough = threading.Event(), threading.Event()

    def submit() -> None:
        with brokers.client() as client:
            began_s = 0.0
            while not changed.is_set() or began_s <= changed_s[0]:
                began_s = time.monotonic()
                client.submit(["true"])
                took_s.append(time.monotonic() - began_s)
                if sum(took_s) > BEFORE_S:
                    enough.set()

    changed_s = [0.0]
    thread = threading.Thread(target=submit)
    thread.start()
    enough.wait(DEADLINE_S)
    change()
    changed_s[0] = time.monotonic()
    changed.set()
    thread.join(DEADLINE_S)
    return max(took_s)


def submissions_ms(brokers: Brokers) -> tuple[float, float]:
    """p50 and p99 of one client's submissions, ms."""
    took_ms = []
    with brokers.client() as client:
        until_s = time.monotonic() + SUBMISSIONS_S
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            client.submit(["true"])
            took_ms.append(1000 * (time.perf_counter() - began_s))
    return statistics.median(took_ms), statistics.quantiles(took_ms, n=100)[98]


@contextmanager
def place(jobs: int) -> Iterator[Brokers]:
    """Write the primary's journal, and yield `Brokers` in which no broker runs."""
    with tempfile.TemporaryDirectory() as folder:
        brokers = Brokers(Path(folder), jobs)
        try:
            yield brokers
        finally:
            brokers.close()


def again(brokers: Brokers) -> float:
    """Return the longest time of a submission if the broker gets kill -9 and a new one starts, seconds."""
    first = brokers.start("a", "ready at")

    def change() -> None:
        first.kill()
        first.wait()
        brokers.start("a", "ready at")

    return longest_s(brokers, change)


def standby(brokers: Brokers) -> float:
    """Return the same with a standby on the same journal."""
    first = brokers.start("a", "ready at")
    brokers.start("a", "entries followed", "--standby")
    return longest_s(brokers, first.kill)


def copy(brokers: Brokers) -> float:
    """Return the same with a standby that has a copy of the journal, and gets SIGUSR1."""
    first = brokers.start("a", "ready at")
    second = brokers.start("b", "the copy is complete", "--standby", "--of", brokers.places["a"][0])

    def change() -> None:
        first.kill()
        second.send_signal(signal.SIGUSR1)

    return longest_s(brokers, change)


def copying(brokers: Brokers) -> None:
    """Measure the cost of copying."""
    brokers.start("a", "ready at")
    print("submissions without a standby: p50 {:.1f}, p99 {:.1f} ms".format(*submissions_ms(brokers)))
    began_s = time.monotonic()
    brokers.start("b", "the copy is complete", "--standby", "--of", brokers.places["a"][0])
    print(f"a standby is ready, its copy complete, {time.monotonic() - began_s:.1f} s after its start")
    print(
        "submissions with a standby that copies: p50 {:.1f}, p99 {:.1f} ms".format(*submissions_ms(brokers))
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    for measure in (again, standby, copy):
        turns_s = []
        for _ in range(args.turns):
            with place(args.jobs) as brokers:
                turns_s.append(measure(brokers))
        said = ", ".join(f"{turn_s:.2f}" for turn_s in sorted(turns_s))
        print(f"{measure.__name__}: {said} s without an answer ({args.jobs:,} ended jobs)", flush=True)
    with place(args.jobs) as brokers:
        copying(brokers)


def _free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def _until(look: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not look():
        if time.monotonic() > end_s:
            raise TimeoutError("a broker makes no progress")
        time.sleep(0.002)


if __name__ == "__main__":
    main()
