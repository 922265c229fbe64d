"""Backs up a journal, even while a broker runs, and restores a backup.

After a restore, no job number is assigned again, not even a number assigned after the backup.
`rlsched.broker.nodes.unknown_attempts` handles jobs that run on nodes but are not in the restored journal.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from rlsched.broker.base.entries import (
    BasePart,
    BrokerStarted,
    Entry,
    JobSubmitted,
    NodeDrained,
    NumbersTaken,
    Restored,
    TaskSubmitted,
)
from rlsched.broker.base.rows import JournalRow, rows_and_damage
from rlsched.broker.base.sqlite_errors import clear_error
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.mark import ADDRESS_FILE, JournalMark, sync
from rlsched.broker.journal.reading import reading
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.journal.superseded import SUPERSEDED_FILE
from rlsched.broker.nodes.unknown_attempts import TAKEN_OVER
from rlsched.broker.state.broker_state import BrokerState
from rlsched.errors import InputError, JournalError, JournalLostError
from rlsched.files.lock import locked
from rlsched.files.private import make_private, touch_private

EPOCHS = 1_000
ATTEMPTS = 1_000
NUMBERS = 1_000_000
_DRAFT = ".draft"


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `restore`.

    Attributes:
        entries: Number of entries of the backup.
        last_s: Time of the last entry of the backup, Unix seconds.
        epoch: Epoch set by the restore; the next broker gets a higher epoch.
        last_number: Job number set by the restore; the next job gets a higher number.
        kept: New path of the earlier journal, which was renamed; "" if there was none.
    """

    entries: int
    last_s: float
    epoch: int
    last_number: int
    kept: str


def back_up(journal: str | Path, target: str | Path) -> int:
    """Copy a journal into one file, even if a broker has the journal open. Return the number of entries.

    Raises:
        InputError: the target exists, or cannot be written.
        JournalError: the journal is missing or damaged. The partial copy is removed.
    """
    journal, target = Path(journal), Path(target)
    if target.exists():
        raise InputError(f"{target}: exists already; choose a new file, such as {target}.1")
    draft = target.with_name(target.name + _DRAFT)
    try:
        make_private(target.parent)
        _copy(journal, draft)
        with reading(draft) as copied:
            entries = sum(1 for _ in copied.rows())
        draft.rename(target)
        sync(target.parent)
    except OSError as error:
        raise InputError(
            f"{target}: cannot write here: {error.strerror}; check the permissions and the free space"
        ) from error
    finally:
        _remove(draft)
    return entries


def restore(backup: str | Path, directory: str | Path) -> Restoration:
    """Install a backup as the journal in a broker's directory. The earlier files are renamed.

    Raises:
        InputError: the backup is the journal itself.
        JournalHeldError: a broker has the journal open.
        JournalError: the backup is missing or damaged (no file is changed), or the disk cannot be written.
    """
    backup, path = Path(backup), Path(directory) / JOURNAL_FILE
    if backup.resolve() == path.resolve():
        raise InputError(f"{backup}: is the journal itself, expected a backup of the journal")
    lock = locked(path)
    draft = path.with_name("restoring.sqlite")
    try:
        _remove(draft)
        _copy(backup, draft)
        with closing(Journal(draft)) as journal:
            found = _marked(journal, path)
        kept = set_aside(path)
        draft.rename(path)
        JournalMark(path).remove()
        sync(path.parent)
    except OSError as error:
        raise JournalError(
            f"{path}: cannot write here: {error.strerror}; check the permissions and the free space"
        ) from error
    finally:
        _remove(draft)
        lock.close()
    return msgspec.structs.replace(found, kept=kept)


def _marked(journal: Journal, replaced: Path) -> Restoration:
    """Append a `Restored` entry to a restored journal, so that no job number is assigned twice.

    `replaced`: path of the journal that the restored journal replaces.
    """
    from rlsched.broker.journal.recovery import MOST_ENDED
    from rlsched.broker.state.predictions import Predictions
    from rlsched.decide.registry import load_scheduler
    from rlsched.workload.predict.kinds import RUNNING_MEAN

    entries = journal.last
    state = BrokerState(Predictions(RUNNING_MEAN), load_scheduler("fifo").order)
    state.on_finished = lambda _: state.forget(state.now_s, math.inf, MOST_ENDED)
    state.replay(journal.rows())
    epoch, number, last_s = _known(replaced, state)
    mark = _mark(state, epoch, number)
    now_s = round(max(time.time(), last_s + 0.001), 3)
    journal.commit([mark], now_s)
    return Restoration(
        entries=entries,
        last_s=state.now_s,
        epoch=mark.epoch,
        last_number=mark.last_number,
        kept="",
    )


def _mark(state: BrokerState, epoch: int, number: int, *, taken_over: bool = False) -> Restored:
    return Restored(
        epoch=epoch + EPOCHS,
        last_number=_above(number + NUMBERS // 2, NUMBERS),
        last_attempt=_above(state.highest_attempt, ATTEMPTS),
        taken_over=taken_over,
    )


def take_over(journal: Journal, state: BrokerState) -> Restored:
    """Make a standby's copy the journal of the cluster, and drain all nodes. Return the `Restored` entry.

    As after a restore, the next epoch, job number and attempt number are higher than all earlier ones.

    Raises:
        JournalError: the copy cannot be written.
    """
    mark = _mark(state, state.epoch, state.last_number, taken_over=True)
    now_s = round(max(time.time(), state.now_s + 0.001), 3)
    reason = f"{TAKEN_OVER} no new jobs before all nodes have registered, or `rlsched node resume`"
    drained: list[Entry] = [
        NodeDrained(name=name, until_s=math.inf, reason=reason)
        for name, node in state.nodes.items()
        if node.up and not node.drained
    ]
    journal.commit([mark, *drained], now_s)
    return mark


def _known(replaced: Path, state: BrokerState) -> tuple[int, int, float]:
    """Return the highest epoch, job number and time (Unix seconds) in the backup and the replaced journal."""
    mark = JournalMark(replaced).read()
    marked = mark.epoch if mark is not None and mark.cluster == state.identity else 0
    found = max(state.epoch, marked), state.last_number, state.now_s
    epoch, number, last_s = found
    for row in _readable(replaced):
        match row.entry:
            case BrokerStarted(cluster=cluster) | BasePart(cluster=cluster) if cluster != state.identity:
                return found  # the replaced journal belongs to another cluster
            case BasePart():
                epoch, number = max(epoch, row.entry.epoch), max(number, row.entry.last_number)
            case BrokerStarted() | Restored():
                epoch = max(epoch, row.entry.epoch)
            case JobSubmitted(job=last) | TaskSubmitted(job=last) | NumbersTaken(last=last):
                number = max(number, last)
        last_s = max(last_s, row.now_s)
    return epoch, number, last_s


def _readable(path: Path) -> Iterator[JournalRow]:
    """Yield the readable entries of a journal that may be damaged or missing."""
    if not path.exists() or not path.stat().st_size:
        return
    with suppress(JournalError), reading(path) as journal:
        for row in rows_and_damage(journal.db, journal.last, after=journal.first - 1):
            if isinstance(row, JournalRow):
                yield row


def _above(number: int, step: int) -> int:
    return (number // step + 1) * step


def _copy(source: Path, target: Path) -> None:
    """Copy a consistent state of a journal into one file, and sync the file."""
    _remove(target)
    touch_private(target)
    with reading(source) as journal:
        try:
            with closing(sqlite3.connect(target, isolation_level=None)) as db:
                journal.db.execute("COMMIT")
                journal.db.backup(db)
                db.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.Error as error:
            raise clear_error(target, error) from error
    sync(target)


def set_aside(path: Path) -> str:
    """Rename the files of a journal. Return the journal's new path, "" if there was no journal.

    The store of decisions is renamed too, because the next journal may assign the same decision numbers.
    """
    if not path.stat().st_size:
        path.unlink()
    records = path.with_name(STORE_FOLDER)
    log = path.with_name(path.name + "-wal")
    number = 1
    while (kept := path.with_name(f"{path.name}.replaced-{number}")).exists() or _replaced(
        records, number
    ).exists():
        number += 1
    for file in (path, log, path.with_name(path.name + "-shm")):
        with suppress(FileNotFoundError):
            file.rename(kept.with_name(kept.name + file.name.removeprefix(path.name)))
    with suppress(FileNotFoundError):
        records.rename(_replaced(records, number))
    return str(kept) if kept.exists() else ""


def begin_anew(path: Path) -> str:
    """Rename the files of a lost or damaged journal, so that a new cluster can begin in its directory.

    Returns:
        The new path of the journal, "" if there was no journal.

    Raises:
        JournalHeldError: a broker has the journal open.
        InputError: the journal is undamaged.
        JournalError: the disk cannot be written.
    """
    log = path.with_name(path.name + "-wal")
    try:
        if log.exists() and not (path.exists() and path.stat().st_size):
            log.rename(path.with_name(log.name + ".replaced"))  # the log is useless without its journal
        lock = locked(path)
        try:
            mark = JournalMark(path)
            if path.stat().st_size:
                with closing(Journal(path, lock)) as journal:
                    _check_given_up(journal, mark)
                lock = locked(path)
            kept = set_aside(path)
            mark.remove()
            path.with_name(SUPERSEDED_FILE).unlink(missing_ok=True)
            path.with_name(ADDRESS_FILE).unlink(missing_ok=True)
            sync(path.parent)
        finally:
            lock.close()
    except OSError as error:
        raise JournalError(
            f"{path}: cannot write here: {error.strerror}; check the permissions and the free space"
        ) from error
    return kept


def _check_given_up(journal: Journal, mark: JournalMark) -> None:
    """Check that a journal is unusable, before `begin_anew` renames it.

    Raises:
        InputError: the journal is usable.
    """
    try:
        mark.check(journal)
    except JournalLostError:
        return
    if journal.last:
        raise InputError(
            f"{journal.path}: is undamaged, with {journal.last:,} entries; start without --new-cluster, or "
            "give the new cluster another --dir"
        )


def _replaced(records: Path, number: int) -> Path:
    return records.with_name(f"{records.name}.replaced-{number}")


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
