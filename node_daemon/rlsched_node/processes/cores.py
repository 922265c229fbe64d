"""Which processors each rank runs on: near its GPUs, and its own where its job asked for some.

As kubelet's static CPU manager has it: cores that are asked for are nobody else's, and all other ranks share
those that are left. So an idle core is lent to whoever asked for none, and taken back at the next start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Hashable, Mapping, Sequence

from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.isolation.limits import numbers


class Cores:
    """Who has which processor of a node.

    Args:
        cpus: Numbers of those that jobs may have.
        near: By GPU, those that its bus hangs on; empty where nobody knows.
        cores: By processor, the hyper-threads of its core; itself alone where nobody knows.
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
        """How many there are."""
        return len(self._cpus)

    @property
    def shared(self) -> list[int]:
        """Those that nobody has asked for; all of them where every one is asked for."""
        return sorted(self._cpus - self._taken() or self._cpus)

    def take(self, rank: Hashable, count: int, gpus: Sequence[int]) -> list[int]:
        """So many for a rank alone: whole cores first, near its GPUs. Fewer than it asked for where the rest
        is taken, which a broker that counts cores does not let happen."""
        free = self._cpus - self._taken()
        near = frozenset[int]().union(*(self._near[gpu] for gpu in gpus if gpu < len(self._near)))
        split = {cpu for cpu in free if not free.issuperset(self._cores.get(cpu, ()))}
        order = sorted(free, key=lambda cpu: (cpu not in near, cpu in split, self._first(cpu), cpu))
        self._own[rank] = frozenset(order[:count])
        return sorted(self._own[rank])

    def adopt(self, rank: Hashable, cpus: Collection[int]) -> None:
        """A rank that an earlier daemon started has these for itself."""
        self._own[rank] = frozenset(cpus) & self._cpus

    def give_back(self, rank: Hashable) -> bool:
        """A rank is over: whether it had cores of its own."""
        return bool(self._own.pop(rank, None))

    def _taken(self) -> frozenset[int]:
        return frozenset[int]().union(*self._own.values())

    def _first(self, cpu: int) -> int:
        return min(self._cores.get(cpu, (cpu,)))


def cores_of_machine(gpus: GpuSet) -> Cores:
    """The processors that this process may use, as the kernel and the GPUs describe them.

    Those that come with simulated GPUs are simulated too (`limits.on_machine`).
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
    """The hyper-threads of a processor's core, itself among them."""
    path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        with open(path, encoding="ascii") as file:
            return numbers(file.read()) | {cpu}
    except (OSError, ValueError):
        return frozenset({cpu})
