"""From a journal to a book: what a broker does before it listens, and what it keeps so that it is quick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rlsched.broker.base.rows import Row
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.picture import PictureError
from rlsched.broker.journal.snapshot_table import Snapshot
from rlsched.broker.journal.snapshots import FORMAT, book_of, made_for, picture_of
from rlsched.broker.state.book import Book
from rlsched.broker.state.ended import EndedJob, ended_job
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.predict.kinds import RUNNING_MEAN

MOST_ENDED = 10_000
"""Ended jobs that are in memory during a replay."""
_CHUNK = 2_000


def quiet(_: str) -> None:
    """Nobody reads the log."""


def recovered(
    journal: Journal,
    predictions: Predictions,
    scheduler: Scheduler,
    say: Callable[[str], None] = quiet,
    *,
    half_life_s: float = math.inf,
) -> Book:
    """The book of a journal: that of the newest snapshot that can be used, and the entries after it.

    Its table of ended jobs holds up to its last entry afterwards.

    Args:
        journal: The journal.
        predictions: Where there is no snapshot; told of everything.
        scheduler: Who will decide.
        say: Gets a line for each snapshot that cannot be used.
        half_life_s: As of `Book`.

    Raises:
        JournalError: the journal is damaged, or its facts do not follow.
    """
    book, after = _from_snapshot(journal, made_for(scheduler, predictions.made_for, half_life_s), say)
    if book is None:
        book = Book(predictions, scheduler.order, half_life_s)
    return caught_up(journal, book, after, scheduler)


def caught_up(journal: Journal, book: Book, after: int, scheduler: Scheduler) -> Book:
    """A book of the first `after` entries of a journal, with those that follow.

    The journal's table of ended jobs has to hold up to `after` at least, and holds up to its last entry
    afterwards.

    Raises:
        JournalError: the journal is damaged, or its facts do not follow.
    """
    found = book
    missing: list[EndedJob] = []
    at = after

    def rows() -> Iterator[Row]:
        nonlocal at
        for row in journal.rows(after):
            at = row.n
            yield row

    def over(job: Job) -> None:
        if at > journal.ended_at:
            missing.append(ended_job(job, found.nodes))
            if len(missing) == _CHUNK:
                journal.add_ended(missing)
                missing.clear()
        forget_some(found)

    book.over = over
    book.replay(rows(), scheduler)
    if journal.ended_at < journal.last:
        journal.add_ended(missing, journal.last)
    book.table = journal.ended
    book.tell_nobody()
    return book


def forget_some(book: Book) -> None:
    """During a replay: let most of the jobs that are over leave the memory."""
    if len(book.ended_jobs) > MOST_ENDED + _CHUNK:
        book.forget(book.now_s, math.inf, MOST_ENDED)


def _from_snapshot(journal: Journal, wanted: str, say: Callable[[str], None]) -> tuple[Book | None, int]:
    """(the book of the newest snapshot that can be used, its last entry); None and 0 where there is none."""
    for snapshot in journal.snapshots.newest_first():
        why = snapshot if isinstance(snapshot, str) else ""
        if isinstance(snapshot, Snapshot):
            if snapshot.format != FORMAT or snapshot.made_for != wanted:
                why = f"the snapshot after entry {snapshot.n} is of another version, policy or predictor"
            elif snapshot.n > journal.ended_at:
                why = f"the table of ended jobs does not reach the snapshot after entry {snapshot.n}"
            else:
                try:
                    return book_of(snapshot.picture), snapshot.n
                except PictureError as error:
                    why = f"the snapshot after entry {snapshot.n} cannot be read ({error})"
        say(f"journal: {why}; what it stands for is replayed")
    return None, 0


def keep_snapshot(journal: Journal, book: Book, scheduler: Scheduler) -> None:
    """Keep the book as it is after the journal's last entry.

    Raises:
        PictureError: something in the book cannot be in a picture.
        JournalError: it cannot be written.
    """
    picture = picture_of(book)
    key = made_for(scheduler, book.predictions.made_for, book.usage.half_life_s)
    crc = journal.checksum_of(journal.last) or 0
    journal.snapshots.put(Snapshot(journal.last, book.now_s, FORMAT, key, crc, picture))


def remake_ended(journal: Journal) -> None:
    """Make the table of ended jobs anew from the facts.

    Raises:
        JournalError: as `recovered`.
    """
    journal.forget_ended()
    recovered(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo"))
