"""Snapshots: the book as it is after an entry, kept in the journal, so that a start replays the rest alone.

A snapshot is for the code, the policy and the predictor that made it. One that is for others, damaged, or of
another journal is passed over: the facts are the truth, and all of them are replayed then.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque

import msgspec

from rlsched.broker.journal.picture import PictureError, code_digest, pack, unpack
from rlsched.broker.state.book import Book
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.predict.predictor import Predictor
from rlsched.workload.predict.recent import Recent

FORMAT = 1
_AS_NEW: dict[type, dict[str, object]] = {
    Book: {"over": None, "table": None, "_can_run": {}},
    Predictions: {"_fits": 0, "_fitted": None, "_fitting": None, "_fit_error": None, "_drawn": 0},
    Predictor: {"_boosting": None, "_ended_at_fit": 0, "_ended_at_last": 0},
    Recent: {"_known": None},
}
"""What a start makes anew, from facts or without any: boosting is unfitted."""


def made_for(scheduler: Scheduler, predictions: str, half_life_s: float) -> str:
    """What a snapshot depends on beside the facts, as a hash: code, order, what the policy may do, dials.

    Args:
        scheduler: Who decides.
        predictions: `Predictions.made_for`.
        half_life_s: As of `Book`.
    """
    strategy = scheduler.policy_id if scheduler.strategy is not None else ""
    depends = [code_digest(), scheduler.order, scheduler.abilities, strategy, predictions, repr(half_life_s)]
    said = msgspec.json.encode(depends)
    return hashlib.sha256(said).hexdigest()[:32]


def picture_of(book: Book) -> bytes:
    """The picture of a book, without jobs that are over: the table of ended jobs has them.

    Raises:
        PictureError: something in it cannot be in a picture.
    """
    live = copy.copy(book)
    live.jobs = {job.number: job for job in book.job_of_seq.values()}
    live.tokens = {job.spec.token: number for number, job in live.jobs.items()}
    live.ended_jobs = deque()
    return pack(live, _AS_NEW)


def book_of(picture: bytes) -> Book:
    """The book of a picture.

    Raises:
        PictureError: it cannot be read.
    """
    book = unpack(picture)
    if not isinstance(book, Book):
        raise PictureError("it is not one of a book")
    book.tell_nobody()
    return book
