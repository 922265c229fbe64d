"""The access list: the key files in HOME/authorised/. Only changed files are read again.

Every message and every handshake queries the list, so a query must be cheap. Each query reads the time stamp
of the directory. Once a second, a query also reads the time stamps of the files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from rlsched.terminal.visible import visible
from rlsched.transport.names import NAME, Z85_LENGTH
from rlsched.transport.roles import Peer, Role

SCAN_S = 1.0
"""Maximum delay, seconds, until a change of a file's content is noticed."""
_Stamp = tuple[int, int, int, int]
_ROLES: dict[str, Role] = {
    "user": "user",
    "admin": "admin",
    "node": "node",
    "engine": "engine",
    "joining": "joining",
    "client": "user",  # role name in files of earlier versions
}


class AccessEntry(msgspec.Struct, frozen=True):
    """An entry of the access list, stored in the file ROLE-NAME.public.

    The first line of the file is the key; lines of the form `field value` follow.
    """

    file: str
    key: str
    """Public half of the key pair, z85."""
    peer: Peer
    joins_as: Role | None = None
    """For a one-time key: role of the permanent key that replaces it."""
    expires_s: float | None = None
    """Expiry of a one-time key, Unix seconds."""

    def text(self) -> str:
        """Return the text of the entry's file."""
        fields = {
            "person": self.peer.person,
            "nodes": self.peer.nodes,
            "joins_as": self.joins_as,
            "expires_s": self.expires_s,
        }
        lines = [f"{field} {value}" for field, value in fields.items() if value]
        return "\n".join([self.key, *lines, ""])

    @classmethod
    def new(
        cls, peer: Peer, key: bytes, joins_as: Role | None = None, expires_s: float | None = None
    ) -> AccessEntry:
        """Return an entry for a new key (z85), with the name of its file; nothing is written."""
        return cls(f"{peer.role}-{peer.name}.public", key.decode(), peer, joins_as, expires_s)

    @classmethod
    def parse(cls, file: str, text: str) -> AccessEntry | None:
        """Parse a file of the access list. Return None if the file is damaged.

        A user key without a person belongs to the person with the same name as the key.
        """
        prefix, _, name = file.removesuffix(".public").partition("-")
        key, *lines = text.strip().splitlines() or [""]
        fields = dict(line.split(None, 1) for line in lines if len(line.split()) >= 2)
        role = _ROLES.get(prefix)
        if role is None or len(key) != Z85_LENGTH or not re.fullmatch(NAME, name):
            return None
        is_nobody = bool({"node", "engine"} & {role, fields.get("joins_as")})
        person = visible(fields.get("person", "" if is_nobody else name))
        nodes = visible(fields.get("nodes", ""))
        if role != "joining":
            return cls(file, key, Peer(role, name, person, nodes))
        joins_as = _ROLES.get(fields.get("joins_as", ""))
        try:
            return cls(file, key, Peer(role, name, person, nodes), joins_as, float(fields["expires_s"]))
        except (KeyError, ValueError):
            return None


class _MemberFile(NamedTuple):
    stamp: _Stamp
    member: AccessEntry | None


class AccessList:
    """The access list of a broker.

    Args:
        directory: HOME/authorised; the directory need not exist.
        elapsed: A monotonic clock, seconds.

    Attributes:
        num_read: Number of files read so far.
    """

    def __init__(self, directory: Path, elapsed: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self.num_read = 0
        self._elapsed = elapsed
        self._directory_stamp = -2
        self._scanned_s = -SCAN_S
        self._files: dict[str, _MemberFile] = {}
        self._members: dict[bytes, AccessEntry] = {}
        self._peers: dict[bytes, Peer] = {}

    def peers(self) -> dict[bytes, Peer]:
        """Return the owner of each key, by public key (z85). A damaged file authorises no key."""
        try:
            stamp = self.directory.stat().st_mtime_ns
        except OSError:
            stamp = -1
        now_s = self._elapsed()
        if stamp != self._directory_stamp or now_s - self._scanned_s >= SCAN_S:
            self._directory_stamp, self._scanned_s = stamp, now_s
            self._scan()
        return self._peers

    def members(self) -> dict[bytes, AccessEntry]:
        """Read the changed files now, and return all entries by public key (z85)."""
        self._scan()
        return self._members

    def _scan(self) -> None:
        found: dict[str, _MemberFile] = {}
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
            members = [file.member for _, file in sorted(found.items()) if file.member is not None]
            self._members = {member.key.encode(): member for member in members}
            self._peers = {key: member.peer for key, member in self._members.items()}

    def _look(self, entry: os.DirEntry[str]) -> _MemberFile | None:
        """Return a file of the access list, parsed; read it again only if it has changed since the last call.

        None: the file cannot be read.
        """
        try:
            stat = entry.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
            known = self._files.get(entry.name)
            if known is not None and known.stamp == stamp:
                return known
            self.num_read += 1
            text = Path(entry.path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return _MemberFile(stamp, AccessEntry.parse(entry.name, text))
