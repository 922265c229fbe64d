"""The journal of a live run, repeated by the simulator's engine: all starts must be the same, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.broker.base.entries import (
    AttemptOver,
    GpuMemorySeen,
    JobSubmitted,
    NodeAway,
    NodeUp,
    PairSeen,
)
from rlsched.broker.base.ledger_models import workload_name
from rlsched.broker.journal.replay import JournalEvents
from rlsched.broker.state.job_requests import learnt_use, runs_as, sharing_of
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Start
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.scheduler import Scheduler
from rlsched.models.learning import Observed
from rlsched.wire.states import QUEUED
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.seen import SeenMemory

SAME = ("now_s", "state_digest", "action", "source", "turn", "queue", "prices")
"""Fields of a start's record that must be the same, in addition to its plans."""


@dataclass
class LiveRun:
    """A run of a broker in which all nodes were up from the first job to the last end, and jobs ran once.

    Attributes:
        shares: Whether jobs can share GPUs.
        nodes: Registrations of the nodes, by node number.
        jobs: Submissions with their times.
        end_s: Ends by job, in order.
        seen: Observed speeds of jobs that shared GPUs, and observed GPU memory of jobs, with their times.
    """

    shares: bool
    nodes: list[NodeUp] = field(default_factory=list)
    jobs: list[tuple[float, JobSubmitted]] = field(default_factory=list)
    end_s: dict[int, float] = field(default_factory=dict)
    seen: list[tuple[float, Observed | SeenMemory]] = field(default_factory=list)

    @classmethod
    def from_journal(cls, events: JournalEvents) -> LiveRun:
        """Read a journal; fail at a fact that an engine cannot repeat."""
        (start,) = events.starts
        assert start.speed_energy == 0.0
        run = cls(start.shares)
        for instant in events.instants:
            for change in instant.changes:
                run._add(instant.now_s, change, len(events.seq_of))
        return run

    def _add(self, now_s: float, change: object, jobs: int) -> None:
        match change:
            case NodeUp() if change.name not in {node.name for node in self.nodes}:
                assert not self.jobs, "a node registered after the first job"
                self.nodes.append(change)
            case NodeUp():
                pass  # registered again
            case NodeAway():
                assert len(self.end_s) == jobs, "a node left before the last end"
            case JobSubmitted(rejected="", speed_energy=None, priority="normal", gpu_memory_mib=0, tasks=[]):
                self.jobs.append((now_s, change))
            case AttemptOver() if change.outcome != QUEUED:
                self.end_s[change.job] = now_s
            case PairSeen():
                seen = Observed(change.workload, change.partner, change.gpu_type, change.speed)
                self.seen.append((now_s, seen))
            case GpuMemorySeen():
                row = [job.job for _, job in self.jobs].index(change.job)
                self.seen.append((now_s, SeenMemory(row, change.gpu_memory_mib)))
            case _:
                raise AssertionError(f"an engine cannot repeat {change}")

    def starts(self, scheduler: Scheduler) -> list[DecisionRecord]:
        """Repeat the run in the simulator, and return its starts."""
        made: list[DecisionRecord] = []
        self.engine(scheduler).run(scheduler, on_record=made.append)
        return [record for record in made if isinstance(record.action, Start)]

    def engine(self, scheduler: Scheduler) -> Engine:
        """Return an engine that knows what the broker knew, and in which jobs end as they did."""
        place = {job: at for at, job in enumerate(self.end_s)}
        jobs = [job for _, job in self.jobs]
        groups = [
            NodeGroup(gpus=one.gpus, gpu_type=one.gpu_type, cpus=one.cpus, memory_mib=one.memory_mib)
            for one in self.nodes
        ]
        engine = Engine(
            self._trace(),
            ClusterSpec(name="live", nodes=tuple(groups)),
            order=scheduler.order,
            predictions=PredictedTimes(
                np.array([job.predicted_s for job in jobs]), np.array([job.spread for job in jobs])
            ),
            fixed_end_s=np.array([self.end_s[job.job] for job in jobs]),
            end_order=np.array([place[job.job] for job in jobs], np.int32),
            models=Models(lends_cores=True) if self.shares else None,
            seen=self.seen,
        )
        state = engine.state
        for number, node in enumerate(self.nodes):
            can, kind = node.capabilities, state.arrays.node.kind[number]
            state.fix_clocks(number, not node.sm_clocks_mhz)
            state.let_share(number, shares=can.shares)
            state.let_lend(number, lends=can.lends)
            if self.shares:
                assert can.gpu_memory_mib == state.arrays.models.gpu.memory_mib[kind], "not the catalogue's"
        return engine

    def _trace(self) -> Trace:
        """Return the jobs with what the broker knew of each at its submission."""
        jobs = [job for _, job in self.jobs]
        uses = [learnt_use(job.profiles, runs_as(job)) for job in jobs]
        sharing = [sharing_of(job) for job in jobs]
        trace = Trace.from_columns(
            name="live",
            submit_s=[now_s for now_s, _ in self.jobs],
            duration_s=np.ones(len(jobs)),
            num_gpus=[job.num_gpus for job in jobs],
            num_cpus=[job.num_cpus for job in jobs],
            vc=[job.vc for job in jobs],
            gpu_type=["|".join(job.gpu_types) for job in jobs],
            time_limit_s=[math.nan if job.time_limit_s is None else job.time_limit_s for job in jobs],
        )
        extra = {
            "memory_mib": np.array([job.memory_mib for job in jobs], np.float64),
            "exclusive": _flags([job.exclusive for job in jobs]),
            "preemptible": _flags([job.preemptible for job in jobs]),
            "slack_s": np.array([job.slack_s for job in jobs]),
            "workload": np.array([workload_name(runs_as(job)) for job in jobs]),
            "shares": _flags([one["shares"] for one in sharing]),
            "gpu_need_mib": np.array([max(one["gpu_need_mib"], 0) for one in sharing], np.float64),
            "prefer": np.array(["|".join(job.preferred_types) for job in jobs]),
            "core_need": np.array([use.core_need_milli / 1000.0 for use in uses]),
            "power_ratio": np.array([use.dynamic_ratio for use in uses]),
        }
        return replace(trace, extra=extra)


def _flags(values: Sequence[bool]) -> NDArray[np.str_]:
    return np.array(["true" if one else "false" for one in values])


def repeated_starts(
    scheduler: Scheduler, events: JournalEvents, live: Sequence[DecisionRecord], *, plans: bool = True
) -> list[DecisionRecord]:
    """Repeat a live run in the simulator, and return its starts, each the same as the broker's.

    Args:
        scheduler: The broker's policy.
        events: Events of the broker's journal.
        live: Records of the broker, by number.
        plans: Whether all plans must be the same; else only the chosen one. Which plans of equal worth are
            recorded depends on the order of running jobs in the ledger's index, which a broker rebuilds if a
            request of a new kind comes. It does not affect decisions.
    """
    ours = LiveRun.from_journal(events).starts(scheduler)
    theirs = [record for record in live if isinstance(record.action, Start)]
    assert len(ours) == len(theirs)
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for name in SAME:
            assert getattr(one, name) == getattr(other, name), f"start {number}: {name}"
        assert _chosen(one) == _chosen(other), f"start {number}: chosen plan"
        assert not plans or _plans(one) == _plans(other), f"start {number}: plans"
    return ours


def _plans(record: DecisionRecord) -> list[PlanSeen]:
    """Return the plans without names of nodes: the simulator numbers nodes in the order of registration."""
    return [msgspec.structs.replace(plan, node="") for plan in record.plans]


def _chosen(record: DecisionRecord) -> list[PlanSeen]:
    return [plan for plan in _plans(record) if plan.chosen]
