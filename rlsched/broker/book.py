"""The book: jobs, nodes and the `ClusterState` as the journal's facts make them, live and after a restart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from rlsched.broker.accounts import Accounts
from rlsched.broker.clocks import Clocks, workload_number
from rlsched.broker.eligibility import Eligibility
from rlsched.broker.ended import job_of
from rlsched.broker.ended_table import EndedTable
from rlsched.broker.entries import (
    AttemptEnding,
    AttemptOver,
    BrokerStarted,
    Decided,
    EligibilityReviewed,
    Entry,
    JobCancelled,
    JobsRanked,
    JobSubmitted,
    MemberSet,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeHealth,
    NodeRemoved,
    NodeResumed,
    NodeUp,
    NumbersTaken,
    QuotaSet,
    RankClocked,
    RankEnded,
    RankLaunched,
    Restored,
)
from rlsched.broker.fair_share import Usage
from rlsched.broker.jobs import Attempt, Job, Rank
from rlsched.broker.nodes import Node, change_node
from rlsched.broker.numbers import NumberOfSeq, Numbers
from rlsched.broker.predictions import Predictions
from rlsched.broker.priorities import Priorities
from rlsched.broker.quotas import Quotas, owner_of
from rlsched.broker.rows import Row
from rlsched.broker.seats import PREEMPTED, Seats
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.loop import apply as apply_decision
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.scheduler import Decision, Scheduler, permit
from rlsched.errors import JournalError, RlschedError


class Book:
    """Everything that the broker knows, made by applying entries in order.

    Args:
        predictions: Told of every submission, start and end, in order.
        order: What the queue goes by.
        half_life_s: Half of what a user has used is forgotten after so long; infinite: nothing is.

    Attributes:
        cluster: What the scheduler sees.
        jobs: By number: those that are not over, and some of those that are (`forget`). See `job`.
        ended_jobs: (when, number) of those of `jobs` that are over, in order.
        numbers: Those of all jobs, ascending.
        table: The journal's table of jobs that are over; None: all of them are in `jobs`.
        job_of_seq: Live jobs, by their number in `cluster`.
        number_of_seq: Job number of every job that has been in `cluster`.
        tokens: Submission token -> job number, of `jobs`. See `job_of_token`.
        nodes: By name, in order of registration.
        epoch: Of the last broker that took the journal up, 0 before the first.
        last_number: The highest job number that has been given, here or before a backup was restored.
        last_attempt: Attempts that begin have higher numbers.
        highest_attempt: The highest number of any attempt of any job.
        restored_s: When the journal was restored from a backup last, Unix seconds; None: never.
        taken_over: That was a standby's copy, and no backup.
        identity: `BrokerStarted.cluster`.
        order: What the queue goes by.
        now_s: Time of the last entry, Unix seconds.
        asked_for_s: Partition -> when its last *wait* asked to be asked again, Unix seconds.
        decisions: Decisions by source.
        contested: Those in which more than one row was legal, by source.
        interventions: Decisions of the guard by its reason: the word before the colon.
        outcomes: Jobs that are over, by state.
        seats: Which preempted jobs have not left their GPUs yet.
        clocks: Whether SM clocks are chosen.
        over: Told of each job that is over, at that very fact.
        priorities: Levels and weights of live jobs.
        usage: What users have used.
        eligibility: Which waiting jobs are kept out of the queue, and why.
        quotas: Limits of users, accounts and VCs, and what they have.
        accounts: Who may charge jobs to what.
        health_failures: How often a node's own checks began to fail.
        ran_on: By person: the nodes that have started a job of theirs, a bit for each node's number.
    """

    def __init__(self, predictions: Predictions, order: Order, half_life_s: float = math.inf) -> None:
        self.cluster = ClusterState.empty(OrderedQueue(order))
        self.cluster.stops_take_time = True
        self.predictions = predictions
        self.jobs: dict[int, Job] = {}
        self.ended_jobs: deque[tuple[float, int]] = deque()
        self.numbers = Numbers()
        self.table: EndedTable | None = None
        self.job_of_seq: dict[int, Job] = {}
        self.number_of_seq = NumberOfSeq()
        self.tokens: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.epoch = 0
        self.last_number = 0
        self.last_attempt = self.highest_attempt = 0
        self.restored_s: float | None = None
        self.taken_over = False
        self.identity = ""
        self.order = order
        self.now_s = 0.0
        self.decisions: dict[str, int] = {}
        self.contested: dict[str, int] = {}
        self.interventions: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}
        self.asked_for_s: dict[str, float] = {}
        self.seats = Seats()
        self.clocks = Clocks(self.cluster)
        self.over: Callable[[Job], object] = _nobody
        self.priorities = Priorities(self.cluster)
        self.usage = Usage(half_life_s)
        self.eligibility = Eligibility(self.cluster)
        self.quotas = Quotas(self.eligibility)
        self.accounts = Accounts()
        self.health_failures = 0
        self.ran_on: dict[str, int] = {}
        self._can_run: dict[tuple[str, int], bool] = {}

    def tell_nobody(self) -> None:
        """From now on nobody is told of jobs that are over."""
        self.over = _nobody

    def replay(self, rows: Iterable[Row], scheduler: Scheduler | None = None) -> None:
        """Apply a journal.

        Args:
            rows: The journal.
            scheduler: Who will decide; its dials are counted for, and set at the instants at which they were.

        Raises:
            JournalError: an entry does not follow from those before it.
        """
        if scheduler is not None:
            permit(self.cluster, scheduler)
        self.follow(rows, scheduler)
        if scheduler is not None:
            scheduler.begin_instant(self.cluster, self.now_s)

    def follow(self, rows: Iterable[Row], scheduler: Scheduler | None = None) -> None:
        """Apply the entries after those that were applied before: a journal in parts, cut anywhere.

        The first part is preceded by `permit`; after the last one, before anything is decided, the scheduler
        begins an instant, as in `replay`.

        Raises:
            JournalError: as `replay`; the book is of no further use.
        """
        for row in rows:
            try:
                if scheduler is not None and (row.now_s > self.now_s or isinstance(row.entry, Decided)):
                    scheduler.begin_instant(self.cluster, self.now_s)
                self.apply(row.entry, row.now_s)
            except (RlschedError, KeyError, IndexError, AttributeError) as error:
                raise JournalError(
                    f"entry {row.n} does not follow from those before it ({error}); "
                    "restore a backup (`rlsched journal restore`)"
                ) from error

    def apply(self, entry: Entry, now_s: float, *, already_decided: bool = False) -> None:
        """Let one fact be true.

        Args:
            entry: The fact.
            now_s: When, Unix seconds.
            already_decided: A `Decided` whose action the decision loop has applied to `cluster` itself.
        """
        self.now_s = now_s
        match entry:
            case BrokerStarted():
                self.epoch, self.identity = entry.epoch, entry.cluster
                self.clocks.weigh(entry.speed_energy)
            case Restored():
                self.epoch, self.restored_s, self.taken_over = entry.epoch, now_s, entry.taken_over
                self.last_number, self.last_attempt = entry.last_number, entry.last_attempt
            case NumbersTaken():
                self.last_number = max(self.last_number, entry.last)
            case (
                NodeUp()
                | NodeAway()
                | NodeDown()
                | NodeDrained()
                | NodeResumed()
                | NodeHealth()
                | NodeRemoved()
            ):
                if isinstance(entry, NodeHealth) and entry.unhealthy:
                    self.health_failures += not self.nodes[entry.name].unhealthy
                change_node(self.nodes, self.cluster, self.clocks, entry)
                self._can_run.clear()
            case JobSubmitted():
                self._submitted(entry, now_s)
            case JobCancelled():
                job = self.jobs[entry.job]
                self.cluster.remove_waiting(job.seq)
                self.quotas.gone(job.seq, now_s)
                self.predictions.gone(job.number)
                self._close(job, "cancelled", None, entry.reason, now_s)
            case JobsRanked():
                self.priorities.rank(entry, now_s)
            case Decided():
                self._decided(entry, now_s, already_decided)
            case RankLaunched():
                self._rank_launched(entry)
            case RankClocked():
                rank = self._attempt(entry.job, entry.attempt).ranks[entry.rank]
                rank.sm_clock_mhz, rank.clock_note = entry.sm_clock_mhz, entry.clock_note
            case RankEnded():
                self._rank_ended(entry, now_s)
            case AttemptEnding():
                attempt = self._attempt(entry.job, entry.attempt)
                attempt.ending, attempt.ending_reason = entry.outcome, entry.reason
                attempt.charged = entry.charged
            case AttemptOver():
                self._attempt_over(entry, now_s)
            case QuotaSet():
                self.quotas.set(entry, now_s)
            case MemberSet():
                self.accounts.set(entry)
            case EligibilityReviewed():
                self.quotas.review(now_s)

    def can_ever_run(self, vc: str, num_gpus: int) -> bool:
        """Whether a gang would fit the idle cluster, with every node that has registered up."""
        known = self._can_run.get((vc, num_gpus))
        if known is None:
            known = self._can_run[vc, num_gpus] = self.cluster.can_ever_run(vc, num_gpus)
        return known

    @property
    def ended(self) -> int:
        """Jobs that are over."""
        return sum(self.outcomes.values())

    def fenced_jobs(self, node: Node) -> list[Job]:
        """Jobs with a rank on a node that are not to wait for it, by number."""
        jobs = [self.jobs[number] for number in sorted(node.live_jobs)]
        return [job for job in jobs if job.spec.on_lost != "wait"]

    def gave(self, job: int, attempt: int) -> bool:
        """Whether this journal has begun such an attempt, or a later one of its job."""
        known = self.job(job)
        return known is not None and known.attempt is not None and attempt <= known.attempt.number

    def job(self, number: int) -> Job | None:
        """A job, also one that has been forgotten; None: there is none.

        Raises:
            JournalError: its row is damaged.
        """
        job = self.jobs.get(number)
        if job is not None or self.table is None or number not in self.numbers:
            return job
        row = self.table.row(number)
        return None if row is None else job_of(row)

    def job_of_token(self, token: str) -> Job | None:
        """The job that was submitted with this token; None: there is none.

        Raises:
            JournalError: its row is damaged.
        """
        number = self.tokens.get(token)
        if number is not None:
            return self.jobs[number]
        if self.table is None or len(self.numbers) == len(self.jobs):
            return None
        row = self.table.row_of_token(token)
        return None if row is None else job_of(row)

    def knows_token(self, token: str) -> bool:
        """Whether a job was submitted with this token; not where its row is damaged."""
        try:
            return self.job_of_token(token) is not None
        except JournalError:
            return False

    def forget(self, now_s: float, keep_s: float, most: int) -> None:
        """Let jobs that are over leave the memory; the journal's table has them.

        Args:
            now_s: Unix seconds; those of this instant stay, as they may not be in the journal yet.
            keep_s: Those that have been over for longer leave ...
            most: ... and the first of the others, until there are so many.
        """
        while self.ended_jobs and self.ended_jobs[0][0] < now_s:
            over_s, number = self.ended_jobs[0]
            if now_s - over_s <= keep_s and len(self.ended_jobs) <= most:
                return
            self.ended_jobs.popleft()
            job = self.jobs.pop(number)
            self.tokens.pop(job.spec.token, None)

    def _attempt(self, job: int, number: int) -> Attempt:
        attempt = self.jobs[job].active
        if attempt is None or attempt.number != number:
            raise JournalError(f"job {job} has no attempt {number} under way")
        return attempt

    def _submitted(self, entry: JobSubmitted, now_s: float) -> None:
        spec = msgspec.structs.replace(entry, said=b"")  # 728 bytes a job, of use to predictions alone
        job = Job(entry.job, spec, now_s, -1, "rejected" if entry.rejected else "queued")
        if entry.rejected:
            job.end_s, job.reason = now_s, entry.rejected
            self.outcomes["rejected"] = self.outcomes.get("rejected", 0) + 1
            self._over(job, now_s)
        else:
            limit_s = math.nan if entry.time_limit_s is None else entry.time_limit_s
            level, ln_weight = self.priorities.of(entry)
            job.seq = self.cluster.add_job(
                num_gpus=entry.num_gpus,
                vc=entry.vc,
                submit_s=now_s,
                predicted_s=entry.predicted_s,
                spread=entry.spread,
                time_limit_s=limit_s,
                preemptible=entry.preemptible,
                workload=workload_number(entry.workload),
                energy_weight=entry.speed_energy,
                level=level,
                ln_weight=ln_weight,
            )
            self.clocks.came(job.number, entry.speed_energy)
            self.priorities.came(entry, job.seq)
            self.job_of_seq[job.seq] = job
            self.number_of_seq.add(job.seq, job.number)
            self.quotas.submitted(job.seq, owner_of(entry), entry.num_gpus, now_s)
        self.jobs[job.number] = job
        self.numbers.append(job.number)
        self.last_number = max(self.last_number, job.number)
        self.tokens[entry.token] = job.number
        self.predictions.submitted(entry, now_s)

    def _decided(self, entry: Decided, now_s: float, already_decided: bool) -> None:
        if not already_decided:
            partition = self.cluster.partition_names.index(entry.partition)
            decision = Decision(action=entry.action, source=entry.source, marks_hold=entry.marks_hold)
            apply_decision(self.cluster, partition, decision, now_s)
        self.decisions[entry.source] = self.decisions.get(entry.source, 0) + 1
        if entry.source == "guard":
            kind = entry.guard.partition(":")[0] or "unknown"
            self.interventions[kind] = self.interventions.get(kind, 0) + 1
        if entry.contested:
            self.contested[entry.source] = self.contested.get(entry.source, 0) + 1
        self.quotas.decided(entry.action, now_s)
        match entry.action:
            case Start():
                self._started(entry, entry.action, now_s)
            case Preempt(seq=seq, moved_for=other):
                job = self.job_of_seq[seq]
                assert job.attempt is not None
                self.seats.preempted(job, job.attempt, entry.number, self.number_of_seq.get(other))
            case Wait(until_s=None):
                self.asked_for_s.pop(entry.partition, None)
            case Wait(until_s=float() as until_s):
                self.asked_for_s[entry.partition] = until_s

    def _started(self, entry: Decided, start: Start, now_s: float) -> None:
        job = self.job_of_seq[start.seq]
        earlier = max(job.attempt.number if job.attempt else 0, self.last_attempt)
        ranks = self._ranks(start.gpus)
        self.highest_attempt = max(self.highest_attempt, earlier + 1)
        job.attempt = Attempt(earlier + 1, now_s, ranks, entry.number, entry.source)
        job.attempt.sm_clock_frac = start.sm_clock_frac
        job.state, job.reason = "launching", ""
        job.attempts += 1
        if job.first_start_s is None:
            job.first_start_s = now_s
        for rank in ranks:
            self.nodes[rank.node].live_jobs.add(job.number)
        if self.seats.take(job, job.attempt):
            self._seated(job, job.attempt, now_s)

    def _seated(self, job: Job, attempt: Attempt, now_s: float) -> None:
        attempt.seated_s = now_s
        self.predictions.started(job.number, now_s)

    def _ranks(self, gpus: Iterable[int]) -> list[Rank]:
        """One rank a node, in node order."""
        by_node: dict[int, list[int]] = {}
        for gpu in gpus:
            node, local = self.cluster.gpu_location(gpu)
            by_node.setdefault(node, []).append(local)
        return [Rank(self.cluster.node_names[node], sorted(by_node[node])) for node in sorted(by_node)]

    def _rank_launched(self, entry: RankLaunched) -> None:
        attempt = self._attempt(entry.job, entry.attempt)
        rank = attempt.ranks[entry.rank]
        rank.state, rank.pid = "running", entry.pid
        person = self.jobs[entry.job].spec.user
        self.ran_on[person] = self.ran_on.get(person, 0) | 1 << self.nodes[rank.node].number
        rank.sm_clock_mhz, rank.clock_note = entry.sm_clock_mhz, entry.clock_note
        if all(other.state != "launching" for other in attempt.ranks):
            self.jobs[entry.job].state = "running"

    def _rank_ended(self, entry: RankEnded, now_s: float) -> None:
        attempt = self._attempt(entry.job, entry.attempt)
        rank = attempt.ranks[entry.rank]
        rank.state, rank.exit_code, rank.reason = "ended", entry.exit_code, entry.reason
        rank.ran_s = entry.ran_s
        reported_s = now_s if entry.ended_s is None else entry.ended_s
        if entry.ran_s is not None:
            reported_s = attempt.start_s + entry.ran_s
            if attempt.seated_s < math.inf:
                reported_s = attempt.seated_s + entry.ran_s
        rank.ended_s = min(max(reported_s, attempt.start_s), now_s)
        if entry.exit_code != 0 and attempt.first_failure is None:
            attempt.first_failure = (entry.exit_code, entry.reason)
        self.nodes[rank.node].live_jobs.discard(entry.job)
        for job in self.seats.left(entry.job, entry.rank, self.job_of_seq.values()):
            assert job.attempt is not None
            self._seated(job, job.attempt, now_s)

    def _attempt_over(self, entry: AttemptOver, now_s: float) -> None:
        job = self.jobs[entry.job]
        attempt = self._attempt(entry.job, entry.attempt)
        end_s = max(rank.ended_s for rank in attempt.ranks)
        run_s = attempt.run_s
        job.gpu_s += job.spec.num_gpus * attempt.held_s
        self.usage.over(job, attempt, end_s, now_s)
        self.seats.over(job)
        if entry.outcome == "queued":
            job.retries += attempt.charged
            if attempt.ending == PREEMPTED:
                job.preemptions += 1
                if attempt.moved:
                    job.moves, job.last_move = job.moves + 1, attempt.ending_reason
                job.earlier_s += run_s
            self.cluster.requeue(job.seq, now_s)
            self.quotas.over(job.seq, now_s, waits=True)
            if attempt.seated_s < math.inf:
                self.predictions.stopped(job.number, now_s)
            job.state, job.reason = "queued", entry.reason
            return
        self.cluster.release(job.seq, now_s, ended=entry.outcome != "cancelled")
        self.quotas.over(job.seq, now_s, waits=False)
        if attempt.ending in ("", "failed", PREEMPTED):
            self.predictions.ended(job.spec, job.earlier_s + run_s, now_s)
        else:
            self.predictions.gone(job.number)
        self._close(job, entry.outcome, entry.exit_code, entry.reason, end_s)

    def _close(self, job: Job, state: str, exit_code: int | None, reason: str, end_s: float) -> None:
        del self.job_of_seq[job.seq]
        self.clocks.gone(job.number)
        self.priorities.gone(job.number)
        job.state, job.exit_code, job.reason, job.end_s = state, exit_code, reason, end_s
        self.outcomes[state] = self.outcomes.get(state, 0) + 1
        self._over(job, self.now_s)

    def _over(self, job: Job, now_s: float) -> None:
        job.forget_start()
        self.ended_jobs.append((now_s, job.number))
        self.over(job)


def _nobody(job: Job) -> None:
    """Told of a job that is over."""
