"""CURVE keys, which are made on first use in a key directory (HOME), and their roles.

    HOME/broker.key  broker.public       the broker's pair; clients and nodes need only the public half
    HOME/client-default.key              a client's pair
    HOME/node-n0.key                     a node's pair; the name in the file is the node's identity
    HOME/engine-slurm.key                the pair of a gateway that represents many nodes
    HOME/authorised/ROLE-NAME.public     the access list, see `AccessEntry`: removing a file revokes the key

A client's pair made in the broker's key directory has the role admin, because users who can read that
directory can also read broker.key.

The directory has mode 0700, and secret keys have mode 0600. A secret key that other users can read is
refused.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rlsched.errors import InputError
from rlsched.files.private import make_directory, make_private
from rlsched.transport.names import MAX_PERSON_CHARACTERS, NAME, Z85_LENGTH

if TYPE_CHECKING:
    from pathlib import Path

    from rlsched.transport.access import AccessEntry, AccessList
    from rlsched.transport.roles import Peer


class KeyPair(NamedTuple):
    """A CURVE key pair, both halves in z85."""

    public: bytes
    secret: bytes


def default_home() -> Path:
    """Return the default key directory: `RLSCHED_HOME`, else `~/.config/rlsched`.

    Raises:
        InputError: `RLSCHED_HOME` is not set, and the user has no home directory.
    """
    from pathlib import Path

    return Path(_default_home())


def _default_home() -> str:
    named = os.environ.get("RLSCHED_HOME")
    if named:
        return named
    user = os.path.expanduser("~")
    if user == "~":
        raise InputError("this user has no home directory: set RLSCHED_HOME to the key directory")
    return os.path.join(user, ".config", "rlsched")


class KeyHome:
    """The keys in one key directory (HOME).

    Methods for clients use paths as text, because the import of `pathlib` is slow.

    Attributes:
        text: Path of HOME as text.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.text = _default_home() if directory is None else os.fspath(directory) or "."

    @cached_property
    def directory(self) -> Path:
        """Path of HOME."""
        from pathlib import Path

        return Path(self.text)

    @cached_property
    def access(self) -> AccessList:
        """The access list in HOME. Clients do not read it."""
        from rlsched.transport.access import AccessList

        return AccessList(self.directory / "authorised")

    def broker(self) -> KeyPair:
        """Return the broker's key pair, which is made on first use.

        Raises:
            InputError: the directory cannot be written, or a key file is damaged or readable by other users.
        """
        with self.locked():
            return self._pair("broker", None)

    def client(self, name: str = "default") -> KeyPair:
        """Return a client's key pair, which is made on first use. In the broker's HOME, its role is admin."""
        check_name("client", name)
        with self.locked():

            def owner() -> Peer:
                from rlsched.transport.roles import Peer

                if (self.directory / "broker.key").exists():
                    return Peer("admin", name, login_name())
                return Peer("user", name)

            return self._pair(f"client-{name}", owner)

    def node(self, name: str) -> KeyPair:
        """Return the key pair of node `name`, which is made and authorised on first use."""
        from rlsched.transport.roles import Peer

        check_name("node", name)
        with self.locked():
            return self._pair(f"node-{name}", lambda: Peer("node", name))

    def engine(self, name: str, nodes: str = "*") -> KeyPair:
        """Return the key pair of engine `name`, which is made on first use and authorised for `nodes`.

        `nodes`: name patterns of the engine's nodes, as in `Peer.nodes`.
        """
        from rlsched.transport.roles import Peer

        check_name("engine", name)
        with self.locked():
            return self._pair(f"engine-{name}", lambda: Peer("engine", name, nodes=nodes))

    def broker_public(self) -> bytes:
        """Return the broker's public key.

        Raises:
            InputError: HOME has no such key yet, or the file cannot be read.
        """
        path = os.path.join(self.text, "broker.public")
        try:
            return _check_z85(path, _bytes(path).strip())
        except FileNotFoundError as error:
            raise InputError(
                f"{path}: no broker's key here; start `rlsched broker` or `rlsched up` with "
                "this directory first, or `rlsched keys join TOKEN` for a broker on another machine"
            ) from error
        except OSError as error:
            raise InputError(f"{path}: cannot read the broker's key: {error.strerror}") from error

    def own_clients_are_admins(self) -> None:
        """Give the role admin to clients whose secret keys are in HOME.

        Earlier versions gave these clients the role user.

        Raises:
            InputError: see `broker`.
        """
        from rlsched.transport.access import AccessEntry
        from rlsched.transport.roles import Peer

        with self.locked():
            for path in self.directory.glob("client-*.key"):
                public, name = _read(str(path)).public, path.stem.removeprefix("client-")
                known = self.access.members().get(public)
                if known is not None and known.peer == Peer("user", name, name):
                    self.put(AccessEntry.new(Peer("admin", name, login_name()), public))
                    self.take(known)

    def refuse_another(self, broker_public: bytes) -> None:
        """Check that the keys in HOME do not belong to another broker.

        Raises:
            InputError: the keys belong to another broker.
        """
        path = self.directory / "broker.public"
        if path.exists() and self.broker_public() != broker_public:
            raise InputError(f"{path} is another broker's key; give another directory with --keys")

    def trust(self, broker_public: bytes) -> None:
        """Store the broker's public key.

        Raises:
            InputError: the keys in HOME belong to another broker.
        """
        with self.locked():
            self.refuse_another(broker_public)
            _write(self.directory / "broker.public", broker_public + b"\n")

    def put(self, member: AccessEntry) -> None:
        """Write an entry of the access list, synced to disk. Callers must hold the lock of `locked`."""
        _write(self.access.directory / member.file, member.text().encode())

    def take(self, member: AccessEntry) -> None:
        """Remove an entry of the access list, synced to disk. Callers must hold the lock of `locked`."""
        (self.access.directory / member.file).unlink(missing_ok=True)
        _sync(self.access.directory)

    def _pair(self, stem: str, owner: Callable[[], Peer] | None) -> KeyPair:
        """Read a key pair, or make it.

        The public half is written first. A crash between the two writes therefore leaves a public key without
        a secret key, which is harmless.
        """
        path = os.path.join(self.text, f"{stem}.key")
        if not os.path.exists(path):
            import zmq

            public, secret = zmq.curve_keypair()
            if owner is None:
                _write(self.directory / f"{stem}.public", public + b"\n")
            else:
                from rlsched.transport.access import AccessEntry

                self.put(AccessEntry.new(owner(), public))
            _write(self.directory / f"{stem}.key", b"public " + public + b"\nsecret " + secret + b"\n")
        return _read(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the keys against changes by other processes.

        Raises:
            InputError: the directory cannot be written.
        """
        try:
            make_private(self.text)
            make_directory(os.path.join(self.text, "authorised"))
            with open(os.path.join(self.text, ".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise InputError(
                f"{self.text}: cannot use this key directory: {error.strerror or error}"
            ) from error


def login_name() -> str:
    """Return the name of the user who runs this process."""
    import getpass  # loads termios, and is needed only to make a key

    from rlsched.terminal.visible import CONTROL

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    return name if 0 < len(name) <= MAX_PERSON_CHARACTERS and not CONTROL.search(name) else str(os.getuid())


def check_name(what: str, name: str) -> None:
    """Check the name of a key, which is part of a file's name.

    Raises:
        InputError: the name is invalid.
    """
    if not re.fullmatch(NAME, name):
        raise InputError(
            f"{what} name {name!r}: expected 1 to 63 letters, digits, `_`, `.` or `-`, "
            "beginning with a letter or digit"
        )


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read(path: str) -> KeyPair:
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o077:
        raise InputError(f"{path}: secret key with mode {mode:04o}, expected 0600; run `chmod 600 {path}`")
    fields = dict(line.split(None, 1) for line in _bytes(path).splitlines() if len(line.split()) == 2)
    if b"public" not in fields or b"secret" not in fields:
        raise InputError(
            f"{path}: expected a `public` and a `secret` line; to get a new key, delete the file"
        )
    return KeyPair(_check_z85(path, fields[b"public"].strip()), _check_z85(path, fields[b"secret"].strip()))


def _check_z85(path: str, key: bytes) -> bytes:
    if len(key) != Z85_LENGTH:
        raise InputError(f"{path}: expected a z85 key of {Z85_LENGTH} characters, got {len(key)}")
    return key
