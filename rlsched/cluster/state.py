"""`ClusterState`: a cluster and its live jobs, and the ledger that keeps all changes consistent.

The state contains only facts that a broker knows, so it has no true run times of unfinished jobs. Simulator
and broker use the same class.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import kernels, loans
from rlsched.cluster.arrays import (
    DEFERRED,
    INELIGIBLE,
    LEAVING,
    MAX_TENANTS,
    NODE_ASLEEP,
    NODE_BOOTING,
    NODE_DOWN,
    NODE_DRAINED,
    NODE_UP,
    RUNNING,
    UNCOUNTED,
    WAITING,
    columns,
)
from rlsched.cluster.demand import WHOLE_GPU_MILLI, Demand
from rlsched.cluster.dials import NO_CONTROLLER, hashed_dials
from rlsched.cluster.digest import of_jobs
from rlsched.cluster.legality import check_gang, check_join
from rlsched.cluster.shape import ClusterShape
from rlsched.cluster.spec import NodeSpec
from rlsched.errors import AllocationError

_UNKNOWN_HOLD_S = 86_400.0
"""Assumed time, seconds, until GPUs that `hold` made unavailable are free again, if no time is given."""


class LearntUse(NamedTuple):
    """Use of CPU cores and power, learnt from earlier attempts of a job's command.

    Attributes:
        core_need_milli: Cores per GPU that the job can use, thousandths; 0: not learnt, the workload's value
            applies.
        dynamic_ratio: Dynamic power of the job / dynamic power of its workload; 0: not learnt.
    """

    core_need_milli: int = 0
    dynamic_ratio: float = 0.0


class ClusterState(ClusterShape):
    """State of a cluster and its live jobs.

    Attributes:
        stops_take_time: True (a broker): a preempted job waits again after its processes have exited and
            `requeue` has been called. False (the simulator): a preempted job waits again immediately.
        withdraws_loans: True (a broker): a start withdraws loans of cores if cores are missing. False (the
            simulator): the caller withdraws them (`loans.withdraw_one`), because borrowers get slower.
    """

    stops_take_time = False
    withdraws_loans = True

    def count_decision(self) -> None:
        """Increase the index of the next decision by one."""
        columns(self.arrays.counters)["decisions"][0] += 1

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
        shares: bool = True,
        gpu_need_mib: int = -1,
        level: int = 0,
        ln_weight: float = 0.0,
        slack_s: float = 0.0,
    ) -> int:
        """Add a waiting job, and return its sequence number.

        Args:
            num_gpus: Number of whole GPUs of any type, if nothing else is requested.
            demand: The complete request.
            vc: The virtual cluster of the job.
            submit_s: Time of submission.
            predicted_s: Predicted run time, seconds.
            spread: Standard deviation of ln(run time / prediction).
            time_limit_s: The user's time limit, nan if there is none.
            preemptible: Whether the job may be stopped in favour of another job.
            workload: Index in the catalogue of workloads, 0 if unknown.
            energy_weight: Weight of energy against time, 0 to 1; None: the cluster's weight.
            shares: Whether the job may share its GPUs with other jobs, if GPUs are shared.
            gpu_need_mib: Memory that the job uses on each of its GPUs, MiB; -1: as models predict for its
                workload.
            level: Priority of the job; jobs of a higher level start first.
            ln_weight: ln of the job's weight in the order of the queue.
            slack_s: Delay that the user accepts, seconds.

        Raises:
            AllocationError: `num_gpus` is used and less than 1, or the submission time, the prediction or
                the spread is not finite, or the prediction is negative.
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
        said = (
            self.demand_number(demand),
            self.vc_number(vc),
            own,
            shared,
            float(submit_s),
            float(predicted_s),
            float(spread),
            float(time_limit_s),
            not preemptible,
            level,
            float(ln_weight),
            not shares,
            gpu_need_mib,
        )
        slot = kernels.admit_job(self.arrays, *said)
        if slot < 0:
            self.grow()
            slot = kernels.admit_job(self.arrays, *said)
        if slack_s > 0.0:
            self.arrays.job.slack_s[slot] = slack_s
        self.ordering.arrive(self.arrays, slot, float(submit_s))
        energy_ppm = -1 if energy_weight is None else round(energy_weight * 1e6)
        return int(kernels.describe_job(self.arrays, slot, workload, energy_ppm))

    def set_use(self, seq: int, use: LearntUse) -> None:
        """Set the use of cores and power that was learnt from earlier attempts of a live job's command."""
        slot = self.slot_of(seq)
        job = columns(self.arrays.job)
        job["core_need_milli"][slot], job["dynamic_ratio"][slot] = use
        if job["head"][slot] >= 0:
            kernels.forget_speeds(self.arrays, int(job["head"][slot]) // MAX_TENANTS)

    def rank_job(self, seq: int, level: int, ln_weight: float, now_s: float) -> None:
        """Set priority level and weight of a live job."""
        slot = self.slot_of(seq)
        kernels.rank_job(self.arrays, slot, level, float(ln_weight))
        if self.arrays.job.status[slot] == WAITING:
            self.ordering.rank(self.arrays, slot, now_s)

    def share_job(self, seq: int, *, shares: bool, gpu_need_mib: int) -> None:
        """Set whether a live job may share GPUs, and the memory that it uses on each GPU, MiB.

        The current co-tenants of the job stay.
        """
        kernels.share_job(self.arrays, self.slot_of(seq), not shares, gpu_need_mib)

    def raise_gpu_need(self, seq: int, gpu_need_mib: int) -> None:
        """Raise a live job's memory need on each GPU to `gpu_need_mib` if it is less. Co-tenants stay."""
        need_mib, slot = self.arrays.job.gpu_need_mib, self.slot_of(seq)
        need_mib[slot] = max(gpu_need_mib, need_mib[slot])
        kernels.forget_answers(self.arrays)

    def unshare_job(self, seq: int) -> None:
        """Exclude a live job from sharing GPUs from now on; its current co-tenants stay."""
        slot = self.slot_of(seq)
        kernels.share_job(self.arrays, slot, True, int(self.arrays.job.gpu_need_mib[slot]))

    def limit_job(self, seq: int, time_limit_s: float) -> None:
        """Set the user's time limit of a live job, seconds; nan: no limit."""
        self.arrays.job.limit_s[self.slot_of(seq)] = time_limit_s

    @property
    def rank_due_s(self) -> float:
        """Time at which a waiting job next changes its place in the queue by its slack; infinite: never."""
        return float(columns(self.arrays.scratch)["rank_s"][0])

    def set_slack(self, seq: int, slack_s: float, now_s: float) -> None:
        """Set the delay, seconds, that a live job's user accepts; 0: no delay."""
        slot = self.slot_of(seq)
        self._undefer(slot)
        self.arrays.job.slack_s[slot] = slack_s
        if self.arrays.job.status[slot] == WAITING:
            self.ordering.rank(self.arrays, slot, now_s)

    def remove_waiting(self, seq: int) -> None:
        """Remove a waiting job, eligible or not.

        Raises:
            AllocationError: the job does not wait.
        """
        slot = self.slot_of(seq)
        self._undefer(slot)
        if self.arrays.job.status[slot] != INELIGIBLE:
            self._in_status(seq, WAITING, "waiting")
            kernels.dequeue(self.arrays, slot)
        kernels.forget(self.arrays, slot)

    def make_ineligible(self, seqs: Sequence[int]) -> None:
        """Remove waiting jobs from the queues until `make_eligible` is called, so that they cannot start.

        Raises:
            AllocationError: one of the jobs does not wait.
        """
        for seq in seqs if self.arrays.scratch[0].deferred else ():
            self._undefer(self.slot_of(seq))
        kernels.make_ineligible(self.arrays, self._all_in_status(seqs, WAITING, "waiting"))

    def make_eligible(self, seqs: Sequence[int], now_s: float) -> None:
        """Return ineligible jobs to the queues, in the order of their submission if keys are equal.

        Raises:
            AllocationError: one of the jobs is not ineligible.
        """
        slots = self._all_in_status(seqs, INELIGIBLE, "ineligible")
        self.ordering.make_eligible(self.arrays, slots, now_s)

    def _undefer(self, slot: int) -> None:
        """Put a job back into the queues if it is deferred, before the caller changes the job."""
        if self.arrays.job.status[slot] == DEFERRED:
            kernels.undefer(self.arrays, slot)
            kernels.enqueue(self.arrays, slot, float(self.arrays.job.key[slot]))

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
        by_engine: bool = False,
    ) -> None:
        """Start a waiting job on exactly these GPUs, or a job without GPUs on this node.

        `share_milli`: share of each GPU, thousandths; None: the share that the job requested. `share_with`:
        sequence number of the running job that shares all of its GPUs with this job, -1: the GPUs are free.
        `cpu_milli_each`: cores with each GPU, thousandths; -1: the cores that the job requested. `by_engine`:
        whether an engine, such as a Slurm cluster, has already started the job; drained nodes are then legal.

        Raises:
            AllocationError: the job does not wait; the number of GPUs, the share or the clock is wrong; a GPU
                is in use, named twice, unknown or of another type; or a node is not up, has too few cores or
                too little memory, or serves another VC. The job is not started.
        """
        self._undefer(self.slot_of(seq))
        p, host = self.check_start(
            seq, gpus, share_milli, sm_clock_frac, node, share_with, cpu_milli_each, by_engine=by_engine
        )
        slot = self.slot_of(seq)
        if share_with >= 0:
            other = self.slot_of(share_with)
            kernels.join(self.arrays, slot, other, max(cpu_milli_each, 0), sm_clock_frac, now_s)
            self._withdraw_loans(slot)
            self.check_parts()
            self.ordering.note_start(self.arrays, slot, now_s)
            return
        job, node_of = columns(self.arrays.job), columns(self.arrays.gpu)["node"]
        share = int(job["share_milli"][slot])
        if cpu_milli_each >= 0:
            job["cpu_milli_each"][slot] = cpu_milli_each
        order = list(dict.fromkeys(node_of[list(gpus)].tolist()))
        grouped = sorted(gpus, key=lambda g: order.index(node_of[g]))
        kernels.allocate(self.arrays, slot, np.array(grouped, np.int32), host, p, share, sm_clock_frac, now_s)
        self._withdraw_loans(slot)
        self.ordering.note_start(self.arrays, slot, now_s)

    def check_parts(self) -> None:
        """Check again which demand classes are plain, if jobs on one GPU use more than its part of the cores.

        For a *plain* class, counts of free GPUs decide whether a job fits. Rules never let jobs use more than
        this part, but a user-defined policy or an earlier version can have done so. Without lending of cores,
        do nothing.
        """
        config = self.arrays.config[0]
        if config.lends_cores and config.within_parts and loans.exceed_parts(self.arrays):
            self._mark_plain()

    def _withdraw_loans(self, slot: int) -> None:
        if self.withdraws_loans and columns(self.arrays.config)["lends_cores"][0]:
            while loans.withdraw_one(self.arrays, slot) >= 0:
                pass

    def cpu_milli_each(self, seq: int) -> tuple[int, int]:
        """Return a live job's cores per GPU, thousandths: (its allocation, a loan in addition to it)."""
        slot, job = self.slot_of(seq), columns(self.arrays.job)
        given = int(job["cpu_milli_each"][slot])
        counted = min(given, int(columns(self.arrays.demand)["cpu_milli_each"][job["demand"][slot]]))
        return counted, given - counted if job["head"][slot] >= 0 else 0

    def hold(self, gpus: Sequence[int], now_s: float, until_s: float | None = None) -> int:
        """Mark free GPUs of one node, which may be drained or down, as unavailable to jobs of this cluster.

        Returns the sequence number of a placeholder job, which starts immediately and is never preempted. To
        free the GPUs, `release` the placeholder.

        Args:
            gpus: Global indices of the GPUs.
            until_s: Latest time at which the GPUs are free again; None: unknown.

        Raises:
            AllocationError: one of the GPUs is taken, or the GPUs are on several nodes.
        """
        nodes = {int(self.arrays.gpu.node[g]) for g in gpus}
        if len(nodes) != 1 or any(self.arrays.gpu.free_milli[g] != WHOLE_GPU_MILLI for g in gpus):
            raise AllocationError(
                f"GPUs {list(gpus)} cannot be marked as in use: expected free GPUs of one node"
            )
        n = nodes.pop()
        left_s = _UNKNOWN_HOLD_S if until_s is None else max(until_s - now_s, 1.0)
        seq = self.add_job(
            num_gpus=len(gpus),
            vc=self._nodes[n].vc or "",
            submit_s=now_s,
            predicted_s=left_s,
            spread=0.0,
            time_limit_s=math.nan if until_s is None else left_s,
            preemptible=False,
            shares=False,
        )
        slot, p = self.slot_of(seq), int(self.arrays.node.part_of[n])
        share = int(self.arrays.job.share_milli[slot])
        kernels.allocate(self.arrays, slot, np.array(sorted(gpus), np.int32), n, p, share, 1.0, now_s)
        self.ordering.note_start(self.arrays, slot, now_s)
        return seq

    def check_start(
        self,
        seq: int,
        gpus: Sequence[int],
        share_milli: int | None = None,
        sm_clock_frac: float = 1.0,
        node: int = -1,
        share_with: int = -1,
        cpu_milli_each: int = -1,
        *,
        by_engine: bool = False,
    ) -> tuple[int, int]:
        """Return (partition, first node) of a legal start.

        Raises:
            AllocationError: the start is not legal (see `start`); the state is unchanged.
        """
        slot = self._in_status(seq, WAITING, "waiting")
        if share_with >= 0:
            other = self._in_status(share_with, RUNNING, "running")
            check_join(self, slot, other, gpus, sm_clock_frac, cpu_milli_each)
            return int(self.arrays.job.placed_in[other]), int(self.arrays.job.host[other])
        asked = int(columns(self.arrays.job)["share_milli"][slot])
        share = asked if share_milli is None else share_milli
        return check_gang(self, slot, gpus, share, sm_clock_frac, node, cpu_milli_each, drained_too=by_engine)

    def queue_key(self, seq: int) -> float | None:
        """Return the sort key of a waiting job (the lowest key is first); None: the job is in no queue."""
        slot = self.slot_of(seq)
        return float(self.arrays.job.key[slot]) if self.arrays.job.status[slot] == WAITING else None

    def release(self, seq: int, now_s: float, *, ended: bool = True) -> None:
        """End the attempt of a running or preempted job, and remove the job.

        Args:
            ended: Whether the job ended by itself, so that its run time revises the predictions of its burst.

        Raises:
            AllocationError: the job neither runs nor is being stopped.
        """
        job = columns(self.arrays.job)
        ran_until_now = job["status"][self.slot_of(seq)] == RUNNING
        slot = self._stopped(seq, now_s)
        if ended and ran_until_now:
            run_s = float(job["saved_s"][slot]) + now_s - float(job["start_s"][slot])
            self.ordering.update_siblings(self.arrays, slot, run_s, now_s)
        kernels.forget(self.arrays, slot)

    def requeue(self, seq: int, now_s: float, gpu_memory_mib: int = 0, *, alone: bool = False) -> None:
        """End the attempt of a running or preempted job, and queue the job for its next attempt.

        `gpu_memory_mib`: new minimum memory of each of the job's GPUs; a value below the previous minimum has
        no effect. `alone`: whether the job must not share GPUs in later attempts.

        Raises:
            AllocationError: the job neither runs nor is being stopped.
        """
        asked = self._demand_of(seq)
        more = asked
        if gpu_memory_mib > asked.gpu_memory_mib:
            more = msgspec.structs.replace(asked, gpu_memory_mib=gpu_memory_mib)
        demand = self.demand_number(more)  # called first: may replace the arrays and rebuild the queues
        slot = self._stopped(seq, now_s)
        if alone:
            self.arrays.job.unshared[slot] = 1
        if more != asked:
            self.arrays.job.demand[slot] = demand
            self.arrays.job.gpu_need_mib[slot] = max(gpu_memory_mib, self.arrays.job.gpu_need_mib[slot])
        self.ordering.requeue(self.arrays, slot, now_s)

    def ask_for_types(
        self,
        seq: int,
        gpu_types: Sequence[str] | None = None,
        *,
        preferred_types: Sequence[str] | None = None,
    ) -> None:
        """Set the GPU types of a waiting job, eligible or not; None: unchanged.

        Args:
            gpu_types: Types that the job accepts; empty: any type.
            preferred_types: Types that the job prefers; empty: no preference.

        Raises:
            AllocationError: the job does not wait.
        """
        slot = self.slot_of(seq)
        self._undefer(slot)
        if self.arrays.job.status[slot] != INELIGIBLE:
            self._in_status(seq, WAITING, "waiting")
        asked = self._demand_of(seq)
        if gpu_types is not None:
            asked = msgspec.structs.replace(asked, gpu_types=tuple(sorted(gpu_types)))
        if preferred_types is not None:
            asked = msgspec.structs.replace(asked, preferred_types=tuple(sorted(preferred_types)))
        demand = self.demand_number(asked)  # called first: may replace the arrays and rebuild the queues
        if self.arrays.job.status[slot] == INELIGIBLE:
            self.arrays.job.demand[slot] = demand
            return
        key = float(self.arrays.job.key[slot])
        kernels.dequeue(self.arrays, slot)
        self.arrays.job.demand[slot] = demand
        kernels.enqueue(self.arrays, slot, key)

    def _demand_of(self, seq: int) -> Demand:
        """Return the request of a live job."""
        return self.demands[int(self.arrays.job.demand[self.slot_of(seq)])]

    def _stopped(self, seq: int, now_s: float) -> int:
        """End the attempt of a job, and free its GPUs if it runs. Returns the job's slot."""
        slot = self.slot_of(seq)
        if columns(self.arrays.job)["status"][slot] != LEAVING:
            self._in_status(seq, RUNNING, "running")
            kernels.release(self.arrays, slot, now_s)
        return slot

    def preempt(self, seq: int, now_s: float, *, moved_for: int = -1) -> None:
        """Stop a running job in favour of another job, and immediately free its GPUs in this ledger.

        With `stops_take_time`, `requeue` later queues the job for its next attempt. The job keeps the work of
        the stopped attempt, because jobs save their work at the stop signal. Otherwise, the job is queued
        immediately, and the simulator determines which work the job keeps.

        Args:
            seq: Sequence number of the job to stop.
            moved_for: Sequence number of the waiting job that gets the GPUs, if the stopped job will restart
                on other GPUs immediately; -1: the stopped job waits in the queue.

        Raises:
            AllocationError: see `check_preempt`.
        """
        slot = self.check_preempt(seq, now_s, moved_for=moved_for)
        kernels.release(self.arrays, slot, now_s)
        self.arrays.job.preemptions[slot] += 1
        if self.stops_take_time:
            self.arrays.job.saved_s[slot] += now_s - self.arrays.job.start_s[slot]
            self.arrays.job.status[slot] = LEAVING
        else:
            self.ordering.requeue(self.arrays, slot, now_s)
        kernels.note_moved(self.arrays, slot, self.slot_of(moved_for) if moved_for >= 0 else -1)

    def check_preempt(self, seq: int, now_s: float, *, moved_for: int = -1) -> int:
        """Check that a running job may be preempted now, and return its slot.

        Raises:
            AllocationError: the job does not run, must not be preempted, or started at this instant; or
                `moved_for`, the job that gets the GPUs (-1: none), does not wait.
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
        if columns(self.arrays.job)["status"][slot] != status:
            raise AllocationError(f"job {seq} is not {word}")
        return slot

    def _all_in_status(self, seqs: Sequence[int], status: int, word: str) -> NDArray[np.int64]:
        """Return the slots of the jobs `seqs`, ascending; raise AllocationError unless all have `status`."""
        job = columns(self.arrays.job)
        slots = np.flatnonzero((job["status"] == status) & np.isin(job["seq"], np.array(seqs, np.int64)))
        if len(slots) != len(seqs):
            raise AllocationError(f"only {len(slots)} of these {len(seqs)} jobs are {word}")
        return slots

    # ---- nodes ------------------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> int:
        """Add a node, which is up and idle: waiting jobs may start on it. Returns the node's index."""
        if spec.name in self.node_names:
            raise AllocationError(f"node {spec.name!r} is already part of the cluster")
        self._lay_out([*self._nodes, spec])
        return len(self._nodes) - 1

    def add_nodes(self, specs: Sequence[NodeSpec]) -> None:
        """Add many nodes to an empty cluster. They are up and idle, and are numbered in the order given."""
        self._lay_out(list(specs))

    def refit_node(
        self, n: int, *, cpus: int, memory_mib: int, gpu_memory_mib: int = 0, gpu_type: str | None = None
    ) -> None:
        """Set cores, memory and GPU memory of a node, each 0 if unknown, and the node's GPU type.

        Jobs keep their cores and memory on the node. If jobs use more than the node now has, the free amount
        is negative.
        """
        before = self._nodes[n]
        kind = before.gpu_type if gpu_type is None else gpu_type
        now = msgspec.structs.replace(
            before, cpus=cpus, memory_mib=memory_mib, gpu_memory_mib=gpu_memory_mib, gpu_type=kind
        )
        if now == before:
            return
        self._nodes[n] = now
        self._shapes.clear()
        self._note_shapes(self._nodes)
        if kind != before.gpu_type:
            self.arrays.node.kind[n] = self._kind_number(kind)
            self._note_kinds()
        for demand, number in self._demands.items():
            self.arrays.demand.kinds[number] = self._kinds(demand)
        node = self.arrays.node[n]
        for total, free, new in (
            ("cpu_milli", "cpu_free_milli", cpus * 1000),
            ("memory_mib", "memory_free_mib", memory_mib),
        ):
            node[free] += (new or UNCOUNTED) - node[total]
            node[total] = new or UNCOUNTED
        if any(self.demands[self.arrays.job.demand[self.slot_of(seq)]].exclusive for seq in self.jobs_on(n)):
            kernels.close_node(self.arrays, n)
        self._mark_plain()
        kernels.rebuild_index(self.arrays)

    def retire_node(self, n: int) -> None:
        """Remove a node permanently, so that its name can be used again.

        Raises:
            AllocationError: jobs run on the node.
        """
        if self.jobs_on(n):
            raise AllocationError(f"node {self.node_names[n]!r} cannot be retired: jobs hold GPUs there")
        self.fail_node(n)
        self.limit_gpu_memory(n, {})
        self.node_names[n] = f"{self.node_names[n]}~{n}"
        self._nodes[n] = msgspec.structs.replace(self._nodes[n], name=self.node_names[n])

    def fail_node(self, n: int) -> list[int]:
        """Mark a node as down.

        Returns the sequence numbers of the jobs that run on the node, ascending; the caller releases or
        requeues each.
        """
        kernels.set_node_status(self.arrays, self._node(n), NODE_DOWN)
        return self.jobs_on(n)

    def drain_node(self, n: int) -> None:
        """Drain a node: it gets no new jobs; running jobs continue."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_DRAINED)

    def resume_node(self, n: int) -> None:
        """Mark a drained or failed node as up again."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_UP)

    def sleep_node(self, n: int) -> None:
        """Mark an idle node as powered down; no job starts there until `resume_node`."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_ASLEEP)

    def boot_node(self, n: int) -> None:
        """Mark a node as booting; no job starts there until `resume_node`."""
        kernels.set_node_status(self.arrays, self._node(n), NODE_BOOTING)

    def jobs_on(self, n: int) -> list[int]:
        """Return the sequence numbers of the jobs that run on a node, ascending."""
        job = self.arrays.job
        tenants = self.arrays.gpu.tenant[self.arrays.gpu.node == n]
        hosted = np.flatnonzero((job.status == RUNNING) & (job.host == n))
        return sorted({int(job.seq[slot]) for slot in [*tenants[tenants >= 0], *hosted]})

    def digest(self) -> str:
        """Return a hash of the state; equal states have equal hashes.

        The hash leaves out empty slots, and the index that is derived from the state.
        """
        hasher = hashlib.sha256(of_jobs(self.arrays))
        dials = self.arrays.dials
        if dials.controller[0] != NO_CONTROLLER:
            hasher.update(hashed_dials(dials))
        node = columns(self.arrays.node)
        for name in ("gpus", "first_gpu", "part_of", "status", "free"):
            hasher.update(node[name].tobytes())
        hasher.update((node["cpu_milli"] - node["cpu_free_milli"]).tobytes())
        hasher.update((node["memory_mib"] - node["memory_free_mib"]).tobytes())
        if columns(self.arrays.config)["limits_memory"][0]:
            gpu = columns(self.arrays.gpu)
            for name in ("usable_mib", "joinable_mib"):
                if (gpu[name] != UNCOUNTED).any():
                    hasher.update(name.encode() + gpu[name].tobytes())
        return hasher.hexdigest()[:32]
