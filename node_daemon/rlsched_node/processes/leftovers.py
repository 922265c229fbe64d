"""Finds and ends the processes that a killed shim (the process that supervises a rank) leaves behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from rlsched_node.isolation.cgroup import Cgroup
from rlsched_node.processes import shim
from rlsched_node.processes.launch import DIRECTORY_VARIABLE


@dataclass(slots=True)
class Leftovers:
    """The processes of a rank, except its shim.

    All processes in the rank's control group belong to the rank. Without a group, these processes belong to
    it, with their descendants: processes whose environment names the job's directory, processes in the shim's
    session, and earlier descendants of the shim. If the daemon is a subreaper, the orphans of a killed shim
    become its children, and belong to the rank.

    Attributes:
        job_path: The job's directory.
        shim_pid: Process ID of the shim; 0 if unknown.
        cgroup: The rank's control group; its path is "" if there is none.
        is_subreaper: This process is a subreaper: its children are the shims that it started, and their
            orphans.
        seen: Start ticks by process ID, for the processes that `record_processes` has found.
    """

    job_path: str
    shim_pid: int
    cgroup: Cgroup
    is_subreaper: bool
    seen: dict[int, int] = field(default_factory=dict)

    def record_processes(self) -> None:
        """Record the descendants of the shim. They cannot be identified after the shim is killed."""
        seen, below = {}, [self.shim_pid]
        while below:
            for pid in _children(below.pop()):
                ticks = shim.start_ticks(pid)
                if ticks is not None and pid not in seen:
                    seen[pid] = ticks
                    below.append(pid)
        kept = {pid: ticks for pid, ticks in self.seen.items() if shim.start_ticks(pid) == ticks}
        self.seen = kept | seen

    def kill(self, shims: Collection[int]) -> int:
        """SIGKILL the rank's processes. Return 0 if the rank had no processes, else a positive number.

        Args:
            shims: Process IDs of shims and other children of the daemon, which are not killed.
        """
        return int(self.cgroup.kill()) + shim.kill_all(lambda: self._find(shims))

    def _find(self, shims: Collection[int]) -> set[int]:
        parents: dict[int, int] = {}
        found: set[int] = set()
        spared = {os.getpid(), self.shim_pid, *shims}
        is_session_ours = self.shim_pid > 0 and shim.start_ticks(self.shim_pid) is None
        for pid in _all():
            fields = shim.read_stat(pid)
            if fields is None or pid in spared:
                continue
            is_orphan = self.is_subreaper and int(fields[1]) == os.getpid()
            if fields[0] in "ZX":
                if is_orphan:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                continue
            parents[pid] = int(fields[1])
            if (
                is_orphan
                or (is_session_ours and int(fields[3]) == self.shim_pid)
                or self.seen.get(pid) == int(fields[19])
                or attempt_directory_of(pid) == self.job_path
            ):
                found.add(pid)
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found


def attempt_directory_of(pid: int) -> str | None:
    """Return the directory of the attempt to which a process belongs, from the process's environment.

    None if the environment names no attempt, or is not readable.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    mark = f"{DIRECTORY_VARIABLE}=".encode()
    return next((os.fsdecode(entry[len(mark) :]) for entry in entries if entry.startswith(mark)), None)


def processes_by_directory(directories: Collection[str]) -> dict[int, str]:
    """Return the running processes of some attempts, as a map from process ID to the attempt's directory.

    Args:
        directories: Directories of the attempts.
    """
    found = ((pid, attempt_directory_of(pid)) for pid in _all())
    return {pid: directory for pid, directory in found if directory is not None and directory in directories}


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children(pid: int) -> Iterator[int]:
    """Yield the children of a process; none if the kernel does not list children."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                yield from map(int, file.read().split())
