"""Recovers a broker's state from its journal when the broker starts, and stores snapshots for fast starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rlsched.broker.base.rows import JournalRow
from rlsched.broker.journal.codec import PictureError
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.snapshot_table import Snapshot
from rlsched.broker.journal.snapshots import FORMAT, book_of, made_for, picture_of
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import EndedJob, ended_job
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.predict.kinds import RUNNING_MEAN

MOST_ENDED = 10_000
"""Number of ended jobs that stay in memory during a replay; the oldest are removed."""
_CHUNK = 2_000


def quiet(_: str) -> None:
    """Discard a log line."""


def recover_state(
    journal: Journal,
    predictions: Predictions,
    scheduler: Scheduler,
    say: Callable[[str], None] = quiet,
    *,
    half_life_s: float = math.inf,
) -> BrokerState:
    """Return the state after a journal's last entry, from the newest usable snapshot and the later entries.

    The call also adds missing rows to the journal's table of ended jobs.

    Args:
        journal: The journal.
        predictions: New run-time predictors, which learn from the entries; not used with a snapshot, which
            contains predictors.
        scheduler: Policy that will decide.
        say: Called with a line of text for each unusable snapshot.
        half_life_s: Half-life of a user's usage for fair share, seconds; infinite: fair share is off.

    Raises:
        JournalError: the journal is damaged, or an entry is illegal after the entries before it.
    """
    state, after = _from_snapshot(journal, made_for(scheduler, predictions.made_for, half_life_s), say)
    if state is None:
        state = BrokerState(predictions, scheduler.order, half_life_s)
    return catch_up_state(journal, state, after, scheduler)


def catch_up_state(journal: Journal, state: BrokerState, after: int, scheduler: Scheduler) -> BrokerState:
    """Apply the journal's entries after entry `after` to a state that includes the entries up to `after`.

    The table of ended jobs must be complete up to entry `after`. The missing rows of later entries are added.

    Raises:
        JournalError: the journal is damaged, or an entry is illegal after the entries before it.
    """
    found = state
    missing: list[EndedJob] = []
    at = after

    def rows() -> Iterator[JournalRow]:
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

    state.on_finished = over
    state.replay(rows(), scheduler)
    if journal.ended_at < journal.last:
        journal.add_ended(missing, journal.last)
    state.table = journal.ended
    state.clear_on_finished()
    return state


def forget_some(state: BrokerState) -> None:
    """Remove all but the latest `MOST_ENDED` finished jobs from memory, about 2,000 at a time."""
    if len(state.ended_jobs) > MOST_ENDED + _CHUNK:
        state.forget(state.now_s, math.inf, MOST_ENDED)


def _from_snapshot(
    journal: Journal, wanted: str, say: Callable[[str], None]
) -> tuple[BrokerState | None, int]:
    """Return the newest usable snapshot's state, and the entry number of its last entry; else (None, 0)."""
    for snapshot in journal.snapshots.newest_first():
        why = snapshot if isinstance(snapshot, str) else ""
        if isinstance(snapshot, Snapshot):
            if snapshot.format != FORMAT or snapshot.made_for != wanted:
                why = (
                    f"the snapshot after entry {snapshot.n} was made with another version, policy or "
                    "predictor"
                )
            elif snapshot.n > journal.ended_at:
                why = f"the table of ended jobs does not reach the snapshot after entry {snapshot.n}"
            else:
                try:
                    return book_of(snapshot.picture), snapshot.n
                except PictureError as error:
                    why = f"the snapshot after entry {snapshot.n} cannot be read ({error})"
        say(f"journal: {why}; its entries are replayed")
    return None, 0


def keep_snapshot(journal: Journal, state: BrokerState, scheduler: Scheduler) -> None:
    """Store a snapshot of the state after the journal's last entry.

    Raises:
        PictureError: the state contains an object that cannot be serialised.
        JournalError: the snapshot cannot be written.
    """
    picture = picture_of(state)
    key = made_for(scheduler, state.predictions.made_for, state.usage.half_life_s)
    crc = journal.checksum_of(journal.last) or 0
    journal.snapshots.store_snapshot(Snapshot(journal.last, state.now_s, FORMAT, key, crc, picture))


def remake_ended(journal: Journal) -> None:
    """Rebuild the table of ended jobs from the journal's facts.

    Raises:
        JournalError: as `recover_state`.
    """
    journal.forget_ended()
    recover_state(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo"))
