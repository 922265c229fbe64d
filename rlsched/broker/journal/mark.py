"""The mark: a file next to a journal that records the cluster's ID and the last committed entry.

SQLite cannot detect that a journal was emptied, or replaced by an older copy. A broker that started on such a
file would assign job numbers again, and would not recognise the jobs on its nodes. The broker therefore
compares the mark (`cluster.json`) with the journal when it starts. The mark is written after each commit, so
it is never ahead of the journal. Directories of older versions have no mark until the next start.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rlsched.broker.base.entries import BasePart
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.decisions.segments import segment_files
from rlsched.errors import JournalLostError
from rlsched.files.private import touch_private

MARK_FILE: Final = "cluster.json"
ADDRESS_FILE: Final = "address"
"""File with the broker's address for clients on the same machine, written after the broker's first commit."""
_BYTES: Final = 512
"""Size of the mark, bytes: one sector. It is rewritten in place, which is possible even on a full disk."""


class Mark(msgspec.Struct, frozen=True):
    """Contents of the mark: the file next to a journal that records the last committed entry.

    Attributes:
        cluster: ID of the cluster.
        epoch: Epoch of the last broker that used the journal.
        entries: Entry number of the last committed entry.
        crc: Checksum of that entry.
    """

    cluster: str
    epoch: int
    entries: int
    crc: int


class JournalMark:
    """The mark of a journal: a file next to the journal that contains a `Mark`.

    Args:
        journal: Path of the journal; the mark is next to it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._path = journal, journal.with_name(MARK_FILE)
        self._written = Mark("", 0, -1, 0)
        self._fd = -1

    def read(self) -> Mark | None:
        """Return the contents of the mark; None if the file is missing or unreadable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Mark)
        except (OSError, msgspec.DecodeError):
            return None

    # ---- before a start ---------------------------------------------------------------------------

    def check_new(self) -> None:
        """Check, before a new journal is created, that the directory has never had a journal. Write nothing.

        Raises:
            JournalLostError: another file in the directory shows that a journal existed.
        """
        log = self._journal.with_name(self._journal.name + "-wal")
        has_log = log.exists() and log.stat().st_size > 0
        shown = self._shown() or (f"{log.name} next to it holds commits" if has_log else "")
        if shown:
            state = "is empty" if self._journal.exists() else "is missing"
            raise JournalLostError(f"{self._journal}: {state}, but {shown}; {_WAYS_OUT}")

    def check(self, journal: Journal) -> None:
        """Check that the journal has all entries that brokers have committed in this directory.

        Raises:
            JournalLostError: the journal lacks entries, or belongs to another cluster.
            JournalError: the journal is damaged.
        """
        if not journal.last:
            shown = self._shown()
            if shown:
                raise JournalLostError(f"{self._journal}: holds no entries, but {shown}; {_WAYS_OUT}")
            return
        mark = self.read()
        if mark is None:
            return
        if mark.entries > journal.last:
            raise JournalLostError(
                f"{self._journal}: ends at entry {journal.last:,}, but a broker has committed entry "
                f"{mark.entries:,} here: the journal is an older copy, or its write-ahead log was removed; "
                f"put the newest journal back (with its -wal), or restore a copy of this one with {_RESTORE}"
            )
        base = _base_at(journal, max(mark.entries, journal.first))
        if mark.cluster != base.cluster if base else mark.crc != journal.checksum_of(mark.entries):
            raise JournalLostError(
                f"{self._journal}: entry {mark.entries:,} differs from the entry that a broker of cluster "
                f"{mark.cluster} has committed here: the journal is another cluster's, or an older copy that "
                f"another broker used; put the right one back, or restore a copy of this one with {_RESTORE}"
            )

    def _shown(self) -> str:
        """Describe a file that shows that this directory had a journal; "" if there is no such file."""
        mark = self.read()
        if mark is not None:
            return f"{self._path.name} next to it is of cluster {mark.cluster} with {mark.entries:,} entries"
        if self._path.exists():
            return f"{self._path.name} next to it belongs to an earlier broker"
        if self._journal.with_name(ADDRESS_FILE).is_file():
            return f"the file {ADDRESS_FILE} next to it belongs to an earlier broker"
        store = self._journal.with_name(STORE_FOLDER)
        if any(segment_files(store, kind) for kind in ("decisions", "jobs")):
            return f"the folder {STORE_FOLDER} next to it holds an earlier broker's decisions"
        return ""

    # ---- while it serves --------------------------------------------------------------------------

    def begin(self, journal: Journal, cluster: str, epoch: int) -> None:
        """Write the mark for a broker that begins to serve. Call this after the broker's first commit.

        Raises:
            OSError: the file cannot be written.
        """
        self.close()
        if not self._path.exists():
            draft = self._path.with_name(self._path.name + ".tmp")
            draft.unlink(missing_ok=True)
            touch_private(draft)
            draft.write_bytes(_packed(_mark(journal, cluster, epoch)))
            sync(draft)
            draft.rename(self._path)
            sync(self._path.parent)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        self._written = Mark(cluster, epoch, -1, 0)
        self.record_commit(journal)
        os.fsync(self._fd)

    def record_commit(self, journal: Journal) -> None:
        """Record the journal's last entry in the mark. A failed write is ignored: the mark may be behind."""
        if self._fd >= 0 and journal.last != self._written.entries:
            self._written = _mark(journal, self._written.cluster, self._written.epoch)
            with suppress(OSError):
                os.pwrite(self._fd, _packed(self._written), 0)

    def remove(self) -> None:
        """Remove the mark, because another journal or a new cluster will use the directory."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _mark(journal: Journal, cluster: str, epoch: int) -> Mark:
    return Mark(cluster, epoch, journal.last, journal.checksum_of(journal.last) or 0)


def _packed(mark: Mark) -> bytes:
    return msgspec.json.encode(mark).ljust(_BYTES - 1) + b"\n"


def _base_at(journal: Journal, n: int) -> BasePart | None:
    """Return entry `n` if it is a part of the base (the compacted start of the journal), else None."""
    found = next(iter(journal.rows(n - 1)), None)
    return found.entry if found is not None and isinstance(found.entry, BasePart) else None


def sync(path: Path) -> None:
    """Sync a file or a directory to disk.

    Raises:
        OSError: the sync failed.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_RESTORE: Final = "`rlsched journal restore FILE`"
_WAYS_OUT: Final = (
    f"put the journal back, restore a backup with {_RESTORE}, or give up all of its jobs with "
    "`rlsched broker --new-cluster`"
)
