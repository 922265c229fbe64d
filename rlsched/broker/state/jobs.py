"""What the broker knows of each job, attempt and rank. Changed by `Book.apply` alone."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

import msgspec

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.states import Ending, check_job, check_rank
from rlsched.wire.messages import RankUsage
from rlsched.wire.states import ACTIVE, LIVE, JobState, RankState

_NOBODY: set[tuple[int, int]] = set()
"""Of attempts that are over; never added to."""
NODE_STOPPED = "node_stopped"
"""Reason of a rank that was ended since its node was stopped with its jobs."""


@dataclass(slots=True)
class Rank:
    """One rank of an attempt: the part of the gang on one node.

    Attributes:
        node: Name of its node.
        gpus: GPU numbers on that node.
        state: `launching`, `running` or `ended`.
        sm_clock_mhz: Highest SM clock that its GPUs are held to, as its node reports it; 0: nobody set one.
        clock_note: Why not the one that was ordered.
        ended_s: When it was over, by its node's report where there is one; Unix seconds, never before its
            attempt's start nor after the journal's time.
        ran_s: How long it ran by its node's report, seconds; None where there is none.
        usage: What it used, once it is over; None where nobody measured it.
    """

    node: str
    gpus: list[int]
    state: RankState = "launching"
    pid: int = 0
    exit_code: int | None = None
    reason: str = ""
    ended_s: float = 0.0
    ran_s: float | None = None
    sm_clock_mhz: int = 0
    clock_note: str = ""
    usage: RankUsage | None = None

    def become(self, state: RankState) -> None:
        """Change the state.

        Raises:
            JournalError: the transition is not legal, see `rlsched.broker.base.states`.
        """
        check_rank(self.state, state)
        self.state = state


@dataclass(slots=True)
class Attempt:
    """One attempt of a job, from the decision that allocated its GPUs until all ranks are over.

    Attributes:
        number: 1 for the first.
        start_s: When the GPUs were allocated, Unix seconds.
        seated_s: When its GPUs were empty, Unix seconds; infinite while preempted jobs still leave them.
        leaving: (job, rank) of those.
        sm_clock_frac: SM clock that was decided on, of the highest.
        cpu_milli_each: Cores with each GPU that were decided on, thousandths; -1: those that were asked for.
        was_shared: Whether another job has had its GPUs too.
        lent_s: GPU time that co-tenants have had of each of its GPUs, seconds ...
        tenants: ... and the jobs on them, itself included, since ...
        tenants_since_s: ... then, Unix seconds.
        decision: Number of the decision that started it.
        source: Who decided.
        ending: What the job becomes once all ranks are over; "" while it is to go on. `preempted`: queued, if
            it has not come to its own end.
        ending_reason: Why.
        moved: Whether it is ended so that the job goes on elsewhere, its GPUs being needed together.
        charged: Whether another attempt counts against the job's retries.
        lost: Whether it ends because one of its nodes was lost.
        first_failure: The first exit code that was not 0, and its reason.
    """

    number: int
    start_s: float
    ranks: list[Rank]
    decision: int
    source: str
    ending: Ending = ""
    ending_reason: str = ""
    charged: bool = True
    lost: bool = False
    first_failure: tuple[int, str] | None = None
    seated_s: float = math.inf
    leaving: set[tuple[int, int]] = field(default_factory=set)
    sm_clock_frac: float = 1.0
    moved: bool = False
    cpu_milli_each: int = -1
    was_shared: bool = False
    lent_s: float = 0.0
    tenants: int = 1
    tenants_since_s: float = 0.0

    def live_ranks(self) -> list[int]:
        """Ranks that are not over."""
        return [number for number, rank in enumerate(self.ranks) if rank.state != "ended"]

    @property
    def over(self) -> bool:
        """Whether all ranks are over."""
        return not self.live_ranks()

    @property
    def held_s(self) -> float:
        """How long it had its GPUs, seconds, all its ranks being over; of shared time its part."""
        return max(max(rank.ended_s for rank in self.ranks) - self.seated_s - self.lent_s, 0.0)

    def shares_with(self, tenants: int, now_s: float) -> None:
        """So many jobs have its GPUs from now on, itself included."""
        if self.tenants > 1:
            self.lent_s += (now_s - self.tenants_since_s) * (1.0 - 1.0 / self.tenants)
        self.was_shared = self.was_shared or tenants > 1
        self.tenants, self.tenants_since_s = tenants, now_s if self.was_shared else 0.0

    @property
    def energy_j(self) -> float | None:
        """What its ranks that are over have used, joules; None where none was measured."""
        used = [rank.usage.energy_mj for rank in self.ranks if rank.usage is not None]
        known = [energy_mj for energy_mj in used if energy_mj is not None]
        return sum(known) / 1e3 if known else None

    @property
    def run_s(self) -> float:
        """How long its longest rank ran, seconds, all being over.

        By what the nodes measured, else from when its GPUs were empty to the end: 0 where they never were.
        """
        return max(
            max(rank.ended_s - self.seated_s, 0.0) if rank.ran_s is None else rank.ran_s
            for rank in self.ranks
        )


@dataclass(slots=True)
class Stopped:
    """How an attempt ended after which its job was queued again.

    Attributes:
        number: Of the attempt.
        start_s: When it got its GPUs, Unix seconds.
        end_s: When its last rank was over, Unix seconds; the broker may have learnt that later.
        reason: Why, in words.
        with_node: Whether a node was stopped with its jobs, this one too, as at a restart of the cluster.
    """

    number: int
    start_s: float
    end_s: float
    reason: str
    with_node: bool = False


@dataclass(slots=True)
class Job:
    """A job from submission to its end.

    Attributes:
        number: What people call it; never used twice in a journal.
        spec: As submitted, with its prediction; once it is over, without what only a start needs.
        seq: Its number in the `ClusterState`, -1 if it was rejected.
        state: queued | launching | running | completed | failed | cancelled | rejected.
        attempt: The current attempt, or the last one; None before the first.
        retries: Attempts that ended without its doing, and were charged.
        losses: Number of its latest attempts in a row that ended with a lost node.
        preemptions: Attempts that were ended for another job's sake.
        moves: Those of them after which it was to go on elsewhere at once.
        last_move: By which decision and for whom that was last, "" if never.
        earlier_s: Run time of those that were preempted, seconds.
        attempts: How many have begun.
        first_start_s: When the first of them got its GPUs, Unix seconds; None before.
        gpu_s: GPU-seconds of those that are over: GPUs, shares counted, times the time that it had them.
        energy_j: What they used, joules; None where no node has measured it.
        gpu_memory_mib: What its GPUs have to have, as an attempt has shown; 0: none has.
        alone: It shares no GPUs, whatever was submitted: it was out of their memory once.
        stopped: The last attempt after which it was queued again; None where there was none.
    """

    number: int
    spec: JobSubmitted
    submit_s: float
    seq: int
    state: JobState
    attempt: Attempt | None = None
    retries: int = 0
    losses: int = 0
    preemptions: int = 0
    moves: int = 0
    last_move: str = ""
    earlier_s: float = 0.0
    attempts: int = 0
    first_start_s: float | None = None
    gpu_s: float = 0.0
    energy_j: float | None = None
    gpu_memory_mib: int = 0
    alone: bool = False
    stopped: Stopped | None = None
    end_s: float | None = None  # of its last rank
    exit_code: int | None = None
    reason: str = ""

    @property
    def called(self) -> str:
        """What people call it: its number, or `17_3` for task 3 of array 17."""
        return called(self.spec)

    @property
    def wait_s(self) -> float | None:
        """Queueing delay, seconds: first start less submission; None where it has not started."""
        return None if self.first_start_s is None else self.first_start_s - self.submit_s

    def become(self, state: JobState) -> None:
        """Change the state.

        Raises:
            JournalError: the transition is not legal, see `rlsched.broker.base.states`.
        """
        check_job(self.called, self.state, state)
        self.state = state

    def forget_start(self) -> None:
        """Over: let go of what only a start needs, and share the strings that many jobs have."""
        self.spec = msgspec.structs.replace(
            self.spec,
            command=[],
            env={},
            cwd="",
            depends_on=[],
            name=sys.intern(self.spec.name),
            user=sys.intern(self.spec.user),
            vc=sys.intern(self.spec.vc),
            account=sys.intern(self.spec.account),
            workload=sys.intern(self.spec.workload),
            predicted_by=sys.intern(self.spec.predicted_by),
        )
        if self.attempt is not None:
            self.attempt.leaving = _NOBODY

    @property
    def live(self) -> bool:
        """Whether the job is not over."""
        return self.state in LIVE

    @property
    def active(self) -> Attempt | None:
        """The attempt that is launching, running or being ended."""
        return self.attempt if self.state in ACTIVE else None


def called(job: JobSubmitted) -> str:
    """What people call a job: its number, or `17_3` for task 3 of array 17."""
    return f"{job.array}_{job.task}" if job.array else str(job.job)


def place_of(job: Job) -> str:
    """Where the current or last attempt has its GPUs, such as `n0[0,1] n1[3]`."""
    if job.attempt is None:
        return ""
    return " ".join(f"{rank.node}[{','.join(map(str, rank.gpus))}]" for rank in job.attempt.ranks)
