"""Allocates processors to ranks: near their GPUs, and exclusively if the job requested cores.

As in kubelet's static CPU manager, requested cores are exclusive, and all other ranks share the remaining
cores. Idle cores are therefore available to ranks that requested no cores, until a later start allocates
them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Hashable, Mapping, Sequence

from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.isolation.limits import numbers


class Cores:
    """Allocation of a node's processors.

    Args:
        cpus: Numbers of the processors that jobs may use.
        near: For each GPU, the processors that are local to it; empty if unknown.
        cores: For each processor, the hyper-threads of its core; only the processor itself if unknown.
    """

    def __init__(
        self,
        cpus: Collection[int],
        near: Sequence[Collection[int]] = (),
        cores: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        self._cpus = frozenset(cpus)
        self._near = [frozenset(of) & self._cpus for of in near]
        self._cores = cores or {}
        self._own: dict[Hashable, frozenset[int]] = {}

    @property
    def count(self) -> int:
        """Number of processors."""
        return len(self._cpus)

    @property
    def shared_processors(self) -> list[int]:
        """Processors that no rank has exclusively; all processors if ranks have all of them exclusively."""
        return sorted(self._cpus - self._taken() or self._cpus)

    def take(self, rank: Hashable, count: int, gpus: Sequence[int]) -> list[int]:
        """Allocate processors to one rank exclusively, whole cores near the rank's GPUs first.

        Returns fewer than `count` processors if fewer are free. That does not occur with a broker that counts
        cores.
        """
        free = self._cpus - self._taken()
        near = frozenset[int]().union(*(self._near[gpu] for gpu in gpus if gpu < len(self._near)))
        split = {cpu for cpu in free if not free.issuperset(self._cores.get(cpu, ()))}
        order = sorted(free, key=lambda cpu: (cpu not in near, cpu in split, self._first(cpu), cpu))
        self._own[rank] = frozenset(order[:count])
        return sorted(self._own[rank])

    def adopt(self, rank: Hashable, cpus: Collection[int]) -> None:
        """Allocate these processors to a rank that an earlier daemon started."""
        self._own[rank] = frozenset(cpus) & self._cpus

    def give_back(self, rank: Hashable) -> bool:
        """Free the exclusive processors of an ended rank. Return whether the rank had any."""
        return bool(self._own.pop(rank, None))

    def _taken(self) -> frozenset[int]:
        return frozenset[int]().union(*self._own.values())

    def _first(self, cpu: int) -> int:
        return min(self._cores.get(cpu, (cpu,)))


def cores_of_machine(gpus: GpuSet) -> Cores:
    """Return the allocation of the processors that this process may use; all are free.

    If the GPUs are simulated, the processors are simulated too (`limits.on_machine`).
    """
    near: list[frozenset[int]] = []
    for gpu in range(gpus.count):
        found: frozenset[int] = frozenset()
        with contextlib.suppress(GpuError):
            found = gpus.near_cpus(gpu)
        near.append(found)
    if gpus.kind == "simulated":
        return Cores(frozenset[int]().union(*near), near)
    cpus = os.sched_getaffinity(0)
    return Cores(cpus, near, {cpu: _threads(cpu) for cpu in cpus})


def _threads(cpu: int) -> frozenset[int]:
    """Return the hyper-threads of a processor's core, including the processor itself."""
    path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        with open(path, encoding="ascii") as file:
            return numbers(file.read()) | {cpu}
    except (OSError, ValueError):
        return frozenset({cpu})
