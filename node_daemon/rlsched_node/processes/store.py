"""Attempts on disk. Each rank of an attempt has two directories.

The daemon creates them exclusively, so that no rank starts twice.

`records/CLUSTER/JOB.ATTEMPT.RANK` is the daemon's directory; jobs do not get its path. The directory of the
same name below `attempts/` is the job's own: the job may fill it, or remove it with its content.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from rlsched.files.private import make_private
from rlsched.wire.messages import MPS_FAULT, MPS_NEIGHBOUR_FAULT, AttemptKey
from rlsched_node import records
from rlsched_node.isolation.limits import ProcessSetup, RankLimits
from rlsched_node.isolation.user import JobUser
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import VANISHED
from rlsched_node.processes.output import read_piece
from rlsched_node.processes.removal import remove_tree
from rlsched_node.processes.shortage import NOT_STARTED
from rlsched_node.processes.streams import LOG, STDERR, STDOUT, Copy, copies_of, progress_name

_Record = TypeVar("_Record", bound=msgspec.Struct)
REASONS = frozenset(
    {
        "",
        "killed",
        "time_limit",
        "node_stopped",
        "fenced",
        shim.OUT_OF_MEMORY,
        shim.GPU_OUT_OF_MEMORY,
        VANISHED,
        MPS_FAULT,
        MPS_NEIGHBOUR_FAULT,
        NOT_STARTED,
    }
)
"""Reasons that an exit record can contain; see `rlsched.wire.messages.Ended`."""
_FAR_FUTURE_S = 1e11
MAX_TURNS = 1000
"""Maximum number of times that `clean` continues the unfinished removal of an attempt, in one round of
removals."""


OUTPUT_GONE = b"rlsched: the output of this attempt has been removed\n"
_log = logging.getLogger("rlsched.node")


class ProcessId(msgspec.Struct, frozen=True):
    """Identity of a process. Start time and boot distinguish it from a later process with the same ID."""

    pid: int
    start_ticks: int | None
    boot_id: str

    def is_alive(self) -> bool:
        """Return whether this process runs (a zombie does not)."""
        return (
            self.boot_id == shim.boot_id()
            and self.start_ticks is not None
            and (shim.start_ticks(self.pid) == self.start_ticks)
        )


class ExitRecord(msgspec.Struct, frozen=True):
    """How an attempt ended.

    Attributes:
        exit_code: The command's exit code, or a code listed in `rlsched_node.processes.shim`; 0 to 255.
        reason: One of `REASONS`.
        ended_s: Time of the end, Unix seconds; 0: unknown.
        ran_s: Run time, seconds of a monotonic clock; None if unknown.
        has_left: Some processes of the rank may still run.
    """

    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    reason: str = ""
    ended_s: float = 0.0
    ran_s: float | None = None
    has_left: bool = False

    @property
    def when_s(self) -> float | None:
        """Time of the end (`ended_s`), Unix seconds; None if unknown."""
        return self.ended_s or None

    def damage(self, *, has_limit: bool, told: str) -> str:
        """Return why no shim can have written this exit record; "" if the record is valid.

        Args:
            has_limit: The rank had a time limit.
            told: Reason in the daemon's order to end the rank; "": there was no order.
        """
        if self.reason not in REASONS or not 0.0 <= self.ended_s < _FAR_FUTURE_S:
            return f"expected a reason of {sorted(REASONS)} and a time, got {self.reason!r}, {self.ended_s}"
        if self.ran_s is not None and not 0.0 <= self.ran_s < _FAR_FUTURE_S:
            return f"expected a run time, got {self.ran_s}"
        if self.reason == "time_limit" and not has_limit:
            return "reason time_limit: expected a rank with a time limit"
        if self.reason == "node_stopped" and not told:
            return "reason node_stopped: expected an order of the node to end the rank"
        return ""


class KillOrder(msgspec.Struct, frozen=True):
    """Order to end a rank, with the grace period in seconds and a reason as in `ExitRecord`."""

    grace_s: float
    reason: str


class LimitOrder(msgspec.Struct, frozen=True):
    """Order with a new time limit, seconds from the rank's start; None: no limit."""

    time_limit_s: float | None


class MpsTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How a shim reaches the MPS control daemon of its rank.

    Attributes:
        program: Path of the control program, chosen by the node; the job's `PATH` is not used.
        env: Complete environment of the program.
        uid: User ID of the control daemon's account; None: the node daemon's account.
        gid: Group ID of that account.
    """

    program: str
    env: dict[str, str]
    uid: int | None = None
    gid: int | None = None


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a shim (`launch.json`): the command of a rank and the conditions of its run.

    Attributes:
        gpus: Indices of the rank's GPUs on this node.
        lease: Path of the node's lease file; "": the rank continues if no broker answers.
        lost_after_s: Time without an answer of the broker after which the rank must have ended, seconds;
            0: no limit.
        max_output_bytes: Maximum output on disk; None: no limit.
        cgroup: Directory of the rank's control group; "": the rank has no control group.
        user: User that runs the command; None: the daemon's own user.
        limits: Resource limits for the rank; absent in records of older daemons.
        setup: Limits that the shim sets on each process of the rank.
        hears_limits: The shim reads a new time limit when it gets SIGUSR1.
        workload: Workload that simulated GPUs simulate for the rank; "": unknown.
        grace_s: Seconds between SIGTERM and SIGKILL if the rank ends without an order: at the time limit, or
            because no broker answers.
        mps: MPS control daemon that serves the rank; None: the rank runs without MPS.
        output: The user's file for the rank's output; "": no file. See `rlsched_node.processes.streams`.
        error: The user's file for the rank's standard error; "": the same file as `output`.
        appends: Append to these files. If False, the files are emptied first.
        whole_lines: Write only whole lines to these files.
        has_launcher: The command is a launcher of rlsched, which can report a shortage (`shortage.py`).
    """

    gpus: list[int]
    command: list[str]
    env: dict[str, str]
    cwd: str
    time_limit_s: float | None = None
    lease: str = ""
    lost_after_s: float = 0.0
    max_output_bytes: int | None = None
    cgroup: str = ""
    user: JobUser | None = None
    limits: RankLimits = RankLimits()
    setup: ProcessSetup = ProcessSetup()
    hears_limits: bool = False
    workload: str = ""
    grace_s: float = shim.DEFAULT_GRACE_S
    mps: MpsTerms | None = None
    output: str = ""
    error: str = ""
    appends: bool = False
    whole_lines: bool = False
    has_launcher: bool = False

    def copies(self) -> list[Copy]:
        """Return which output streams of the rank are copied, and to which files of the user."""
        return copies_of({"output": self.output, "error": self.error, "cwd": self.cwd})


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The two directories of one attempt on this node.

    Only exit records are synced to disk. The files that start a rank need not survive a reboot, because a
    reboot ends the rank.

    Attributes:
        path: The daemon's directory of the attempt, which contains the attempt's records.
        job_path: The job's directory of the attempt. Its `output.log` is a link to the file in `path`.
    """

    path: Path
    job_path: Path

    def create(self, launch: LaunchRecord) -> None:
        """Create the directories, and reserve space for the exit record.

        Raises:
            FileExistsError: this attempt was started before.
            OSError: no space or no permission; the directories are removed again.
        """
        self._make(self.path)
        try:
            records.write(self._file("launch.json"), msgspec.json.encode(launch))
            records.reserve(self._file("exit.tmp"))
            sources = {LOG, *(copy.source for copy in launch.copies())}
            for source in sources:
                records.write(self._file(source), b"")
            self._make_for_job(launch.user, sources)
        except OSError:
            self.remove()
            raise

    def create_ended(self, exit_code: int, reason: str) -> None:
        """Record the end of an attempt that never ran, so that it never starts.

        Raises:
            FileExistsError: this attempt was started before.
        """
        self._make(self.path)
        (self.path / "output.log").touch()
        records.write_exit(str(self.path), records.exit_record(exit_code, reason))
        records.sync_directory(str(self.path.parent))

    @staticmethod
    def _make(path: Path) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            make_private(path.parent)
            os.mkdir(path, 0o700)

    def _make_for_job(self, user: JobUser | None, sources: Collection[str]) -> None:
        """Create the job's directory; remove a directory that an earlier job left there."""
        remove_tree(self.job_path)
        self._make(self.job_path)
        with contextlib.suppress(OSError):  # some file systems have no links
            os.link(self._file("output.log"), f"{self.job_path}/output.log")
        if user is not None:
            for path in (*(self.path / source for source in sources), self.job_path):
                os.chown(path, user.uid, user.gid)
            for path in self.job_path.parents[:3]:  # cluster, attempts, the node's directory
                path.chmod(0o711)

    def launch(self) -> LaunchRecord | None:
        """Return the launch record; None after the end is acknowledged, or if there is no valid record."""
        return self._read("launch.json", LaunchRecord)

    def process(self) -> ProcessId | None:
        """Return the identity of the shim; None before the shim has claimed the attempt."""
        return self._read("pid", ProcessId)

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether the attempt's shim ran before the last boot of the machine."""
        process = self.process()
        return process is not None and process.boot_id not in ("", shim.boot_id())

    def exit(self) -> ExitRecord | None:
        """Return how the attempt ended; None while it runs, if it vanished, or if the record is not valid."""
        record = self._read("exit", ExitRecord)
        if record is None:
            return None
        has_limit, told = True, ""
        if record.reason in ("time_limit", "node_stopped"):
            launch = self.launch()
            has_limit = launch is None or launch.time_limit_s is not None or self.limit_ordered() is not None
            told = "node_stopped" if launch is None or self.is_of_earlier_boot else self.told_to_end()
        damage = record.damage(has_limit=has_limit, told=told)
        if damage:
            _log.warning("%s: not a valid exit record: %s", self.path / "exit", damage)
        return None if damage else record

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        try:
            return msgspec.json.decode(records.read(self._file(name)), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, ValueError) as error:
            _log.warning("%s: not a valid record: %s", self.path / name, error)
            return None

    def abandon(self) -> bool:
        """Claim the attempt, so that its shim cannot start it. Return False if the shim has claimed it."""
        return records.claim(str(self.path), {"pid": 0, "start_ticks": None, "boot_id": ""})

    def record_exit(
        self, exit_code: int, reason: str, ran_s: float | None = None, *, has_left: bool = False
    ) -> ExitRecord:
        """Write an exit record where the shim wrote none, or replace the shim's record to change its reason.

        The arguments are as in `records.exit_record`.

        Raises:
            OSError: the directory is missing, or the disk is faulty.
        """
        line = records.exit_record(exit_code, reason, ran_s, has_left=has_left)
        records.write_exit(str(self.path), line)
        return msgspec.json.decode(line, type=ExitRecord)

    def order_kill(self, grace_s: float, reason: str) -> None:
        """Write the order to end the rank. The shim reads it at the next SIGTERM."""
        draft = self.path / "kill.tmp"
        draft.write_bytes(msgspec.json.encode(KillOrder(grace_s, reason)))
        draft.rename(self.path / "kill")

    def order_limit(self, limit_s: float) -> None:
        """Write a new time limit for the shim, seconds from the rank's start; infinite: no limit."""
        draft = self._file("limit.tmp")
        records.write(draft, msgspec.json.encode(LimitOrder(None if limit_s == math.inf else limit_s)))
        os.rename(draft, self._file("limit"))

    def limit_ordered(self) -> float | None:
        """Return the last ordered time limit, seconds; infinite: no limit; None: no order was written."""
        order = self._read("limit", LimitOrder)
        if order is None:
            return None
        return math.inf if order.time_limit_s is None else order.time_limit_s

    def told_to_end(self) -> str:
        """Return the reason in the order to end the rank; "" if there was no order."""
        order = self._read("kill", KillOrder)
        return order.reason if order is not None else ""

    def keep_usage(self, data: bytes) -> None:
        """Write the rank's usage up to now, for the next daemon.

        Raises:
            OSError: the disk is full, or the directory is missing.
        """
        records.write_whole(self._file("usage"), data)

    def usage(self) -> bytes | None:
        """Return the rank's usage that `keep_usage` wrote last; None if it was never called."""
        with contextlib.suppress(OSError):
            return records.read(self._file("usage"))
        return None

    def acknowledge(self) -> None:
        """Record that the broker has acknowledged the end. Only the exit record and the output are kept."""
        try:
            os.utime(self._file("pid"), follow_symlinks=False)  # the retention time starts now
            os.rename(self._file("pid"), self._file("acknowledged"))
        except FileNotFoundError:
            (self.path / "acknowledged").touch()
        copied = [name for source in (LOG, STDOUT, STDERR) for name in (source, progress_name(source))]
        for name in ("launch.json", "kill", "limit", "exit.tmp", "usage", *copied[1:]):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(name))

    @property
    def is_acknowledged(self) -> bool:
        return (self.path / "acknowledged").exists()

    def drop(self) -> None:
        """Remove an attempt that never started, and sync the removal. The broker may send its order again."""
        self.remove()
        with contextlib.suppress(FileNotFoundError):
            records.sync_directory(str(self.path.parent))

    def remove(self) -> None:
        """Remove the job's directory, then the records, so that a later call finds an unfinished removal."""
        remove_tree(self.job_path)
        remove_tree(self.path)

    def read_output(self, offset: int, max_bytes: int) -> tuple[bytes, int, bool]:
        """Return (piece of the output, start of the piece, whether it is the last), as `read_piece` does."""
        try:
            fd = os.open(self._file("output.log"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            is_gone = os.path.lexists(self.path) and offset <= 0
            return OUTPUT_GONE if is_gone else b"", max(offset, 0), True
        try:
            return read_piece(fd, offset, max_bytes)
        except OSError:  # in the earlier layout, the job may have replaced the file
            return b"", offset, True
        finally:
            os.close(fd)


class AttemptStore:
    """All attempts of a node, in `records/` and `attempts/` of its directory.

    Daemons of older versions stored the records of an attempt in the job's directory. For such attempts,
    `records/` contains links.

    Raises:
        OSError: the directories cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self.records, self.attempts = directory / "records", directory / "attempts"
        self._old: deque[tuple[AttemptDir, int]] = deque()
        for root in (self.records, self.attempts):
            make_private(root)
        for key in _keys_below(self.attempts):
            path = self.directories_of(key)
            if not path.path.exists() and _is_of_earlier_layout(path.job_path):
                make_private(path.path.parent)
                path.path.unlink(missing_ok=True)
                path.path.symlink_to(path.job_path.absolute(), target_is_directory=True)

    def directories_of(self, key: AttemptKey) -> AttemptDir:
        """Return the directories of an attempt. They need not exist."""
        name = f"{key.cluster}/{key}"
        return AttemptDir(self.records / name, self.attempts / name)

    def scan(self) -> dict[AttemptKey, AttemptDir]:
        """Return every attempt on disk, sorted by key. Directories with other names are skipped."""
        return {key: self.directories_of(key) for key in sorted(_keys_below(self.records))}

    def clean(self, now_s: float, keep_s: float, until_s: float = math.inf) -> tuple[int, bool]:
        """Remove attempts that were acknowledged more than `keep_s` before `now_s`.

        A round of removals may need several calls. An unfinished removal continues after the other attempts.
        An attempt whose job directory cannot be removed keeps its records until the next round.

        Args:
            now_s: Present time, Unix seconds.
            keep_s: Retention time, seconds.
            until_s: Time at which to stop, monotonic seconds.

        Returns:
            Number of removed attempts, and whether the round is complete.
        """
        if not self._old:
            self._old = deque((directory, 0) for directory in self._acknowledged_before(now_s - keep_s))
        removed = 0
        while self._old:
            directory, turns = self._old.popleft()
            is_gone = remove_tree(directory.job_path, until_s) and remove_tree(directory.path)
            removed += is_gone
            if time.monotonic() < until_s:
                continue
            if not is_gone and turns < MAX_TURNS:
                self._old.append((directory, turns + 1))
            break
        return removed, not self._old

    def _acknowledged_before(self, then_s: float) -> Iterator[AttemptDir]:
        for directory in self.scan().values():
            with contextlib.suppress(OSError):
                if (directory.path / "acknowledged").stat().st_mtime < then_s:
                    yield directory


_EARLIER = ("launch.json", "pid", "exit", "acknowledged")
"""Records that daemons of older versions stored in the job's directory."""


def _is_of_earlier_layout(job_path: Path) -> bool:
    """Return whether a job's directory contains records (`_EARLIER`), and belongs to the daemon's user."""
    is_ours = job_path.lstat().st_uid == os.geteuid()
    return is_ours and any((job_path / name).exists() for name in _EARLIER)


_NUMBER = re.compile("[0-9]{1,18}")


def _keys_below(root: Path) -> list[AttemptKey]:
    """Return the attempts that have directories below `root`, in the order of the file system."""
    keys = []
    for path in root.glob("*/*.*.*"):
        parts = path.name.split(".")
        if len(parts) == 3 and all(_NUMBER.fullmatch(part) for part in parts):
            job, attempt, rank = map(int, parts)
            keys.append(AttemptKey(job, attempt, rank, path.parent.name))
    return keys
