"""ClusterShape: names and arrays of a cluster: its nodes, partitions, GPU types, what jobs can ask for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels
from rlsched.cluster.arrays import (
    CLOCKS_ALONE,
    CORES_AS_ASKED,
    MAX_TENANTS,
    RUNNING,
    SLOT_EMPTY,
    UNCOUNTED,
    OrderArrays,
    StateArrays,
    columns,
    empty_state,
    grown,
)
from rlsched.cluster.demand import ANY_KIND, MAX_KINDS, Demand, holds, plain_demands
from rlsched.cluster.dials import DialArrays, dials_of
from rlsched.cluster.spec import SHARED_PARTITION, ClusterSpec, NodeSpec
from rlsched.errors import AllocationError
from rlsched.models.arrays import ModelArrays
from rlsched.models.slice_name import is_slice


class Needs(NamedTuple):
    """What kernels have to be compiled with for a state.

    Attributes:
        models: Models of speed and power.
        preemption: Running jobs may be preempted under a policy.
        reservations: Jobs that do not fit may have reservations under a policy.
    """

    models: bool
    preemption: bool
    reservations: bool


class Queue(Protocol):
    """What waiting jobs are ordered by, and how they are predicted (`rlsched.decide.order`).

    Attributes:
        order: What it goes by, comparable.
        arrays: What kernels want to know of it.
    """

    @property
    def order(self) -> object: ...
    @property
    def arrays(self) -> OrderArrays: ...
    def arrive(self, s: StateArrays, slot: int, now_s: float) -> None:
        """A job that has just got its slot comes to wait."""

    def rank(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Level or weight of a waiting job is another one."""

    def started(self, s: StateArrays, slot: int, now_s: float) -> None:
        """An attempt of a job has just begun."""

    def requeue(self, s: StateArrays, slot: int, now_s: float) -> None:
        """A released job waits as its next attempt."""

    def make_eligible(self, s: StateArrays, slots: NDArray[np.int64], now_s: float) -> None:
        """Ineligible slots wait again."""

    def ended(self, s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
        """A job that has ended and been released is about to be forgotten."""


def alike_by_type(nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Nodes, each with the least GPU memory of all of its GPU type: the ledger tells types apart alone."""
    least: dict[str, int] = {}
    for node in nodes:
        if node.gpu_memory_mib:
            least[node.gpu_type] = min(node.gpu_memory_mib, least.get(node.gpu_type, node.gpu_memory_mib))
    return [
        msgspec.structs.replace(node, gpu_memory_mib=least.get(node.gpu_type, 0))
        if node.gpu_memory_mib != least.get(node.gpu_type, 0)
        else node
        for node in nodes
    ]


class ClusterShape:
    """What a cluster is made of, and what may be done on it.

    Attributes:
        arrays: The arrays that kernels work on; replaced when they grow.
        node_names: Name of each node, by node number.
        partition_names: The VCs that own nodes, in name order, then `shared` if any node serves all.
        vc_names: Every VC name met so far; its position is its number.
        kind_names: Every GPU type met so far; its position is its number.
        ordering: What its queues go by.
        needs: What kernels have to be compiled with for it.
        placement: The placement rule, a key of `PLACEMENT_CODES`.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        queue: Queue,
        *,
        slots: int = 256,
        placement: str = "consolidate",
    ) -> None:
        self.ordering, self.placement = queue, placement
        self.needs = Needs(False, False, False)
        self.vc_names: list[str] = []
        self.kind_names: list[str] = []
        self._nodes: list[NodeSpec] = []
        self._owners: list[str] = []
        self._demands: dict[Demand, int] = {}
        self._slots: dict[int, int] = {}
        self.arrays = empty_state(0, 0, slots, 1, 0, order=queue.arrays, placement=placement)
        self.node_names: list[str] = []
        self.partition_names: list[str] = []
        self._lay_out(list(nodes))

    @classmethod
    def from_spec(
        cls,
        spec: ClusterSpec,
        queue: Queue,
        *,
        slots: int = 256,
    ) -> Self:
        """The idle cluster that a description describes."""
        return cls(spec.expand(), queue, slots=slots, placement=spec.placement)

    @classmethod
    def empty(cls, queue: Queue) -> Self:
        """A cluster whose nodes are still to come."""
        return cls([], queue)

    # ---- shape ------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeSpec]:
        """The nodes, by number; those that are gone for good too."""
        return list(self._nodes)

    @property
    def num_partitions(self) -> int:
        """Partitions, each with a decision loop of its own."""
        return len(self.partition_names)

    @property
    def num_gpus(self) -> int:
        """GPUs on all nodes, up or not."""
        return int(self.arrays.gpu.node.shape[0])

    @property
    def decisions(self) -> int:
        """Number of the next decision; action draws are keyed by it."""
        return int(columns(self.arrays.counters)["decisions"][0])

    def _lay_out(self, nodes: list[NodeSpec]) -> None:
        """Arrays for these nodes, keeping jobs, allocations and status of the nodes that stay (a prefix)."""
        old = self.arrays
        known = len(self._nodes)
        self._nodes = nodes
        self.node_names = [node.name for node in nodes]
        owners = sorted({node.vc for node in nodes if node.vc is not None})
        shared = any(node.vc is None for node in nodes)
        self._owners = owners
        before = self.partition_names
        self.partition_names = owners + ([SHARED_PARTITION] if shared else [])
        gpus = np.array([node.gpus for node in nodes], np.int32)
        fresh = empty_state(
            len(nodes),
            int(gpus.sum()),
            old.job.shape[0],
            max(1, len(self.partition_names)),
            int(gpus.max(initial=0)),
            order=old.order,
            demands=old.demand.shape[0],
            placement=self.placement,
        )
        fresh.node.gpus[:] = fresh.node.free[:] = gpus
        fresh.node.first_gpu[:] = np.cumsum(gpus) - gpus
        fresh.node.part_of[:] = [len(owners) if node.vc is None else owners.index(node.vc) for node in nodes]
        fresh.gpu.node[:] = np.repeat(np.arange(len(nodes)), gpus)
        fresh.node.kind[:] = [self._kind_number(node.gpu_type) for node in nodes]
        fresh.node.cpu_milli[:] = [node.cpus * 1000 or UNCOUNTED for node in nodes]
        fresh.node.memory_mib[:] = [node.memory_mib or UNCOUNTED for node in nodes]
        fresh.node.cpu_free_milli[:] = fresh.node.cpu_milli
        fresh.node.memory_free_mib[:] = fresh.node.memory_mib
        fresh.demand[:] = old.demand
        for demand, number in self._demands.items():
            fresh.demand.kinds[number] = self._kinds(demand)
        if known:
            for name in ("status", "fixed_clock", "unshared", "free", "cpu_free_milli", "memory_free_mib"):
                fresh.node[name][:known] = old.node[name]
            fresh.gpu[: old.gpu.shape[0]] = old.gpu
        fresh.config[:], fresh.counters[:] = old.config, old.counters
        dials = dials_of(old.dials, before, self.partition_names)
        self.arrays = fresh._replace(job=old.job, models=old.models, dials=dials)
        self._note_kinds()
        running = old.job.status == RUNNING
        old.job.placed_in[running] = fresh.node.part_of[old.job.host[running]]
        for slot in np.flatnonzero(old.job.status != SLOT_EMPTY):
            vc = int(old.job.vc[slot])
            own, everyone = self.partitions_of(self.vc_names[vc] if vc >= 0 else "")
            old.job.own_partition[slot], old.job.shared_partition[slot] = own, everyone
        self._mark_plain()
        kernels.rebuild_index(self.arrays)

    def use_models(self, models: ModelArrays, *, cores_as_asked: bool = False) -> None:
        """From now on jobs run and draw as these say; their GPU types are `kind_names`, in that order.

        `cores_as_asked`: see CORES_AS_ASKED.
        """
        from rlsched.cluster.speed import fill_beside

        fill_beside(models)
        self.arrays = self.arrays._replace(models=models)
        self._model(CORES_AS_ASKED if cores_as_asked else 1)

    def set_dials(self, dials: DialArrays) -> None:
        """From now on somebody sets dials beside a rule's settings, one set a partition."""
        self.arrays = self.arrays._replace(dials=dials)

    def clock_by_models(self, models: ModelArrays | None) -> None:
        """From now on models choose SM clocks and nothing else (`CLOCKS_ALONE`); None: nobody does.

        Their GPU types are `kind_names`, in that order; again where a node of another type has joined.
        """
        if models is not None:
            self.arrays = self.arrays._replace(models=models)
        self._model(0 if models is None else CLOCKS_ALONE)

    def _model(self, modelled: int) -> None:
        self.arrays.config[0].modelled = modelled
        self.arrays.derived.slot.speed[:] = math.nan  # kept ones are by the models of before
        self.arrays.derived.slot.speed[:] = np.nan
        self.needs = self.needs._replace(models=modelled != 0)
        self._note_kinds()

    def permit(self, *, preemption: bool = False, reserve_after_s: float = math.inf) -> None:
        """What a policy may do on this cluster, which its rows show; rules do what they do.

        Args:
            preemption: Preempt running jobs; where the order says so, once one declares that it may be.
            reserve_after_s: Reserve GPUs for the first job that has waited so long and does not fit.
        """
        config = self.arrays.config[0]
        waits = self.arrays.order.may_change
        config.preempts = preemption and (config.preempts or not waits)
        config.reserve_after_s = math.inf if waits and config.preempts else reserve_after_s
        self.needs = self.needs._replace(preemption=preemption, reservations=not math.isinf(reserve_after_s))

    def fix_clocks(self, n: int, is_fixed: bool) -> None:
        """Say whether nobody can set the SM clocks of a node's GPUs."""
        self.arrays.node.fixed_clock[self._node(n)] = is_fixed

    def let_share(self, n: int, *, shares: bool) -> None:
        """Say whether several jobs can run on one of a node's GPUs."""
        self.arrays.node.unshared[self._node(n)] = not shares

    def weigh_energy(self, weight: float) -> None:
        """What energy counts against time from now on, 0 (nothing) to 1 (alone).

        Raises:
            ValueError: it is not in between.
        """
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"expected a weight of energy from 0 to 1, got {weight}")
        self.arrays.config[0].energy_ppm = round(weight * 1e6)

    @property
    def energy_counts(self) -> float:
        """What energy counts against time for jobs that do not say it themselves, 0 to 1, models or not."""
        return float(self.arrays.config[0].energy_ppm) / 1e6

    @property
    def energy_weight(self) -> float:
        """What energy counts against time, 0 to 1; nothing without models."""
        return self.energy_counts if self.arrays.config[0].modelled else 0.0

    def _note_kinds(self) -> None:
        """The GPU type of most GPUs of each partition; a type of MIG slices where it has no others."""
        whole = np.array([not is_slice(name) for name in self.kind_names], np.bool_)
        for p in range(self.num_partitions):
            own = self.arrays.node.part_of == p
            counts = np.bincount(self.arrays.node.kind[own], weights=self.arrays.node.gpus[own])
            if (counts * whole[: counts.size]).any():
                counts *= whole[: counts.size]
            self.arrays.derived.part.kind[p] = int(np.argmax(counts)) if counts.size else 0

    def partitions_of(self, vc: str) -> tuple[int, int]:
        """(partition of the VC's own nodes, partition that serves all); -1 where there is none."""
        shared = len(self._owners) if len(self.partition_names) > len(self._owners) else -1
        return (self._owners.index(vc) if vc in self._owners else -1), shared

    def vc_number(self, vc: str) -> int:
        """Number of a VC's name, -1 for none; a new name gets the next number."""
        if vc and vc not in self.vc_names:
            self.vc_names.append(vc)
        return self.vc_names.index(vc) if vc else -1

    def demand_number(self, demand: Demand) -> int:
        """Number of a demand class; a new one gets the next number."""
        number = self._demands.get(demand)
        if number is None:
            number = len(self._demands)
            if number == self.arrays.demand.shape[0]:
                self._regrow(demands=2 * number)
            self._demands[demand] = number
            row = self.arrays.demand
            row.kinds[number] = self._kinds(demand)
            row.gpus[number], row.share_milli[number] = demand.gpus, demand.share_milli
            row.cpu_milli_each[number] = demand.cpu_milli_each
            row.memory_mib_each[number] = demand.memory_mib_each
            kernels.size_class(self.arrays, number)
            self._mark_plain()
        return number

    @property
    def demands(self) -> list[Demand]:
        """The demand classes met so far, by number."""
        return list(self._demands)

    def reserve_demands(self, demands: Sequence[Demand]) -> list[int]:
        """Numbers of many demand classes, making room once."""
        wanted = len(self._demands.keys() | set(demands))
        if wanted > self.arrays.demand.shape[0]:
            self._regrow(demands=wanted)
        return [self.demand_number(demand) for demand in demands]

    def _mark_plain(self) -> None:
        """Note the classes that counts of free GPUs answer for."""
        self.arrays.demand.plain[: len(self._demands)] = plain_demands(
            list(self._demands), alike_by_type(self._nodes)
        )
        kernels.forget_answers(self.arrays)

    def _kinds(self, demand: Demand) -> int:
        """Bit mask of the GPU types here that a demand accepts."""
        memory = {node.gpu_type: node.gpu_memory_mib for node in alike_by_type(self._nodes)}
        accepted = [demand.accepts(name, memory.get(name, 0)) for name in self.kind_names]
        if not (demand.gpu_types or demand.gpu_memory_mib) and all(accepted):
            return ANY_KIND
        return sum(1 << kind for kind, will_do in enumerate(accepted) if will_do)

    def know_kind(self, name: str) -> int:
        """Number of a GPU type, whether a node has it or not; a new name gets the next number."""
        return self._kind_number(name)

    def _kind_number(self, name: str) -> int:
        if name not in self.kind_names:
            if len(self.kind_names) == MAX_KINDS:
                raise AllocationError(f"a cluster has {MAX_KINDS} GPU types at most; {name!r} is one more")
            self.kind_names.append(name)
        return self.kind_names.index(name)

    def can_ever_run(self, vc: str, demand: Demand | int, without: Collection[int] = frozenset()) -> bool:
        """Whether a job would fit the idle cluster that its VC may use, with every node up.

        Args:
            vc: The VC.
            demand: What it asks for; a number: so many GPUs.
            without: Numbers of nodes that are gone for good.
        """
        wanted = Demand(gpus=demand) if isinstance(demand, int) else demand
        part_of, nodes = self.arrays.node.part_of.tolist(), alike_by_type(self._nodes)
        for p in self.partitions_of(vc):
            own = [node for n, node in enumerate(nodes) if part_of[n] == p and n not in without]
            if p >= 0 and holds(Counter(wanted.places_on_node(node) for node in own), wanted.places):
                return True
        return False

    def grow(self) -> None:
        """Room for twice as many live jobs."""
        self._regrow(slots=2 * self.arrays.job.shape[0])

    def _regrow(self, *, slots: int = 0, demands: int = 0) -> None:
        self.arrays = grown(self.arrays, slots=slots, demands=demands)
        kernels.rebuild_index(self.arrays)
        self._note_kinds()

    def sort_queue(self, wanted: bool) -> None:
        """Keep each partition's sorted queue, or only heaps, enough for a compiled rule (`SORTS_QUEUE`)."""
        self.arrays.config[0].sorts_queue = wanted
        kernels.rebuild_index(self.arrays)

    def _node(self, n: int) -> int:
        if not 0 <= n < len(self._nodes):
            raise AllocationError(f"there is no node number {n}")
        return n

    # ---- looking ----------------------------------------------------------------------------------

    def slot_of(self, seq: int) -> int:
        """Slot of a live job.

        Raises:
            AllocationError: no live job has this number.
        """
        job = columns(self.arrays.job)
        known = self._slots.get(seq)  # good as long as the slot still says so
        if known is not None and job["seq"][known] == seq and job["status"][known] != SLOT_EMPTY:
            return known
        for slot in (job["seq"] == seq).nonzero()[0].tolist():
            if job["status"][slot] != SLOT_EMPTY:
                if len(self._slots) >= len(job):
                    self._slots.clear()
                self._slots[seq] = slot
                return int(slot)
        raise AllocationError(f"no live job has number {seq}")

    def gpus_of(self, seq: int) -> list[int]:
        """Global GPU numbers that a job holds, in the order of allocation."""
        place = int(self.arrays.job.head[self.slot_of(seq)])
        gpus = []
        while place >= 0:
            gpus.append(place // MAX_TENANTS)
            place = int(self.arrays.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS])
        return gpus

    def beside(self, seq: int) -> list[int]:
        """Numbers of the jobs that share the GPUs of a job, in the order of their places there."""
        job = columns(self.arrays.job)
        head = int(job["head"][self.slot_of(seq)])
        tenants = columns(self.arrays.gpu)["tenant"][head // MAX_TENANTS].tolist() if head >= 0 else []
        found = [int(job["seq"][slot]) for slot in tenants if slot >= 0]
        return [other for other in found if other != seq]

    def gpu_location(self, g: int) -> tuple[int, int]:
        """(node number, GPU number on that node) of a global GPU number."""
        n = int(columns(self.arrays.gpu)["node"][g])
        return n, g - int(columns(self.arrays.node)["first_gpu"][n])

    def waiting(self, partition: int) -> list[int]:
        """Numbers of the jobs that wait for a partition, in queue order."""
        return [int(seq) for seq in self.arrays.job.seq[self.queue(partition)]]

    def queue(self, partition: int) -> NDArray[np.int32]:
        """(waiting,) slots that wait for a partition, in queue order."""
        return self.arrays.derived.queue[partition, : self.arrays.derived.part.queue_len[partition]]

    def running(self) -> list[int]:
        """Numbers of the running jobs, ascending."""
        return sorted(int(seq) for seq in self.arrays.job.seq[self.arrays.job.status == RUNNING])
