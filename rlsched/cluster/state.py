"""ClusterState: names and arrays of a cluster and its live jobs, and the ledger that keeps them true.

It holds only what a broker can know: no true durations. The simulator and the broker fill the same one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels, placement
from rlsched.cluster.arrays import (
    DECISIONS,
    LIVE_JOBS,
    MAX_TENANTS,
    NODE_DOWN,
    NODE_DRAINED,
    NODE_UP,
    RUNNING,
    SLOT_EMPTY,
    WAITING,
    WHOLE_GPU_MILLI,
    empty_state,
    grown_slots,
)
from rlsched.cluster.spec import SHARED_PARTITION, ClusterSpec, NodeSpec
from rlsched.errors import AllocationError


class ClusterState:
    """A cluster now.

    Attributes:
        arrays: The arrays that kernels work on; replaced when they grow.
        node_names: Name of each node, by node number.
        partition_names: The VCs that own nodes, in name order, then `shared` if any node serves all.
        vc_names: Every VC name met so far; its position is its number.
        order: The queue order that the index keeps.
    """

    def __init__(
        self, nodes: Sequence[NodeSpec], *, order: str = "predicted_gpu_time", slots: int = 256
    ) -> None:
        self.order = order
        self.vc_names: list[str] = []
        self._nodes: list[NodeSpec] = []
        self._owners: list[str] = []
        self.arrays = empty_state(0, 0, slots, 1, 0, order)
        self.node_names: list[str] = []
        self.partition_names: list[str] = []
        self._lay_out(list(nodes))

    @classmethod
    def from_spec(
        cls, spec: ClusterSpec, *, order: str = "predicted_gpu_time", slots: int = 256
    ) -> ClusterState:
        """The idle cluster that a description describes."""
        return cls(spec.expand(), order=order, slots=slots)

    @classmethod
    def empty(cls, *, order: str = "predicted_gpu_time") -> ClusterState:
        """A cluster whose nodes are still to come."""
        return cls([], order=order)

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
        return int(self.arrays.counters[DECISIONS])

    def count_decision(self) -> None:
        """One more decision has been taken."""
        self.arrays.counters[DECISIONS] += 1

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
            self.order,
        )
        fresh.node.gpus[:] = fresh.node.free[:] = gpus
        fresh.node.first_gpu[:] = np.cumsum(gpus) - gpus
        fresh.node.part_of[:] = [len(owners) if node.vc is None else owners.index(node.vc) for node in nodes]
        fresh.gpu.node[:] = np.repeat(np.arange(len(nodes)), gpus)
        if known:
            fresh.node.status[:known] = old.node.status
            fresh.node.free[:known] = old.node.free
            fresh.gpu[: old.gpu.shape[0]] = old.gpu
        fresh.counters[:] = old.counters
        placed = np.where(
            old.job.head >= 0,
            fresh.node.part_of[fresh.gpu.node[old.job.head // MAX_TENANTS]] if self.num_gpus else -1,
            -1,
        )
        self.arrays = fresh._replace(job=old.job)
        old.job.placed_in[:] = np.where(old.job.status == RUNNING, placed, -1)
        for slot in np.flatnonzero(old.job.status != SLOT_EMPTY):
            vc = int(old.job.vc[slot])
            own, everyone = self.partitions_of(self.vc_names[vc] if vc >= 0 else "")
            old.job.own_partition[slot], old.job.shared_partition[slot] = own, everyone
        kernels.rebuild_index(self.arrays)

    def partitions_of(self, vc: str) -> tuple[int, int]:
        """(partition of the VC's own nodes, partition that serves all); -1 where there is none."""
        shared = len(self._owners) if len(self.partition_names) > len(self._owners) else -1
        return (self._owners.index(vc) if vc in self._owners else -1), shared

    def vc_number(self, vc: str) -> int:
        """Number of a VC's name, -1 for none; a new name gets the next number."""
        if vc and vc not in self.vc_names:
            self.vc_names.append(vc)
        return self.vc_names.index(vc) if vc else -1

    def can_ever_run(self, vc: str, num_gpus: int) -> bool:
        """Whether a gang would fit the idle cluster, with every node up, that its VC may use."""
        node = self.arrays.node
        for p in self.partitions_of(vc):
            if p < 0:
                continue
            sizes = np.bincount(node.gpus[node.part_of == p], minlength=self.arrays.derived.holes.shape[1])
            counts = sizes.astype(np.int32)
            counts[0] = 0
            if placement.fits_in(counts, counts, int(self.arrays.derived.part.node_size[p]), num_gpus):
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
        num_gpus: int,
        vc: str = "",
        submit_s: float,
        predicted_s: float,
        spread: float,
        time_limit_s: float = math.nan,
    ) -> int:
        """A job arrives and waits; returns its number.

        Raises:
            AllocationError: it asks for less than one GPU, or has no usable time of submission or prediction.
        """
        if num_gpus < 1:
            raise AllocationError(f"a job needs 1 GPU or more, got {num_gpus}")
        if not (math.isfinite(predicted_s) and predicted_s >= 0 and math.isfinite(spread)):
            raise AllocationError(f"expected a finite prediction, got {predicted_s} s, spread {spread}")
        if not math.isfinite(submit_s):
            raise AllocationError(f"expected a finite time of submission, got {submit_s}")
        own, shared = self.partitions_of(vc)
        if self.arrays.counters[LIVE_JOBS] == self.arrays.job.shape[0]:
            self.grow()
        slot = kernels.add_job(
            self.arrays,
            num_gpus,
            self.vc_number(vc),
            own,
            shared,
            submit_s,
            predicted_s,
            spread,
            time_limit_s,
        )
        return int(self.arrays.job.seq[slot])

    def grow(self) -> None:
        """Room for twice as many live jobs."""
        self.arrays = grown_slots(self.arrays, 2 * self.arrays.job.shape[0])
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
        share_milli: int = WHOLE_GPU_MILLI,
        sm_clock_frac: float = 1.0,
    ) -> None:
        """Give a waiting job exactly these GPUs.

        Raises:
            AllocationError: the job does not wait, the gang is not whole, a GPU is taken, named twice,
                unknown, on a node that is not up, or serves another VC, or the share or the clock is not 1.
                Nothing has changed then.
        """
        slot = self._in_status(seq, WAITING, "waiting")
        p = self._check_gang(slot, gpus, share_milli, sm_clock_frac)
        kernels.allocate(self.arrays, slot, np.array(gpus, np.int32), p, share_milli, sm_clock_frac, now_s)

    def check_start(
        self, seq: int, gpus: Sequence[int], share_milli: int = WHOLE_GPU_MILLI, sm_clock_frac: float = 1.0
    ) -> None:
        """Raise the AllocationError that `start` would raise; change nothing."""
        self._check_gang(self._in_status(seq, WAITING, "waiting"), gpus, share_milli, sm_clock_frac)

    def _check_gang(self, slot: int, gpus: Sequence[int], share_milli: int, sm_clock_frac: float) -> int:
        job = self.arrays.job.view(np.ndarray)[slot]
        node, gpu = self.arrays.node.view(np.ndarray), self.arrays.gpu.view(np.ndarray)
        seq = int(job["seq"])
        if len(gpus) != job["gpus"] or len(set(gpus)) != len(gpus):
            raise AllocationError(f"job {seq} needs {job['gpus']} different GPUs, got {list(gpus)}")
        if share_milli != WHOLE_GPU_MILLI:
            raise AllocationError(f"job {seq}: only whole GPUs (1000 milli) can be given, got {share_milli}")
        if sm_clock_frac != 1.0:
            raise AllocationError(
                f"job {seq}: only the full SM clock (1.0) can be given, got {sm_clock_frac}"
            )
        node_of, free_milli = gpu["node"], gpu["free_milli"]
        status, part_of = node["status"], node["part_of"]
        partitions = set()
        for g in gpus:
            if not 0 <= g < len(node_of):
                raise AllocationError(f"job {seq}: there is no GPU {g}")
            n = node_of[g]
            if status[n] != NODE_UP:
                raise AllocationError(f"job {seq}: node {self.node_names[n]} is not up")
            if free_milli[g] < share_milli:
                raise AllocationError(f"job {seq}: GPU {g} on node {self.node_names[n]} is taken")
            partitions.add(int(part_of[n]))
        if len(partitions) != 1:
            raise AllocationError(f"job {seq}: a gang stays within one partition, got {sorted(partitions)}")
        p = partitions.pop()
        if p not in (job["own_partition"], job["shared_partition"]):
            raise AllocationError(f"job {seq}: partition {self.partition_names[p]} does not serve its VC")
        return p

    def release(self, seq: int, now_s: float) -> None:
        """A running job's attempt is over, and the job with it.

        Raises:
            AllocationError: it does not run.
        """
        slot = self._in_status(seq, RUNNING, "running")
        kernels.release(self.arrays, slot, now_s)
        kernels.forget(self.arrays, slot)

    def requeue(self, seq: int, now_s: float) -> None:
        """A running job's attempt is over; the job waits again, as its next attempt.

        Raises:
            AllocationError: it does not run.
        """
        slot = self._in_status(seq, RUNNING, "running")
        kernels.release(self.arrays, slot, now_s)
        kernels.wait_again(self.arrays, slot)

    def preempt(self, seq: int, now_s: float) -> None:
        """Stop a running job for another one's sake; it waits again, as its next attempt.

        Raises:
            AllocationError: it does not run, must not be preempted, or started at this very instant.
        """
        slot = self._in_status(seq, RUNNING, "running")
        if self.arrays.job.pinned[slot]:
            raise AllocationError(f"job {seq} must not be preempted")
        if self.arrays.job.start_s[slot] == now_s:
            raise AllocationError(f"job {seq} started at this instant, {now_s} s: preempt it later")
        kernels.preempt(self.arrays, slot, now_s)

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
        tenants = self.arrays.gpu.tenant[self.arrays.gpu.node == n]
        return sorted({int(self.arrays.job.seq[slot]) for slot in tenants[tenants >= 0]})

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
        hasher = hashlib.blake2b(digest_size=16)
        job = self.arrays.job
        live = np.flatnonzero(job.status != SLOT_EMPTY)
        live = live[np.argsort(job.seq[live])]
        for name in job.dtype.names:
            if name not in ("head", "placed_in", "own_partition", "shared_partition", "held_for_slot"):
                hasher.update(job[name][live].tobytes())
        hasher.update(self.arrays.node.tobytes())
        tenant = self.arrays.gpu.tenant
        hasher.update(np.where(tenant >= 0, job.seq[tenant], -1).tobytes())
        return hasher.hexdigest()
