"""Creates directories and files that only their owner can read: with mode 0700 or 0600 from the start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_private(directory: str | os.PathLike[str]) -> None:
    """Create a directory and its missing parents, each with mode 0700. Existing directories do not change.

    `Path.mkdir(mode=..., parents=True)` would use the mode only for the last directory.

    Raises:
        OSError: a directory cannot be created, or the path is a file.
    """
    above = os.path.dirname(os.fspath(directory).rstrip("/")) or ("/" if os.path.isabs(directory) else ".")
    if not os.path.exists(above):
        make_private(above)
    make_directory(directory)


def make_directory(directory: str | os.PathLike[str]) -> None:
    """Create a directory with mode 0700, if it does not exist.

    Raises:
        OSError: the directory cannot be created, or the path is a file.
    """
    try:
        os.mkdir(directory, 0o700)
    except OSError:
        if not os.path.isdir(directory):
            raise


def touch_private(path: Path) -> None:
    """Create an empty file with mode 0600, if it does not exist.

    Raises:
        OSError: the file cannot be created.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
