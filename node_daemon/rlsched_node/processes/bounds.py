"""What each rank of this node may use: its cores, its memory, its processes, and what of it holds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from rlsched.wire.messages import Launch
from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.isolation import devices
from rlsched_node.isolation.cgroup import Cgroup, Cgroups
from rlsched_node.isolation.limits import Limits, in_words, on_machine
from rlsched_node.processes.attempt import AttemptKey
from rlsched_node.processes.cores import Cores
from rlsched_node.processes.store import LaunchRecord

_WEAKER: Final = {
    "cpuset": "cores by affinity, which a job can undo",
    "memory": "memory process by process, where a job asked for some",
    "pids": "processes user by user, root's not at all",
}
"""What stands in for a controller that is not there."""
_HELD_BY: Final = {"cores": "cpuset", "memory": "memory", "processes": "pids"}
_log = logging.getLogger("rlsched.node")


def least_memory_mib(gpus: GpuSet) -> int:
    """What the smallest of a node's GPUs that answer has, MiB; 0 where one of these does not say."""
    found = []
    for gpu in range(gpus.count):
        with contextlib.suppress(GpuError):
            found.append(gpus.memory_total_mib(gpu) or 0)
    return min(found, default=0)


def minors_of(gpus: GpuSet) -> list[int | None]:
    """By GPU, the number of its device file; None of one that does not answer. Empty where they have none."""
    found: list[int | None] = []
    for gpu in range(gpus.count):
        minor = None
        with contextlib.suppress(GpuError):
            minor = gpus.device_minor(gpu)
            if minor is None:
                return []
        found.append(minor)
    return found


class Bounds:
    """The limits of the ranks of one node.

    Args:
        cores: Who has which processor.
        cgroups: What groups can hold ranks to.
        num_gpus: Of the node.
        memory_mib: What all jobs may have together.
        max_processes: What a rank may have of processes and threads; 0: no bound.
        minors: As `minors_of` finds them; asked again before a start while one is not known.
    """

    def __init__(
        self,
        cores: Cores,
        cgroups: Cgroups,
        num_gpus: int,
        memory_mib: int,
        max_processes: int,
        minors: Callable[[], Sequence[int | None]] = tuple,
    ) -> None:
        self._cores, self._cgroups = cores, cgroups
        self._num_gpus, self._memory_mib, self._max_processes = num_gpus, memory_mib, max_processes
        self._find_minors, self._minors = minors, minors()
        self._opens_all = "no control groups" if cgroups.note else devices.why_not() if self._minors else ""
        self._sharing: dict[AttemptKey, Cgroup] = {}  # groups of those that have no cores of their own

    @property
    def holds_to(self) -> list[str]:
        """What a rank is held to as a whole, of `HELD_TO`."""
        held = [name for name, controller in _HELD_BY.items() if controller in self._cgroups.controllers]
        return held + (["devices"] if self._minors and not self._opens_all else [])

    @property
    def weaker(self) -> list[str]:
        """What stands in for limits of groups, in words; empty where all of them hold."""
        found = [words for name, words in _WEAKER.items() if name not in self._cgroups.controllers]
        return found + (["GPUs by CUDA_VISIBLE_DEVICES alone"] if self._minors and self._opens_all else [])

    @property
    def note(self) -> str:
        """What holds less than it should, in a few words for a list; "" where all of it holds."""
        if not self.weaker:
            return ""
        lead = "no control groups" if self._cgroups.note else "control groups without controllers"
        what = ", ".join(words.split()[0] for words in self.weaker)
        return f"{lead}: weaker limits of {what} (rlsched doctor)"

    def of(self, key: AttemptKey, launch: Launch) -> Limits:
        """The limits of a rank that is about to start; what it has of cores is its until `over`.

        A rank that asked for no memory may have the part that goes with its GPUs; one that comes to others on
        them, its part of that.
        """
        owns = launch.cores > 0
        gpus = max(len(launch.gpus), 1)
        cpus = self._cores.take(key, launch.cores, launch.gpus) if owns else self._cores.shared
        part_mib = self._memory_mib * gpus // self._num_gpus // (1 + len(launch.beside))
        if owns:
            self._share_anew()
        else:
            self._sharing[key] = self._group(key)
        return Limits(
            cpus=cpus,
            owns_cpus=owns,
            memory_bytes=(launch.memory_mib or part_mib) << 20,
            asked_memory=launch.memory_mib > 0,
            processes=self._max_processes,
            devices=self._devices(launch.gpus),
            weight=100 * gpus,
        )

    def _devices(self, gpus: Sequence[int]) -> list[int] | None:
        """Numbers of the device files that a rank may open; None: all, where its own are not known."""
        if self._opens_all or not self._minors:
            return None
        if None in self._minors:
            self._minors = self._find_minors() or self._minors
        own = [self._minors[gpu] for gpu in gpus]
        known = [minor for minor in own if minor is not None]
        return known if len(known) == len(own) else None

    def adopt(self, key: AttemptKey, record: LaunchRecord) -> None:
        """A rank of an earlier daemon goes on with what it has."""
        if record.limits.owns_cpus:
            self._cores.adopt(key, record.limits.cpus)
        elif record.limits.cpus:
            self._sharing[key] = Cgroup(record.cgroup)

    def over(self, key: AttemptKey) -> None:
        """A rank has ended, or has not started: others may have its cores."""
        self._sharing.pop(key, None)
        if self._cores.give_back(key):
            self._share_anew()

    def _share_anew(self) -> None:
        """Cores were taken from those that ranks share, or have come back to them. Where affinity stands in
        for groups, ranks keep those that they started with: each thread of a job may have set its own."""
        if "cpuset" not in self._cgroups.controllers:
            return
        cpus = in_words(on_machine(self._cores.shared))
        for key, group in self._sharing.items():
            if not group.write({"cpuset.cpus": cpus}):
                _log.warning("attempt %s keeps its cores: its group does not take %s", key, cpus)

    def _group(self, key: AttemptKey) -> Cgroup:
        return self._cgroups.at(f"{key.cluster}.{key}")
