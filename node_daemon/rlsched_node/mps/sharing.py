"""The MPS control daemons of a node: one for each user account and set of GPUs that jobs share.

A control daemon is started for the first rank that shares the GPUs, and ends after the last one. Its record
on disk allows the next node daemon to adopt or end it. The node daemon's loop waits only for this start. A
thread sends all other commands.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rlsched.errors import InputError
from rlsched.files.private import make_directory, make_private
from rlsched.wire.messages import MPS_FAULT, MPS_NEIGHBOUR_FAULT, AttemptKey, Launch
from rlsched_node import records
from rlsched_node.isolation.user import JobUser
from rlsched_node.mps.control import (
    LONGEST_SOCKET,
    MOST_SOCKET_BYTES,
    PIPES,
    MpsControl,
    MpsError,
    find_processes,
    is_installed,
    pipes_of,
)
from rlsched_node.processes import shim
from rlsched_node.processes.leftovers import attempt_directory_of, processes_by_directory
from rlsched_node.processes.mps_commands import PROGRAM
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import LaunchRecord, MpsTerms, ProcessId

LOOK_S: Final = 5.0
"""Seconds between two listings of a control daemon's clients."""
TURN_S: Final = 1.0
FAULT_S: Final = 60.0
"""Maximum time from a fault of an MPS server to a rank's failure that is attributed to the fault, seconds."""
LEFT_S: Final = 10.0
"""Maximum time from a rank's failure until the node notices the MPS fault that caused the failure, seconds.
The node can notice the rank's end before it notices the fault of the MPS server.
"""
FIRST_S: Final = 30.0
"""For this time after a rank has joined a control daemon, seconds, the daemon's clients are listed every
`TURN_S` while no server of the daemon is known. Otherwise, they are listed every `LOOK_S`."""
RETRY_S: Final = 60.0
"""Minimum time between a failed start of a control daemon and the next attempt, seconds."""
CLOSE_S: Final = 20.0
"""Maximum time that a stopping node daemon waits for unused control daemons to exit, seconds."""
THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_HIGHEST: Final = "99999999"
_RECORD: Final = "daemon.json"
_log = logging.getLogger("rlsched.node")


class MpsRecord(msgspec.Struct, frozen=True):
    """Record of a control daemon on disk.

    Attributes:
        gpus: Indices, on this node, of the GPUs that its clients share.
        user: User account of its clients; None: the node daemon's account.
        process: The control daemon; None while it is being started.
    """

    gpus: list[int]
    user: JobUser | None = None
    process: ProcessId | None = None


class _Fault(NamedTuple):
    """A fault of an MPS server.

    Attributes:
        at_s: Time at which the node daemon noticed the fault, monotonic seconds.
        culprit: Directory of the job that caused the fault; "": unknown.
        ranks: Ranks that used the control daemon at `at_s`, or had failed at most `LEFT_S` before.
    """

    at_s: float
    culprit: str
    ranks: frozenset[AttemptKey]


@dataclass(slots=True, eq=False)
class _Daemon:
    """A control daemon and its clients.

    Attributes:
        ranks: Ranks that use this control daemon, each with its job's directory.
        failed: Ranks that failed in the last `LEFT_S`, each with the time of its failure, monotonic seconds.
        joined_s: Time at which the last rank joined, monotonic seconds.
        clients: Process IDs of the clients, as the control daemon listed them last.
        directories: Directory of the job, by process ID: for all clients ever listed, and for the processes
            of ranks that ran when the control daemon was adopted.
        servers: Process IDs of the servers that have not ended, as far as known.
        on_gpus: Processes of its ranks on GPUs, as the meter reports them.
        suspects: Ranks with a process that used a GPU without being an MPS client, at the last check.
        outside: Ranks that were in `suspects` at the last two checks: they use a GPU without MPS.
        error: Last error; "" if the control daemon answers.
    """

    directory: Path
    record: MpsRecord
    control: MpsControl
    ranks: dict[AttemptKey, str] = field(default_factory=dict)
    failed: dict[AttemptKey, float] = field(default_factory=dict)
    joined_s: float = -math.inf
    clients: frozenset[int] = frozenset()
    directories: dict[int, str] = field(default_factory=dict)
    servers: set[int] = field(default_factory=set)
    on_gpus: Mapping[AttemptKey, frozenset[int]] = field(default_factory=dict)
    outside: frozenset[AttemptKey] = frozenset()
    suspects: frozenset[AttemptKey] = frozenset()
    faults: list[_Fault] = field(default_factory=list)
    look_at_s: float = 0.0
    error: str = ""

    def add(self, key: AttemptKey, directory: str) -> None:
        """Add a rank with its job's directory."""
        self.ranks[key], self.joined_s = directory, time.monotonic()

    def serves(self, gpus: Iterable[int], user: JobUser | None) -> bool:
        """Return whether this control daemon runs, and serves this user account and these GPUs."""
        same = sorted(gpus) == self.record.gpus and _uid(user) == _uid(self.record.user)
        return same and self.record.process is not None and self.record.process.is_alive()


class MpsSharing:
    """Control daemons, and the ranks that are their clients. For use in the daemon's loop only.

    Args:
        directory: The node's directory.
        enabled: Ranks that share GPUs run under MPS. If False, only control daemons of an earlier node daemon
            run.
        environment: Environment of the node daemon.
        spared: Process IDs that the node daemon never treats as processes of a rank. This class adds and
            removes the IDs of MPS processes.

    Raises:
        InputError: `enabled` is True, and the control program is missing or `directory` has too long a path.
    """

    def __init__(
        self, directory: Path, *, enabled: bool, environment: Mapping[str, str], spared: set[int]
    ) -> None:
        self._root, self._enabled, self._spared = directory / "mps", enabled, spared
        self._environment = environment
        self._daemons: list[_Daemon] = []
        self._ending: list[_Daemon] = []
        self._without: set[AttemptKey] = set()
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._failed_s = -RETRY_S
        self._faults_at_s = 0.0
        if not enabled:
            return
        if not is_installed(environment.get("PATH")):
            raise InputError(
                f"--sharing mps: {PROGRAM} is not in PATH; install the NVIDIA driver's MPS tools, or leave "
                "--sharing out (time slicing)"
            )
        longest = len(os.fsencode(self._root / _HIGHEST / "pipe" / LONGEST_SOCKET))
        if longest > MOST_SOCKET_BYTES:
            raise InputError(
                f"--dir {directory}: too long for --sharing mps by {longest - MOST_SOCKET_BYTES} bytes: "
                f"Unix sockets have paths of {MOST_SOCKET_BYTES} bytes at most; give a shorter --dir"
            )

    def adopt(self, running: Iterable[tuple[AttemptKey, str, LaunchRecord]]) -> None:
        """Adopt the control daemons of an earlier node daemon. Control daemons without ranks are ended.

        New ranks do not use such a control daemon, because it may still be starting or may be exiting.

        Args:
            running: Each running rank with its job's directory and its record.
        """
        users: dict[str, dict[AttemptKey, str]] = {}
        for key, path, launch in running:
            users.setdefault(launch.env.get(PIPES, ""), {})[key] = path
        for directory in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            try:
                record = msgspec.json.decode((directory / _RECORD).read_bytes(), type=MpsRecord)
            except (OSError, msgspec.DecodeError) as error:
                _log.warning("%s: expected the record of an MPS control daemon: %s", directory, error)
                record = MpsRecord([])
            daemon = _Daemon(directory, record, self._control(directory, (), record.user))
            found = find_processes(daemon.control.pipes)
            if found.control:
                daemon.record = msgspec.structs.replace(record, process=_process_id(found.control))
            self._spared.update({found.control, *found.servers} - {0})
            daemon.servers |= found.servers
            daemon.control.new_faults()
            daemon.ranks = users.get(str(daemon.control.pipes), {})
            (self._daemons if daemon.ranks else self._ending).append(daemon)
            if daemon.ranks:
                # a client may end by a fault before the first answer of the control daemon
                daemon.directories = processes_by_directory(daemon.ranks.values())
                _log.info("MPS control daemon %d is adopted for %d ranks", found.control, len(daemon.ranks))
        if self._daemons or self._ending:
            self._wake.set()
            self._begin()

    def environment(
        self,
        key: AttemptKey,
        launch: Launch,
        user: JobUser | None,
        directory: str,
        uuids: Collection[str],
        env: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the MPS variables of a rank that shares its GPUs; empty if the rank runs without MPS.

        Start a control daemon if none serves these GPUs. If the start fails, the rank shares its GPUs by time
        slicing, and is reported as a rank without MPS.

        Args:
            key: The rank.
            launch: The launch order of the rank.
            user: Account that runs the rank; None: the node daemon's account.
            directory: The job's directory.
            uuids: UUIDs of the rank's GPUs.
            env: Other variables of the rank. A thread percentage that the job itself has set stays.
        """
        if not self._enabled or not (launch.shares or launch.beside):
            return {}
        daemon = self._join(key, sorted(launch.gpus), user, directory) or self._start(
            key, sorted(launch.gpus), user, directory, uuids
        )
        if daemon is None:
            self._without.add(key)
            return {}
        found = {PIPES: str(daemon.control.pipes), THREADS: env.get(THREADS, "100")}
        if launch.gpu_need_mib:
            found[MEMORY] = ",".join(f"{gpu}={launch.gpu_need_mib}M" for gpu in range(len(launch.gpus)))
        return found

    def terms_of(self, key: AttemptKey) -> MpsTerms | None:
        """Return how the rank's shim reaches the rank's control daemon; None: the rank runs without MPS."""
        daemon = self._of(key)
        return None if daemon is None else daemon.control.terms

    def release(self, key: AttemptKey) -> None:
        """Remove a rank from its control daemon, because the rank has ended or did not start."""
        self._without.discard(key)
        daemon = self._of(key)
        if daemon is not None:
            with self._lock:
                del daemon.ranks[key]
                daemon.on_gpus = {one: pids for one, pids in daemon.on_gpus.items() if one != key}
                daemon.outside -= {key}
            if not daemon.ranks:
                self._wake.set()

    def attribute(self, ended: Exited) -> Exited:
        """Return the event `ended`. If a fault of an MPS server ended the rank, the event gets a reason.

        A fault ends all clients on the GPU. If the server's log names the rank that caused the fault, this
        rank gets no reason, and the other ranks get `MPS_NEIGHBOUR_FAULT`. Otherwise, all ranks get
        `MPS_FAULT`.
        """
        daemon = self._of(ended.key)
        if daemon is None or ended.exit_code == 0:
            return ended
        now_s, own = time.monotonic(), daemon.ranks[ended.key]
        daemon.failed[ended.key] = now_s
        if ended.reason:
            return ended
        self._find_faults(daemon)
        recent = [
            fault
            for fault in daemon.faults
            if now_s - fault.at_s <= FAULT_S and ended.key in fault.ranks and len(fault.ranks) > 1
        ]
        causes = {fault.culprit for fault in recent} - {""}
        if not recent or causes == {own}:
            return ended
        return replace(ended, reason=MPS_NEIGHBOUR_FAULT if len(causes) == 1 else MPS_FAULT)

    def follow(self, on_gpus: Mapping[AttemptKey, frozenset[int]]) -> frozenset[AttemptKey]:
        """Store the ranks' processes on GPUs. Return the ranks that should use a GPU through MPS but do not.

        Args:
            on_gpus: Process IDs on GPUs, by rank.
        """
        now_s = time.monotonic()
        for daemon in self._daemons:
            daemon.on_gpus = {key: pids for key, pids in on_gpus.items() if key in daemon.ranks}
        if now_s >= self._faults_at_s:
            self._faults_at_s = now_s + TURN_S
            for daemon in self._daemons:
                self._find_faults(daemon)
                self._reap(daemon)
        return frozenset(self._without).union(*(daemon.outside for daemon in self._daemons))

    def is_ours(self, pid: int) -> bool:
        """Return whether a process is a control daemon or server of this node."""
        pipes = pipes_of(pid)
        return pipes is not None and Path(pipes).is_relative_to(self._root)

    def close(self) -> None:
        """End the control daemons that no rank needs; the next node daemon adopts the remaining ones."""
        self._is_closing = True
        if self._thread is not None:
            self._wake.set()
            self._thread.join(CLOSE_S)

    # ---- control daemons ----------------------------------------------------------------------------

    def _of(self, key: AttemptKey) -> _Daemon | None:
        return next((daemon for daemon in self._daemons if key in daemon.ranks), None)

    def _control(self, directory: Path, uuids: Collection[str], user: JobUser | None) -> MpsControl:
        return MpsControl(directory, list(uuids), user, self._environment, self._spared)

    def _join(self, key: AttemptKey, gpus: list[int], user: JobUser | None, directory: str) -> _Daemon | None:
        """Add a rank to the control daemon for its GPUs and user. Return the daemon; None if none runs."""
        with self._lock:
            for daemon in self._daemons:
                if daemon.serves(gpus, user):
                    daemon.add(key, directory)
                    return daemon
        return None

    def _start(
        self,
        key: AttemptKey,
        gpus: list[int],
        user: JobUser | None,
        directory: str,
        uuids: Collection[str],
    ) -> _Daemon | None:
        """Start a control daemon for a rank. Return None if that fails, or failed less than `RETRY_S` ago."""
        if time.monotonic() - self._failed_s < RETRY_S:
            return None
        try:
            daemon = self._make(MpsRecord(gpus, user), uuids)
        except (MpsError, OSError) as error:
            self._failed_s = time.monotonic()
            _log.warning(
                "no MPS control daemon for GPUs %s: %s; jobs share these GPUs by time slicing", gpus, error
            )
            return None
        daemon.add(key, directory)
        with self._lock:
            self._daemons.append(daemon)
        self._begin()
        return daemon

    def _make(self, record: MpsRecord, uuids: Collection[str]) -> _Daemon:
        """Start a control daemon in a new directory.

        Raises:
            MpsError: the control daemon cannot be started.
            OSError: its directory cannot be written.
        """
        make_private(self._root)
        number = 1 + max((int(path.name) for path in self._root.iterdir() if path.name.isdigit()), default=0)
        directory = self._root / str(number)
        make_directory(directory)
        daemon = _Daemon(directory, record, self._control(directory, uuids, record.user))
        if record.user is not None:
            for path in (directory, self._root, self._root.parent):
                path.chmod(0o711)
        try:
            _write(daemon)
            daemon.record = msgspec.structs.replace(record, process=_process_id(daemon.control.start()))
            _write(daemon)
        except BaseException:
            _end(daemon)
            raise
        _log.info(
            "MPS control daemon %d serves GPUs %s for %s",
            daemon.record.process.pid if daemon.record.process is not None else 0,
            record.gpus,
            "this node's account" if record.user is None else record.user.name,
        )
        return daemon

    def _find_faults(self, daemon: _Daemon) -> None:
        """Record new faults of a control daemon's servers: faults in the log, and servers that have ended."""
        named = daemon.control.new_faults()
        ended = {pid for pid in daemon.servers if shim.start_ticks(pid) is None}
        daemon.servers -= ended
        now_s = time.monotonic()
        daemon.failed = {key: at_s for key, at_s in daemon.failed.items() if now_s - at_s <= LEFT_S}
        for pid in (*named, *([0] if ended and not named else [])):
            culprit = daemon.directories.get(pid) or (attempt_directory_of(pid) if pid else "") or ""
            daemon.faults.append(_Fault(now_s, culprit, frozenset([*daemon.ranks, *daemon.failed])))
            _log.warning(
                "an MPS server on GPUs %s had a fault, caused by %s",
                daemon.record.gpus,
                os.path.basename(culprit) or "an unknown rank",
            )

    def _reap(self, daemon: _Daemon) -> None:
        """Reap MPS processes that have become children of this process."""
        process = daemon.record.process
        for pid in (*([process.pid] if process is not None else []), *daemon.servers):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    # ---- the thread ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mps", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait(TURN_S)
            self._wake.clear()
            is_last = self._is_closing
            try:
                self._turn(looks=not is_last)
            except Exception:
                _log.exception("the control daemons of MPS could not be followed")
            if is_last:
                return

    def _turn(self, *, looks: bool) -> None:
        with self._lock:
            unused = self._ending + [daemon for daemon in self._daemons if not daemon.ranks]
            self._ending = []
            self._daemons = [daemon for daemon in self._daemons if daemon.ranks]
            used = list(self._daemons)
        for daemon in unused:
            _end(daemon)
            self._reap(daemon)
            gone = {daemon.record.process.pid} if daemon.record.process is not None else set[int]()
            self._spared.difference_update(gone | daemon.servers)
        for daemon in used if looks else ():
            now_s = time.monotonic()
            if now_s >= daemon.look_at_s:
                daemon.look_at_s = now_s + LOOK_S
                self._find_strangers(daemon)
            elif not daemon.servers and now_s - daemon.joined_s < FIRST_S:
                self._list_clients(daemon)

    def _list_clients(self, daemon: _Daemon) -> None:
        """Ask a control daemon for its servers and clients. Without an answer, the last answer is kept."""
        try:
            daemon.clients, error = daemon.control.clients(), ""
        except MpsError as failed:
            error = str(failed)
        daemon.servers |= daemon.control.servers
        if error and not daemon.error:
            _log.warning("the MPS control daemon of GPUs %s does not answer: %s", daemon.record.gpus, error)
        daemon.error = error
        for pid in daemon.clients - daemon.directories.keys():
            daemon.directories[pid] = attempt_directory_of(pid) or ""

    def _find_strangers(self, daemon: _Daemon) -> None:
        """Find the ranks that use GPUs without MPS: compare the processes on GPUs with the clients of MPS.

        A rank is found if, at two consecutive calls, one of its running processes on a GPU was not a client.
        """
        on_gpus = daemon.on_gpus
        self._list_clients(daemon)
        strangers = {
            key: {pid for pid in pids - daemon.clients if shim.start_ticks(pid) is not None}
            for key, pids in on_gpus.items()
        }
        seen = frozenset(key for key, pids in strangers.items() if pids)
        outside, daemon.suspects = seen & daemon.suspects, seen
        with self._lock:
            for key in sorted(outside & daemon.ranks.keys() - daemon.outside):
                _log.warning("attempt %s runs on GPUs %s without MPS", key, daemon.record.gpus)
            daemon.outside = outside & daemon.ranks.keys()


def _write(daemon: _Daemon) -> None:
    records.write_whole(str(daemon.directory / _RECORD), msgspec.json.encode(daemon.record))


def _end(daemon: _Daemon) -> None:
    """End a control daemon and remove its directory. If that fails, the next node daemon tries again."""
    if daemon.control.quit():
        shutil.rmtree(daemon.directory, ignore_errors=True)
        _log.info("the MPS control daemon of GPUs %s has ended", daemon.record.gpus)
    else:
        _log.warning("the MPS control daemon of GPUs %s does not end", daemon.record.gpus)


def _process_id(pid: int) -> ProcessId:
    return ProcessId(pid, shim.start_ticks(pid), shim.boot_id())


def _uid(user: JobUser | None) -> int:
    return os.geteuid() if user is None else user.uid
