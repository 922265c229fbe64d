"""Starts and watches copiers: processes that copy the output streams of ranks to the users' files."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os

from rlsched_node import records
from rlsched_node.processes import copier
from rlsched_node.processes.shortage import is_shortage
from rlsched_node.processes.spawning import spawn_process
from rlsched_node.processes.store import AttemptDir
from rlsched_node.processes.streams import (
    ALL_COPIED,
    Copy,
    failure_of,
    progress_name,
    read_progress,
    write_progress,
)

_log = logging.getLogger("rlsched.node")


class Copiers:
    """The copiers of this node's ranks. They outlive the daemon; a copier that runs locks its progress file.

    Attributes:
        pids: Process IDs of copiers that this process has started and not reaped.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def start(self, directory: AttemptDir, shim_pid: int) -> None:
        """Start the missing copiers of a rank: copiers that do not run and have not finished. Log failures.

        If the node has no process or memory for a copier, the next call tries again, except after the end of
        the rank: then the copy has failed.

        Args:
            directory: The attempt's directories.
            shim_pid: Process ID of the rank's shim; 0: the shim has ended.
        """
        launch = directory.launch()
        for copy in launch.copies() if launch is not None else ():
            try:
                self._start(directory, copy, shim_pid)
            except OSError as error:
                _log.warning("%s: %s cannot be copied: %s", directory.path, copy.source, error)

    def are_done(self, directory: AttemptDir) -> bool:
        """Return whether no copier of a rank runs. Reaps copiers that have ended."""
        self.reap()
        launch = directory.launch()
        copies = launch.copies() if launch is not None else ()
        return not any(_is_locked(f"{directory.path}/{progress_name(copy.source)}") for copy in copies)

    def failure(self, directory: AttemptDir) -> str:
        """Return option, path and reason of each failed copy of a rank, as one text; "" if none failed."""
        launch = directory.launch()
        found = []
        for copy in launch.copies() if launch is not None else ():
            with contextlib.suppress(OSError):
                reason = failure_of(records.read(f"{directory.path}/{progress_name(copy.source)}"))
                if reason:
                    found.append(f"{copy.option} {copy.target}: {reason}")
        return "; ".join(found)

    def reap(self) -> None:
        """Reap the copiers that have ended."""
        for pid in list(self.pids):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self.pids.discard(pid)
            except ChildProcessError:
                self.pids.discard(pid)

    def _start(self, directory: AttemptDir, copy: Copy, shim_pid: int) -> None:
        path = directory.path
        progress = os.open(path / progress_name(copy.source), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(progress, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the copier inherits the lock
            except BlockingIOError:
                return  # the copier runs already
            if read_progress(os.pread(progress, 64, 0)) == ALL_COPIED:
                return
            try:
                pid = spawn_process(path, copier.__file__, copy.source, str(shim_pid), passed=progress)
            except OSError as error:
                if not (shim_pid and is_shortage(error)):
                    write_progress(progress, ALL_COPIED, f"cannot start a process: {error.strerror}")
                raise
            self.pids.add(pid)
        finally:
            os.close(progress)


def _is_locked(path: str) -> bool:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False
