"""Follows a journal, and sends notices in order. A cursor on disk stores the position across restarts."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from rlsched.broker.base.entries import BasePart, BrokerStarted, Restored
from rlsched.broker.journal.reading import Reading, reading
from rlsched.errors import InputError, JournalError
from rlsched.notify.notices import JobWatch, Notice
from rlsched.notify.sending import NotDeliveredError, Sends

PAGE_ROWS: Final = 500
FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0
TRIES: Final = 3
"""Number of tries to send a notice that the receiver rejects, after which the notice is skipped."""
_log = logging.getLogger("rlsched.notify")


class Cursor(msgspec.Struct, kw_only=True):
    """Position in a journal up to which notices were sent.

    Attributes:
        entry: Number of the last processed entry. The entry's notice was delivered or skipped, or the entry
            needs no notice. 0 before the first entry.
        crc: Checksum of the entry `entry`, which distinguishes this journal from others.
        since: Number of the entry at which a restarted process begins to read, to find the live jobs with
            requested notices.
        restored: Number of the last `Restored` entry (a restored backup) up to `entry`; 0 if there is none.
    """

    entry: int = 0
    crc: int = 0
    since: int = 1
    restored: int = 0


class CursorFile:
    """The file of a cursor. Only one process can use it at a time.

    Raises:
        InputError: another process uses the file, the file is damaged, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._lock = FileIO(path.with_name(path.name + ".lock"), "a")
        except OSError as error:
            raise InputError(f"{path}: cannot write here: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError(
                f"{path}: another `rlsched notify` uses this cursor; use another --cursor"
            ) from None

    def read(self) -> Cursor | None:
        """Return the cursor; None if the file does not exist yet."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Cursor)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"{self.path}: cannot read this cursor: {error}; remove it to start at the journal's end"
            ) from error

    def write(self, cursor: Cursor, *, durably: bool) -> None:
        """Write the cursor atomically; with `durably`, flush it to the disk first."""
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(cursor) + b"\n")
            if durably:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, self.path)

    def close(self) -> None:
        """Close the file, so that another process can use it."""
        self._lock.close()


class NoticeFollower:
    """Sends the notices of a journal in order, each at least once.

    While the receiver is not available, the notice is retried; later notices wait. A notice that the receiver
    rejects is skipped after `TRIES` tries, and the log reports the skipped notice.

    Args:
        journal: The broker's journal.
        cursor: File with the position to start from; the file is updated. A new cursor starts at the end of
            the journal, or at the start if the journal does not exist yet.
        send: Function that sends one notice.
        stop: Event that ends `run` and every wait.
        first_delay_s: Delay before the second try, seconds; the delay doubles with each try, up to
            `LONGEST_DELAY_S`.
    """

    def __init__(
        self,
        journal: Path,
        cursor: CursorFile,
        send: Sends,
        stop: threading.Event,
        *,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self._journal, self._file, self._send, self._stop = journal, cursor, send, stop
        self._first_delay_s = first_delay_s
        self._cursor = cursor.read()
        self._watch: JobWatch | None = None
        self._away = ""

    def run(self, poll_s: float) -> None:
        """Follow the journal until `stop` is set."""
        while not self._stop.is_set():
            try:
                more = self.step()
                if self._away:
                    _log.warning("the journal can be read again")
                self._away = ""
            except (JournalError, OSError) as error:
                more = False
                if self._cursor is None and not self._journal.exists():
                    self._cursor = Cursor()  # all entries of a new journal are news
                if str(error) != self._away:
                    self._away = str(error)
                    _log.warning("waiting: %s", error)
            if not more:
                self._stop.wait(poll_s)

    def step(self, *, patiently: bool = True) -> bool:
        """Send the notices of the next page of the journal. Return whether there may be more pages.

        Args:
            patiently: Whether to wait for a receiver that is not available. If not, the error is raised.

        Raises:
            JournalError: the journal cannot be read, or is damaged.
            NotDeliveredError: the receiver is not available, and `patiently` is False.
            OSError: the cursor cannot be written.
        """
        with reading(self._journal) as journal:
            if journal.last is None:
                raise JournalError(
                    f"{self._journal}: cannot follow a journal of version 1; `rlsched broker` converts it"
                )
            cursor, watch = self._start_reading(journal, journal.last)
            rows = list(journal.rows_after(cursor.entry, PAGE_ROWS))
        for row in rows:
            notice = watch.apply(row)
            if notice is not None:
                self._watch = None  # until the delivery, the watch is ahead of the cursor
                if not self._deliver(notice, patiently):
                    return False
                self._watch = watch
            cursor.entry, cursor.crc = row.n, row.crc
            cursor.since = watch.since(row.n + 1)
            if isinstance(row.entry, Restored):
                cursor.restored = row.n
            if notice is not None:
                self._file.write(cursor, durably=True)
        if rows:
            self._file.write(cursor, durably=False)
        return len(rows) == PAGE_ROWS

    def _start_reading(self, journal: Reading, last: int) -> tuple[Cursor, JobWatch]:
        """Return the cursor for this journal, and the journal's live jobs that have requested notices."""
        cursor = self._cursor
        if cursor is None:
            found = next(journal.rows_after(last - 1, 1), None) if last else None
            cursor = Cursor(entry=last, crc=found.crc if found else 0)
            _log.info("sending notices for entries after %d of %s", last, self._journal)
        elif cursor.entry and journal.crc_of(cursor.entry) != cursor.crc:
            cursor, self._watch = self._after_restore(journal, cursor), None
        watch = self._watch
        if watch is None:
            watch = JobWatch()
            first = next(journal.rows_after(0, 1), None)
            since = cursor.since
            if first is not None and isinstance(first.entry, BrokerStarted | BasePart):
                watch.cluster = first.entry.cluster
            if first is not None and isinstance(first.entry, BasePart):
                since = first.n if since < first.n + first.entry.parts else since
            for row in journal.rows_after(since - 1, cursor.entry - since + 1):
                watch.apply(row)
                if isinstance(row.entry, Restored):
                    cursor.restored = row.n
        if cursor is not self._cursor:
            self._cursor = cursor
            self._file.write(cursor, durably=True)
        self._watch = watch
        return cursor, watch

    def _after_restore(self, journal: Reading, cursor: Cursor) -> Cursor:
        """Return the cursor to continue from, if the stored cursor does not fit the journal.

        A backup of the journal was restored if there is a `Restored` entry that the cursor does not know.
        Sending then continues at this entry, because the entries before it were processed before the restore.
        Without such an entry, the journal is another one, and sending begins at its start.
        """
        found = [
            row.n
            for row in journal.rows_after(0, journal.last or 0)
            if isinstance(row.entry, Restored) and row.n > cursor.restored
        ]
        if not found:
            _log.warning("%s: not the cursor's journal; sending its notices from the start", self._journal)
            return Cursor()
        before = found[0] - 1
        _log.warning("%s: restored from a backup; continuing after entry %d", self._journal, before)
        return Cursor(entry=before, crc=journal.crc_of(before) or 0, restored=cursor.restored)

    def _deliver(self, notice: Notice, patiently: bool) -> bool:
        """Send or skip a notice. Return False if `stop` was set before the notice was sent or skipped."""
        delay_s, tries, about = self._first_delay_s, 0, {"job": notice.job, "notice": notice.id}
        named = f"notice {notice.id} of job {notice.called}"
        while not self._stop.is_set():
            tries += 1
            try:
                self._send(notice)
            except NotDeliveredError as error:
                if not error.is_passing and tries >= TRIES:
                    _log.error("%s is skipped: %s", named, error, extra=about)
                    return True
                if not patiently and error.is_passing:
                    raise
                if tries == 1:
                    _log.warning("%s was not accepted: %s", named, error, extra=about)
                self._stop.wait(delay_s)
                delay_s = min(2.0 * delay_s, LONGEST_DELAY_S)
            else:
                if tries > 1:
                    _log.warning("%s was accepted at try %d", named, tries, extra=about)
                return True
        return False
