"""Output streams of a rank, their files in the attempt's records, and their copies to the user's files.

Without `--error`, both streams are in `output.log`. Otherwise, they are in `stdout.log` and `stderr.log`, and
the shim appends both to `output.log`, in whole lines.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Any, NamedTuple

from rlsched_node import records
from rlsched_node.processes.output import CUT, OutputBound, read_piece

LOG, STDOUT, STDERR = "output.log", "stdout.log", "stderr.log"
PIECE_BYTES = 1 << 18
HOLD_S = 0.5
"""Maximum time for which an incomplete line waits for its end, seconds."""
LOOK_S = (0.02, 0.25)
_TURNS = 64
"""Maximum number of pieces of a stream that one call merges; then the shim checks its signals."""
_OFFSET_BYTES = 20
ALL_COPIED: int = 10**_OFFSET_BYTES - 1
"""Value that replaces the number of copied bytes when the copy is complete or has failed."""
_LEAST_BOUND = 1 << 18


class Copy(NamedTuple):
    """A copy of `source` (in the attempt's records) to the user's file `target`; `option` requests it."""

    source: str
    target: str
    option: str


def copies_of(launch: dict[str, Any]) -> list[Copy]:
    """Return the copies of output streams that a launch record requests; none for older daemons' records."""
    output, error, cwd = launch.get("output", ""), launch.get("error", ""), launch["cwd"]
    if not error or (output and _path(cwd, error) == _path(cwd, output)):
        return [Copy(LOG, output, "--output")] if output else []
    found = [Copy(STDERR, error, "--error")]
    return [Copy(STDOUT, output, "--output"), *found] if output else found


def _path(cwd: str, target: str) -> str:
    return os.path.normpath(os.path.join(cwd, target))


def progress_name(source: str) -> str:
    """Return the name of the file with the progress of a copy.

    The file contains the number of copied bytes, or `ALL_COPIED`, then the reason if the copy has failed.
    """
    return f"{source}.copied"


def read_progress(data: bytes) -> int | None:
    """Return the number of copied bytes in a progress file; None if the target has not been opened yet."""
    number = data[:_OFFSET_BYTES]
    return int(number) if number.isdigit() else None


def failure_of(data: bytes) -> str:
    """Return why a copy has failed, from the content of its progress file; "" if it has not failed."""
    return data[_OFFSET_BYTES:].decode(errors="replace")


def write_progress(fd: int, num_bytes: int, failure: str = "") -> None:
    """Write to the progress file of a copy: the number of copied bytes and, if it has failed, the reason."""
    data = b"%0*d" % (_OFFSET_BYTES, num_bytes)
    os.pwrite(fd, data + failure.encode(errors="replace"), 0)


def copied_bytes(source: str) -> int:
    """Return the number of bytes at the start of a file that its copier does not need any more.

    The file is in the current directory. 0 if the copier has not started yet.
    """
    try:
        return read_progress(records.read(progress_name(source))) or 0
    except OSError:
        return 0


class Follower:
    """Reads a file that grows, in pieces.

    Args:
        fd: The file.
        offset: Offset of the first piece in the file, bytes.
        is_whole: Pieces contain whole lines. A part of a line is returned only if the line is longer than
            `PIECE_BYTES`, or has been incomplete for `HOLD_S`.
    """

    def __init__(self, fd: int, offset: int = 0, *, is_whole: bool = False) -> None:
        self.fd, self.offset, self._is_whole = fd, offset, is_whole
        self._note = b""
        self._held_s: float | None = None

    def piece(self, *, is_last: bool = False) -> bytes:
        """Return the next bytes; empty if there are none now.

        If a part of the output was dropped, a line with the number of dropped bytes takes its place.

        Args:
            is_last: The file does not grow any more.
        """
        if self._note:
            return self._note
        if os.fstat(self.fd).st_size < self.offset:  # the job has emptied its output
            self.offset = 0
        data, start, _ = read_piece(self.fd, self.offset, PIECE_BYTES)
        if data is CUT or not _is_on_disk(self.fd, start, len(data)):
            return b""
        if start > self.offset:
            self._note = b"\nrlsched: %d bytes of output were dropped here\n" % (start - self.offset)
            self.offset = start
            return self._note
        if self._is_whole and not is_last and data and not data.endswith(b"\n"):
            return self._whole(data)
        self._held_s = None
        return data

    def _whole(self, data: bytes) -> bytes:
        cut = data.rfind(b"\n") + 1
        if cut or len(data) >= PIECE_BYTES:
            self._held_s = None
            return data[:cut] if cut else data
        now_s = time.monotonic()
        if self._held_s is None:
            self._held_s = now_s
        return data if now_s - self._held_s >= HOLD_S else b""

    def advance(self, num_bytes: int) -> None:
        """Advance past the first `num_bytes` of the last piece, because the caller has written them."""
        if self._note:
            self._note = self._note[num_bytes:]
        else:
            self.offset += num_bytes


class _Stream(NamedTuple):
    """A stream of a rank that has its own file."""

    follower: Follower
    write_fd: int
    bound: OutputBound


class Streams:
    """The streams of a rank that have their own files. The shim merges these files into `output.log`.

    The shim writes its own lines to the rank's standard error, together with the job's messages.

    Args:
        launch: The launch record. Descriptors 1 and 2 are `output.log`.
    """

    def __init__(self, launch: dict[str, Any]) -> None:
        self._streams: dict[int, _Stream] = {}
        self.look_at_s, self._wait_s = float("inf"), LOOK_S[0]
        max_bytes = launch.get("max_output_bytes")
        part = max(max_bytes // 4, _LEAST_BOUND) if max_bytes else None
        for source in [copy.source for copy in copies_of(launch) if copy.source != LOG]:
            with contextlib.suppress(OSError):  # if the records were removed already
                follower = Follower(os.open(source, os.O_RDONLY | os.O_CLOEXEC), is_whole=True)
                write_fd = os.open(source, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                bound = OutputBound(source, part, _needed(source, follower))
                self._streams[1 if source == STDOUT else 2] = _Stream(follower, write_fd, bound)
                self.look_at_s = 0.0
        if 2 in self._streams:
            os.dup2(self._streams[2].write_fd, 2)

    def redirect(self) -> None:
        """Redirect standard output to its own file, if it has one. Called in the child process."""
        if 1 in self._streams:
            os.dup2(self._streams[1].write_fd, 1)

    def merge(self, *, is_last: bool = False) -> None:
        """If a merge is due, append new output to `output.log`, and set the time of the next merge.

        Args:
            is_last: Merge now, and append also incomplete lines.
        """
        if not self._streams or (time.monotonic() < self.look_at_s and not is_last):
            return
        moved, has_more = False, False
        for stream in self._streams.values():
            follower, most = stream.follower, os.fstat(stream.write_fd).st_size
            turns = 0
            while (data := follower.piece(is_last=is_last)) and (is_last or turns < _TURNS):
                with contextlib.suppress(OSError):  # lost if the disk is full
                    os.write(1, data)
                follower.advance(len(data))
                moved, turns = True, turns + 1
                if follower.offset >= most:  # otherwise the loop could last as long as a process writes
                    break
            has_more |= turns == _TURNS
            stream.bound.enforce(is_last=is_last)
        self._wait_s = LOOK_S[0] if moved else min(self._wait_s * 2, LOOK_S[1])
        self.look_at_s = time.monotonic() + (0.0 if has_more else self._wait_s)

    def close(self) -> None:
        """Append the remaining output to `output.log`. The shim's later lines go directly to this file."""
        self.merge(is_last=True)
        if 2 in self._streams:
            os.dup2(1, 2)


def _is_on_disk(fd: int, start: int, num_bytes: int) -> bool:
    """Return whether a range of a file was not dropped. Reading does not show this: it returns zeros."""
    try:
        return not num_bytes or os.lseek(fd, start, os.SEEK_HOLE) >= start + num_bytes
    except OSError as error:
        return error.errno != errno.ENXIO


def _needed(source: str, follower: Follower) -> Any:
    return lambda: min(follower.offset, copied_bytes(source))
