"""Files that are replaced as a whole: after a crash, a file has its old or its new contents."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically. On an error, the old file stays, and no temporary file is left.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
