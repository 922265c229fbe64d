"""Very many short jobs on one cluster of real processes: growth of memory, files and the journal.

The jobs are `true`, one GPU each. Four clients keep the queue shorter than `AHEAD`, so that the cluster runs
at full speed. Memory of broker and daemons is read throughout; the result is its growth after the first
third, when every code path has run once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlsched.broker.compaction.compaction import made, put
from rlsched.broker.journal.journal import Journal
from rlsched.client.client import Client
from tests.support.online.cluster import Cluster, all_up, until

CLIENTS = 4
AHEAD = 200
"""Largest number of unfinished jobs of a client."""
SAMPLE_S = 2.0
PATIENCE_S = 300.0
"""How long a client waits for its jobs. The first ones have long predictions, so later ones overtake them."""


class Reading(NamedTuple):
    """One measurement of the daemons.

    Attributes:
        ended: Number of ended jobs.
        rss_mib: Resident memory by process.
        files: Open files by process.
        journal_mib: Size of the journal on disk.
    """

    ended: int
    rss_mib: dict[str, float]
    files: dict[str, int]
    journal_mib: float


class Endured(NamedTuple):
    """Results of a run.

    Attributes:
        jobs: Number of ended jobs.
        failed: Number of jobs that did not complete.
        per_s: Jobs per second.
        readings: All measurements, in order.
        compacted_mib: Size of the journal after a base replaced all its entries.
    """

    jobs: int
    failed: int
    per_s: float
    readings: list[Reading]
    compacted_mib: float

    def growth_mib(self, name: str) -> float:
        """Growth of a process's memory after the first third of the jobs."""
        early = next(one for one in self.readings if one.ended >= self.jobs / 3)
        return self.readings[-1].rss_mib[name] - early.rss_mib[name]

    def growth_files(self, name: str) -> int:
        """Growth of a process's open files after the first third of the jobs."""
        early = next(one for one in self.readings if one.ended >= self.jobs / 3)
        return self.readings[-1].files[name] - early.files[name]


def endure(directory: Path, jobs: int, say: Callable[[str], None] = lambda _: None) -> Endured:
    """Run this number of jobs.

    Args:
        directory: Folder for all files.
        jobs: Number of jobs.
        say: Receives a line every ten measurements.
    """
    cluster = Cluster(directory)
    try:
        readings: list[Reading] = []
        with cluster.client(60.0) as client:
            all_up(client)
            began_s = time.monotonic()
            words = (sys.executable, "-m", "tests.soak.endurance", cluster.address, str(cluster.keys))
            submitting = [subprocess.Popen([*words, str(jobs // CLIENTS)]) for _ in range(CLIENTS)]
            while any(one.poll() is None for one in submitting) or client.jobs():
                readings.append(_read(cluster, client))
                if len(readings) % 10 == 0:
                    say(_line(readings[-1]))
                time.sleep(SAMPLE_S)
            assert all(one.returncode == 0 for one in submitting), "a client could not submit"
            seconds = time.monotonic() - began_s
            readings.append(_read(cluster, client))
            outcomes = client.stats().outcomes
        cluster.running["broker"].terminate()
        cluster.running["broker"].wait(60.0)
        _compact(cluster.journal)
        ended = sum(outcomes.values())
        failed = ended - outcomes.get("completed", 0)
        return Endured(ended, failed, ended / seconds, readings, _journal_mib(cluster))
    finally:
        cluster.close()


def _compact(path: Path) -> None:
    """As `rlsched journal compact --keep-days` does if all entries are old."""
    cut = made(path, time.time())
    assert cut is not None, "a base saves nothing"
    opened = Journal(path)
    assert put(opened, cut)
    while opened.drop():
        pass
    opened.compact()
    opened.close()


def _read(cluster: Cluster, client: Client) -> Reading:
    pids = {name: process.pid for name, process in cluster.running.items()}
    return Reading(
        sum(client.stats().outcomes.values()),
        {name: _rss_mib(pid) for name, pid in pids.items()},
        {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
        _journal_mib(cluster),
    )


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _journal_mib(cluster: Cluster) -> float:
    files = cluster.journal.parent.glob(cluster.journal.name + "*")
    return sum(file.stat().st_size for file in files) / (1 << 20)


def _line(reading: Reading) -> str:
    rss = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in reading.rss_mib.items())
    return f"{reading.ended} jobs ended: {rss}, journal {reading.journal_mib:.1f} MiB"


def _submit(address: str, home: str, jobs: int) -> None:
    """One client: submits this number of jobs, with at most `AHEAD` unfinished."""
    with Client(address, home=home, timeout_s=60.0) as client:
        sent: list[int] = []
        for number in range(jobs):
            sent.append(client.submit(["true"]))
            if number % AHEAD == AHEAD - 1:
                _wait_for(client, set(sent[:-1]))
                sent.clear()


def _wait_for(client: Client, jobs: set[int]) -> None:
    until(lambda: not {job.job for job in client.jobs()} & jobs, "its jobs have ended", PATIENCE_S)


if __name__ == "__main__":
    _submit(sys.argv[1], sys.argv[2], int(sys.argv[3]))
