"""From a journal to a book: what a broker does before it listens."""

from __future__ import annotations

from collections.abc import Iterator

from rlsched.broker.book import Book
from rlsched.broker.ended import EndedJob, ended_job
from rlsched.broker.jobs import Job
from rlsched.broker.journal import Journal
from rlsched.broker.predictions import Predictions
from rlsched.broker.rows import Row
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.predict.kinds import RUNNING_MEAN

_CHUNK = 2_000


def recovered(journal: Journal, predictions: Predictions, scheduler: Scheduler) -> Book:
    """The book of a journal. Its table of ended jobs holds up to its last entry afterwards.

    Raises:
        JournalError: the journal is damaged, or its facts do not follow.
    """
    book = Book(predictions, scheduler.order)
    missing: list[EndedJob] = []
    at = 0

    def rows() -> Iterator[Row]:
        nonlocal at
        for row in journal.rows():
            at = row.n
            yield row

    def over(job: Job) -> None:
        if at > journal.ended_at:
            missing.append(ended_job(job, book.nodes))
            if len(missing) == _CHUNK:
                journal.add_ended(missing)
                missing.clear()

    book.over = over
    book.replay(rows(), scheduler)
    if journal.ended_at < journal.last:
        journal.add_ended(missing, journal.last)
    return book


def remake_ended(journal: Journal) -> None:
    """Make the table of ended jobs anew from the facts.

    Raises:
        JournalError: as `recovered`.
    """
    journal.forget_ended()
    recovered(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo"))
