"""The lock file of a journal. Only one broker at a time can hold the lock; the kernel releases it at exit."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from rlsched.errors import JournalError, JournalHeldError
from rlsched.files.private import make_private, touch_private


def lock_file(path: Path) -> FileIO:
    """Open the lock file next to a journal; create it if it is missing.

    Raises:
        JournalError: the file cannot be created.
    """
    try:
        touch_private(path.with_name(path.name + ".lock"))
        return FileIO(path.with_name(path.name + ".lock"), "a")
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error


def take_lock(lock: FileIO) -> bool:
    """Lock the file, and write this process into it as the `Holder`. Return False if it is already locked."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(OSError):  # on a full disk the holder stays unknown
        lock.truncate(0)
        lock.write(f"{boot_id()} {os.getpid()}\n".encode())
    return True


class Holder(NamedTuple):
    """The process that last took the lock of a journal. Unknown values are "" and 0."""

    boot_id: str
    process: int

    @classmethod
    def read(cls, path: Path) -> Holder:
        """Read the last holder from the lock file of a journal. The process may have released the lock."""
        try:
            boot, process = path.with_name(path.name + ".lock").read_text(encoding="ascii").split()
            return cls(boot, int(process))
        except (OSError, ValueError):
            return cls("", 0)

    def runs(self) -> bool:
        """Return whether the holder still runs: its process ID exists, and the machine has not rebooted."""
        return bool(self.boot_id) and self.boot_id == boot_id() and Path(f"/proc/{self.process}").exists()


def boot_id() -> str:
    """Return the kernel's ID of the current boot of this machine; "" if unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def locked(path: Path) -> FileIO:
    """Lock a journal for this process, and return the lock file. The kernel releases the lock at exit.

    Raises:
        JournalHeldError: another broker has the lock.
        JournalError: the directory is not writable, or there is a write-ahead log without a journal.
    """
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size and not (path.exists() and path.stat().st_size):
        raise JournalError(
            f"{log}: this write-ahead log has no journal; put the journal back, or move the log away"
        )
    try:
        make_private(path.parent)
        touch_private(path)
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error
    lock = lock_file(path)
    if not take_lock(lock):
        lock.close()
        raise JournalHeldError(
            f"{path}: another broker holds this journal; stop it first, or use another --dir"
        )
    return lock
