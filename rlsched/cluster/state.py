"""ClusterState: names and arrays of a cluster and its live jobs, and the ledger that keeps them true.

It holds only what a broker can know: no true durations. The simulator and the broker fill the same one.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels
from rlsched.cluster.arrays import (
    CLOCKS_ALONE,
    LEAVING,
    MAX_TENANTS,
    NODE_DOWN,
    NODE_DRAINED,
    NODE_UP,
    RUNNING,
    SLOT_EMPTY,
    UNCOUNTED,
    WAITING,
    OrderArrays,
    StateArrays,
    empty_state,
    grown,
)
from rlsched.cluster.demand import ANY_KIND, MAX_KINDS, Demand, holds, plain_demands
from rlsched.cluster.legality import check_gang, check_join
from rlsched.cluster.spec import SHARED_PARTITION, ClusterSpec, NodeSpec, is_slice
from rlsched.errors import AllocationError
from rlsched.models.arrays import ModelArrays


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

    def started(self, s: StateArrays, slot: int, now_s: float) -> None:
        """An attempt of a job has just begun."""

    def requeue(self, s: StateArrays, slot: int, now_s: float) -> None:
        """A released job waits as its next attempt."""

    def ended(self, s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
        """A job that has ended and been released is about to be forgotten."""


class ClusterState:
    """A cluster now.

    Attributes:
        arrays: The arrays that kernels work on; replaced when they grow.
        node_names: Name of each node, by node number.
        partition_names: The VCs that own nodes, in name order, then `shared` if any node serves all.
        vc_names: Every VC name met so far; its position is its number.
        kind_names: Every GPU type met so far; its position is its number.
        ordering: What its queues go by.
        needs: What kernels have to be compiled with for it.
        placement: The placement rule, a key of `PLACEMENT_CODES`.
        stops_take_time: Whether a preempted job waits again only once its processes are gone, when it is
            requeued; until then it is nobody's candidate. As in a broker; in the simulator it waits at once.
    """

    stops_take_time = False

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
        placement: str = "consolidate",
    ) -> ClusterState:
        """The idle cluster that a description describes."""
        return cls(spec.expand(), queue, slots=slots, placement=placement)

    @classmethod
    def empty(cls, queue: Queue) -> ClusterState:
        """A cluster whose nodes are still to come."""
        return cls([], queue)

    # ---- shape ------------------------------------------------------------------------------------

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
        return int(self.arrays.counters[0].decisions)

    def count_decision(self) -> None:
        """One more decision has been taken."""
        self.arrays.counters[0].decisions += 1

    def add_node(self, spec: NodeSpec) -> int:
        """A node joins, up and idle; jobs that wait may now use it. Returns its number."""
        if spec.name in self.node_names:
            raise AllocationError(f"node {spec.name!r} is already part of the cluster")
        self._lay_out([*self._nodes, spec])
        return len(self._nodes) - 1

    def _lay_out(self, nodes: list[NodeSpec]) -> None:
        """Arrays for these nodes, keeping jobs, allocations and status of the nodes that stay (a prefix)."""
        old = self.arrays
        known = len(self._nodes)
        self._nodes = nodes
        self.node_names = [node.name for node in nodes]
        owners = sorted({node.vc for node in nodes if node.vc is not None})
        shared = any(node.vc is None for node in nodes)
        self._owners = owners
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
            for name in ("status", "fixed_clock", "free", "cpu_free_milli", "memory_free_mib"):
                fresh.node[name][:known] = old.node[name]
            fresh.gpu[: old.gpu.shape[0]] = old.gpu
        fresh.config[:], fresh.counters[:] = old.config, old.counters
        self.arrays = fresh._replace(job=old.job, models=old.models)
        self._note_kinds()
        running = old.job.status == RUNNING
        old.job.placed_in[running] = fresh.node.part_of[old.job.host[running]]
        for slot in np.flatnonzero(old.job.status != SLOT_EMPTY):
            vc = int(old.job.vc[slot])
            own, everyone = self.partitions_of(self.vc_names[vc] if vc >= 0 else "")
            old.job.own_partition[slot], old.job.shared_partition[slot] = own, everyone
        self._mark_plain()
        kernels.rebuild_index(self.arrays)

    def use_models(self, models: ModelArrays) -> None:
        """From now on jobs run and draw as these say; their GPU types are `kind_names`, in that order."""
        from rlsched.models.speed import fill_beside

        fill_beside(models)
        self.arrays = self.arrays._replace(models=models)
        self._model(1)

    def clock_by_models(self, models: ModelArrays | None) -> None:
        """From now on models choose SM clocks and nothing else (`CLOCKS_ALONE`); None: nobody does.

        Their GPU types are `kind_names`, in that order; again where a node of another type has joined.
        """
        if models is not None:
            self.arrays = self.arrays._replace(models=models)
        self._model(0 if models is None else CLOCKS_ALONE)

    def _model(self, modelled: int) -> None:
        self.arrays.config[0].modelled = modelled
        self.needs = self.needs._replace(models=modelled != 0)
        self._note_kinds()

    def permit(self, *, preemption: bool = False, reserve_after_s: float = math.inf) -> None:
        """What a policy may do on this cluster, which its rows show; rules do what they do.

        Args:
            preemption: Preempt running jobs.
            reserve_after_s: Reserve GPUs for the first job that has waited so long and does not fit.
        """
        self.arrays.config[0].preempts = preemption
        self.arrays.config[0].reserve_after_s = reserve_after_s
        self.needs = self.needs._replace(preemption=preemption, reservations=not math.isinf(reserve_after_s))

    def fix_clocks(self, n: int, is_fixed: bool) -> None:
        """Say whether nobody can set the SM clocks of a node's GPUs."""
        self.arrays.node.fixed_clock[self._node(n)] = is_fixed

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
        self.arrays.demand.plain[: len(self._demands)] = plain_demands(list(self._demands), self._nodes)
        kernels.forget_answers(self.arrays)

    def _kinds(self, demand: Demand) -> int:
        """Bit mask of the GPU types here that a demand accepts."""
        accepted = [demand.accepts(name) for name in self.kind_names]
        if not demand.gpu_types and all(accepted):
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

    def can_ever_run(self, vc: str, demand: Demand | int) -> bool:
        """Whether a job would fit the idle cluster, with every node up, that its VC may use."""
        wanted = Demand(gpus=demand) if isinstance(demand, int) else demand
        part_of = self.arrays.node.part_of.tolist()
        for p in self.partitions_of(vc):
            own = [node for node, part in zip(self._nodes, part_of, strict=True) if part == p]
            if p >= 0 and holds(Counter(wanted.places_on_node(node) for node in own), wanted.places):
                return True
        return False

    # ---- jobs -------------------------------------------------------------------------------------

    def slot_of(self, seq: int) -> int:
        """Slot of a live job.

        Raises:
            AllocationError: no live job has this number.
        """
        job = self.arrays.job.view(np.ndarray)  # a record array takes ten times as long to find a column
        for slot in (job["seq"] == seq).nonzero()[0].tolist():
            if job["status"][slot] != SLOT_EMPTY:
                return int(slot)
        raise AllocationError(f"no live job has number {seq}")

    def add_job(
        self,
        *,
        num_gpus: int | None = None,
        demand: Demand | None = None,
        vc: str = "",
        submit_s: float,
        predicted_s: float,
        spread: float,
        time_limit_s: float = math.nan,
        preemptible: bool = True,
        workload: int = 0,
        energy_weight: float | None = None,
    ) -> int:
        """A job arrives and waits; returns its number.

        Args:
            num_gpus: Whole GPUs of any type, where nothing else is asked for.
            demand: Everything that it asks for.
            vc: Its virtual cluster.
            submit_s: When it was submitted.
            predicted_s: Its stamp: the predicted run time ...
            spread: ... and the standard deviation of ln(run time / prediction).
            time_limit_s: The user's limit, nan where there is none.
            preemptible: Whether it may be stopped for another job's sake.
            workload: Number in the catalogue of workloads, 0 where unknown.
            energy_weight: What energy counts against time for it, 0 to 1; None: what the cluster says.

        Raises:
            AllocationError: it asks for less than one GPU, or has no usable time of submission or prediction.
        """
        if demand is None:
            if num_gpus is None or num_gpus < 1:
                raise AllocationError(f"a job needs 1 GPU or more, got {num_gpus}")
            demand = Demand(gpus=num_gpus)
        if not (math.isfinite(predicted_s) and predicted_s >= 0 and math.isfinite(spread)):
            raise AllocationError(f"expected a finite prediction, got {predicted_s} s, spread {spread}")
        if not math.isfinite(submit_s):
            raise AllocationError(f"expected a finite time of submission, got {submit_s}")
        own, shared = self.partitions_of(vc)
        if self.arrays.counters[0].live_jobs == self.arrays.job.shape[0]:
            self.grow()
        number = self.demand_number(demand)
        slot = kernels.add_job(
            self.arrays,
            number,
            self.vc_number(vc),
            own,
            shared,
            submit_s,
            predicted_s,
            spread,
            time_limit_s,
            not preemptible,
        )
        self.ordering.arrive(self.arrays, slot, submit_s)
        self.arrays.job.workload[slot] = workload
        if energy_weight is not None:
            self.arrays.job.energy_ppm[slot] = round(energy_weight * 1e6)
        return int(self.arrays.job.seq[slot])

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

    def remove_waiting(self, seq: int) -> None:
        """A waiting job leaves.

        Raises:
            AllocationError: it does not wait.
        """
        slot = self._in_status(seq, WAITING, "waiting")
        kernels.dequeue(self.arrays, slot)
        kernels.forget(self.arrays, slot)

    def start(
        self,
        seq: int,
        gpus: Sequence[int],
        now_s: float,
        *,
        share_milli: int | None = None,
        sm_clock_frac: float = 1.0,
        node: int = -1,
        share_with: int = -1,
        cpu_milli_each: int = -1,
    ) -> None:
        """Give a waiting job exactly these GPUs, or a job without GPUs a place on this node.

        `share_milli`: share of each GPU; None: what the job asked for. `share_with`: number of the running
        job that shares all of its GPUs with this one, -1: nobody has them. `cpu_milli_each`: cores with each
        GPU, -1: those that it asked for.

        Raises:
            AllocationError: the job does not wait, the gang is not whole, a GPU is taken, named twice,
                unknown, of another type, on a node that is not up, is short of cores or memory, or serves
                another VC, or the share is not the job's or the clock is not 1. Nothing has changed then.
        """
        p, host = self.check_start(seq, gpus, share_milli, sm_clock_frac, node, share_with, cpu_milli_each)
        slot = self.slot_of(seq)
        if share_with >= 0:
            other = self.slot_of(share_with)
            kernels.join(self.arrays, slot, other, max(cpu_milli_each, 0), sm_clock_frac, now_s)
            self.ordering.started(self.arrays, slot, now_s)
            return
        share = int(self.arrays.job.share_milli[slot])
        if cpu_milli_each >= 0:
            self.arrays.job.cpu_milli_each[slot] = cpu_milli_each
        order = list(dict.fromkeys(self.arrays.gpu.node[list(gpus)].tolist()))
        grouped = sorted(gpus, key=lambda g: order.index(self.arrays.gpu.node[g]))
        kernels.allocate(self.arrays, slot, np.array(grouped, np.int32), host, p, share, sm_clock_frac, now_s)
        self.ordering.started(self.arrays, slot, now_s)

    def check_start(
        self,
        seq: int,
        gpus: Sequence[int],
        share_milli: int | None = None,
        sm_clock_frac: float = 1.0,
        node: int = -1,
        share_with: int = -1,
        cpu_milli_each: int = -1,
    ) -> tuple[int, int]:
        """(partition, first node) of a start that is legal.

        Raises:
            AllocationError: the one that `start` would raise; nothing has changed.
        """
        slot = self._in_status(seq, WAITING, "waiting")
        if share_with >= 0:
            other = self._in_status(share_with, RUNNING, "running")
            check_join(self, slot, other, gpus, sm_clock_frac, cpu_milli_each)
            return int(self.arrays.job.placed_in[other]), int(self.arrays.job.host[other])
        share = int(self.arrays.job.share_milli[slot]) if share_milli is None else share_milli
        return check_gang(self, slot, gpus, share, sm_clock_frac, node, cpu_milli_each)

    def release(self, seq: int, now_s: float, *, ended: bool = True) -> None:
        """The attempt of a running job, or of one that was preempted, is over, and the job with it.

        Args:
            seq: Its number.
            now_s: When.
            ended: Whether it came to its own end. Only then, and where no earlier attempt is unknown to the
                ledger, do jobs of its burst learn how long it ran.

        Raises:
            AllocationError: it neither runs nor leaves.
        """
        job, ran_until_now = self.arrays.job, self.arrays.job.status[self.slot_of(seq)] == RUNNING
        slot = self._stopped(seq, now_s)
        if ended and ran_until_now and job.attempt[slot] == 1:
            self.ordering.ended(self.arrays, slot, now_s - float(job.start_s[slot]), now_s)
        kernels.forget(self.arrays, slot)

    def requeue(self, seq: int, now_s: float) -> None:
        """The attempt of a running job, or of one that was preempted, is over; it waits, as its next attempt.

        Raises:
            AllocationError: it neither runs nor leaves.
        """
        self.ordering.requeue(self.arrays, self._stopped(seq, now_s), now_s)

    def _stopped(self, seq: int, now_s: float) -> int:
        """Slot of a job whose attempt is over; it has no GPUs from now on."""
        slot = self.slot_of(seq)
        if self.arrays.job.status[slot] != LEAVING:
            self._in_status(seq, RUNNING, "running")
            kernels.release(self.arrays, slot, now_s)
        return slot

    def preempt(self, seq: int, now_s: float, *, moved_for: int = -1) -> None:
        """Stop a running job for another one's sake: its GPUs are free for others in this ledger.

        It waits again, as its next attempt: at once, or, where `stops_take_time`, when it is requeued.

        Args:
            seq: Its number.
            now_s: When.
            moved_for: Number of the waiting job that it makes room for, where it is to go on elsewhere at
                once (`decide.repack`); -1: it just gives way.

        Raises:
            AllocationError: see `check_preempt`.
        """
        slot = self.check_preempt(seq, now_s, moved_for=moved_for)
        kernels.release(self.arrays, slot, now_s)
        self.arrays.job.preemptions[slot] += 1
        if self.stops_take_time:
            self.arrays.job.status[slot] = LEAVING
        else:
            self.ordering.requeue(self.arrays, slot, now_s)
        kernels.note_moved(self.arrays, slot, self.slot_of(moved_for) if moved_for >= 0 else -1)

    def check_preempt(self, seq: int, now_s: float, *, moved_for: int = -1) -> int:
        """Slot of a job that may be preempted now.

        Raises:
            AllocationError: it does not run, must not be preempted, or started at this very instant; or the
                job that it is to be moved for does not wait.
        """
        slot = self._in_status(seq, RUNNING, "running")
        if self.arrays.job.pinned[slot]:
            raise AllocationError(f"job {seq} must not be preempted")
        if self.arrays.job.start_s[slot] == now_s:
            raise AllocationError(f"job {seq} started at this instant, {now_s} s: preempt it later")
        if moved_for >= 0:
            self._in_status(moved_for, WAITING, "waiting")
        return slot

    def _in_status(self, seq: int, status: int, word: str) -> int:
        slot = self.slot_of(seq)
        if self.arrays.job.status[slot] != status:
            raise AllocationError(f"job {seq} is not {word}")
        return slot

    # ---- nodes ------------------------------------------------------------------------------------

    def fail_node(self, n: int) -> list[int]:
        """A node is gone. Returns the jobs that hold GPUs there, in `seq` order: release or requeue each."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_DOWN)
        return self.jobs_on(n)

    def drain_node(self, n: int) -> None:
        """A node takes no new jobs; those that run there go on."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_DRAINED)

    def resume_node(self, n: int) -> None:
        """A drained or failed node is up again."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_UP)

    def jobs_on(self, n: int) -> list[int]:
        """Numbers of the jobs that hold GPUs on a node, ascending."""
        job = self.arrays.job
        tenants = self.arrays.gpu.tenant[self.arrays.gpu.node == n]
        hosted = np.flatnonzero((job.status == RUNNING) & (job.host == n))
        return sorted({int(job.seq[slot]) for slot in [*tenants[tenants >= 0], *hosted]})

    def _node(self, n: int) -> int:
        if not 0 <= n < len(self._nodes):
            raise AllocationError(f"there is no node number {n}")
        return n

    # ---- looking ----------------------------------------------------------------------------------

    def gpus_of(self, seq: int) -> list[int]:
        """Global GPU numbers that a job holds, in the order of allocation."""
        place = int(self.arrays.job.head[self.slot_of(seq)])
        gpus = []
        while place >= 0:
            gpus.append(place // MAX_TENANTS)
            place = int(self.arrays.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS])
        return gpus

    def gpu_location(self, g: int) -> tuple[int, int]:
        """(node number, GPU number on that node) of a global GPU number."""
        n = int(self.arrays.gpu.node[g])
        return n, g - int(self.arrays.node.first_gpu[n])

    def waiting(self, partition: int) -> list[int]:
        """Numbers of the jobs that wait for a partition, in queue order."""
        return [int(seq) for seq in self.arrays.job.seq[self.queue(partition)]]

    def queue(self, partition: int) -> NDArray[np.int32]:
        """(waiting,) slots that wait for a partition, in queue order."""
        return self.arrays.derived.queue[partition, : self.arrays.derived.part.queue_len[partition]]

    def running(self) -> list[int]:
        """Numbers of the running jobs, ascending."""
        return sorted(int(seq) for seq in self.arrays.job.seq[self.arrays.job.status == RUNNING])

    def digest(self) -> str:
        """Hash of everything but the derived index, of live jobs only: equal states, equal digests."""
        hasher = hashlib.sha256()  # most processors have instructions for it
        job = self.arrays.job.view(np.ndarray)
        live = np.flatnonzero(job["status"] != SLOT_EMPTY)
        live = live[np.argsort(job["seq"][live])]
        unread: tuple[str, ...] = () if self.arrays.config[0].modelled else ("energy_ppm", "clocked_s")
        if not self.arrays.order.code[0].revises:
            unread += ("first_predicted_s", "burst", "burst_ended", "burst_ln_sum", "burst_spread", "look_s")
        if (job["moved_for"][live] < 0).all():
            unread += ("moved_for", "moved_attempt")
        for name in job.dtype.names:
            if name not in (
                "key",
                "head",
                "placed_in",
                "own_partition",
                "shared_partition",
                "held_for_slot",
                "demand",
                *unread,
            ):
                hasher.update(job[name][live].tobytes())
        node = self.arrays.node
        for name in ("gpus", "first_gpu", "part_of", "status", "free"):
            hasher.update(node[name].tobytes())
        hasher.update((node.cpu_milli - node.cpu_free_milli).tobytes())
        hasher.update((node.memory_mib - node.memory_free_mib).tobytes())
        tenant = self.arrays.gpu.tenant.ravel()
        held = np.flatnonzero(tenant >= 0)
        hasher.update(held.tobytes())
        hasher.update(job["seq"][tenant[held]].tobytes())
        return hasher.hexdigest()[:32]
