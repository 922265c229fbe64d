"""Replays a journal while another broker writes to it, so that a take-over replays only the last entries."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from rlsched.broker.base.rows import JournalRow, read_rows
from rlsched.broker.base.sqlite_errors import clearly
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import Reading
from rlsched.broker.journal.recovery import catch_up_state, forget_some, quiet, recover_state
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import EndedJob, ended_job
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.scheduler import Scheduler, permit
from rlsched.errors import JournalError

if TYPE_CHECKING:
    from rlsched.broker.base.past_jobs import PastJobs

PAGE = 10_000
"""Maximum number of entries per read. It is limited because SQLite cannot reuse its log during a read."""


class Warm:
    """A compiled policy, and a broker's state to which the entries of a journal are applied.

    Args:
        scheduler: Policy that will decide.
        fallback: Name of the policy's fallback rule; "" if there is none.
        prediction: Predictor of run times, `running-mean` or `hedge`; None: `hedge`.
        half_life_s: Half-life of a user's usage for fair share, seconds; infinite: fair share is off.
        past: Jobs older than the journal, from which the predictor learns first; None: no such jobs.

    Attributes:
        last: Entry number of the last entry that the state includes; 0 if it includes none.
        checksum: Checksum of entry `last`; None before the first.
        keeps_ended: Whether rows of finished jobs are collected for `take_finished`.
    """

    keeps_ended = False

    def __init__(
        self,
        scheduler: Scheduler,
        fallback: str,
        prediction: str | None,
        half_life_s: float = math.inf,
        past: PastJobs | None = None,
    ) -> None:
        self.scheduler, self.fallback = scheduler, fallback
        self._prediction, self._half_life_s, self._past = prediction, half_life_s, past
        Predictions.warm_up(prediction)
        self.forget()

    def forget(self) -> None:
        """Reset the state to the empty state that precedes the first entry."""
        self._ended: list[EndedJob] = []
        self.state = BrokerState(
            Predictions(self._prediction, self._past), self.scheduler.order, self._half_life_s
        )
        permit(self.state.cluster, self.scheduler)
        self.state.on_finished = self._collect_finished
        self.last = 0
        self.checksum: int | None = None

    def apply(self, rows: list[JournalRow], checksum: int | None) -> None:
        """Replay the next entries. `checksum`: checksum of the last entry of `rows`.

        Raises:
            JournalError: an entry contradicts the entries before it. The state is reset.
        """
        try:
            self.state.follow(rows, self.scheduler)
        except JournalError:
            self.forget()
            raise
        if rows:
            self.last, self.checksum = rows[-1].n, checksum

    def take_finished(self) -> list[EndedJob]:
        """Return the rows of the jobs that finished since the last call; empty if not `keeps_ended`."""
        ended, self._ended = self._ended, []
        return ended

    def _collect_finished(self, job: Job) -> None:
        if self.keeps_ended:
            self._ended.append(ended_job(job, self.state.nodes))
        forget_some(self.state)

    def catch_up(self, journal: Journal, say: Callable[[str], None] = quiet) -> BrokerState:
        """Apply the entries that the state lacks. If the state is from another journal, rebuild it.

        Args:
            journal: The journal.
            say: Function that is called with a line of text for each unusable snapshot.

        Raises:
            JournalError: the journal is damaged.
        """
        is_other = journal.checksum_of(self.last) != self.checksum  # for example, the journal was restored
        if not self.last or is_other or journal.ended_at < self.last:
            fresh = self.state.predictions if not self.last else Predictions(self._prediction, self._past)
            self.state = recover_state(journal, fresh, self.scheduler, say, half_life_s=self._half_life_s)
            return self.state
        return catch_up_state(journal, self.state, self.last, self.scheduler)


class _FileIdentity(NamedTuple):
    """Device and inode of a file, which distinguish it from a later file with the same name."""

    device: int
    inode: int


class JournalFollower:
    """Replays the commits of a broker on this machine from the broker's journal. It never writes.

    The broker must run on this machine, because the processes share memory for SQLite's write-ahead log.
    """

    def __init__(self, path: Path, warm: Warm) -> None:
        self._path, self._warm = path, warm
        self._db: sqlite3.Connection | None = None
        self._seen: _FileIdentity | None = None

    def step(self) -> bool:
        """Replay up to `PAGE` new entries. Return whether more new entries may follow.

        Raises:
            JournalError: the journal cannot be read now, or is damaged.
        """
        try:
            with clearly(self._path):
                rows, checksum, has_more = self._new_rows()
        except BaseException:
            self.close()
            raise
        self._warm.apply(rows, checksum)
        return has_more

    def _new_rows(self) -> tuple[list[JournalRow], int | None, bool]:
        db = self._opened()
        db.execute("BEGIN")
        try:
            reading = Reading(self._path, db)
            if reading.last is None:
                raise JournalError(
                    f"{self._path}: expected a journal of version 2 or later, got version 1; restart its "
                    "broker with this rlsched, which converts the journal"
                )
            if self._warm.last and reading.crc_of(self._warm.last) != self._warm.checksum:
                self._warm.forget()  # the journal was compacted beyond the last replayed entry
            if reading.last == self._warm.last:
                return [], None, False
            after = self._warm.last or reading.first - 1
            rows = list(islice(read_rows(self._path, db, reading.last, after=after), PAGE))
            return rows, reading.crc_of(rows[-1].n), len(rows) == PAGE
        finally:
            db.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        """Return a connection to the journal's file. Open it again if a restore has replaced the file."""
        try:
            stat = self._path.stat()
        except OSError as error:
            raise JournalError(f"{self._path}: cannot read the journal: {error.strerror}") from error
        seen = _FileIdentity(stat.st_dev, stat.st_ino)
        if seen != self._seen:
            self.close()
            if self._seen is not None:
                self._warm.forget()
            self._seen = seen
        if self._db is None:
            uri = f"file:{quote(str(self._path.absolute()))}?mode=ro"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1.0)
        return self._db

    def close(self) -> None:
        """Close the file. Call this before this process opens the journal for writing."""
        if self._db is not None:
            self._db.close()
            self._db = None
