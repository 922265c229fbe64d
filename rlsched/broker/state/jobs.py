"""State of each job, attempt and rank. Only `BrokerState.apply` changes it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

import msgspec

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.states import Ending, check_job, check_rank
from rlsched.wire.messages import RankUsage, UsedSpan
from rlsched.wire.states import ACTIVE, ENDED, LAUNCHING, LIVE, JobState, RankState

_NO_RANKS: set[tuple[int, int]] = set()
"""Empty set that all finished attempts share; never modified."""
NODE_STOPPED = "node_stopped"
"""Reason for the end of a rank whose node was stopped with all jobs."""


@dataclass(slots=True)
class Rank:
    """One rank of an attempt: the part of the job on one node.

    Attributes:
        node: Name of the node.
        gpus: Indexes of the GPUs on that node.
        state: `launching`, `running` or `ended`.
        sm_clock_mhz: Limit of the GPUs' SM clock, as the node reports it, MHz; 0: no limit is set.
        clock_note: Reason why the ordered clock was not set; "" if it was set.
        output_note: If the rank's output is not written to the requested file: the option, the path and the
            reason; else "".
        ended_s: End time, Unix seconds: reported by the node, else the time of the `RankEnded` entry. It is
            never before the attempt's start or after that entry.
        ran_s: Run time reported by the node, seconds; None without a report.
        usage: Resource use, set at the end; None if not measured.
    """

    node: str
    gpus: list[int]
    state: RankState = LAUNCHING
    pid: int = 0
    exit_code: int | None = None
    reason: str = ""
    ended_s: float = 0.0
    ran_s: float | None = None
    sm_clock_mhz: int = 0
    clock_note: str = ""
    output_note: str = ""
    usage: RankUsage | None = None

    def become(self, state: RankState) -> None:
        """Change the rank's state.

        Raises:
            JournalError: the transition is illegal, see `rlsched.broker.base.states`.
        """
        check_rank(self.state, state)
        self.state = state


@dataclass(slots=True)
class Attempt:
    """One attempt of a job, from the decision that allocated its GPUs until all ranks have ended.

    Attributes:
        number: Attempt number. It increases with each attempt of a job.
        start_s: Time of the decision that allocated the GPUs, Unix seconds.
        seated_s: Time from which the GPUs are free of processes of preempted jobs, Unix seconds; infinite
            before that.
        leaving: Ranks of preempted jobs that are still on the attempt's GPUs: (job number, rank).
        sm_clock_frac: SM clock that the decision set, as a fraction of the highest.
        was_capped: Whether a node has reported a limit of the SM clock below `sm_clock_frac`.
        was_lent: Whether the attempt got lent CPU cores at its start.
        gpu_need_mib: GPU memory reserved for the job at the start of the attempt, MiB on each GPU; nodes may
            enforce it as a limit. 0: unknown, or the job cannot share GPUs.
        speed_frac: Mean speed of the ended attempt (`learning.mean_speed`); None: unknown.
        price_sum: Value at `seated_s` of the electricity price's integral over time
            (`rlsched.broker.state.bills`); 0 if no price was known then, or if the attempt has ended.
        bill_price_sum: The same for the series that only bills use.
        was_shared: Whether another job has used the GPUs at the same time.
        lent_s: Part of the time up to `tenants_since_s` that is charged to co-tenants instead of this job,
            seconds per GPU. While n jobs share the GPUs, it is (n - 1) / n of the time.
        tenants: Number of jobs on the GPUs, including this attempt's job.
        tenants_since_s: Time at which `tenants` last changed, Unix seconds.
        is_learnt: Whether the speed of the job together with its present co-tenant has been learnt.
        decision: Sequence number of the decision that started the attempt.
        source: Source of that decision.
        ending: State that the job gets when all ranks have ended; "" while the attempt continues. With
            `preempted`, a job that did not end by itself is queued again.
        ending_reason: Reason for the ending, as text.
        moved: Whether the attempt is ended to move the job to other GPUs, so that another job gets a block of
            GPUs.
        charged: Whether the end of this attempt counts against the job's retries.
        lost: Whether the attempt ends because one of its nodes was lost, or could not start a rank.
        first_failure: (exit code, reason) of the first rank that failed; None if no rank failed.
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
    was_shared: bool = False
    lent_s: float = 0.0
    tenants: int = 1
    tenants_since_s: float = 0.0
    is_learnt: bool = False
    was_capped: bool = False
    was_lent: bool = False
    gpu_need_mib: int = 0
    speed_frac: float | None = None
    price_sum: float = 0.0
    bill_price_sum: float = 0.0

    def live_ranks(self) -> list[int]:
        """Return the indexes of the ranks that have not ended."""
        return [number for number, rank in enumerate(self.ranks) if rank.state != ENDED]

    @property
    def has_ended(self) -> bool:
        """Whether all ranks of the attempt have ended."""
        return not self.live_ranks()

    @property
    def held_s(self) -> float:
        """Time charged for each GPU of an ended attempt, seconds, from `seated_s` to the end, minus `lent_s`.

        `lent_s` is the time that is charged to co-tenants instead.
        """
        return max(max(rank.ended_s for rank in self.ranks) - self.seated_s - self.lent_s, 0.0)

    def held_until_s(self, now_s: float) -> float:
        """Return the time charged for each GPU of a running attempt up to `now_s`, seconds; see `held_s`."""
        return max(now_s - self.seated_s - self._lent_until_s(now_s), 0.0)

    def _lent_until_s(self, now_s: float) -> float:
        """Return the time up to `now_s` that is charged to co-tenants, not to this job, seconds per GPU."""
        if self.tenants == 1:
            return self.lent_s
        return self.lent_s + (now_s - self.tenants_since_s) * (1.0 - 1.0 / self.tenants)

    def shares_with(self, tenants: int, now_s: float) -> None:
        """Set the number of jobs on the attempt's GPUs from `now_s` on, including this attempt's job."""
        self.lent_s = self._lent_until_s(now_s)
        self.was_shared = self.was_shared or tenants > 1
        self.is_learnt = False
        self.tenants, self.tenants_since_s = tenants, now_s if self.was_shared else 0.0

    @property
    def energy_j(self) -> float | None:
        """Energy of the attempt's ended ranks, joules; None if not measured."""
        used = [rank.usage.energy_mj for rank in self.ranks if rank.usage is not None]
        known = [energy_mj for energy_mj in used if energy_mj is not None]
        return sum(known) / 1e3 if known else None

    @property
    def run_s(self) -> float:
        """Run time of the longest rank of an ended attempt, seconds.

        The run time of a rank is the node's measurement if there is one, else the time from `seated_s` to the
        rank's end; 0 if the rank never started, because the preempted jobs did not leave its GPUs.
        """
        return max(
            max(rank.ended_s - self.seated_s, 0.0) if rank.ran_s is None else rank.ran_s
            for rank in self.ranks
        )


@dataclass(slots=True)
class Stopped:
    """An ended attempt after which its job was queued again.

    Attributes:
        number: Attempt number.
        start_s: Time of the decision that allocated the GPUs, Unix seconds.
        end_s: End of the last rank, Unix seconds; the broker may have received the report later.
        reason: Reason for the end as text.
        with_node: Whether the attempt ended because a node was stopped with all jobs (as at a restart of the
            cluster), declared down or removed.
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
        number: Job number, as users see it; never assigned twice in a journal.
        spec: The submission with the prediction. After the end of the job, it lacks the fields that are
            needed only to start the job.
        seq: Sequence number of the job in the ledger (`ClusterState`), -1 if the job was rejected.
        state: queued | launching | running | completed | failed | cancelled | rejected.
        attempt: The current attempt, or the last attempt; None before the first.
        retries: Number of attempts charged as retries: they ended early for reasons outside the job.
        losses: Number of ended attempts in a row, up to the latest, whose node was lost or could not start a
            rank.
        preemptions: Number of attempts that were ended to start another job.
        moves: Number of attempts that were ended to move the job to other GPUs.
        last_move: Text that names the decision of the last move, and the job that got the GPUs; "" if this
            job was never moved.
        earlier_s: Run time of preempted attempts, seconds.
        attempts: Number of attempts begun.
        first_start_s: Start of the first attempt, Unix seconds; None if there was no attempt.
        gpu_s: GPU-seconds of ended attempts. While n jobs share a GPU, each is charged 1 / n of the time.
        energy_j: Energy of ended attempts, joules; None if no node measured it.
        cost: Cost of `energy_j`, in `currency`; None: no energy was measured, or the price was unknown for
            part of a measured attempt (`rlsched.broker.state.bills`).
        carbon_kg: Carbon of `energy_j`, kg CO2e; None as for `cost`.
        currency: Currency of `cost`; "" if `cost` is None.
        spans: When the ended attempts used GPUs and energy, in order of time. Attempts that ended under an
            earlier version are missing.
        gpu_memory_mib: GPU memory that the job needs according to a failed attempt, MiB; 0: unknown.
        enlarged: Whether the job was queued once more for larger GPUs, because it ran out of GPU memory
            without co-tenants.
        seen_gpu_mib: Highest observed GPU memory use, MiB on each GPU, if it exceeded the memory reserved for
            the job; else 0.
        `alone`: Whether the job must not share GPUs, even if its submission permits sharing. Reasons: an
            attempt ran out of GPU memory on shared GPUs or under a memory limit, or ended because of a GPU
            fault under MPS, or `alone_reason` applies.
        alone_reason: Text about co-tenants that slowed the job down too much; "" if none did.
        stopped: The last attempt after which the job was queued again; None if the job was never requeued.
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
    enlarged: bool = False
    seen_gpu_mib: int = 0
    alone: bool = False
    alone_reason: str = ""
    stopped: Stopped | None = None
    cost: float | None = None
    carbon_kg: float | None = None
    currency: str = ""
    spans: list[UsedSpan] = field(default_factory=list)
    end_s: float | None = None  # end of the last rank, Unix seconds
    exit_code: int | None = None
    reason: str = ""

    @property
    def called(self) -> str:
        """Job ID for users: the job number, or `17_3` for task 3 of array 17."""
        return called(self.spec)

    @property
    def wait_s(self) -> float | None:
        """Queueing delay, seconds: first start minus submission; None if the job has not started."""
        return None if self.first_start_s is None else self.first_start_s - self.submit_s

    @property
    def learnt_gpu_mib(self) -> int:
        """GPU memory that the job needs according to its attempts, MiB on each of its GPUs; 0: unknown."""
        return max(self.gpu_memory_mib, self.seen_gpu_mib)

    def become(self, state: JobState) -> None:
        """Change the job's state.

        Raises:
            JournalError: the transition is illegal, see `rlsched.broker.base.states`.
        """
        check_job(self.called, self.state, state)
        self.state = state

    def forget_start(self) -> None:
        """Remove the submission's fields that only a start needs. Share equal strings with other jobs."""
        self.spec = msgspec.structs.replace(
            self.spec,
            command=[],
            env={},
            output="",
            error="",
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
            self.attempt.leaving = _NO_RANKS

    @property
    def live(self) -> bool:
        """Whether the job has not finished."""
        return self.state in LIVE

    @property
    def active(self) -> Attempt | None:
        """The current attempt, if it is launching, running or being ended; else None."""
        return self.attempt if self.state in ACTIVE else None


def called(job: JobSubmitted) -> str:
    """Return the job ID for users: the job number, or `17_3` for task 3 of array 17."""
    return f"{job.array}_{job.task}" if job.array else str(job.job)


def place_of(job: Job) -> str:
    """Format the placement of the current or last attempt, such as `n0[0,1] n1[3]`."""
    if job.attempt is None:
        return ""
    return " ".join(f"{rank.node}[{','.join(map(str, rank.gpus))}]" for rank in job.attempt.ranks)
