"""The broker's decision records on disk, and for TensorBoard; kept once commit and replies are out."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlsched.decide.record import DecisionRecord, append_records
from rlsched.errors import JournalError

if TYPE_CHECKING:
    from rlsched.board.writer import DecisionWriter

RECORDS_FILE = "records.msgpack"
LAST_RECORDS = 5_000
_LENGTH_BYTES = 4


class RecordLog:
    """Appends to a record file; a record that a crash cut short is taken off first.

    Args:
        path: The file.
        logdir: Also write curves for TensorBoard there.

    Attributes:
        last: The last records of the file as it was found, oldest first.

    Raises:
        JournalError: the file cannot be read or written.
        InputError: TensorBoard's folder cannot be written, or tensorboard is not installed.
    """

    def __init__(self, path: str | Path, logdir: str | Path | None = None) -> None:
        self.path = Path(path)
        try:
            self.last = _recover(self.path)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot keep decision records: {error.strerror}") from error
        self._writer: DecisionWriter | None = None
        if logdir is not None:
            from rlsched.board.writer import DecisionWriter

            self._writer = DecisionWriter(logdir)

    def add(self, records: list[DecisionRecord]) -> None:
        """Keep these.

        Raises:
            JournalError: the disk is full, say.
        """
        try:
            append_records(self.path, records)
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot keep decision records: {error.strerror}; free space, "
                "then start the broker again: jobs run on"
            ) from error
        if self._writer is not None:
            for record in records:
                self._writer.add(record)

    def add_scalars(self, step: int, scalars: dict[str, float]) -> None:
        """A point of other curves for TensorBoard, at a number of decisions."""
        if self._writer is not None and scalars:
            self._writer.add_scalars(step, scalars)

    def flush(self) -> None:
        """Let TensorBoard see what has been added."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush, and close."""
        if self._writer is not None:
            self._writer.close()


def _recover(path: Path) -> list[DecisionRecord]:
    """Cut a broken tail off, and read the last records."""
    path.touch(mode=0o600)
    starts: deque[tuple[int, int]] = deque(maxlen=LAST_RECORDS)
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        at = 0
        while at + _LENGTH_BYTES <= size:
            file.seek(at)
            length = int.from_bytes(file.read(_LENGTH_BYTES), "big")
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
    return records
