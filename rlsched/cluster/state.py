"""ClusterState: a cluster and its live jobs, and the ledger that keeps them true.

It holds only what a broker can know: no true durations. The simulator and the broker fill the same one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from rlsched.cluster import kernels
from rlsched.cluster.arrays import (
    LEAVING,
    NODE_DOWN,
    NODE_DRAINED,
    NODE_UP,
    RUNNING,
    SLOT_EMPTY,
    WAITING,
)
from rlsched.cluster.demand import Demand
from rlsched.cluster.dials import NOBODY
from rlsched.cluster.legality import check_gang, check_join
from rlsched.cluster.shape import ClusterShape
from rlsched.cluster.spec import NodeSpec
from rlsched.errors import AllocationError


class ClusterState(ClusterShape):
    """A cluster now.

    Attributes:
        stops_take_time: Whether a preempted job waits again only once its processes are gone, when it is
            requeued; until then it is nobody's candidate. As in a broker; in the simulator it waits at once.
    """

    stops_take_time = False

    def count_decision(self) -> None:
        """One more decision has been taken."""
        self.arrays.counters[0].decisions += 1

    # ---- jobs -------------------------------------------------------------------------------------

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
        level: int = 0,
        ln_weight: float = 0.0,
    ) -> int:
        """A job arrives and waits; returns its number.

        Args:
            num_gpus: Whole GPUs of any type, where nothing else is asked for.
            demand: Everything that it asks for.
            vc: Its virtual cluster.
            submit_s: When it was submitted.
            predicted_s: Its prediction: the predicted run time ...
            spread: ... and the standard deviation of ln(run time / prediction).
            time_limit_s: The user's limit, nan where there is none.
            preemptible: Whether it may be stopped for another job's sake.
            workload: Number in the catalogue of workloads, 0 where unknown.
            energy_weight: What energy counts against time for it, 0 to 1; None: what the cluster says.
            level: Its priority; jobs of a higher level go first.
            ln_weight: ln of its weight in the order of the queue.

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
        self.arrays.job.level[slot], self.arrays.job.ln_weight[slot] = level, ln_weight
        self.ordering.arrive(self.arrays, slot, submit_s)
        self.arrays.job.workload[slot] = workload
        if energy_weight is not None:
            self.arrays.job.energy_ppm[slot] = round(energy_weight * 1e6)
        return int(self.arrays.job.seq[slot])

    def rank_job(self, seq: int, level: int, ln_weight: float, now_s: float) -> None:
        """Level and weight of a live job are these from now on."""
        slot = self.slot_of(seq)
        self.arrays.job.level[slot], self.arrays.job.ln_weight[slot] = level, ln_weight
        if self.arrays.job.status[slot] == WAITING:
            self.ordering.rank(self.arrays, slot, now_s)

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
                once (`rules.migration`); -1: it just gives way.

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

    def add_node(self, spec: NodeSpec) -> int:
        """A node joins, up and idle; jobs that wait may now use it. Returns its number."""
        if spec.name in self.node_names:
            raise AllocationError(f"node {spec.name!r} is already part of the cluster")
        self._lay_out([*self._nodes, spec])
        return len(self._nodes) - 1

    def retire_node(self, n: int) -> None:
        """A node is gone for good, and its name is free for another.

        Raises:
            AllocationError: jobs hold GPUs there.
        """
        if self.jobs_on(n):
            raise AllocationError(f"node {self.node_names[n]!r} cannot be retired: jobs hold GPUs there")
        self.fail_node(n)
        self.node_names[n] = f"{self.node_names[n]}~{n}"
        self._nodes[n] = msgspec.structs.replace(self._nodes[n], name=self.node_names[n])

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

    def digest(self) -> str:
        """Hash of everything but the derived index, of live jobs only: equal states, equal digests."""
        hasher = hashlib.sha256()  # most processors have instructions for it
        job = self.arrays.job.view(np.ndarray)
        live = np.flatnonzero(job["status"] != SLOT_EMPTY)
        live = live[np.argsort(job["seq"][live])]
        unread: tuple[str, ...] = () if self.arrays.config[0].modelled else ("energy_ppm",)
        if not self.arrays.order.code[0].revises:
            unread += ("first_predicted_s", "burst", "burst_ended", "burst_ln_sum", "burst_spread", "look_s")
        if (job["moved_for"][live] < 0).all():
            unread += ("moved_for", "moved_attempt")
        if (job["level"][live] == 0).all() and (job["ln_weight"][live] == 0.0).all():
            unread += ("level", "ln_weight")
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
        dials = self.arrays.dials
        if dials.who[0] != NOBODY:
            hasher.update(dials.dial.tobytes() + dials.counted.tobytes())
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
