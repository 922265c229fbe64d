"""Resource limits for each rank (cores, memory, processes, GPUs), and which of them the node can enforce."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final

from rlsched.wire.messages import AttemptKey, Launch
from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.isolation import devices
from rlsched_node.isolation.cgroup import Cgroup, Cgroups
from rlsched_node.isolation.devices import CAPABILITIES_DIRECTORY
from rlsched_node.isolation.limits import RankLimits, in_words, numbers, on_machine
from rlsched_node.processes.cores import Cores
from rlsched_node.processes.store import LaunchRecord

_WEAKER: Final = {
    "cpuset": "cores by affinity, which a job can undo",
    "memory": "memory per process, only for jobs that request memory",
    "pids": "processes per user, and no limit for root",
}
"""For each controller of control groups: the limit that replaces the controller's limit if the controller is
missing. It is weaker than the controller's limit."""
_HELD_BY: Final = {"cores": "cpuset", "memory": "memory", "processes": "pids"}
_log = logging.getLogger("rlsched.node")


def least_memory_mib(gpus: GpuSet) -> int:
    """Return the memory of the smallest GPU that answers, MiB.

    0: a GPU does not report its memory, or no GPU answers.
    """
    found = []
    for gpu in range(gpus.count):
        with contextlib.suppress(GpuError):
            found.append(gpus.memory_total_mib(gpu) or 0)
    return min(found, default=0)


def minors_of(gpus: GpuSet) -> list[int | None]:
    """Return N of each GPU's device file /dev/nvidiaN; None for a GPU that does not answer.

    Empty if the GPUs have no device files.
    """
    found: list[int | None] = []
    for gpu in range(gpus.count):
        minor = None
        with contextlib.suppress(GpuError):
            minor = gpus.device_minor(gpu)
            if minor is None:
                return []
        found.append(minor)
    return found


def capabilities_of(gpus: GpuSet, directory: str | Path = CAPABILITIES_DIRECTORY) -> list[list[int] | None]:
    """Return the minor numbers of the files in /dev/nvidia-caps that each GPU's ranks need.

    Whole GPUs need none. None: unknown, because the GPU does not answer, or the driver does not list the
    instance.

    Args:
        gpus: The node's GPUs.
        directory: Directory in which the driver lists capabilities.
    """
    found: list[list[int] | None] = []
    for gpu in range(gpus.count):
        minors = None
        with contextlib.suppress(GpuError, OSError, ValueError):
            ids, board = gpus.instance_ids(gpu), gpus.device_minor(gpu)
            if ids is None:
                minors = list[int]()
            elif board is not None:
                minors = devices.instance_minors(board, *ids, directory)
        found.append(minors)
    return found


class RankBounds:
    """The limits for the ranks of one node.

    Args:
        cores: Allocation of the node's processors.
        cgroups: Control groups of the node's ranks.
        num_gpus: Number of GPUs of the node.
        memory_mib: Memory for all jobs together, MiB.
        max_processes: Maximum number of processes and threads per rank; 0: no limit.
        minors: Function that returns the result of `minors_of`; called again at each start of a rank while
            its last result contains None.
        capabilities: Function that returns the result of `capabilities_of`; called again like `minors`.
    """

    def __init__(
        self,
        cores: Cores,
        cgroups: Cgroups,
        num_gpus: int,
        memory_mib: int,
        max_processes: int,
        minors: Callable[[], Sequence[int | None]] = tuple,
        capabilities: Callable[[], Sequence[Sequence[int] | None]] = tuple,
    ) -> None:
        self._cores, self._cgroups = cores, cgroups
        self._num_gpus, self._memory_mib, self._max_processes = num_gpus, memory_mib, max_processes
        self._find_minors, self._minors = minors, minors()
        self._find_capabilities, self._capabilities = capabilities, capabilities()
        self._opens_all = "no control groups" if cgroups.note else devices.why_not() if self._minors else ""
        self._sharing: dict[AttemptKey, Cgroup] = {}  # groups of ranks without exclusive cores
        self._borrowing: dict[Hashable, Cgroup] = {}  # groups of ranks with lent cores

    @property
    def holds_to(self) -> list[str]:
        """Names (see `HELD_TO`) of the limits that the node enforces for all processes of a rank together."""
        held = [name for name, controller in _HELD_BY.items() if controller in self._cgroups.controllers]
        return held + (["devices"] if self._minors and not self._opens_all else [])

    @property
    def weaker(self) -> list[str]:
        """Limits that are weaker than with control groups, because the node cannot use all controllers."""
        found = [words for name, words in _WEAKER.items() if name not in self._cgroups.controllers]
        return found + (["GPUs by CUDA_VISIBLE_DEVICES only"] if self._minors and self._opens_all else [])

    @property
    def note(self) -> str:
        """Short list of the limits in `weaker`, for `rlsched nodes`; "" if there are none."""
        if not self.weaker:
            return ""
        lead = "no control groups" if self._cgroups.note else "control groups without controllers"
        what = ", ".join(words.split()[0] for words in self.weaker)
        return f"{lead}: weaker limits of {what} (rlsched doctor)"

    def allocate_limits(self, key: AttemptKey, launch: Launch) -> RankLimits:
        """Allocate the limits for a rank that is about to start; `release_limits` frees its cores.

        A job that requested no memory gets a part of the node's memory, in proportion to its GPUs. Jobs that
        share GPUs divide this part equally.
        """
        owns = launch.cores > 0
        gpus = max(len(launch.gpus), 1)
        cpus = self._cores.take(key, launch.cores, launch.gpus) if owns else self._cores.shared_processors
        lent = self._cores.lend(key, launch.lent_cores, launch.gpus) if owns else []
        part_mib = self._memory_mib * gpus // self._num_gpus // (1 + len(launch.beside))
        if owns:
            if lent:
                self._borrowing[key] = self._group(key)
            self._withdraw_loans()
            self._share_anew()
        else:
            self._sharing[key] = self._group(key)
        return RankLimits(
            cpus=sorted({*cpus, *lent}),
            owns_cpus=owns,
            lent_cpus=lent,
            memory_bytes=(launch.memory_mib or part_mib) << 20,
            asked_memory=launch.memory_mib > 0,
            processes=self._max_processes,
            devices=self._devices(launch.gpus),
            capabilities=self._capabilities_for(launch.gpus),
            weight=100 * gpus,
        )

    def _devices(self, gpus: Sequence[int]) -> list[int] | None:
        """Return the minor numbers of the device files that a rank may open.

        None: all device files, because the node cannot deny devices, or a minor number is unknown.
        """
        if self._opens_all or not self._minors:
            return None
        if None in self._minors:
            self._minors = self._find_minors() or self._minors
        own = [self._minors[gpu] for gpu in gpus]
        known = [minor for minor in own if minor is not None]
        return known if len(known) == len(own) else None

    def _capabilities_for(self, gpus: Sequence[int]) -> list[int] | None:
        """Return the minor numbers of the files in /dev/nvidia-caps that a rank may open; None: all files."""
        if self._opens_all or not self._minors or not self._capabilities:
            return None
        if None in self._capabilities:
            self._capabilities = self._find_capabilities() or self._capabilities
        own = [self._capabilities[gpu] for gpu in gpus]
        known = [minors for minors in own if minors is not None]
        return [minor for minors in known for minor in minors] if len(known) == len(own) else None

    def adopt(self, key: AttemptKey, record: LaunchRecord) -> None:
        """Allocate the limits for a rank that an earlier daemon started."""
        limits = record.limits
        if limits.owns_cpus:
            own, group = sorted({*limits.cpus} - {*limits.lent_cpus}), Cgroup(record.cgroup)
            kept = numbers(group.read("cpuset.cpus")).issuperset(on_machine(limits.lent_cpus))
            lent = limits.lent_cpus if kept else []  # an earlier daemon has withdrawn the loan
            self._cores.adopt(key, own, lent, record.gpus)
            if lent:
                self._borrowing[key] = group
        elif limits.cpus:
            self._sharing[key] = Cgroup(record.cgroup)

    def release_limits(self, key: AttemptKey) -> None:
        """Free the cores of a rank that has ended or did not start."""
        self._sharing.pop(key, None)
        self._borrowing.pop(key, None)
        if self._cores.give_back(key):
            self._share_anew()

    def _withdraw_loans(self) -> None:
        """Withdraw each loan that contains a processor which was allocated to another rank.

        Without the controller `cpuset`, the rank with the loan still runs on the lent processors.
        """
        for borrower in self._cores.withdraw():
            group = self._borrowing.pop(borrower, None)
            if group is not None and "cpuset" in self._cgroups.controllers:
                self._set_cores(borrower, group, self._cores.own(borrower))

    def _share_anew(self) -> None:
        """Update the cores of all ranks without exclusive cores, after cores were allocated or freed.

        Without the controller `cpuset`, ranks keep the cores with which they started: threads may have set
        their own affinity.
        """
        if "cpuset" not in self._cgroups.controllers:
            return
        for key, group in self._sharing.items():
            self._set_cores(key, group, self._cores.shared_processors)

    @staticmethod
    def _set_cores(key: Hashable, group: Cgroup, cpus: list[int]) -> None:
        """Change the processors of a running rank."""
        text = in_words(on_machine(cpus))
        if not group.write({"cpuset.cpus": text}):
            _log.warning("attempt %s keeps its cores: its control group rejects cores %s", key, text)

    def _group(self, key: AttemptKey) -> Cgroup:
        return self._cgroups.cgroup_of(f"{key.cluster}.{key}")
