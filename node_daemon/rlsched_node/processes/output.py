"""Size limit for a rank's output: the first and the last part are kept, the middle is freed on disk.

The command writes to a plain file, and the shim checks the size. The dropped part becomes a hole in the file,
so that offsets stay valid. A line before the hole reports how much is missing.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import time
from collections.abc import Callable

FASTEST_BYTES_PER_S = 1 << 30
"""Assumed maximum growth of output. The next check is due when the file could reach the limit."""
LOOK_S = (0.05, 10.0)
CUT = b"\nrlsched: output was dropped here\n"
MOST_KEPT = 4
"""Output that has not been copied yet is dropped only if the file exceeds this multiple of its size limit."""
_ALIGN = 1 << 16
_LINE_BYTES = 96
_PUNCH_HOLE_KEEP_SIZE = 3


class OutputBound:
    """Limits the size of a file to which other processes append.

    Args:
        path: The file.
        max_bytes: Maximum size on disk, at least 4 x 64 KiB; None: no limit.
        copied: Function that returns the number of bytes at the start of the file that the copier does not
            need any more. None: the file is not copied.
    """

    def __init__(self, path: str, max_bytes: int | None, copied: Callable[[], int] | None = None) -> None:
        self._max_bytes, self._copied = max_bytes, copied
        self._fd = -1
        self.look_at_s = math.inf
        if max_bytes:
            with contextlib.suppress(OSError):  # if the output was removed already
                self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                self.look_at_s = time.monotonic()

    def enforce(self, *, is_last: bool = False) -> None:
        """If the next check is due, drop the middle of a file that is too large, and schedule another check.

        `is_last`: check now.
        """
        now_s = time.monotonic()
        if not self._max_bytes or self._fd < 0 or (now_s < self.look_at_s and not is_last):
            return
        taken = os.fstat(self._fd).st_blocks * 512
        if taken >= self._max_bytes:
            self._drop(self._max_bytes, is_due=taken >= MOST_KEPT * self._max_bytes)
            taken = os.fstat(self._fd).st_blocks * 512
        wait_s = (self._max_bytes - taken) / FASTEST_BYTES_PER_S
        self.look_at_s = now_s + min(max(wait_s, LOOK_S[0]), LOOK_S[1])

    def _drop(self, max_bytes: int, *, is_due: bool) -> None:
        """Free the middle of the file on disk.

        `is_due`: free also bytes that have not been copied yet; the user's file then lacks them.
        """
        first_end, size = _down(max_bytes // 4), os.fstat(self._fd).st_size
        last_start = _down(size - max_bytes // 2)
        copied = size if self._copied is None or is_due else self._copied()
        last_start = min(last_start, _down(copied))
        if last_start <= first_end:
            return
        line = f"\nrlsched: {last_start - first_end + _LINE_BYTES} bytes of output were dropped here"
        os.pwrite(self._fd, line.ljust(_LINE_BYTES - 1).encode() + b"\n", first_end - _LINE_BYTES)
        if not _punch_hole(self._fd, first_end, last_start - first_end) and copied >= size:
            os.ftruncate(self._fd, first_end)  # no holes in this file system: the last part starts again


def read_piece(fd: int, offset: int, max_bytes: int) -> tuple[bytes, int, bool]:
    """Return (piece of output that begins at `offset`, actual start of the piece, whether it is the last).

    The piece starts later than `offset` if a hole is skipped. If the file has become shorter than `offset`,
    the piece is the line `CUT`. A negative offset counts from the end.
    """
    size = os.fstat(fd).st_size
    if offset < 0:
        offset = max(size + offset, 0)
    if offset > size:
        return CUT, size - len(CUT), True
    start, end = offset, size
    try:
        start = os.lseek(fd, offset, os.SEEK_DATA)
        end = os.lseek(fd, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole follows, or nothing
            return b"", offset, True
    data = os.pread(fd, min(max_bytes, max(end - start, 0)), start)
    return data, start, start + len(data) >= size


GPU_MEMORY_WORDS = (
    b"CUDA out of memory",
    b"HIP out of memory",
    b"OutOfMemoryError",  # torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, cupy's
    b"CUDA_ERROR_OUT_OF_MEMORY",
    b"cudaErrorMemoryAllocation",
    b"CUBLAS_STATUS_ALLOC_FAILED",
    b"RESOURCE_EXHAUSTED: Out of memory",  # XLA
    b"OOM when allocating tensor",  # TensorFlow
)
"""Messages that libraries print if they cannot allocate GPU memory."""
TAIL_BYTES = 1 << 16


def tells_of_gpu_memory(path: str) -> bool:
    """Return whether the last 64 KiB of output report that a GPU was out of memory."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            tail = os.pread(fd, TAIL_BYTES, max(os.fstat(fd).st_size - TAIL_BYTES, 0))
        finally:
            os.close(fd)
    except OSError:
        return False
    return any(words in tail for words in GPU_MEMORY_WORDS)


def _down(num_bytes: int) -> int:
    return num_bytes // _ALIGN * _ALIGN


def _punch_hole(fd: int, offset: int, num_bytes: int) -> bool:
    """Free a range of a file with fallocate(2). Return whether the file system supports that."""
    libc = ctypes.CDLL(None)
    fallocate = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if fallocate is None:
        return False
    where = ctypes.c_int64(offset), ctypes.c_int64(num_bytes)
    return bool(fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, *where) == 0)
