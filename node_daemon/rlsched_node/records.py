"""Files by which a shim and its daemon communicate: read, write, sync to disk, claim an attempt.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

RESERVED_BYTES = 512
"""Size of an exit record on disk. The space is reserved before the rank starts, because the disk may
be full when the rank ends."""


def read(path: str) -> bytes:
    """Return the content of a small file. `open` is not used, because it is slow in a newly forked shim.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
        return data
    finally:
        os.close(fd)


def write(path: str, data: bytes, *, synced: bool = False) -> None:
    """Write a file in place. `synced`: force it to disk, so that it survives a crash of the machine."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
        if synced:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_existing(path: str, data: bytes) -> None:
    """Write data with one call to an existing file, such as a kernel file.

    Raises:
        OSError: the file does not exist, or does not accept the data.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def write_synced(path: str, data: bytes) -> None:
    """Write a file in place and force it to disk."""
    write(path, data, synced=True)


def write_whole(path: str, data: bytes) -> None:
    """Write a file under a temporary name, then rename it, replacing any existing file."""
    draft = f"{path}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    write(draft, data)
    os.rename(draft, path)


def replace_synced(path: str, data: bytes) -> None:
    """Write a file under a temporary name, rename it to `path`, and force file and directory to disk.

    Raises:
        OSError: the disk is full or missing; the existing file is unchanged.
    """
    draft = f"{path}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    write_synced(draft, data)
    os.rename(draft, path)
    sync_directory(os.path.dirname(path) or ".")


def reserve(path: str) -> None:
    """Reserve disk space for an exit record.

    Raises:
        OSError: the disk has no space.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, RESERVED_BYTES)
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """Force a directory's entries to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def claim(directory: str, identity: dict[str, Any]) -> bool:
    """Claim an attempt for this process: create the file `pid`. Return False if the file exists.

    Raises:
        FileNotFoundError: a daemon has claimed the attempt, and removed the directory.
    """
    draft = os.path.join(directory, f"pid.{os.getpid()}")
    write(draft, json.dumps(identity).encode())
    try:
        os.link(draft, os.path.join(directory, "pid"))
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
    return True


def exit_record(exit_code: int, reason: str, ran_s: float | None = None, *, has_left: bool = False) -> bytes:
    """Return the exit record of a rank that ends now, as one line of JSON with a length of `RESERVED_BYTES`.

    Args:
        exit_code: Exit code of the rank.
        reason: Reason for the end.
        ran_s: Run time, seconds; None if unknown.
        has_left: Processes of the rank may still run.
    """
    record = {"exit_code": exit_code, "reason": reason, "ended_s": time.time(), "ran_s": ran_s}
    if has_left:
        record["has_left"] = True
    return json.dumps(record).ljust(RESERVED_BYTES - 1).encode() + b"\n"


def write_exit(directory: str, record: bytes) -> None:
    """Write an exit record to the attempt's directory, atomically; it replaces an earlier exit record."""
    draft = os.path.join(directory, "exit.tmp")
    write_synced(draft, record)
    os.rename(draft, os.path.join(directory, "exit"))
    sync_directory(directory)
