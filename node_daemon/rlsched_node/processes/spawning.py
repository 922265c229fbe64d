"""Starts scripts in isolated Python interpreters that outlive the daemon.

The directory of an attempt's records and the attempt's output are open in each process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from rlsched_node.processes import shim

ENVIRONMENT: Final = {"LANG": "C.UTF-8"}


def spawn_process(
    path: Path, script: str, *arguments: str, passed: int, blocked: Collection[int] = ()
) -> int:
    """Start a script of this package in a session of its own. Return its process ID.

    The process writes to the attempt's `output.log`. Its first argument is CLUSTER/JOB.ATTEMPT.RANK, the last
    two parts of `path`, so that its command line shows the attempt.

    Args:
        path: Directory of the attempt's records; open in the process as `shim.RECORDS_FD`.
        script: File of the script.
        arguments: Further arguments.
        passed: Descriptor that the process gets as `shim.PIPE_FD`.
        blocked: Signals that are blocked when the process starts.

    Raises:
        OSError: the process cannot be started.
    """
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", script, os.path.join(*path.parts[-2:]), *arguments],
        ENVIRONMENT,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(path / "output.log"), os.O_WRONLY | os.O_APPEND, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, passed, shim.PIPE_FD),
            (os.POSIX_SPAWN_OPEN, shim.RECORDS_FD, str(path), os.O_RDONLY | os.O_DIRECTORY, 0),
        ],
        setsid=True,
        setsigmask=blocked,
    )
