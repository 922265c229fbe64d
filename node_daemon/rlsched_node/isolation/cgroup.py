"""One control group (cgroup v2) for each rank, if the daemon may create groups.

A process cannot leave its control group, and `cgroup.kill` ends all processes of a group at once. If the
kernel's controllers are delegated to the daemon, a group also has limits: memory, processes, processors, and
weights for processor and disk time.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping

from rlsched_node import records
from rlsched_node.isolation import clone

CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
SUBGROUP = "rlsched-node"
"""Group of the daemon itself, a sibling of the groups of its ranks. The parent group has controllers, so it
must not contain processes (kernel, cgroup-v2.rst, «No Internal Process Constraint»). Under systemd,
`DelegateSubgroup=` in the unit must name this group."""
_PREFIX = "rlsched-"


class Cgroup:
    """The control group of one rank. If the path is "", there is no group, and only `fork` has an effect."""

    def __init__(self, path: str, controllers: Collection[str] = (), all_memory_bytes: int = 0) -> None:
        """Store the path and the limits; create nothing. The node's group is the parent of the ranks' groups.

        Args:
            path: Directory of the group.
            controllers: Controllers that the node's group delegates to this group.
            all_memory_bytes: Memory limit of all ranks' groups together; 0: no limit.
        """
        self.path = path
        self._controllers, self._all_memory_bytes = controllers, all_memory_bytes

    def create(self) -> bool:
        """Create the rank's group, and if missing the node's group above it. Return whether it succeeded."""
        above = Cgroup(os.path.dirname(self.path))
        with contextlib.suppress(OSError):
            if not os.path.exists(above.path):
                os.makedirs(above.path, exist_ok=True)
                above.write({"cgroup.subtree_control": " ".join(f"+{name}" for name in self._controllers)})
                above.write({"memory.max": self._all_memory_bytes})
            os.makedirs(self.path, exist_ok=True)
            return True
        return False

    def fork(self) -> int:
        """Fork like `os.fork`, in a process with one thread. The child and its descendants are in the group.

        If the kernel supports it (Linux 5.7), the child is created in the group. Otherwise, the child moves
        into the group, which takes about 10 ms.
        """
        pid = _born_in(self.path) if self.path else -1
        if pid < 0:
            pid = os.fork()
            if pid == 0 and self.path:
                with contextlib.suppress(OSError):
                    _write(f"{self.path}/cgroup.procs", "0")
        return pid

    def write(self, values: Mapping[str, int | str]) -> set[str]:
        """Write values, by file name, to files of the group. Return the files that accepted their value.

        The values 0 and "" are not written.
        """
        taken = set()
        for name, value in values.items():
            if self.path and value:
                with contextlib.suppress(OSError):
                    records.write_existing(f"{self.path}/{name}", str(value).encode())
                    taken.add(name)
        return taken

    def read(self, name: str) -> str:
        """Return the content of a file of the group; "" if there is no such file."""
        try:
            return records.read(f"{self.path}/{name}").decode() if self.path else ""
        except OSError:
            return ""

    def oom_kills(self) -> int:
        """Return how many of the group's processes the kernel's OOM killer has ended, at any memory limit."""
        try:
            for line in records.read(f"{self.path}/memory.events").splitlines() if self.path else ():
                name, _, count = line.partition(b" ")
                if name == b"oom_kill":
                    return int(count)
        except (OSError, ValueError):
            pass
        return 0

    def kill(self) -> bool:
        """SIGKILL all processes of the group. Return whether the group had processes."""
        if not self.path or not self.is_populated():
            return False
        with contextlib.suppress(OSError):
            _write(f"{self.path}/cgroup.kill", "1")
        return True

    def is_populated(self) -> bool:
        """Return whether a process is in the group, or in a group below it."""
        try:
            return b"populated 1" in records.read(f"{self.path}/cgroup.events")
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the group, the empty groups below it, and then the node's group if it is empty."""
        if self.path:
            try:
                os.rmdir(self.path)
            except OSError:  # a rank may have made groups in it
                for path, _, _ in os.walk(self.path, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(path)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(self.path))


class Cgroups:
    """The control groups of a node's ranks.

    Attributes:
        note: Why the node has no control groups; "" if it has them.
        controllers: Members of `CONTROLLERS` that the groups have.
        missing: Why some controllers are missing; "" if no controller is missing.
    """

    def __init__(self, directory: str, memory_bytes: int = 0) -> None:
        """Test whether this process may create groups, and which controllers the groups have.

        Args:
            directory: The node's directory, which distinguishes its groups from groups of other nodes on this
                machine.
            memory_bytes: Memory limit of all ranks together; 0: no limit.
        """
        import hashlib  # not in the shim, which does not need it and must start fast

        self.root, self.note = "", "there is no cgroup v2"
        self.controllers: frozenset[str] = frozenset()
        self.missing, self._memory_bytes = "", memory_bytes
        own = _own_cgroup()
        if not own:
            return
        if os.path.basename(own) == SUBGROUP:
            own = os.path.dirname(own)
        root = f"{own}/{_PREFIX}{hashlib.sha256(directory.encode()).hexdigest()[:12]}"
        trial = Cgroup(f"{root}/trial")
        if not trial.create() or not os.access(f"{trial.path}/cgroup.procs", os.W_OK):
            self.note = f"{own} is not delegated to this user (systemd: Delegate=yes)"
        elif not os.path.exists(f"{trial.path}/cgroup.kill"):
            self.note = "this kernel has no cgroup.kill (before Linux 5.14)"
        else:
            self.root, self.note = root, ""
            self.controllers, self.missing = _controllers(own, root)
        trial.remove()

    def cgroup_of(self, name: str) -> Cgroup:
        """Return the group of a rank. The group need not exist."""
        if not self.root:
            return Cgroup("")
        return Cgroup(f"{self.root}/{name}", sorted(self.controllers), self._memory_bytes)

    def clean(self, kept: Collection[str]) -> None:
        """Remove the empty groups that an earlier daemon left, except the groups with paths in `kept`."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root):
                if entry.is_dir() and entry.path not in kept:
                    Cgroup(entry.path).remove()


def _born_in(path: str) -> int:
    """Fork like `os.fork`, but create the child in this group. Return -1 if the kernel cannot do that."""
    try:
        group = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1
    try:
        return clone.fork(clone.INTO_CGROUP, group)
    finally:
        os.close(group)


def _own_cgroup() -> str:
    """Return the directory of this process's group in the cgroup v2 file system; "" if there is none."""
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


def _controllers(own: str, root: str) -> tuple[frozenset[str], str]:
    """Delegate this group's controllers to the ranks' groups. Return (controllers, why some are missing)."""
    present = _listed(f"{own}/cgroup.controllers")
    wanted = [name for name in CONTROLLERS if name in present]
    why = _give_on(own, wanted) or _give_on(root, wanted)
    found = frozenset(CONTROLLERS) & _listed(f"{root}/cgroup.subtree_control")
    absent = [name for name in CONTROLLERS if name not in found]
    return found, why or (f"no controller {', '.join(absent)} in {own}" if absent else "")


def _give_on(group: str, wanted: Collection[str]) -> str:
    """Enable controllers for the groups below a group. Return why that failed; "" if it succeeded.

    All controllers are enabled with one write. With one write per controller, a group that contains processes
    would accept only `cpu`.
    """
    if not wanted:
        return ""
    is_root = not os.path.exists(f"{group}/cgroup.type")  # only the root may have processes and controllers
    if not is_root and _listed(f"{group}/cgroup.procs"):
        why = _step_aside(group)
        if why:
            return why
    try:
        _write(f"{group}/cgroup.subtree_control", " ".join(f"+{name}" for name in wanted))
    except OSError as error:
        return f"{group} does not delegate {', '.join(wanted)}: {error.strerror}"
    return ""


def _step_aside(group: str) -> str:
    """Move this process into a subgroup, if it is the only process in its group.

    In a systemd unit without `DelegateSubgroup=`, the process is not moved, because systemd could not start
    the next daemon in the parent group while jobs run.

    Returns:
        Why the process was not moved; "" if it was moved.
    """
    if os.environ.get("INVOCATION_ID"):
        return f"the unit of this node has no DelegateSubgroup={SUBGROUP}"
    if _listed(f"{group}/cgroup.procs") != {str(os.getpid())}:
        return f"other processes are in {group}"
    try:
        os.makedirs(f"{group}/{SUBGROUP}", exist_ok=True)
        _write(f"{group}/{SUBGROUP}/cgroup.procs", "0")
    except OSError as error:
        return f"{group}/{SUBGROUP}: {error.strerror}"
    return ""


def _listed(path: str) -> set[str]:
    """Return the words of a small file; empty if there is no such file."""
    try:
        return set(records.read(path).decode("ascii", "replace").split())
    except OSError:
        return set()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
