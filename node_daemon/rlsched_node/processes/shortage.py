"""Reports that a node had no free process, or no memory, to start the command of a rank.

The process that starts the command reports this to its shim on a pipe: the shim's child, or a launcher of
rlsched (`per_gpu.py`, `slurm/batch.py`) that the child executes. The command itself does not inherit the
pipe, so the report proves that the command never began.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Final

NOT_STARTED: Final = "not_started"
"""Reason for the end of a rank whose command never began, because of a shortage on the node."""
LAUNCHER_FD: Final = 3
"""Descriptor of the pipe in a launcher."""
_SHORTAGES: Final = (errno.EAGAIN, errno.ENOMEM)


def is_shortage(error: OSError) -> bool:
    """Return whether fork(2), execve(2) or setuid(2) failed because the node has no process or memory left.

    EAGAIN is also the error for RLIMIT_NPROC, the limit of all processes of an account.
    """
    return error.errno in _SHORTAGES


def report(fd: int, error: OSError) -> None:
    """Report an error to the shim if it is a shortage. `fd`: the pipe; -1: there is none."""
    if fd >= 0 and is_shortage(error):
        with contextlib.suppress(OSError):
            os.write(fd, b"!")


def was_reported(fd: int) -> bool:
    """Return whether a shortage was reported, and close the shim's end of the pipe."""
    os.set_blocking(fd, False)
    try:
        return bool(os.read(fd, 1))
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def launcher_pipe() -> int:
    """Return the pipe of a launcher; -1 if there is none. Called before the launcher opens other descriptors.

    Processes that the launcher starts do not inherit the pipe.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(LAUNCHER_FD).st_mode):
            return -1
        os.set_inheritable(LAUNCHER_FD, False)
    except OSError:
        return -1
    return LAUNCHER_FD
