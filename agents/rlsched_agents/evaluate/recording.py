"""Decision records of a replay, written as they come: a list of them all would slow every decision down."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rlsched.decide.record import DecisionRecord, append_records
from rlsched.errors import InputError

BATCH: Final = 128
"""Records that are held back; thousands of live ones make the garbage collector's pauses show in p99."""


class RecordFile:
    """A record file that is written anew; a context, and the engine's `on_record`.

    Args:
        path: The file; its folder is made if missing, what was in the file goes.

    Raises:
        InputError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: list[DecisionRecord] = []

    def __enter__(self) -> RecordFile:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b"")
        except OSError as error:
            raise InputError(f"{self._path}: cannot write decision records here: {error.strerror}") from error
        return self

    def __call__(self, record: DecisionRecord) -> None:
        """Take one record."""
        self._held.append(record)
        if len(self._held) >= BATCH:
            self._write()

    def __exit__(self, *_: object) -> None:
        self._write()

    def _write(self) -> None:
        append_records(self._path, self._held)
        self._held.clear()
