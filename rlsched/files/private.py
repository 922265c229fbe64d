"""Directories and files that their owner alone can read: 0700 and 0600 from the moment they are there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_private(directory: str | os.PathLike[str]) -> None:
    """Make a directory and all that is missing above it, each 0700; what exists is left as it is.

    `mkdir(mode=..., parents=True)` gives its mode to the last part alone.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    above = os.path.dirname(os.fspath(directory).rstrip("/")) or ("/" if os.path.isabs(directory) else ".")
    if not os.path.exists(above):
        make_private(above)
    make_directory(directory)


def make_directory(directory: str | os.PathLike[str]) -> None:
    """Make a directory with mode 0700; one that exists is left as it is.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    try:
        os.mkdir(directory, 0o700)
    except OSError:
        if not os.path.isdir(directory):
            raise


def touch_private(path: Path) -> None:
    """Make an empty file with mode 0600; what exists is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
