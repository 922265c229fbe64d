"""Who may speak as what: the key files of HOME/authorised/, read once and again when they change.

Asked for every message and every handshake, so it must cost next to nothing: a directory's time stamp at each
question, the files' own once a second, and a file is read when its stamp is another one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

Role = Literal["client", "node"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
Z85_LENGTH = 40
SCAN_S = 1.0
"""A file overwritten in place, which leaves the directory's time stamp as it is, is noticed after so long."""
_Stamp = tuple[int, int, int, int]
_ROLES: dict[str, Role] = {"client": "client", "node": "node"}


class Peer(msgspec.Struct, frozen=True):
    """Who a key belongs to."""

    role: Role
    name: str


class _File(NamedTuple):
    stamp: _Stamp
    key: bytes
    peer: Peer | None


class AccessList:
    """The access list of a broker.

    Args:
        directory: HOME/authorised; it need not exist.
        elapsed: A clock that never jumps, seconds.

    Attributes:
        num_read: Files read so far.
    """

    def __init__(self, directory: Path, elapsed: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self.num_read = 0
        self._elapsed = elapsed
        self._directory_stamp = -2
        self._scanned_s = -SCAN_S
        self._files: dict[str, _File] = {}
        self._peers: dict[bytes, Peer] = {}

    def peers(self) -> dict[bytes, Peer]:
        """Public key (z85) -> whose it is. A damaged file authorises nobody."""
        try:
            stamp = self.directory.stat().st_mtime_ns
        except OSError:
            stamp = -1
        now_s = self._elapsed()
        if stamp != self._directory_stamp or now_s - self._scanned_s >= SCAN_S:
            self._directory_stamp, self._scanned_s = stamp, now_s
            self._scan()
        return self._peers

    def _scan(self) -> None:
        found: dict[str, _File] = {}
        try:
            with os.scandir(self.directory) as files:
                for entry in files:
                    if entry.name.endswith(".public"):
                        file = self._look(entry)
                        if file is not None:
                            found[entry.name] = file
        except OSError:
            found = {}
        if found != self._files:
            self._files = found
            self._peers = {file.key: file.peer for _, file in sorted(found.items()) if file.peer is not None}

    def _look(self, entry: os.DirEntry[str]) -> _File | None:
        """A file as it is known, read again if it is another one by now."""
        try:
            stat = entry.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
            known = self._files.get(entry.name)
            if known is not None and known.stamp == stamp:
                return known
            self.num_read += 1
            key = Path(entry.path).read_bytes().strip()
        except OSError:
            return None
        role, _, name = entry.name.removesuffix(".public").partition("-")
        fine = len(key) == Z85_LENGTH and NAME.fullmatch(name) is not None and role in _ROLES
        return _File(stamp, key, Peer(_ROLES[role], name) if fine else None)
