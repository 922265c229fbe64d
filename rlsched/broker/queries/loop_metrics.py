"""Metrics of the broker's loop that are not in the state machine: address, journal, commits."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rlsched.broker.base.entries import Entry
from rlsched.broker.base.timing import Histogram
from rlsched.broker.state.finished_job import EndedJob
from rlsched.wire.messages import JournalReport, Timing


class LoopMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the broker's loop that are not in the state machine.

    Attributes:
        address: Address at which the broker listens.
        journal: Size of the journal and free space on its disk; None: unknown.
        records_kept: Number of decision records written since the start.
        timings: Durations of decisions, commits and turns of the loop (`StatsReport.timings`).
        connections: Counts of handshakes and of refused or dropped messages (`StatsReport.connections`).
    """

    address: str = ""
    journal: JournalReport | None = None
    records_kept: int = 0
    timings: dict[str, Timing] = {}
    connections: dict[str, int] = {}


class CommitsEntries(Protocol):
    """Interface with which `perform` commits entries to the journal."""

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        """Commit a batch of entries; see `Journal.commit`."""


class TimedCommits:
    """A journal that measures how long each commit takes.

    Attributes:
        last_ms: Duration of the last commit, milliseconds; None before the first.
        times: Durations of all commits.
    """

    def __init__(self, journal: CommitsEntries) -> None:
        self._journal = journal
        self.last_ms: float | None = None
        self.times = Histogram()

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        """Commit a batch of entries, and measure how long it takes."""
        began_s = time.perf_counter()
        self._journal.commit(entries, now_s, over)
        took_s = time.perf_counter() - began_s
        self.times.add(took_s)
        self.last_ms = 1e3 * took_s


def journal_report(path: Path, last_commit_ms: float | None, low_mib: int) -> JournalReport:
    """Return the size of a journal with its write-ahead log, and the free space on its disk.

    Args:
        path: The journal.
        last_commit_ms: Duration of the last commit, milliseconds; None before the first.
        low_mib: Free space below which the disk counts as nearly full, MiB.
    """
    size_bytes = 0
    for file in (path, path.with_name(path.name + "-wal")):
        with contextlib.suppress(OSError):
            size_bytes += file.stat().st_size
    free_bytes = None
    with contextlib.suppress(OSError):
        free_bytes = shutil.disk_usage(path.parent).free
    return JournalReport(
        path=str(path),
        size_bytes=size_bytes,
        last_commit_ms=last_commit_ms,
        free_bytes=free_bytes,
        low_bytes=low_mib << 20,
    )
