"""CURVE keys, made on first use in a home directory, and who may speak as what.

    HOME/broker.key  broker.public       the broker's pair; clients and nodes need the public half alone
    HOME/client-default.key              a client's pair
    HOME/node-n0.key                     a node's pair; the name in the file is the node's identity
    HOME/authorised/client-default.public  node-n0.public
                                         the access list: taking a file away revokes the key at once

The directory is 0700 and secret keys are 0600; a secret that others can read is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rlsched.broker.access import NAME, Z85_LENGTH, AccessList, Role
from rlsched.broker.private import make_private
from rlsched.errors import InputError


class KeyPair(NamedTuple):
    """A CURVE pair, both halves in z85."""

    public: bytes
    secret: bytes


def default_home() -> Path:
    """`RLSCHED_HOME`, or `~/.config/rlsched`."""
    named = os.environ.get("RLSCHED_HOME")
    return Path(named) if named else Path.home() / ".config" / "rlsched"


class KeyHome:
    """The keys below one directory.

    Attributes:
        directory: HOME.
        access: The access list in it.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = Path(directory) if directory is not None else default_home()
        self.access = AccessList(self.directory / "authorised")

    def broker(self) -> KeyPair:
        """The broker's pair, made on first use.

        Raises:
            InputError: the directory cannot be written, or a key file is damaged or readable by others.
        """
        return self._pair("broker", self.directory / "broker.public")

    def client(self, name: str = "default") -> KeyPair:
        """A client's pair, made and authorised on first use."""
        return self._member("client", name)

    def node(self, name: str) -> KeyPair:
        """The pair of node `name`, made and authorised on first use."""
        return self._member("node", name)

    def broker_public(self) -> bytes:
        """The broker's public key.

        Raises:
            InputError: there is none yet.
        """
        path = self.directory / "broker.public"
        try:
            return _check_z85(path, path.read_bytes().strip())
        except FileNotFoundError as error:
            raise InputError(
                f"{path}: no broker's key here; start `rlsched broker` or `rlsched up` with "
                "this directory first, or copy the broker's broker.public here"
            ) from error
        except OSError as error:
            raise InputError(f"{path}: cannot read the broker's key: {error.strerror}") from error

    def _member(self, role: Role, name: str) -> KeyPair:
        if not NAME.fullmatch(name):
            raise InputError(
                f"{role} name {name!r}: expected 1 to 63 letters, digits, `_`, `.` or `-`, "
                "beginning with a letter or digit"
            )
        return self._pair(f"{role}-{name}", self.access.directory / f"{role}-{name}.public")

    def _pair(self, stem: str, public_path: Path) -> KeyPair:
        path = self.directory / f"{stem}.key"
        try:
            with self._locked():
                if not path.exists():
                    _make(path, public_path)
                return _read(path)
        except OSError as error:
            raise InputError(f"{path}: cannot use this key directory: {error.strerror or error}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private(self.directory)
        self.access.directory.mkdir(mode=0o700, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _make(path: Path, public_path: Path) -> None:
    """The public half first: a crash in between leaves a public key that nobody holds."""
    import zmq

    public, secret = zmq.curve_keypair()
    _write(public_path, public + b"\n", 0o600)
    _write(path, b"public " + public + b"\nsecret " + secret + b"\n", 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _read(path: Path) -> KeyPair:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise InputError(f"{path}: secret key with mode {mode:04o}, expected 0600; run `chmod 600 {path}`")
    fields = dict(line.split(None, 1) for line in path.read_bytes().splitlines() if len(line.split()) == 2)
    if b"public" not in fields or b"secret" not in fields:
        raise InputError(f"{path}: expected a `public` and a `secret` line; delete the file for a new key")
    return KeyPair(_check_z85(path, fields[b"public"].strip()), _check_z85(path, fields[b"secret"].strip()))


def _check_z85(path: Path, key: bytes) -> bytes:
    if len(key) != Z85_LENGTH:
        raise InputError(f"{path}: expected a z85 key of {Z85_LENGTH} characters, got {len(key)}")
    return key
