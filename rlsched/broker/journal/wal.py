"""Checks the journal's write-ahead log before SQLite reads it.

SQLite silently ignores a damaged frame of the log and all frames after it
(https://www.sqlite.org/fileformat2.html#the_write_ahead_log). After a power loss, only the last commit can be
incomplete, because each commit is on disk before the next begins. A wrong checksum is therefore reported as
damage only if a later commit follows. A flipped bit in the last commit is not detected.
"""

from __future__ import annotations

import struct
from pathlib import Path

from rlsched.broker.base.rows import MEND
from rlsched.errors import JournalError

_MAGIC = 0x377F0682
_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_MASK = 0xFFFFFFFF


def check_wal(journal: Path) -> None:
    """Check the log of a journal that no process has open. A missing or empty log is accepted.

    Raises:
        JournalError: a commit that was on disk can no longer be read.
    """
    path = journal.with_name(journal.name + "-wal")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    if len(data) < _HEADER.size + _FRAME.size:
        return
    magic, _, page_size, _, salt_1, salt_2, *expected = _HEADER.unpack_from(data)
    order = ">" if magic & 1 else "<"
    sums = _sums(order, data[: _HEADER.size - 8], (0, 0))
    if magic & ~1 != _MAGIC or sums != tuple(expected):
        _, _, first_1, first_2, *_ = _FRAME.unpack_from(data, _HEADER.size)
        if salt_1 == first_1 or salt_2 == first_2:
            raise JournalError(f"{path}: damaged: its header's checksum does not fit; {MEND}")
        return
    step = _FRAME.size + page_size
    commits = broken_at = 0
    for at in range(_HEADER.size, len(data) - step + 1, step):
        _, size_after_commit, frame_1, frame_2, *expected = _FRAME.unpack_from(data, at)
        if not broken_at:
            sums = _sums(order, data[at : at + 8], sums)
            sums = _sums(order, data[at + _FRAME.size : at + step], sums)
            if sums == tuple(expected) and (frame_1, frame_2) == (salt_1, salt_2):
                continue
            broken_at = at
            commits = bool(size_after_commit)
        elif (frame_1, frame_2) == (salt_1, salt_2) and size_after_commit:
            commits += 1
    if commits >= 2:  # only the last commit can be incomplete without damage
        raise JournalError(f"{path}: damaged at byte {broken_at}, before later commits; {MEND}")


def _sums(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for word_1, word_2 in zip(words[::2], words[1::2], strict=True):
        first = (first + word_1 + second) & _MASK
        second = (second + word_2 + first) & _MASK
    return first, second
