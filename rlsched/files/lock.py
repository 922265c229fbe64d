"""Lock file next to a journal: one broker at a time; the kernel releases it when its holder dies."""

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
    """Open the file next to a journal whose lock is the journal's.

    Raises:
        JournalError: it cannot be created.
    """
    try:
        touch_private(path.with_name(path.name + ".lock"))
        return FileIO(path.with_name(path.name + ".lock"), "a")
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error


def take_lock(lock: FileIO) -> bool:
    """Lock it, and write the holder (`Holder`) into it; False: another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(OSError):  # on a full disk the holder stays unknown
        lock.truncate(0)
        lock.write(f"{boot_id()} {os.getpid()}\n".encode())
    return True


class Holder(NamedTuple):
    """Holder of a journal's lock, as it reports itself; "" and 0 if unknown."""

    boot_id: str
    process: int

    @classmethod
    def read(cls, path: Path) -> Holder:
        """Read the lock's file; a process that released the lock is still named there."""
        try:
            boot, process = path.with_name(path.name + ".lock").read_text(encoding="ascii").split()
            return cls(boot, int(process))
        except (OSError, ValueError):
            return cls("", 0)

    def runs(self) -> bool:
        """Whether a process with its number runs on this machine since this boot; no lock is touched."""
        return bool(self.boot_id) and self.boot_id == boot_id() and Path(f"/proc/{self.process}").exists()


def boot_id() -> str:
    """Return an id of this machine's current boot; "" if unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def locked(path: Path) -> FileIO:
    """Take an exclusive lock next to the journal, released by the kernel if the broker dies."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size and not (path.exists() and path.stat().st_size):
        raise JournalError(f"{log}: a write-ahead log without its journal; put both back, or move both away")
    try:
        make_private(path.parent)
        touch_private(path)
    except OSError as error:
        raise JournalError(f"{path}: cannot write here: {error.strerror}") from error
    lock = lock_file(path)
    if not take_lock(lock):
        lock.close()
        raise JournalHeldError(
            f"{path}: another broker holds this journal; stop it first, or give this one another --dir"
        )
    return lock
