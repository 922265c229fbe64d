"""One control group (cgroup v2) for each rank, where the daemon may make them: nothing of a rank gets away.

A process leaves its session, its parent and its environment behind as it likes, and its control group never.
`cgroup.kill` ends all of a group at once. Imported by the shim, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection

_PREFIX = "rlsched-"
_CLONE3 = 435
"""The same number on all machines."""
_CLONE_WORDS, _EXIT_SIGNAL, _CGROUP = 11, 4, 10
"""`struct clone_args`: its length, and where what is set stands."""
_CLONE_INTO_CGROUP = 0x200000000


class Cgroup:
    """The group of one rank; of path "" where there is none, and then nothing is done."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> bool:
        """Make it: whether it is there."""
        with contextlib.suppress(OSError):
            os.makedirs(self.path, exist_ok=True)
            return True
        return False

    def fork(self) -> int:
        """`os.fork`, by a process of one thread; the child is in the group, and so is what it starts.

        It is born there where the kernel can do that (Linux 5.7): to move a process takes some 10 ms on an
        idle machine, for the kernel waits until no other processor is forking.
        """
        pid = _born_in(self.path) if self.path else -1
        if pid < 0:
            pid = os.fork()
            if pid == 0 and self.path:
                with contextlib.suppress(OSError):
                    _write(f"{self.path}/cgroup.procs", "0")
        return pid

    def kill(self) -> bool:
        """SIGKILL everything in it: whether anything was there."""
        if not self.path or not self.is_populated():
            return False
        with contextlib.suppress(OSError):
            _write(f"{self.path}/cgroup.kill", "1")
        return True

    def is_populated(self) -> bool:
        """Whether a process is in it, or in a group below it."""
        try:
            with open(f"{self.path}/cgroup.events", encoding="ascii") as file:
                return "populated 1" in file.read()
        except OSError:
            return False

    def remove(self) -> None:
        """Remove it with all groups below it where they are empty, and the node's if this was the last."""
        if self.path:
            for path, _, _ in os.walk(self.path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(self.path))


class Cgroups:
    """The groups of a node's ranks.

    Attributes:
        note: Why there are none; "" where there are.
    """

    def __init__(self, directory: str) -> None:
        """`directory`: the node's; tells its groups from those of other nodes of this machine."""
        import hashlib  # not for the shim, which has no use for it and little time

        self.root, self.note = "", "there is no cgroup v2"
        own = _own_cgroup()
        if not own:
            return
        root = f"{own}/{_PREFIX}{hashlib.sha256(directory.encode()).hexdigest()[:12]}"
        trial = Cgroup(f"{root}/trial")
        if not trial.create() or not os.access(f"{trial.path}/cgroup.procs", os.W_OK):
            self.note = f"{own} is not delegated to this user (systemd: Delegate=yes)"
        elif not os.path.exists(f"{trial.path}/cgroup.kill"):
            self.note = "this kernel has no cgroup.kill (before Linux 5.14)"
        else:
            self.root, self.note = root, ""
        trial.remove()

    def at(self, name: str) -> Cgroup:
        """The group of a rank, there or not."""
        return Cgroup(f"{self.root}/{name}" if self.root else "")

    def clean(self, kept: Collection[str]) -> None:
        """Remove the empty groups that an earlier daemon left, but for those with these paths."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root):
                if entry.is_dir() and entry.path not in kept:
                    Cgroup(entry.path).remove()


def _born_in(path: str) -> int:
    """clone3(2) with CLONE_INTO_CGROUP: as `os.fork`, or -1 where that cannot be."""
    try:
        group = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1
    arguments = (ctypes.c_uint64 * _CLONE_WORDS)()
    arguments[0], arguments[_EXIT_SIGNAL], arguments[_CGROUP] = _CLONE_INTO_CGROUP, signal.SIGCHLD, group
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = -1
    try:
        size = ctypes.c_size_t(ctypes.sizeof(arguments))
        pid = int(python.syscall(ctypes.c_long(_CLONE3), arguments, size))
    finally:
        if pid == 0:
            python.PyOS_AfterFork_Child()
        else:
            python.PyOS_AfterFork_Parent()
        os.close(group)
    return pid


def _own_cgroup() -> str:
    """The directory of this process's group in the cgroup v2 file system; "" where there is none."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                root, mount = before.split()[3:5]
                if after.split()[0] == "cgroup2" and (own + "/").startswith(root.rstrip("/") + "/"):
                    return mount + own[len(root.rstrip("/")) :].rstrip("/")
    except (OSError, StopIteration, IndexError, ValueError):
        pass
    return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
