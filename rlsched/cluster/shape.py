"""`ClusterShape`: the nodes, partitions, GPU types and demand classes of a cluster, as names and arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels
from rlsched.cluster.arrays import (
    CLOCKS_ALONE,
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
from rlsched.cluster.demand import ANY_KIND, MAX_KINDS, Demand, holds, plain_demands, within_parts
from rlsched.cluster.dials import DialArrays, dials_of
from rlsched.cluster.loans import exceed_parts
from rlsched.cluster.spec import SHARED_PARTITION, ClusterSpec, NodeSpec
from rlsched.energy.relative import AHEAD_H, OUTLOOK
from rlsched.errors import AllocationError
from rlsched.models.arrays import ModelArrays
from rlsched.models.slice_name import is_slice


class Needs(NamedTuple):
    """Features for which the kernels of a state must be compiled.

    Attributes:
        models: Whether models of speed and power are used.
        preemption: Whether a policy may preempt running jobs.
        reservations: Whether a policy may make reservations for jobs that do not fit.
    """

    models: bool
    preemption: bool
    reservations: bool


class Queue(Protocol):
    """Order and predictions of waiting jobs (`rlsched.decide.order`).

    Attributes:
        order: The order as a Python object; equal orders compare equal.
        arrays: The order as arrays, for kernels.
    """

    @property
    def order(self) -> object: ...
    @property
    def arrays(self) -> OrderArrays: ...
    def arrive(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Queue a new job, which has a slot but is in no queue yet."""

    def rank(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Move a waiting job to its new place in the queue after a change of its level or weight."""

    def rank_by_slack(self, s: StateArrays, now_s: float) -> None:
        """Move waiting jobs to their new places if they have used up a part of their slack."""

    def note_start(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Record that an attempt of a job has just begun."""

    def requeue(self, s: StateArrays, slot: int, now_s: float) -> None:
        """Queue a released job for its next attempt."""

    def make_eligible(self, s: StateArrays, slots: NDArray[np.int64], now_s: float) -> None:
        """Return ineligible jobs to the queue."""

    def update_siblings(self, s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
        """Revise the predictions of the waiting siblings (jobs of the same burst) of a job that has ended.

        Must be called before the slot of the ended job is emptied.
        """


_KEPT: Final = (
    *("status", "fixed_clock", "unshared", "lends", "free", "cpu_free_milli", "memory_free_mib"),
    *("idle_w", "core_w", "asleep_w", "boot_w"),
)
"""Fields of known nodes that are copied when nodes are added."""


def alike_by_type(nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Return copies of the nodes, each with the smallest GPU memory of all nodes of the same GPU type.

    The ledger does not distinguish nodes of one GPU type by their GPU memory.
    """
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
    """The nodes of a cluster, and the actions that policies may take on the cluster.

    Attributes:
        arrays: The arrays that kernels work on; replaced when they grow.
        node_names: Name of each node, by node index.
        partition_names: The VCs that own nodes, in name order, then `shared` if a node serves all VCs.
        vc_names: All VC names so far; arrays refer to a VC by the index of its name in this list.
        kind_names: All GPU types so far; arrays refer to a type by the index of its name in this list.
        ordering: The order of the queues.
        needs: Features with which kernels must be compiled.
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
        self._shapes: dict[NodeSpec, None] = {}
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
        """Return the idle cluster that a description defines."""
        return cls(spec.expand(), queue, slots=slots, placement=spec.placement)

    @classmethod
    def empty(cls, queue: Queue) -> Self:
        """Return a cluster without nodes; they are added later."""
        return cls([], queue)

    # ---- shape ------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeSpec]:
        """All nodes, in the order of their indices, including retired nodes."""
        return list(self._nodes)

    @property
    def num_partitions(self) -> int:
        """Number of partitions, each with its own decision loop."""
        return len(self.partition_names)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs on all nodes, up or not."""
        return int(self.arrays.gpu.node.shape[0])

    @property
    def decisions(self) -> int:
        """Index of the next decision; random draws for the decision are derived from it."""
        return int(columns(self.arrays.counters)["decisions"][0])

    def _lay_out(self, nodes: list[NodeSpec]) -> None:
        """Create the arrays for these nodes. Nodes that existed before come first and keep their state."""
        old = self.arrays
        known = len(self._nodes)
        added = nodes[known:]
        self._nodes = nodes
        self._note_shapes(added)
        self.node_names = self.node_names + [node.name for node in added]
        before = self.partition_names
        owners = sorted({*self._owners, *(node.vc for node in added if node.vc is not None)})
        shared = SHARED_PARTITION in before or any(node.vc is None for node in added)
        same_owners = owners == self._owners
        self._owners = owners
        self.partition_names = owners + ([SHARED_PARTITION] if shared else [])
        gpus = np.concatenate([old.node.gpus, np.array([node.gpus for node in added], np.int32)])
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
        kept = known if same_owners else 0
        fresh.node.part_of[:kept] = old.node.part_of[:kept]
        fresh.node.part_of[kept:] = [
            len(owners) if node.vc is None else owners.index(node.vc) for node in nodes[kept:]
        ]
        fresh.gpu.node[:] = np.repeat(np.arange(len(nodes)), gpus)
        fresh.node.kind[known:] = [self._kind_number(node.gpu_type) for node in added]
        fresh.node.cpu_milli[known:] = [node.cpus * 1000 or UNCOUNTED for node in added]
        fresh.node.memory_mib[known:] = [node.memory_mib or UNCOUNTED for node in added]
        for name in ("kind", "cpu_milli", "memory_mib"):
            fresh.node[name][:known] = old.node[name]
        fresh.node.cpu_free_milli[:] = fresh.node.cpu_milli
        fresh.node.memory_free_mib[:] = fresh.node.memory_mib
        fresh.demand[:] = old.demand
        for demand, number in self._demands.items():
            fresh.demand.kinds[number] = self._kinds(demand)
        if known:
            for name in _KEPT:
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

    def _note_shapes(self, nodes: Iterable[NodeSpec]) -> None:
        """Store the shapes of these nodes, each shape once. A shape is a node without name and VC."""
        self._shapes |= {msgspec.structs.replace(node, name="", vc=None): None for node in nodes}

    def use_models(self, models: ModelArrays) -> None:
        """Use these models, with GPU types in the order of `kind_names`, for the speed and power of jobs."""
        from rlsched.cluster.speed import fill_beside

        fill_beside(models)
        self.arrays = self.arrays._replace(models=models)
        self._model(1)

    def lend_cores(self) -> None:
        """From now on, give jobs the cores that they requested, and lend them idle cores of their nodes.

        A node lends cores only if `let_lend` has allowed this for the node. A loan is withdrawn once another
        job requests the cores (`rlsched.cluster.loans`). Call this method while no job runs.
        """
        self.arrays.config[0].lends_cores = 1

    def let_lend(self, n: int, *, lends: bool) -> None:
        """Set whether a node lends idle cores, and can withdraw lent cores from running jobs."""
        self.arrays.node.lends[self._node(n)] = lends

    def set_dials(self, dials: DialArrays) -> None:
        """Use these dials, one set per partition. Dials adjust a rule's settings."""
        self.arrays = self.arrays._replace(dials=dials)

    def clock_by_models(self, models: ModelArrays | None) -> None:
        """Use `models` only to choose SM clocks (`CLOCKS_ALONE`); None: all clocks stay at the maximum.

        The GPU types of the models must be `kind_names`, in this order. Call this method again after a node
        with a new GPU type has joined.
        """
        if models is not None:
            self.arrays = self.arrays._replace(models=models)
        self._model(0 if models is None else CLOCKS_ALONE)

    def _model(self, modelled: int) -> None:
        self.arrays.config[0].modelled = modelled
        self.arrays.derived.slot.speed[:] = math.nan  # cached speeds are of the previous models
        self.needs = self.needs._replace(models=modelled != 0)
        self._note_kinds()

    def permit(self, *, preemption: bool = False, reserve_after_s: float = math.inf) -> None:
        """Set what a policy may do on this cluster.

        Observations contain these permissions. `decide.rules.declared` is the only rule that reads them.

        Args:
            preemption: Whether to allow preemption. With `Order.until_declared`, preemption begins once a job
                declares that it may be preempted.
            reserve_after_s: Waiting time, seconds, after which GPUs are reserved for the first job that does
                not fit.
        """
        config = self.arrays.config[0]
        waits = self.arrays.order.may_change
        config.preempts = preemption and (config.preempts or not waits)
        config.reserve_after_s = math.inf if waits and config.preempts else reserve_after_s
        self.needs = self.needs._replace(preemption=preemption, reservations=not math.isinf(reserve_after_s))

    def fix_clocks(self, n: int, is_fixed: bool) -> None:
        """Set whether the SM clocks of a node's GPUs are fixed, so that jobs get only the full clock."""
        self.arrays.node.fixed_clock[self._node(n)] = is_fixed

    def let_share(self, n: int, *, shares: bool) -> None:
        """Set whether several jobs can run on one of a node's GPUs."""
        self.arrays.node.unshared[self._node(n)] = not shares

    def limit_gpu_memory(self, n: int, usable_mib: Mapping[int, int]) -> None:
        """Set how much GPU memory jobs can get on a node, because other processes use some.

        Args:
            n: Index of the node.
            usable_mib: Memory that the jobs of a GPU can get together, MiB, by index of the GPU on the node.
                GPUs that are not included have no limit.
        """
        node, usable = self.arrays.node[self._node(n)], self.arrays.gpu.usable_mib
        usable[node.first_gpu : node.first_gpu + node.gpus] = UNCOUNTED
        for gpu, mib in usable_mib.items():
            usable[node.first_gpu + gpu] = mib
            self.arrays.config[0].limits_memory = 1
        self._mark_plain()

    def usable_gpu_memory(self, n: int) -> dict[int, int]:
        """Return the limits that `limit_gpu_memory` set for a node."""
        return self._limited(n, "usable_mib")

    def limit_joins(self, n: int, most_mib: Mapping[int, int | None]) -> None:
        """Limit the memory of jobs that join the running jobs on GPUs of a node.

        The limit of a GPU applies until one of the jobs on this GPU ends.

        Args:
            n: Index of the node.
            most_mib: Largest memory that a joining job may need on each GPU, MiB, by index of the GPU on the
                node; -1: no job may join; None: no limit. GPUs that are not listed keep their limits. A
                listed GPU without jobs gets no limit.
        """
        gpu = self.arrays.gpu
        for local, mib in most_mib.items():
            g = int(self.arrays.node.first_gpu[self._node(n)]) + local
            if self.has_jobs(n, local):
                gpu.joinable_mib[g] = UNCOUNTED if mib is None else mib
                self.arrays.config[0].limits_memory = 1
        kernels.forget_answers(self.arrays)

    def has_jobs(self, n: int, gpu: int) -> bool:
        """Return whether jobs run on a GPU, given by its index on a node."""
        return bool(self.arrays.gpu.tenant[self.arrays.node.first_gpu[self._node(n)] + gpu].max() >= 0)

    def join_limits(self, n: int) -> dict[int, int]:
        """Return the limits of `limit_joins` still in force on a node: GPU index on the node -> MiB."""
        return self._limited(n, "joinable_mib")

    def _limited(self, n: int, column: str) -> dict[int, int]:
        node = self.arrays.node[self._node(n)]
        mib = columns(self.arrays.gpu)[column][node.first_gpu : node.first_gpu + node.gpus]
        return {gpu: int(mib[gpu]) for gpu in np.flatnonzero(mib != UNCOUNTED).tolist()}

    def weigh_energy(self, weight: float) -> None:
        """Set the weight of energy against time, 0 (no weight) to 1 (only energy).

        Raises:
            ValueError: the weight is outside this range.
        """
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"expected a weight of energy from 0 to 1, got {weight}")
        self.arrays.config[0].energy_ppm = round(weight * 1e6)

    def set_price(
        self,
        ratio: float,
        outlook: Sequence[float],
        until_s: float,
        from_s: float = 0.0,
        ahead: Sequence[float] = (),
        rank: float = 0.0,
    ) -> None:
        """Set the price of electricity. If it has changed, mark the dials of all partitions as due.

        Args:
            ratio: The price relative to the mean, 0 if it is unknown.
            outlook: Present values of the columns `rlsched.energy.relative.OUTLOOK`; empty: all are 0.
            until_s: Time when the price changes next, infinite if that is not known.
            from_s: Start of the first hour of `ahead`.
            ahead: Prices of the next AHEAD_H hours relative to the mean; empty: unknown.
            rank: Rank of the price among the prices of the past 7 days.
        """
        kernels.set_price(self.arrays, ratio, np.resize(outlook or [0.0], len(OUTLOOK)), until_s)
        config = columns(self.arrays.config)
        config["price_from_s"], config["price_rank"] = from_s, rank
        config["price_sums"] = np.cumsum(ahead) if ahead else np.zeros(AHEAD_H)

    def limit_power(
        self, limit_w: float | None, falls: Sequence[tuple[float, float]] = (), *, soft: bool = False
    ) -> None:
        """Set the power limit of all nodes together.

        Args:
            limit_w: The limit, W; infinite: no limit now; None: never a limit.
            falls: Announced falls of the limit (`rlsched.energy.limits.LimitAt`).
            soft: Whether jobs without slack may exceed the limit.
        """
        config = self.arrays.config[0]
        config.limited, config.limit_w = limit_w is not None, math.inf if limit_w is None else limit_w
        config.limit_soft, config.fall_s[:], config.fall_w[:] = soft, math.inf, math.inf
        for k, (at_s, coming_w) in enumerate(falls):
            config.fall_s[k], config.fall_w[k] = at_s, coming_w
        if limit_w is None:
            config.clock_cap[:] = 1.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a power limit, now or later."""
        return bool(self.arrays.config[0].limited)

    @property
    def energy_counts(self) -> float:
        """Weight of energy against time, 0 to 1, for jobs without their own weight."""
        return float(self.arrays.config[0].energy_ppm) / 1e6

    @property
    def energy_weight(self) -> float:
        """Weight of energy for jobs without their own weight, 0 to 1, if models are used; else 0."""
        return self.energy_counts if self.arrays.config[0].modelled else 0.0

    def _note_kinds(self) -> None:
        """Set the GPU type of each partition to the type of most of its GPUs.

        Slices (MIG) count only in a partition without whole GPUs.
        """
        whole = np.array([not is_slice(name) for name in self.kind_names], np.bool_)
        for p in range(self.num_partitions):
            own = self.arrays.node.part_of == p
            counts = np.bincount(self.arrays.node.kind[own], weights=self.arrays.node.gpus[own])
            if (counts * whole[: counts.size]).any():
                counts *= whole[: counts.size]
            self.arrays.derived.part.kind[p] = int(np.argmax(counts)) if counts.size else 0

    def partitions_of(self, vc: str) -> tuple[int, int]:
        """Return (partition of the VC's own nodes, partition that serves all VCs), -1 for a missing one."""
        shared = len(self._owners) if len(self.partition_names) > len(self._owners) else -1
        return (self._owners.index(vc) if vc in self._owners else -1), shared

    def vc_number(self, vc: str) -> int:
        """Return the index of a VC in `vc_names`, -1 for ""; a new name is appended."""
        if vc and vc not in self.vc_names:
            self.vc_names.append(vc)
        return self.vc_names.index(vc) if vc else -1

    def demand_number(self, demand: Demand) -> int:
        """Return the index of a demand class; a new class is added at the end.

        Before a new class with preferred GPU types, the class that accepts only these types is added
        (`Demand.on_preferred`).
        """
        number = self._demands.get(demand)
        if number is None:
            narrow = demand.on_preferred
            preferred = -1 if narrow is None else self.demand_number(narrow)
            number = len(self._demands)
            if number == self.arrays.demand.shape[0]:
                self._regrow(demands=2 * number)
            self._demands[demand] = number
            row = self.arrays.demand
            row.kinds[number] = self._kinds(demand)
            row.gpus[number], row.share_milli[number] = demand.gpus, demand.share_milli
            row.cpu_milli_each[number] = demand.cpu_milli_each
            row.memory_mib_each[number] = demand.memory_mib_each
            row.exclusive[number], row.gpu_free_mib[number] = demand.exclusive, demand.gpu_free_mib
            row.preferred[number] = preferred
            kernels.size_class(self.arrays, number)
            self._mark_plain()
        return number

    @property
    def demands(self) -> list[Demand]:
        """The demand classes so far, in the order of their indices."""
        return list(self._demands)

    def reserve_demands(self, demands: Sequence[Demand]) -> list[int]:
        """Return the indices of these demand classes. The arrays grow at most once, not for each class."""
        narrow = {one.on_preferred for one in demands} - {None}
        wanted = len(self._demands.keys() | set(demands) | narrow)
        if wanted > self.arrays.demand.shape[0]:
            self._regrow(demands=wanted)
        return [self.demand_number(demand) for demand in demands]

    def _mark_plain(self) -> None:
        """Mark the plain demand classes: their jobs can be placed by counts of free GPUs only.

        If cores are lent, and jobs on a shared GPU together request more than the GPU's part of the cores, no
        class that requests cores is plain. A class is also not plain if its jobs request more free GPU memory
        than some GPU has.
        """
        demands, nodes = list(self._demands), alike_by_type(list(self._shapes))
        self.arrays.demand.plain[: len(demands)] = plain_demands(demands, nodes)
        if self.arrays.config[0].lends_cores and exceed_parts(self.arrays):
            self.arrays.demand.plain[self.arrays.demand.cpu_milli_each > 0] = 0
        if self.arrays.config[0].limits_memory:
            least_mib = self.arrays.gpu.usable_mib.min(initial=UNCOUNTED)
            self.arrays.demand.plain[self.arrays.demand.gpu_free_mib > least_mib] = 0
        self.arrays.config[0].within_parts = within_parts(demands, nodes)
        kernels.forget_answers(self.arrays)

    def _kinds(self, demand: Demand) -> int:
        """Return the bit mask of this cluster's GPU types that a demand accepts."""
        memory = self.gpu_memory_of_types()
        accepted = [demand.accepts(name, memory.get(name, 0)) for name in self.kind_names]
        if not (demand.gpu_types or demand.gpu_memory_mib or demand.only_preferred) and all(accepted):
            return ANY_KIND
        return sum(1 << kind for kind, will_do in enumerate(accepted) if will_do)

    def gpu_memory_of_types(self) -> dict[str, int]:
        """Return the smallest known GPU memory of the nodes of each GPU type, MiB; 0: unknown."""
        return {node.gpu_type: node.gpu_memory_mib for node in alike_by_type(list(self._shapes))}

    def know_kind(self, name: str) -> int:
        """Return the index of a GPU type in `kind_names`; a new name is appended."""
        return self._kind_number(name)

    def _kind_number(self, name: str) -> int:
        if name not in self.kind_names:
            if len(self.kind_names) == MAX_KINDS:
                raise AllocationError(
                    f"expected at most {MAX_KINDS} GPU types in a cluster, got one more: {name!r}"
                )
            self.kind_names.append(name)
        return self.kind_names.index(name)

    def can_ever_run(self, vc: str, demand: Demand | int, without: Collection[int] = frozenset()) -> bool:
        """Return whether a job fits on the nodes that are open to its VC when all of these are up and idle.

        Args:
            vc: The VC.
            demand: The request; an int requests this number of GPUs of any type.
            without: Indices of retired nodes.
        """
        wanted = Demand(gpus=demand) if isinstance(demand, int) else demand
        part_of, nodes = self.arrays.node.part_of.tolist(), alike_by_type(self._nodes)
        for p in self.partitions_of(vc):
            own = [node for n, node in enumerate(nodes) if part_of[n] == p and n not in without]
            if p >= 0 and holds(Counter(wanted.places_on_node(node) for node in own), wanted.places):
                return True
        return False

    def grow(self) -> None:
        """Make room for twice as many live jobs."""
        self._regrow(slots=2 * self.arrays.job.shape[0])

    def _regrow(self, *, slots: int = 0, demands: int = 0) -> None:
        self.arrays = grown(self.arrays, slots=slots, demands=demands)
        kernels.rebuild_index(self.arrays)
        self._note_kinds()

    def sort_queue(self, wanted: bool) -> None:
        """Set whether queues are stored sorted, or only as heaps, which suffice for most compiled rules."""
        self.arrays.config[0].sorts_queue = wanted
        kernels.rebuild_index(self.arrays)

    def _node(self, n: int) -> int:
        if not 0 <= n < len(self._nodes):
            raise AllocationError(f"there is no node number {n}")
        return n

    # ---- queries ----------------------------------------------------------------------------------

    def slot_of(self, seq: int) -> int:
        """Return the slot of a live job, given its sequence number.

        Raises:
            AllocationError: no live job has this sequence number.
        """
        job = columns(self.arrays.job)
        known = self._slots.get(seq)  # valid as long as the slot still has this number
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
        """Return the global indices of a job's GPUs, in the order of allocation."""
        place = int(self.arrays.job.head[self.slot_of(seq)])
        gpus = []
        while place >= 0:
            gpus.append(place // MAX_TENANTS)
            place = int(self.arrays.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS])
        return gpus

    def beside(self, seq: int) -> list[int]:
        """Return the sequence numbers of the other jobs that run on the first GPU of a job."""
        job = columns(self.arrays.job)
        head = int(job["head"][self.slot_of(seq)])
        tenants = columns(self.arrays.gpu)["tenant"][head // MAX_TENANTS].tolist() if head >= 0 else []
        found = [int(job["seq"][slot]) for slot in tenants if slot >= 0]
        return [other for other in found if other != seq]

    def gpu_location(self, g: int) -> tuple[int, int]:
        """Return (node index, index of the GPU on that node) of a GPU, given its global index."""
        n = int(columns(self.arrays.gpu)["node"][g])
        return n, g - int(columns(self.arrays.node)["first_gpu"][n])

    def waiting(self, partition: int) -> list[int]:
        """Return the sequence numbers of a partition's waiting jobs, in queue order."""
        return [int(seq) for seq in self.arrays.job.seq[self.queue(partition)]]

    def queue(self, partition: int) -> NDArray[np.int32]:
        """Return the slots (indices in the job arrays) of a partition's waiting jobs, in queue order."""
        return self.arrays.derived.queue[partition, : self.arrays.derived.part.queue_len[partition]]

    def running(self) -> list[int]:
        """Return the sequence numbers of the running jobs, ascending."""
        return sorted(int(seq) for seq in self.arrays.job.seq[self.arrays.job.status == RUNNING])
