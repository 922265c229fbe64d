"""Allocates processors to ranks: near their GPUs, and exclusively if the job requested cores.

As in kubelet's static CPU manager, requested cores are exclusive, and all other ranks share the remaining
cores. Idle cores can also be lent to a rank that requested cores. As in the broker's ledger
(`rlsched.cluster.loans`), a later start that needs any of the lent cores withdraws the whole loan.
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
        cpus: IDs of the logical processors that jobs may use.
        near: For each GPU, the processors that are local to it; empty if unknown.
        cores: For each processor, all processors (hyper-threads) of its core; without an entry, the processor
            is a core of its own.
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
        self._lent: dict[Hashable, tuple[int, frozenset[int]]] = {}  # (lowest GPU of the rank, processors)

    @property
    def count(self) -> int:
        """Number of processors."""
        return len(self._cpus)

    @property
    def shared_processors(self) -> list[int]:
        """Processors for ranks that requested no cores: all non-exclusive ones; if there are none, all."""
        return sorted(self._cpus - self._taken() or self._cpus)

    def take(self, rank: Hashable, count: int, gpus: Sequence[int]) -> list[int]:
        """Allocate processors to one rank exclusively, whole cores near the rank's GPUs first.

        Processors that are lent to other ranks are allocated only if the others do not suffice. Loans to
        ranks with low GPU indices are used up first. The caller must then call `withdraw`, which ends these
        loans. If fewer than `count` processors are free, all free processors are allocated.
        """
        loan_of = {cpu: gpu for gpu, cpus in self._lent.values() for cpu in cpus}
        order = sorted(
            self._by_nearness(self._cpus - self._taken(), gpus), key=lambda cpu: loan_of.get(cpu, -1)
        )
        self._own[rank] = frozenset(order[:count])
        return sorted(self._own[rank])

    def lend(self, rank: Hashable, count: int, gpus: Sequence[int]) -> list[int]:
        """Lend up to `count` idle processors to a rank, near its GPUs first. Return the lent processors."""
        idle = self._cpus - self._taken() - self._all_lent()
        found = self._by_nearness(idle, gpus)[:count]
        if found:
            self._lent[rank] = min(gpus, default=0), frozenset(found)
        return sorted(found)

    def withdraw(self) -> list[Hashable]:
        """End each loan with a processor that another rank now owns. Return the ranks that lose loans."""
        taken = self._taken()
        found = [rank for rank, (_, cpus) in self._lent.items() if cpus & taken]
        for rank in found:
            del self._lent[rank]
        return found

    def adopt(
        self, rank: Hashable, cpus: Collection[int], lent: Collection[int] = (), gpus: Sequence[int] = ()
    ) -> None:
        """Record the processors of a rank that an earlier daemon started: exclusive (`cpus`) and `lent`."""
        self._own[rank] = frozenset(cpus) & self._cpus
        if lent:
            self._lent[rank] = min(gpus, default=0), frozenset(lent) & self._cpus

    def give_back(self, rank: Hashable) -> bool:
        """Free the processors of an ended rank. Return whether the rank had exclusive processors."""
        self._lent.pop(rank, None)
        return bool(self._own.pop(rank, None))

    def own(self, rank: Hashable) -> list[int]:
        """Return the processors that a rank has exclusively."""
        return sorted(self._own.get(rank, ()))

    def lent(self, rank: Hashable) -> int:
        """Return the number of processors that are lent to a rank."""
        return len(self._lent[rank][1]) if rank in self._lent else 0

    def _by_nearness(self, free: frozenset[int], gpus: Sequence[int]) -> list[int]:
        """Return free processors: near these GPUs first, and whole cores before parts of cores."""
        near = frozenset[int]().union(*(self._near[gpu] for gpu in gpus if gpu < len(self._near)))
        split = {cpu for cpu in free if not free.issuperset(self._cores.get(cpu, ()))}
        return sorted(free, key=lambda cpu: (cpu not in near, cpu in split, self._first(cpu), cpu))

    def _taken(self) -> frozenset[int]:
        return frozenset[int]().union(*self._own.values())

    def _all_lent(self) -> frozenset[int]:
        return frozenset[int]().union(*(cpus for _, cpus in self._lent.values()))

    def _first(self, cpu: int) -> int:
        return min(self._cores.get(cpu, (cpu,)))


def cores_of_machine(gpus: GpuSet) -> Cores:
    """Return an allocation in which all processors that this process may use are free.

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
