"""Writes the broker's store of decisions and TensorBoard curves, after a batch's commit and replies.

No decision depends on the store or the curves. If a write fails, the buffered records are lost and counted
(`SoftErrors`), and the store is opened again for the next records. The latest events of jobs and nodes are
kept (`CarriedRows`), and written with the next records.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlsched.broker.base.soft_errors import SoftErrors
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.deciders import note_decider
from rlsched.decisions.reading import last_records
from rlsched.decisions.schema import KEEP_DAYS, ForecastSeen, JobEvent, NodeChange, StoreInfo
from rlsched.decisions.segments import segment_files
from rlsched.decisions.store import KEEP_BYTES, CarriedRows, DecisionStore, decision_row
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.board.writer import DecisionWriter
    from rlsched.decide.policies.policy import Policy

STORE_FOLDER: Final = "decisions"
DAY_S: Final = 86_400.0
OLD_EVERY_S: Final = 3_600.0
"""Time between two removals of old rows, seconds."""
LAST_RECORDS: Final = 5_000
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers (`errno`) of failed writes that may be temporary. They do not prevent the broker's start."""


class RecordLog:
    """Stores decision records, and events of jobs and nodes.

    Args:
        folder: Directory of the store of decisions.
        logdir: Directory for TensorBoard curves; None: no curves.
        soft_errors: Counter of failed writes to the store (`written`) and to TensorBoard (`drawn`).
        keep_bytes: Size of the store above which its oldest rows are removed, bytes.
        keep_days: Age above which rows of the store are removed, days; infinite: never.

    Attributes:
        last: The newest records in the store when this object was created, oldest first.
        kept: Number of decisions written by this object.

    Raises:
        InputError: `logdir` cannot be written, for a reason that is not temporary (`_PASSING`), or
            tensorboard is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        logdir: str | Path | None = None,
        soft_errors: SoftErrors | None = None,
        keep_bytes: int = KEEP_BYTES,
        keep_days: float = KEEP_DAYS,
    ) -> None:
        self.folder = Path(folder)
        self.soft_errors = soft_errors or SoftErrors()
        self.last: list[DecisionRecord] = []
        self.kept = 0
        self._keep_bytes, self._keep_s = keep_bytes, keep_days * DAY_S
        self._removed_s = -math.inf  # last removal of old rows, monotonic seconds
        self._held = 0  # decisions not written yet
        self._store: DecisionStore | None = None
        self._carried = CarriedRows()
        self._logdir, self._writer = logdir, None if logdir is None else self._first_writer(logdir)
        try:
            self.last = last_records(self.folder, LAST_RECORDS)
            self._open()
        except Exception as error:  # the broker starts even if the store cannot be opened
            self._not_written(error)

    def add(
        self,
        records: Sequence[DecisionRecord],
        events: Sequence[JobEvent | NodeChange | ForecastSeen] = (),
    ) -> None:
        """Buffer records and events for the store, and add the records to the curves."""
        rows = self._rows(records)
        self._held += len(rows)
        try:
            store = self._open()
        except Exception as error:  # any error of the disk
            self._carried.add(events)
            self._not_written(error)
        else:
            self._add(store, rows, events)
        self._draw(records)

    def _add(
        self,
        store: DecisionStore,
        rows: list[list[Any]],
        events: Sequence[JobEvent | NodeChange | ForecastSeen],
    ) -> None:
        try:
            store.add_events(events)
            store.add_rows(rows)
        except Exception as error:  # any error of the disk
            self._not_written(error)
        else:
            self._written(store)

    def _rows(self, records: Sequence[DecisionRecord]) -> list[list[Any]]:
        rows = []
        for record in records:
            try:
                rows.append(decision_row(record))
            except Exception as error:  # an error in one record does not lose the others
                self.soft_errors.count("packed", f"the record of decision {record.number}", error)
        return rows

    def begins(self) -> bool:
        """Return whether the store of decisions is new, that is, contains no states of nodes yet."""
        return not segment_files(self.folder, "nodes")

    def begin_with(self, events: Sequence[JobEvent | NodeChange]) -> None:
        """Write the present state to a new store. For an existing store, only note which jobs are live.

        `events`: present states of all nodes, and submissions and starts of live jobs. Whenever the store
        begins a new file, it first writes the submissions and starts of the jobs that are live at that time.
        """
        if self.begins():
            self.add([], events)
            return
        self._carried.note_standing([event for event in events if isinstance(event, JobEvent)])

    def decides(self, policy: Policy, since_s: float) -> None:
        """Record in the store that policy `policy` decides from `since_s` (Unix seconds) on."""
        try:
            note_decider(self.folder, policy, since_s)
        except Exception as error:  # any error of the disk
            self.soft_errors.count("written", f"{self.folder}: cannot record which policy decides", error, 0)

    def step(self) -> None:
        """Write buffered records if a write is due. Once an hour, remove records that are too old."""
        if self._store is not None and self._store.is_write_due():
            self._write()
        if time.monotonic() - self._removed_s >= OLD_EVERY_S:
            self._remove_old()

    def _remove_old(self) -> None:
        self._removed_s = time.monotonic()
        if self._store is not None:
            try:
                self._store.remove_old(time.time())
            except OSError as error:
                what = f"{self.folder}: cannot remove old decisions"
                self.soft_errors.count("written", what, error, 0)

    def _open(self) -> DecisionStore:
        if self._store is None:
            info = StoreInfo(time="unix", of=f"the broker in {self.folder.absolute().parent}")
            self._store = DecisionStore(
                self.folder,
                info,
                keep_bytes=self._keep_bytes,
                keep_s=self._keep_s,
                carried=self._carried,
            )
        return self._store

    def _write(self) -> None:
        if self._store is not None:
            try:
                self._store.flush()
            except Exception as error:  # any error of the disk
                self._not_written(error)
            else:
                self._written(self._store)

    def _written(self, store: DecisionStore) -> None:
        if not store.holds():
            self.kept, self._held = self.kept + self._held, 0
            self.soft_errors.mark_recovered("written", f"{self.folder}: decisions are kept")

    def _not_written(self, error: Exception) -> None:
        lost, self._held, self._store = self._held, 0, None
        self.soft_errors.count("written", f"{self.folder}: cannot keep decisions", error, lost)

    # ---- TensorBoard ------------------------------------------------------------------------------

    def _first_writer(self, logdir: str | Path) -> DecisionWriter | None:
        try:
            return _new_writer(logdir)
        except InputError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _PASSING:
                raise
            self._not_drawn(error, 0)
            return None

    def _draw(self, records: Sequence[DecisionRecord]) -> None:
        if self._logdir is None:
            return
        for at, record in enumerate(records):
            try:
                if self._writer is None:
                    self._writer = _new_writer(self._logdir)
                self._writer.add(record)
            except Exception as error:  # a curve that cannot be drawn is left out
                self._not_drawn(error, len(records) - at if self._writer is None else 1)
                if self._writer is None:
                    return

    def add_scalars(self, step: int, scalars: dict[str, float]) -> None:
        """Write TensorBoard scalars, by tag. `step`: number of decisions so far."""
        if self._writer is not None and scalars:
            try:
                self._writer.add_scalars(step, scalars)
            except Exception as error:
                self._not_drawn(error, 1)

    def flush(self) -> None:
        """Write all buffered data, including TensorBoard's files."""
        self._write()
        if self._writer is not None:
            try:
                self._writer.flush()
            except Exception as error:
                self._not_drawn(error, 1)
            else:
                self.soft_errors.mark_recovered("drawn", f"{self._logdir}: curves for TensorBoard are drawn")

    def close(self) -> None:
        """Write all buffered data, and close the files."""
        self._write()
        if self._writer is not None:
            try:
                self._writer.close()
            except Exception as error:
                self._not_drawn(error, 1)

    def _not_drawn(self, error: Exception, lost: int) -> None:
        why = str(error) if isinstance(error, InputError) else error
        self.soft_errors.count("drawn", f"{self._logdir}: cannot draw for TensorBoard", why, lost)


def _new_writer(logdir: str | Path) -> DecisionWriter:
    from rlsched.board.writer import DecisionWriter

    return DecisionWriter(logdir)
