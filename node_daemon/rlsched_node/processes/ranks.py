"""The ranks of this node as processes: start and end them, and adopt the ranks of an earlier daemon.

Each rank runs under a shim, a process that supervises the rank and outlives the daemon.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from rlsched.wire.messages import AttemptKey, Launch
from rlsched_node.isolation.cgroup import Cgroup, Cgroups
from rlsched_node.mishaps import Mishaps
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import EXIT_VANISHED, VANISHED
from rlsched_node.processes.copiers import Copiers
from rlsched_node.processes.launch import Terms, start_rank
from rlsched_node.processes.leftovers import Leftovers
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import CopyFailed, Event, Exited, Started, StartFailed
from rlsched_node.processes.store import AttemptDir, AttemptStore, ExitRecord, ProcessId

LOOK_S = 2.0
"""Seconds between two listings of the processes of adopted ranks."""
COPY_WAIT_S = 5.0
"""Maximum time that the report of a rank's end waits for the copies of its output, seconds."""
DEFAULT_TERMS = Terms()
MAX_TOLD_BYTES = 4096
_log = logging.getLogger("rlsched.node")

_pidfd_open: Callable[[int], int] | None = getattr(os, "pidfd_open", None)


@dataclass(slots=True)
class _WatchedShim:
    """A shim that this daemon watches.

    Attributes:
        process: The shim; None until it has claimed the attempt.
        pipe_fd: Pipe on which the shim reports its claim of the attempt and the rank's end; None for adopted
            shims, and after the pipe is closed.
        told: Data that the shim has sent on the pipe.
        pid_fd: Descriptor that is readable when the shim ends; None if the kernel has no pidfd, so that the
            shim is polled.
        record: How the rank ended; None while the shim runs. The rank's GPUs stay in use until all its
            processes (`leftovers`) have ended.
        has_left: Processes of the rank may be left: the shim was killed, or could not end all of them.
        copy_failure: Last reported failure of the rank's copiers; "": no failure.
        copied_by_s: Time until which the report of the rank's end waits for the copiers, monotonic seconds;
            None: the rank has not ended yet.
    """

    key: AttemptKey
    directory: AttemptDir
    pid: int
    process: ProcessId | None
    leftovers: Leftovers
    pipe_fd: int | None
    pid_fd: int | None
    is_child: bool
    told: bytes = b""
    record: ExitRecord | None = None
    has_left: bool = False
    copy_failure: str = ""
    copied_by_s: float | None = None


class LiveRanks:
    """Live ranks and their shims. `fileno()` becomes readable when `collect()` has events.

    Args:
        store: The attempts on disk.
        mishaps: Logs unexpected errors, so that an error with one rank does not affect other ranks.
        cgroups: Control groups for the ranks; None: ranks have no control groups.
        is_subreaper: This process is a subreaper. Its only children are the shims, their forker, and the
            processes in `spared`.
        shims: Starts shims; None: each shim is started with a new interpreter.
        spared: Process IDs of children that belong to no rank, such as the health check. They are not killed
            when a rank is cleaned up.
    """

    def __init__(
        self,
        store: AttemptStore,
        mishaps: Mishaps | None = None,
        *,
        cgroups: Cgroups | None = None,
        is_subreaper: bool = False,
        shims: Shims | None = None,
        spared: Collection[int] = (),
    ) -> None:
        self._spared = spared
        self._new_shims, self._copiers = shims or Shims(), Copiers()
        self._store, self._cgroups, self._is_subreaper = store, cgroups, is_subreaper
        self._mishaps = mishaps or Mishaps(_log)
        self._ranks: dict[AttemptKey, _WatchedShim] = {}
        self._epoll = select.epoll()
        self._look_at_s = 0.0

    def fileno(self) -> int:
        """Return the descriptor for a poller."""
        return self._epoll.fileno()

    @property
    def needs_polling(self) -> bool:
        """Whether `collect()` is due every 50 ms, because no descriptor reports the end of a process."""
        return any(rank.pid_fd is None or rank.record is not None for rank in self._ranks.values())

    def start(
        self, key: AttemptKey, launch: Launch, env: dict[str, str], terms: Terms = DEFAULT_TERMS
    ) -> None:
        """Start a rank; `collect()` reports when it runs.

        Raises:
            LaunchError: see `start_rank`.
        """
        directory = self._store.directories_of(key)
        cgroup = self._cgroups.cgroup_of(f"{key.cluster}.{key}") if self._cgroups is not None else Cgroup("")
        pid, pipe_fd = start_rank(launch, directory, env, terms, cgroup, self._new_shims)
        if launch.output or launch.error:
            self._copiers.start(directory, pid)
        leftovers = Leftovers(str(directory.job_path), pid, cgroup, self._is_subreaper)
        self._watch(
            _WatchedShim(key, directory, pid, None, leftovers, pipe_fd, _open_pidfd(pid), is_child=True)
        )

    def adopt(self, key: AttemptKey, process: ProcessId) -> None:
        """Watch a shim that an earlier daemon started. The shim may have ended already."""
        pid = process.pid
        pid_fd = _open_pidfd(pid)
        if pid_fd is not None and not process.is_alive():  # the process ID may have been reused
            os.close(pid_fd)
            pid_fd = None
        directory = self._store.directories_of(key)
        self._watch(
            _WatchedShim(
                key, directory, pid, process, self._leftovers(key, pid), None, pid_fd, is_child=False
            )
        )
        self._copiers.start(directory, pid)

    def clear(self, key: AttemptKey, record: ExitRecord, *, has_left: bool) -> bool:
        """End the remaining processes of a rank whose shim does not run. Return whether all have ended.

        If processes remain, `collect()` reports the end of the rank later. `has_left`: processes outside the
        rank's control group may remain, so end them too.
        """
        directory = self._store.directories_of(key)
        process = directory.process()
        rank = _WatchedShim(
            key,
            directory,
            process.pid if process is not None else 0,
            process,
            self._leftovers(key, process.pid if process is not None else 0),
            None,
            None,
            is_child=False,
            record=record,
            has_left=has_left,
        )
        self._copiers.start(directory, 0)
        if self._is_clear(rank):
            return True
        self._ranks[key] = rank
        return False

    def end(self, key: AttemptKey, grace_s: float, reason: str) -> None:
        """Make the shim end its rank: SIGTERM, then SIGKILL after `grace_s` seconds."""
        rank = self._ranks.get(key)
        if rank is None or rank.record is not None:
            return
        with contextlib.suppress(OSError):  # on a full disk, the shim uses its own grace period
            rank.directory.order_kill(grace_s, reason)
        self._signal(rank, signal.SIGTERM)

    def limit(self, key: AttemptKey, limit_s: float) -> None:
        """Make the shim enforce a new time limit, seconds from the rank's start; infinite: no limit.

        Raises:
            OSError: the limit cannot be written, because the disk is full.
        """
        rank = self._ranks.get(key)
        if rank is not None and rank.record is None:
            rank.directory.order_limit(limit_s)
            self._signal(rank, shim.LOOK_AT_LIMIT)

    def hard_kill(self, key: AttemptKey) -> None:
        """SIGKILL the shim and every process of the rank."""
        rank = self._ranks.get(key)
        if rank is not None:
            self._signal(rank, signal.SIGKILL)
            rank.leftovers.kill(self._shims())

    def collect(self) -> list[Event]:
        """Return the events of the ranks since the last call."""
        ready = {fd for fd, _ in self._epoll.poll(0)}
        events: list[Event] = []
        for rank in list(self._ranks.values()):
            with self._mishaps.set_aside(f"attempt {rank.key}"):
                events += self._events(rank, ready)
        self._look(events)
        return events

    def _events(self, rank: _WatchedShim, ready: set[int]) -> Iterator[Event]:
        is_over = rank.pid_fd in ready if rank.pid_fd is not None else not self._is_alive(rank)
        if rank.pipe_fd is not None and (rank.pipe_fd in ready or is_over):
            yield from self._read_pipe(rank)
        if rank.record is not None or is_over:
            yield from self._finish(rank)

    def close(self) -> None:
        """Stop watching; the shims continue."""
        for rank in list(self._ranks.values()):
            self._unwatch(rank)
            del self._ranks[rank.key]
        self._new_shims.close()
        self._epoll.close()

    def _leftovers(self, key: AttemptKey, pid: int) -> Leftovers:
        """Return the `Leftovers` of an earlier daemon's rank. The launch record names its control group."""
        directory = self._store.directories_of(key)
        launch = directory.launch()
        cgroup = Cgroup(launch.cgroup if launch is not None else "")
        return Leftovers(str(directory.job_path), pid, cgroup, self._is_subreaper)

    def _shims(self) -> list[int]:
        """Return the process IDs that are never killed: live shims, the forker, the copiers and `spared`."""
        living = [rank.pid for rank in self._ranks.values() if rank.record is None]
        starting = [rank.directory.process() for rank in self._ranks.values() if rank.process is None]
        claimed = [process.pid for process in starting if process is not None]
        return [self._new_shims.forker_pid, *self._spared, *self._copiers.pids, *living, *claimed]

    def _look(self, events: list[Event]) -> None:
        """Restart killed copiers, add failed copies to `events`, and record the descendants of some shims.

        The descendants are recorded if the rank has no control group, and its orphans do not become children
        of this daemon.
        """
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._copiers.reap()
            for rank in self._ranks.values():
                if rank.record is None:
                    self._copiers.start(rank.directory, rank.pid)  # restarts a killed copier
                events += self._copy_failures(rank)
                is_known = rank.leftovers.cgroup.path or (rank.is_child and self._is_subreaper)
                if rank.record is None and not is_known:
                    rank.leftovers.record_processes()

    def _watch(self, rank: _WatchedShim) -> None:
        self._ranks[rank.key] = rank
        for fd in (rank.pipe_fd, rank.pid_fd):
            if fd is not None:
                self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, rank: _WatchedShim) -> None:
        self._close_pipe(rank)
        if rank.pid_fd is not None:
            self._epoll.unregister(rank.pid_fd)
            os.close(rank.pid_fd)
            rank.pid_fd = None

    def _close_pipe(self, rank: _WatchedShim) -> None:
        if rank.pipe_fd is not None:
            self._epoll.unregister(rank.pipe_fd)
            os.close(rank.pipe_fd)
            rank.pipe_fd = None

    def _read_pipe(self, rank: _WatchedShim) -> Iterator[Event]:
        """Read data from the pipe of a shim, and report its claim of the attempt. Closes the pipe at EOF."""
        assert rank.pipe_fd is not None
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(rank.pipe_fd, 4096):
                rank.told = (rank.told + piece)[:MAX_TOLD_BYTES]
            self._close_pipe(rank)
        if rank.process is None and rank.told.startswith(shim.CLAIMED):
            self._follow_claim(rank)
            rank.process = ProcessId(rank.pid, shim.start_ticks(rank.pid), shim.boot_id())
            yield Started(rank.key, rank.pid)

    def _follow_claim(self, rank: _WatchedShim) -> bool:
        """Watch the shim that has claimed the attempt. Return whether another shim was watched before.

        An attempt has two shims if its forker was killed after it had started the first one. The shim that
        does not claim the attempt exits.
        """
        process = rank.directory.process()
        if process is None or process.pid in (0, rank.pid):
            return False
        fields = shim.read_stat(process.pid)
        if fields is None or int(fields[1]) != os.getpid():
            return False
        if rank.pid_fd is not None:
            self._epoll.unregister(rank.pid_fd)
            os.close(rank.pid_fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(rank.pid, os.WNOHANG)
        rank.pid = rank.leftovers.shim_pid = process.pid
        rank.pid_fd = _open_pidfd(process.pid)
        if rank.pid_fd is not None:
            self._epoll.register(rank.pid_fd, select.EPOLLIN)
        return True

    def _finish(self, rank: _WatchedShim) -> Iterator[Event]:
        """Handle the exit of a shim. The rank has ended when its remaining processes have ended too."""
        if rank.is_child and rank.process is None and self._follow_claim(rank):
            return
        if rank.record is None:
            self._unwatch(rank)
            if rank.is_child:
                with contextlib.suppress(ChildProcessError):  # the parent of this process may ignore SIGCHLD
                    os.waitpid(rank.pid, 0)
            if rank.is_child and rank.process is None:
                del self._ranks[rank.key]
                yield self._not_started(rank)
                return
            rank.record = self._record(rank)
        if self._is_clear(rank) and self._is_copied(rank):
            del self._ranks[rank.key]
            yield from self._copy_failures(rank)
            record = rank.record
            yield Exited(rank.key, record.exit_code, record.reason, record.when_s, record.ran_s)

    def _is_clear(self, rank: _WatchedShim) -> bool:
        """End the remaining processes of a rank whose shim has exited. Return whether no process was left."""
        left = rank.leftovers
        if left.kill(self._shims()) if rank.has_left else left.cgroup.kill():
            return False
        left.cgroup.remove()
        return True

    def _is_copied(self, rank: _WatchedShim) -> bool:
        """Return whether the copiers of a rank that has ended are done, or `COPY_WAIT_S` has passed."""
        now_s = time.monotonic()
        if rank.copied_by_s is None:
            rank.copied_by_s = now_s + COPY_WAIT_S
            self._copiers.start(rank.directory, 0)
        return now_s >= rank.copied_by_s or self._copiers.are_done(rank.directory)

    def _copy_failures(self, rank: _WatchedShim) -> Iterator[Event]:
        failure = self._copiers.failure(rank.directory)
        if failure != rank.copy_failure:
            rank.copy_failure = failure
            yield CopyFailed(rank.key, failure)

    def _not_started(self, rank: _WatchedShim) -> Event:
        output, _, _ = rank.directory.read_output(0, 2000)
        rank.directory.drop()
        rank.leftovers.cgroup.remove()
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        return StartFailed(rank.key, f"the shim did not start: {' '.join(last) or 'no message'}")

    def _record(self, rank: _WatchedShim) -> ExitRecord:
        """Return the exit record of a rank whose shim has exited.

        The record is read from the shim's pipe; if an earlier daemon started the shim, from disk.
        """
        on_disk = rank.directory.exit()
        record = _told_record(rank.told) if rank.is_child else on_disk
        rank.has_left = record is None or record.has_left
        if record is None:
            record = ExitRecord(EXIT_VANISHED, rank.directory.told_to_end() or VANISHED, time.time())
        if record != on_disk:
            try:
                rank.directory.record_exit(
                    record.exit_code, record.reason, record.ran_s, has_left=record.has_left
                )
            except OSError as error:
                _log.warning("attempt %s: its end is remembered in memory only: %s", rank.key, error)
        return record

    def _is_alive(self, rank: _WatchedShim) -> bool:
        return shim.start_ticks(rank.pid) is not None if rank.process is None else rank.process.is_alive()

    def _signal(self, rank: _WatchedShim, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if rank.pid_fd is not None:
                signal.pidfd_send_signal(rank.pid_fd, number)
            elif rank.record is None and self._is_alive(rank):
                os.kill(rank.pid, number)


def _told_record(told: bytes) -> ExitRecord | None:
    """Return the exit record that a shim has sent; None: the shim was killed before it sent the record."""
    try:
        return msgspec.json.decode(told.removeprefix(shim.CLAIMED), type=ExitRecord)
    except msgspec.DecodeError:
        return None


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None if the kernel has no pidfd, or the process has exited."""
    try:
        return None if _pidfd_open is None else _pidfd_open(pid)
    except OSError:
        return None
