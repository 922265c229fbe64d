"""Writes a TensorBoard event file. Writes run in the caller's thread, so that errors reach the caller."""

from __future__ import annotations

import itertools
import os
import socket
import time
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlsched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS = itertools.count()
_MAX_HELD_BYTES = 1 << 16


class EventFile:
    """Writes an event file. Events stay in memory until `flush`.

    If a write fails, the file is truncated to its earlier length, so that it stays readable.

    Args:
        logdir: Folder of the file; created if missing.
        wall_time: Function that returns the timestamp for the beginning of the file, seconds since 1970.

    Raises:
        InputError: tensorboard is not installed, or the folder cannot be written.
    """

    def __init__(self, logdir: Path, wall_time: Callable[[], float] = time.time) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise InputError(
                "writing for TensorBoard needs tensorboard, which is not installed; install rlsched[board]"
            ) from error
        who = f"{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):06}"
        self.path = logdir / f"events.out.tfevents.{int(wall_time()):010d}.{who}"
        try:
            logdir.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise self._cannot(error) from error
        self._buffer = BytesIO()
        self._records: Any = RecordWriter(self._buffer)
        self._first: Any = Event(wall_time=wall_time(), file_version="brain.Event:2")
        self._records.write(self._first.SerializeToString())

    def add(self, event: Any) -> None:
        """Add an `Event` of TensorBoard. If more than 64 KiB are in memory, write all events to the file.

        Raises:
            InputError: the events in memory cannot be written, and are lost.
        """
        self._records.write(event.SerializeToString())
        if self._buffer.tell() > _MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events in memory to the file.

        Raises:
            InputError: the events cannot be written, and are lost.
        """
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        whole = os.fstat(self._file).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, whole)
            if whole == 0:  # every file begins with the version event
                self._records.write(self._first.SerializeToString())
            raise self._cannot(error) from error

    def close(self) -> None:
        """Write the events in memory, and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._file)

    def _cannot(self, error: OSError) -> InputError:
        return InputError(f"{self.path.parent}: cannot write event files here: {error.strerror}")
