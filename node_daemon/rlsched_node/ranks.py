"""The ranks that run on this node as processes: start, watch, end, and adopt an earlier daemon's."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlsched.wire.messages import Launch
from rlsched_node import shim
from rlsched_node.attempt import EXIT_VANISHED, AttemptKey
from rlsched_node.launch import DIRECTORY_VARIABLE, start_rank
from rlsched_node.steps import Event, Exited, Started, StartFailed
from rlsched_node.store import AttemptDir, AttemptStore, ProcessId

_pidfd_open: Callable[[int], int] | None = getattr(os, "pidfd_open", None)


@dataclass(slots=True)
class _Rank:
    """A shim that this daemon watches.

    Attributes:
        process: None until the shim has claimed the attempt.
        ready_fd: The shim's pipe; None once it has spoken, and for adopted shims.
        pid_fd: Readable when the shim ends; None where the kernel has no pidfd: then it is polled.
    """

    key: AttemptKey
    directory: AttemptDir
    pid: int
    process: ProcessId | None
    ready_fd: int | None
    pid_fd: int | None
    is_child: bool


class Ranks:
    """Live ranks and their shims. `fileno()` becomes readable when `collect()` has something to say."""

    def __init__(self, store: AttemptStore, lease: Path) -> None:
        self._store, self._lease = store, lease
        self._ranks: dict[AttemptKey, _Rank] = {}
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """For a poller."""
        return self._epoll.fileno()

    @property
    def needs_polling(self) -> bool:
        """Some shim cannot be watched by descriptor: call `collect()` every 50 ms or so."""
        return any(rank.pid_fd is None for rank in self._ranks.values())

    def start(self, key: AttemptKey, launch: Launch, env: dict[str, str]) -> None:
        """Start a rank; `collect()` tells when it runs.

        Raises:
            LaunchError: see `start_rank`.
        """
        directory = self._store.at(key)
        spawned = start_rank(launch, directory, env, self._lease)
        self._watch(
            _Rank(
                key, directory, spawned.pid, None, spawned.ready_fd, _open_pidfd(spawned.pid), is_child=True
            )
        )

    def adopt(self, key: AttemptKey, process: ProcessId) -> None:
        """Watch a shim that an earlier daemon started; one that ends meanwhile is noticed at once."""
        pid_fd = _open_pidfd(process.pid)
        if pid_fd is not None and not process.is_alive():  # it may be another process of the same number
            os.close(pid_fd)
            pid_fd = None
        self._watch(_Rank(key, self._store.at(key), process.pid, process, None, pid_fd, is_child=False))

    def end(self, key: AttemptKey, grace_s: float, reason: str) -> None:
        """Ask the shim to end its rank."""
        rank = self._ranks.get(key)
        if rank is None:
            return
        with contextlib.suppress(OSError):  # on a full disk the shim falls back to its own grace
            rank.directory.order_kill(grace_s, reason)
        self._signal(rank, signal.SIGTERM)

    def hard_kill(self, key: AttemptKey) -> None:
        """SIGKILL the shim and every process of the rank."""
        rank = self._ranks.get(key)
        if rank is not None:
            self._signal(rank, signal.SIGKILL)
            kill_leftovers(rank.directory)

    def collect(self) -> list[Event]:
        """What happened to the ranks since the last call."""
        ready = {fd for fd, _ in self._epoll.poll(0)}
        events: list[Event] = []
        for rank in list(self._ranks.values()):
            if rank.ready_fd in ready or (rank.ready_fd is not None and rank.pid_fd in ready):
                events += self._claimed(rank)
            if rank.pid_fd in ready or (rank.pid_fd is None and not self._is_alive(rank)):
                events.append(self._over(rank))
        return events

    def close(self) -> None:
        """Stop watching; the shims go on."""
        for rank in list(self._ranks.values()):
            self._unwatch(rank)
        self._epoll.close()

    def _watch(self, rank: _Rank) -> None:
        self._ranks[rank.key] = rank
        for fd in (rank.ready_fd, rank.pid_fd):
            if fd is not None:
                self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, rank: _Rank) -> None:
        del self._ranks[rank.key]
        self._close_ready(rank)
        if rank.pid_fd is not None:
            self._epoll.unregister(rank.pid_fd)
            os.close(rank.pid_fd)

    def _close_ready(self, rank: _Rank) -> None:
        if rank.ready_fd is not None:
            self._epoll.unregister(rank.ready_fd)
            os.close(rank.ready_fd)
            rank.ready_fd = None

    def _claimed(self, rank: _Rank) -> Iterator[Event]:
        """The pipe spoke, or was closed by a shim that failed before its claim."""
        self._close_ready(rank)
        rank.process = rank.directory.process()
        if rank.process is not None:
            yield Started(rank.key, rank.pid)

    def _over(self, rank: _Rank) -> Event:
        self._unwatch(rank)
        if rank.is_child:
            os.waitpid(rank.pid, 0)
        record = rank.directory.exit()
        if record is None and rank.process is None and rank.directory.abandon():
            output, _ = rank.directory.read_output(0, 2000)
            rank.directory.remove()
            last = output.decode(errors="replace").strip().splitlines()[-1:]
            return StartFailed(rank.key, f"the shim did not start: {' '.join(last) or 'no message'}")
        if record is None:
            kill_leftovers(rank.directory)
            record = rank.directory.record_exit(EXIT_VANISHED, rank.directory.told_to_end())
        return Exited(rank.key, record.exit_code, record.reason, record.when_s)

    def _is_alive(self, rank: _Rank) -> bool:
        return shim.start_ticks(rank.pid) is not None if rank.process is None else rank.process.is_alive()

    def _signal(self, rank: _Rank, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if rank.pid_fd is not None:
                signal.pidfd_send_signal(rank.pid_fd, number)
            elif self._is_alive(rank):
                os.kill(rank.pid, number)


def _open_pidfd(pid: int) -> int | None:
    """A descriptor of the process; None where the kernel has none, or the process is gone."""
    try:
        return None if _pidfd_open is None else _pidfd_open(pid)
    except OSError:
        return None


def attempt_directory_of(pid: int) -> str | None:
    """The attempt that a process belongs to, by its environment; None: not rlsched's, or not ours to see."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    mark = f"{DIRECTORY_VARIABLE}=".encode()
    return next((os.fsdecode(entry[len(mark) :]) for entry in entries if entry.startswith(mark)), None)


def kill_leftovers(directory: AttemptDir) -> int:
    """SIGKILL the processes of a rank whose shim is gone: how many there were."""
    wanted, found = str(directory.path), 0
    for name in os.listdir("/proc"):
        if name.isdigit() and attempt_directory_of(int(name)) == wanted:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(name), signal.SIGKILL)
                found += 1
    return found
