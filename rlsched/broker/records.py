"""The broker's decision records on disk, and for TensorBoard; kept once commit and replies are out.

No decision depends on them: whatever goes wrong here is counted and said once (`Troubles`), and tried again
with the next records.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlsched.broker.private import touch_private
from rlsched.broker.troubles import Troubles
from rlsched.decide.record import DecisionRecord, packed
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.board.writer import DecisionWriter

RECORDS_FILE = "records.msgpack"
LAST_RECORDS = 5_000
_LENGTH_BYTES = 4
_HEAD_BYTES = 64
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of TensorBoard's folder that a broker starts with: there may be room later."""


class RecordLog:
    """Appends to a record file; a record that a crash or a full disk cut short is taken off first.

    Args:
        path: The file.
        logdir: Also write curves for TensorBoard there.
        troubles: Counts what is lost: `written` (to the file) and `drawn` (for TensorBoard).

    Attributes:
        last: The last records of the file as it was found, oldest first.
        kept: Records written since.

    Raises:
        InputError: TensorBoard's folder can never be written, or tensorboard is not installed.
    """

    def __init__(
        self, path: str | Path, logdir: str | Path | None = None, troubles: Troubles | None = None
    ) -> None:
        self.path = Path(path)
        self.troubles = troubles or Troubles()
        self.last: list[DecisionRecord] = []
        self.kept = 0
        self._recovered = False
        self._cut_to: int | None = None  # where the last whole record ends, if a part of another follows
        self._starts: deque[int] = deque(maxlen=LAST_RECORDS)  # of the last records, in the file
        self._logdir, self._writer = logdir, None if logdir is None else self._first_writer(logdir)
        try:
            self.last = self._recover()
        except Exception as error:  # a broker starts without its records
            self._not_written(error, 0)

    def add(self, records: Sequence[DecisionRecord]) -> None:
        """Keep these, or count them as lost."""
        try:
            if not self._recovered:
                self._recover()
            bodies = self._packed(records)
            at = self._append(b"".join(bodies))
            for body in bodies:
                self._starts.append(at)
                at += len(body)
        except Exception as error:  # whatever a disk does
            self._not_written(error, len(records))
        else:
            self.kept += len(bodies)
            self.troubles.over("written", f"{self.path}: decision records are kept")
        self._draw(records)

    def _packed(self, records: Sequence[DecisionRecord]) -> list[bytes]:
        bodies = []
        for record in records:
            try:
                bodies.append(packed(record))
            except Exception as error:  # one that cannot be packed does not cost the others
                self.troubles.count("packed", f"the record of decision {record.number}", error)
        return bodies

    def _recover(self) -> list[DecisionRecord]:
        records, starts = _recover(self.path)
        self._starts = deque(starts, LAST_RECORDS)
        self._recovered = True
        return records

    def mark(self) -> None:
        """Note where the last records begin, so that the next start need not walk through all of them."""
        try:
            if self._recovered and self._starts:
                _write_mark(self.path, self._starts[0])
        except OSError as error:
            self._not_written(error, 0)

    def _append(self, data: bytes) -> int:
        """Append all of it, and say where it begins; what a full disk takes of it is cut off again.

        Raises:
            OSError: the disk is full, say.
        """
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if self._cut_to is not None:
                os.ftruncate(file, self._cut_to)
            whole = self._cut_to = os.fstat(file).st_size
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(file, left) :]
            except OSError:
                os.ftruncate(file, whole)
                self._cut_to = None
                raise
            self._cut_to = None
            return whole
        finally:
            os.close(file)

    def _not_written(self, error: Exception, lost: int) -> None:
        self.troubles.count("written", f"{self.path}: cannot keep decision records", error, lost)

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
        """A point of other curves for TensorBoard, at a number of decisions."""
        if self._writer is not None and scalars:
            try:
                self._writer.add_scalars(step, scalars)
            except Exception as error:
                self._not_drawn(error, 1)

    def flush(self) -> None:
        """Let TensorBoard see what has been added."""
        if self._writer is not None:
            try:
                self._writer.flush()
            except Exception as error:
                self._not_drawn(error, 1)
            else:
                self.troubles.over("drawn", f"{self._logdir}: curves for TensorBoard are drawn")

    def close(self) -> None:
        """Flush, and close."""
        if self._writer is not None:
            try:
                self._writer.close()
            except Exception as error:
                self._not_drawn(error, 1)

    def _not_drawn(self, error: Exception, lost: int) -> None:
        why = str(error) if isinstance(error, InputError) else error
        self.troubles.count("drawn", f"{self._logdir}: cannot draw for TensorBoard", why, lost)


def _new_writer(logdir: str | Path) -> DecisionWriter:
    from rlsched.board.writer import DecisionWriter

    return DecisionWriter(logdir)


def _recover(path: Path) -> tuple[list[DecisionRecord], list[int]]:
    """Cut a broken tail off; the last records, and where the last `LAST_RECORDS` of them begin."""
    path.touch(mode=0o600)
    starts: deque[tuple[int, int]] = deque(maxlen=LAST_RECORDS)
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        at = _marked(path, size)
        while at + _LENGTH_BYTES <= size:
            length = int.from_bytes(os.pread(file.fileno(), _LENGTH_BYTES, at), "big")
            if at + _LENGTH_BYTES + length > size:
                break
            starts.append((at + _LENGTH_BYTES, length))
            at += _LENGTH_BYTES + length
        file.truncate(at)
        decoder = msgspec.msgpack.Decoder(DecisionRecord)
        records = []
        for start, length in starts:
            file.seek(start)
            try:
                records.append(decoder.decode(file.read(length)))
            except msgspec.DecodeError:
                continue
    return records, [start - _LENGTH_BYTES for start, _ in starts]


def _mark_of(path: Path) -> Path:
    return path.with_name(path.name + ".mark")


def _write_mark(path: Path, at: int) -> None:
    """Note where a record begins, and how it does: a mark of another file is known by that."""
    with path.open("rb") as file:
        file.seek(at)
        head = file.read(_HEAD_BYTES)
    draft = _mark_of(path).with_suffix(".draft")
    touch_private(draft)
    draft.write_bytes(msgspec.msgpack.encode([at, head]))
    draft.replace(_mark_of(path))


def _marked(path: Path, size: int) -> int:
    """Where the records begin that are worth a look; 0 where nobody has noted it."""
    try:
        at, head = msgspec.msgpack.decode(_mark_of(path).read_bytes(), type=tuple[int, bytes])
        with path.open("rb") as file:
            file.seek(at)
            return at if head and file.read(len(head)) == head and at + len(head) <= size else 0
    except (OSError, msgspec.MsgspecError, ValueError, OverflowError):
        return 0
