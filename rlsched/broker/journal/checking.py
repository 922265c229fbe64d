"""Checks of a journal's contents and integrity."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rlsched.broker.base.entries import BasePart
from rlsched.broker.base.rows import JournalRow, rows_and_damage
from rlsched.broker.base.sqlite_errors import clearly
from rlsched.broker.journal.reading import Reading, reading
from rlsched.broker.journal.recovery import MOST_ENDED
from rlsched.broker.journal.snapshot_table import SnapshotTable
from rlsched.broker.journal.wal import check_wal
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import EndedJob, ended_job
from rlsched.broker.state.finished_table import differences
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError, JournalHeldError
from rlsched.files.lock import locked
from rlsched.workload.predict.kinds import RUNNING_MEAN

MAX_DAMAGE = 20


class JournalCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `rlsched journal check`.

    Attributes:
        version: Version of the journal.
        damage: The first `MAX_DAMAGE` errors in the entries, one line each.
        derived: Errors in data derived from the entries (table of ended jobs, snapshots), one line each.
            Empty if the entries themselves are damaged.
        entries: Number of readable entries.
        replaced: Number of entries that a base replaces (`rlsched journal compact --keep-days`).
        last_s: Time of the last entry, Unix seconds; 0 if there is none.
        jobs: Number of submitted jobs by state; empty if the journal is damaged.
        epoch: Epoch of the last broker.
        cluster: ID of the cluster.
        next_job: Job number of the next job.
        bytes: Size on disk, including the write-ahead log, bytes.
    """

    path: str
    version: int
    damage: list[str]
    derived: list[str]
    entries: int
    replaced: int
    last_s: float
    jobs: dict[str, int]
    epoch: int
    cluster: str
    next_job: int
    bytes: int


def check(path: str | Path) -> JournalCheck:
    """Check a whole journal, even if a broker has it open.

    The check covers the pages of the file, the checksums, the table of ended jobs, and the snapshots. Each
    entry must be legal after the entries before it.

    Raises:
        JournalError: the journal is missing, or so damaged that nothing can be read.
    """
    path = Path(path)
    _check_log(path)
    with reading(path) as journal, clearly(path):
        damage = _pages(journal)
        state = BrokerState(Predictions(RUNNING_MEAN), load_scheduler("fifo").order)
        entries, last_s, over_before = 0, 0.0, 0

        def whole() -> Iterator[JournalRow]:
            nonlocal entries, last_s
            for row in rows_and_damage(journal.db, journal.last, after=journal.first - 1):
                if isinstance(row, JournalRow):
                    entries, last_s = entries + 1, row.now_s
                    if not damage:
                        yield row
                else:
                    damage.append(row)

        rows = whole()
        over: list[EndedJob] = []

        def ended() -> Iterator[EndedJob]:
            nonlocal over_before
            for row in rows:
                state.replay([row])
                if isinstance(row.entry, BasePart):
                    over_before = state.num_finished
                if journal.ended_at is not None and row.n <= journal.ended_at:
                    yield from over
                over.clear()
                state.forget(state.now_s, math.inf, MOST_ENDED)

        state.on_finished = lambda job: over.append(ended_job(job, state.nodes))
        derived: list[str] = []
        try:
            found = differences(journal.db, ended(), lambda: over_before)
            for line in found if journal.ended_at is not None else ended():
                if isinstance(line, str) and len(derived) < MAX_DAMAGE:
                    derived.append(line)
        except JournalError as error:
            damage.append(str(error))
        for _ in rows:
            pass
        derived += _snapshots(journal)
    live = Counter(job.state for job in state.job_of_seq.values())
    return JournalCheck(
        path=str(path),
        version=journal.version,
        damage=damage[:MAX_DAMAGE],
        entries=entries,
        replaced=journal.first - 1,
        last_s=last_s,
        derived=[] if damage else derived[:MAX_DAMAGE],
        jobs={} if damage else dict(sorted((live + Counter(state.outcomes)).items())),
        epoch=state.epoch,
        cluster=state.identity,
        next_job=state.last_number + 1,
        bytes=sum(file.stat().st_size for file in path.parent.glob(path.name + "*") if _is_part(path, file)),
    )


def _snapshots(journal: Reading) -> list[str]:
    """Describe the snapshots that are damaged or belong to another journal, one line each."""
    if not journal.has_snapshots:
        return []
    found = SnapshotTable(journal.path, journal.db).newest_first()
    return [f"{one}; a starting broker ignores it" for one in found if isinstance(one, str)]


def _is_part(path: Path, file: Path) -> bool:
    return file.name in (path.name, path.name + "-wal")


def _check_log(path: Path) -> None:
    """Check the write-ahead log, unless a broker has the journal open and may be writing to the log.

    Raises:
        JournalError: the log is damaged.
    """
    if not (path.is_file() and path.with_name(path.name + "-wal").exists()):
        return
    try:
        lock = locked(path)
    except JournalHeldError:
        return
    try:
        check_wal(path)
    finally:
        lock.close()


def _pages(journal: Reading) -> list[str]:
    """Return the errors that SQLite finds in the file's pages."""
    found = itertools.islice(journal.db.execute(f"PRAGMA integrity_check({MAX_DAMAGE})"), MAX_DAMAGE)
    return [f"page structure: {' '.join(str(line).split())}" for (line,) in found if line != "ok"]
