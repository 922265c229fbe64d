"""The key of a job's steps, and the address of their server, for `srun`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

AT_VARIABLE: Final = "RLSCHED_STEPS_AT"
"""Variable with the address of the server."""
_DIRECTORY: Final = "RLSCHED_ATTEMPT_DIR"
_FILE: Final = "steps.key"


def keep_key(environ: Mapping[str, str], key: bytes) -> None:
    """Write the key to a file that other users cannot read, in the job's directory on this node.

    Raises:
        OSError: the directory is missing, or the disk is full.
    """
    path = os.path.join(environ[_DIRECTORY], _FILE)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(key)


def kept_key(environ: Mapping[str, str]) -> bytes:
    """Read the key from the job's directory.

    Raises:
        OSError: the file is missing.
    """
    with open(os.path.join(environ.get(_DIRECTORY, ""), _FILE), "rb") as file:
        return file.read()
