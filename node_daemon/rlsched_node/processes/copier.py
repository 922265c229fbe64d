"""Process that copies one output stream of a rank to the user's file, as the user that runs the job.

The process is not part of the job, and outlives the daemon. A file system that hangs blocks only this
process.

The isolated interpreter runs this script (`python -I -S copier.py LABEL SOURCE SHIM_PID`). Descriptors 1 and
2 are the rank's `output.log`, 3 is the progress file, which the process locks, and 4 is the directory of the
attempt's records.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import Any

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node import records
from rlsched_node.processes import shim
from rlsched_node.processes.streams import (
    ALL_COPIED,
    LOOK_S,
    Follower,
    copies_of,
    read_progress,
    write_progress,
)

PROGRESS_FD = shim.PIPE_FD
RETRY_S = 1.0
"""Pause after a failed write, for example on a full disk, seconds."""


class ShimWatch:
    """Waits for the end of a shim.

    Args:
        pid: Process ID of the shim; 0: the shim has ended.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._fd = pid, -1
        self.has_ended = pid == 0
        if pid and hasattr(os, "pidfd_open"):
            try:
                self._fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self.has_ended = True
            except OSError:
                self._fd = -1  # no pidfd in this kernel: the shim is polled

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of the shim. If it has ended already, sleep for `seconds`."""
        if self.has_ended:
            time.sleep(seconds)
        elif self._fd >= 0:
            poller = select.poll()
            poller.register(self._fd, select.POLLIN)
            self.has_ended = bool(poller.poll(seconds * 1e3))
        else:
            time.sleep(seconds)
            self.has_ended = shim.start_ticks(self._pid) is None


def open_target(target: str, source_fd: int, *, appends: bool) -> int:
    """Open the user's file `target` for writing, and return its descriptor. The path can be relative.

    Raises:
        OSError: the file cannot be written.
        ValueError: the path has a NUL character, or the target is the source file or `output.log`.
    """
    with contextlib.suppress(OSError):
        found = os.stat(target)
        if any(os.path.samestat(found, os.fstat(fd)) for fd in (1, source_fd)):
            raise ValueError("this file is the source of the copy")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(target, flags | (0 if appends else os.O_TRUNC), 0o666)


def copy_all(follower: Follower, target_fd: int, name: str, watch: ShimWatch) -> str:
    """Copy until the shim has ended and all bytes are copied. Retry failed writes until the shim has ended.

    Returns:
        The error that prevented the last write; "" if all bytes are written.
    """
    failure, wait_s = "", LOOK_S[0]
    while True:
        is_last = watch.has_ended  # checked before reading: after the end of the shim, no output follows
        try:
            while data := follower.piece(is_last=is_last):
                follower.advance(os.write(target_fd, data))
                write_progress(PROGRESS_FD, follower.offset)
                failure, wait_s = "", LOOK_S[0]
        except OSError as error:
            if not failure:
                shim.write_line(f"{name}: {error.strerror}: the write is repeated every {RETRY_S:g} s")
            failure = error.strerror or str(error)
        if is_last:
            return failure
        watch.wait(RETRY_S if failure else wait_s)
        wait_s = min(wait_s * 2, LOOK_S[1])


def main(source: str, shim_pid: int) -> int:
    """Copy one stream of the attempt whose records directory is open as `shim.RECORDS_FD`."""
    watch = ShimWatch(shim_pid)
    os.fchdir(shim.RECORDS_FD)
    os.close(shim.RECORDS_FD)
    launch = json.loads(records.read("launch.json"))
    copy = next(copy for copy in copies_of(launch) if copy.source == source)
    name = f"{copy.option} {copy.target}"
    try:
        source_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        failure = _copy(launch, source_fd, copy.target, name, watch)
    except OSError as error:
        failure = error.strerror or str(error)
    except Exception as error:  # otherwise the daemon would restart this copier
        failure = str(error)
    write_progress(PROGRESS_FD, ALL_COPIED, failure)
    if failure:
        shim.write_line(f"{name}: {failure}: the output is only in `rlsched logs`")
    return int(bool(failure))


def _copy(launch: dict[str, Any], source_fd: int, target: str, name: str, watch: ShimWatch) -> str:
    """Copy until the end of the input, as the job's user. Return the last error; "" if all is written.

    Raises:
        OSError: the user's file cannot be opened or closed.
        ValueError: see `open_target`.
    """
    copied = read_progress(os.pread(PROGRESS_FD, 64, 0))
    shim.give_up_oom_protection()
    shim.become_user(launch)
    os.chdir(launch["cwd"])
    appends = launch.get("appends", False) or copied is not None
    target_fd = open_target(target, source_fd, appends=appends)
    write_progress(PROGRESS_FD, copied or 0)
    follower = Follower(source_fd, copied or 0, is_whole=launch.get("whole_lines", False))
    failure = copy_all(follower, target_fd, name, watch)
    os.close(target_fd)
    return failure


if __name__ == "__main__":
    sys.exit(main(sys.argv[2], int(sys.argv[3])))
