"""The node's own directory: a lock for one daemon at a time, and the node's persistent state."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import BinaryIO

import msgspec

from rlsched.errors import InputError
from rlsched.files.private import make_private
from rlsched_node import records


class KeptState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State that outlives a daemon.

    Attributes:
        name: The node's name.
        cluster: ID of the cluster, from the broker's journal; "" before the first `Welcome`.
        epoch: Highest epoch that a broker of this cluster has sent to the node in a `Welcome` or an order.
            Each start of the cluster's broker begins a higher epoch.
        directory_id: Random ID of this directory, by which the broker detects two daemons with the same name.
    """

    name: str
    cluster: str = ""
    epoch: int = 0
    directory_id: str = ""


class NodeHome:
    """The node's directory (`rlsched node --dir`), locked until `close()`.

    It contains `lock`, `state.json`, `lease`, `records/` and `attempts/`.

    Raises:
        InputError: another daemon has the lock, the directory belongs to a node with another name, or the
            directory cannot be used.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        try:
            make_private(path)
            self._lock = self._take_lock()
        except OSError as error:
            raise InputError(
                f"{path}: cannot use this directory: {error.strerror}; give another --dir"
            ) from error
        try:
            self.state = self._read_state(name)
            if not self.state.directory_id:
                self.state = msgspec.structs.replace(self.state, directory_id=secrets.token_hex(8))
                self._write_state()
        except BaseException:
            self.close()
            raise

    def persist(self, cluster: str, epoch: int) -> None:
        """Write the ID of the cluster and the epoch to disk, before the node uses them.

        Raises:
            OSError: the disk is full or missing. The values are kept in memory only.
        """
        self.state = msgspec.structs.replace(self.state, cluster=cluster, epoch=epoch)
        self._write_state()

    @property
    def lease(self) -> Path:
        """Path of the lease file, which the shims of jobs with `--lost-after` read."""
        return self.path / "lease"

    def close(self) -> None:
        """Release the lock for the next daemon."""
        self._lock.close()

    def _take_lock(self) -> BinaryIO:
        # mode 0600: a job's user who could open the file could lock it, and block the next daemon
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        lock = open(os.open(self.path / "lock", flags, 0o600), "a+b", buffering=0)  # noqa: SIM115
        os.fchmod(lock.fileno(), 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read(32).decode(errors="replace").strip() or "unknown"
            lock.close()
            raise InputError(
                f"{self.path}: in use by another rlsched node (process {holder}); stop it, "
                "or give another --dir"
            ) from error
        with contextlib.suppress(OSError):  # a full disk; the process ID in the file is only informative
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n".encode())
        return lock

    def _read_state(self, name: str) -> KeptState:
        path = self.path / "state.json"
        try:
            state = msgspec.json.decode(path.read_bytes(), type=KeptState)
        except FileNotFoundError:
            return KeptState(name)
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(f"{path}: expected the state of a node: {error}; give another --dir") from error
        if state.name != name:
            raise InputError(f"{self.path}: belongs to node {state.name!r}, not {name!r}; give another --dir")
        return state

    def _write_state(self) -> None:
        records.replace_synced(str(self.path / "state.json"), msgspec.json.encode(self.state) + b"\n")
