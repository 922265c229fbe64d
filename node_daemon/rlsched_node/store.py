"""Attempts on disk: a directory a (job, attempt, rank), made exclusively, so that none starts twice."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from rlsched.broker.private import make_private
from rlsched_node import shim
from rlsched_node.attempt import AttemptKey

_Record = TypeVar("_Record", bound=msgspec.Struct)
KEEP_ACKNOWLEDGED_S = 30 * 86400.0
"""How long the output of an acknowledged attempt stays on disk."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process, told apart from a later one of the same number by its start time and the boot."""

    pid: int
    start_ticks: int | None
    boot_id: str

    def is_alive(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        return (
            self.boot_id == shim.boot_id()
            and self.start_ticks is not None
            and (shim.start_ticks(self.pid) == self.start_ticks)
        )


class ExitRecord(msgspec.Struct, frozen=True):
    """How an attempt ended.

    Attributes:
        exit_code: The command's, or one of the codes that `rlsched_node.shim` lists.
        reason: "" | "killed" | "time_limit" | "node_stopped" | "fenced".
        ended_s: Unix seconds.
    """

    exit_code: int
    reason: str = ""
    ended_s: float = 0.0

    @property
    def when_s(self) -> float | None:
        """`ended_s`; None where the record does not say."""
        return self.ended_s or None


class KillOrder(msgspec.Struct, frozen=True):
    """The terms on which a rank was told to end; `reason` as in `ExitRecord`."""

    grace_s: float
    reason: str


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the shim runs, which GPUs it holds (numbers on this node), and the node's lease ("": no fence)."""

    gpus: list[int]
    command: list[str]
    env: dict[str, str]
    cwd: str
    time_limit_s: float | None = None
    lease: str = ""


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """One attempt's directory. Files appear whole: written beside, forced to disk, renamed."""

    path: Path

    def create(self, launch: LaunchRecord) -> None:
        """Make the directory, durably, with room reserved for the exit record.

        Raises:
            FileExistsError: this attempt was started before.
            OSError: no space or no permission; nothing is left behind.
        """
        self._make()
        try:
            shim.write_synced(str(self.path / "launch.json"), msgspec.json.encode(launch))
            shim.write_synced(str(self.path / "exit.tmp"), b" " * 511 + b"\n")
            shim.write_synced(str(self.path / "output.log"), b"")
            shim.sync_directory(str(self.path))
            shim.sync_directory(str(self.path.parent))
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def create_ended(self, exit_code: int, reason: str) -> None:
        """Remember an attempt that never ran, so that it never will.

        Raises:
            FileExistsError: this attempt was started before.
        """
        self._make()
        shim.write_exit(str(self.path), exit_code, reason)
        shim.sync_directory(str(self.path.parent))

    def _make(self) -> None:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700)

    def launch(self) -> LaunchRecord | None:
        """What was to be run; None once acknowledged, or when the daemon was killed while writing it."""
        return self._read("launch.json", LaunchRecord)

    def process(self) -> ProcessId | None:
        """The shim; None before it has claimed the attempt."""
        return self._read("pid", ProcessId)

    def exit(self) -> ExitRecord | None:
        """How it ended; None while it runs, or when it vanished."""
        return self._read("exit", ExitRecord)

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def abandon(self) -> bool:
        """Claim the attempt in the shim's place. False: the shim was first, and runs or ran."""
        return shim.claim(str(self.path), {"pid": 0, "start_ticks": None, "boot_id": ""})

    def record_exit(self, exit_code: int, reason: str) -> ExitRecord:
        """Write the exit record of a shim that is gone without one."""
        shim.write_exit(str(self.path), exit_code, reason)
        return ExitRecord(exit_code, reason, time.time())

    def order_kill(self, grace_s: float, reason: str) -> None:
        """Leave the terms of the SIGTERM that follows."""
        draft = self.path / "kill.tmp"
        draft.write_bytes(msgspec.json.encode(KillOrder(grace_s, reason)))
        draft.rename(self.path / "kill")

    def told_to_end(self) -> str:
        """The reason of the order to end it; "" where none came."""
        order = self._read("kill", KillOrder)
        return order.reason if order is not None else ""

    def acknowledge(self) -> None:
        """The broker has the end in its journal: keep the exit record and the output alone."""
        (self.path / "acknowledged").touch()
        for name in ("launch.json", "pid", "kill", "exit.tmp"):
            (self.path / name).unlink(missing_ok=True)

    @property
    def is_acknowledged(self) -> bool:
        return (self.path / "acknowledged").exists()

    def remove(self) -> None:
        """Forget an attempt that never started."""
        shutil.rmtree(self.path, ignore_errors=True)

    def read_output(self, offset: int, max_bytes: int) -> tuple[bytes, bool]:
        """(a piece of the output, whether nothing follows it at this moment)."""
        try:
            with open(self.path / "output.log", "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(offset)
                data = file.read(max_bytes)
        except FileNotFoundError:
            return b"", True
        return data, offset + len(data) >= size


class AttemptStore:
    """All attempt directories of a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        make_private(root)

    def at(self, key: AttemptKey) -> AttemptDir:
        """The directory of an attempt, there or not."""
        return AttemptDir(self.root / key.cluster / str(key))

    def scan(self) -> dict[AttemptKey, AttemptDir]:
        """Every attempt on disk, in order; other names are left alone."""
        found = {}
        for path in self.root.glob("*/*.*.*"):
            parts = path.name.split(".")
            if len(parts) == 3 and all(part.isdigit() for part in parts):
                job, attempt, rank = map(int, parts)
                found[AttemptKey(job, attempt, rank, path.parent.name)] = AttemptDir(path)
        return dict(sorted(found.items()))

    def clean(self, now_s: float) -> int:
        """Remove attempts acknowledged longer than `KEEP_ACKNOWLEDGED_S` ago (Unix seconds): how many."""
        removed = 0
        for directory in self.scan().values():
            try:
                age_s = now_s - (directory.path / "acknowledged").stat().st_mtime
            except FileNotFoundError:
                continue
            if age_s > KEEP_ACKNOWLEDGED_S:
                shutil.rmtree(directory.path)
                removed += 1
        return removed
