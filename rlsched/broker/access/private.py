"""Directories and files that their owner alone can read: 0700 and 0600 from the moment they are there."""

from __future__ import annotations

import os
from pathlib import Path


def make_private(directory: Path) -> None:
    """Make a directory and all that is missing above it, each 0700; what exists is left as it is.

    `mkdir(mode=..., parents=True)` gives its mode to the last part alone.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    if not directory.parent.exists():
        make_private(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def touch_private(path: Path) -> None:
    """Make an empty file with mode 0600; what exists is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
