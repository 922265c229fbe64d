"""The broker's state: jobs, nodes and the `ClusterState`, built from facts (journal entries)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from rlsched.broker.base.entries import (
    AttemptEnding,
    AttemptOver,
    BasePart,
    BillPriced,
    BrokerStarted,
    Decided,
    EligibilityReviewed,
    EnergyPriced,
    Entry,
    GpuMemoryLimited,
    GpuMemorySeen,
    GpusHeld,
    JobCancelled,
    JobHeld,
    JobsRanked,
    JobSubmitted,
    JobUnshared,
    JobUpdated,
    JoinsLimited,
    MemberSet,
    NodeDown,
    NodeEntry,
    NodeHealth,
    NodeRemoved,
    NodeSlept,
    NodeUp,
    NumbersTaken,
    PairSeen,
    QuotaSet,
    RankClocked,
    RankEnded,
    RankLaunched,
    RankOutputFailed,
    Restored,
    TasksCancelled,
    TasksHeld,
    TaskSubmitted,
)
from rlsched.broker.base.ledger_models import nearest_mhz
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.base.states import PREEMPTED
from rlsched.broker.state import base_state
from rlsched.broker.state.arrays import NO_SEQ
from rlsched.broker.state.base import read_base
from rlsched.broker.state.job_requests import demand_of, learnt_use, runs_as, sharing_of
from rlsched.broker.state.jobs import NODE_STOPPED, Attempt, Job, Rank, Stopped
from rlsched.broker.state.known import Known
from rlsched.broker.state.learning import learn, learn_pair, mean_speed
from rlsched.broker.state.nodes import change_node
from rlsched.broker.state.quotas import owner_of
from rlsched.broker.state.updates import change_ledger, updated
from rlsched.cluster.arrays import columns
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.loop import apply as apply_decision
from rlsched.decide.scheduler import Decision, Scheduler, permit
from rlsched.errors import JournalError, RlschedError
from rlsched.models.learning import Observed
from rlsched.wire.states import (
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    LAUNCHING,
    QUEUED,
    REJECTED,
    RUNNING,
    JobState,
)


def _was_decided(entry: Entry) -> bool:
    """Return whether a fact is a decision of a scheduler, and not a start by an external engine."""
    return isinstance(entry, Decided) and entry.source != "engine"


class BrokerState(Known):
    """State of the broker, built by applying entries in order."""

    def replay(self, rows: Iterable[JournalRow], scheduler: Scheduler | None = None) -> None:
        """Apply all entries of a journal.

        Args:
            rows: The entries.
            scheduler: Policy that decides after the replay, and sets its dials (numbers that adjust its rule)
                at the times of the entries. None: no dials are set.

        Raises:
            JournalError: an entry contradicts the entries before it.
        """
        if scheduler is not None:
            permit(self.cluster, scheduler)
        self.follow(rows, scheduler)
        if scheduler is not None:
            scheduler.begin_instant(self.cluster, self.now_s)

    def follow(self, rows: Iterable[JournalRow], scheduler: Scheduler | None = None) -> None:
        """Apply the next entries of a journal.

        The caller must call `permit` before the first call, and `scheduler.begin_instant` after the last call
        and before any decision, as `replay` does.

        Raises:
            JournalError: an entry contradicts the entries before it. The state cannot be used afterwards.
        """
        if scheduler is not None:
            self.policy_id = scheduler.policy_id
        for row in rows:
            try:
                if scheduler is not None and (row.now_s > self.now_s or _was_decided(row.entry)):
                    scheduler.begin_instant(self.cluster, self.now_s)
                self.apply(row.entry, row.now_s)
            except (RlschedError, KeyError, IndexError, AttributeError) as error:
                raise JournalError(
                    f"entry {row.n} contradicts the entries before it ({error}); "
                    "restore a backup (`rlsched journal restore`)"
                ) from error

    def apply(self, entry: Entry, now_s: float, *, already_decided: bool = False) -> None:
        """Apply a fact (journal entry) to the state.

        Args:
            entry: The fact.
            now_s: Time of the fact, Unix seconds.
            already_decided: Whether `entry` is a `Decided` whose action was already applied to `cluster`.
        """
        self.now_s = now_s
        match entry:  # the most frequent facts first: each case takes time
            case JobSubmitted() if entry.tasks:
                self._on_array_submitted(entry, now_s)
            case JobSubmitted():
                self._on_submitted(entry, now_s)
            case Decided():
                self._on_decided(entry, now_s, already_decided)
            case RankLaunched():
                self._on_rank_launched(entry)
            case RankEnded():
                self._on_rank_ended(entry, now_s)
            case AttemptOver():
                self._on_attempt_over(entry, now_s)
            case BrokerStarted():
                self._on_broker_started(entry)
            case Restored():
                self._on_restored(entry, now_s)
            case BasePart():
                self._on_base_part(entry)
            case NumbersTaken():
                self.last_number = max(self.last_number, entry.last)
            case node_entry if isinstance(node_entry, NodeEntry):
                self._on_node(node_entry)
            case GpusHeld():
                self.holdings.set(entry, self.nodes[entry.name], now_s)
            case GpuMemoryLimited():
                self.cluster.limit_gpu_memory(self.nodes[entry.name].number, entry.usable_mib)
            case TaskSubmitted():
                self._on_submitted(self.arrays.live[entry.array].task(entry), now_s)
            case JobHeld():
                self._on_held(entry, now_s)
            case TasksHeld():
                self.arrays.hold_tasks(entry)
            case TasksCancelled():
                self.arrays.cancel_tasks(entry, now_s)
            case JobUpdated():
                self._on_updated(entry, now_s)
            case JobCancelled():
                self._on_cancelled(entry, now_s)
            case JobsRanked():
                self.priorities.rank(entry, now_s)
            case RankClocked():
                self._on_rank_clocked(entry)
            case RankOutputFailed():
                self._attempt(entry.job, entry.attempt).ranks[entry.rank].output_note = entry.message
            case AttemptEnding():
                self._on_attempt_ending(entry)
            case PairSeen():
                self._on_pair_seen(entry)
            case GpuMemorySeen():
                self._on_gpu_memory_seen(entry)
            case JobUnshared():
                self._on_unshared(entry)
            case JoinsLimited():
                self.cluster.limit_joins(self.nodes[entry.name].number, entry.most_mib)
            case QuotaSet():
                self.quotas.set(entry, now_s)
            case MemberSet():
                self.accounts.set(entry)
            case EligibilityReviewed():
                self.quotas.review_quotas(now_s)
                self.gates.open_due_gates(now_s)
            case EnergyPriced():
                self.set_price(entry, now_s)
            case BillPriced():
                self.set_bill_price(entry, now_s)

    def _on_broker_started(self, entry: BrokerStarted) -> None:
        self.epoch, self.identity = entry.epoch, entry.cluster
        self.chosen = self.chosen if entry.goes_on else entry.chosen
        self.models.weigh(entry.speed_energy)
        self.models.share(entry.shares)

    def _on_restored(self, entry: Restored, now_s: float) -> None:
        self.epoch, self.restored_s, self.taken_over = entry.epoch, now_s, entry.taken_over
        self.last_number, self.last_attempt = entry.last_number, entry.last_attempt
        self.awaited = {name for name, node in self.nodes.items() if node.may_run_jobs}

    def _on_base_part(self, entry: BasePart) -> None:
        self._base.append(entry)
        if entry.part == entry.parts:
            base_state.restore_base(self, read_base(self._base), self.policy_id)
            self._base = []

    def _on_node(self, entry: NodeEntry) -> None:
        if isinstance(entry, NodeHealth) and entry.unhealthy:
            self.health_failures += not self.nodes[entry.name].unhealthy
        change_node(self.nodes, self.cluster, self.models, entry)
        if isinstance(entry, NodeUp | NodeDown | NodeRemoved | NodeSlept):
            self.awaited.discard(entry.name)
        self._can_run.clear()

    def _on_array_submitted(self, entry: JobSubmitted, now_s: float) -> None:
        self.arrays.add_array(entry, now_s)
        self.last_number = max(self.last_number, entry.job)

    def _on_held(self, entry: JobHeld, now_s: float) -> None:
        job = self.jobs.get(entry.job)
        self.gates.set_hold(NO_SEQ if job is None else job.seq, entry, now_s)

    def _on_cancelled(self, entry: JobCancelled, now_s: float) -> None:
        if entry.job in self.arrays.live:
            self.arrays.stop_array(entry.job, entry.reason, now_s)
            return
        job = self.jobs[entry.job]
        self.cluster.remove_waiting(job.seq)
        self.quotas.remove_cancelled(job.seq, now_s)
        self.predictions.discard_job(job.number)
        self._close(job, CANCELLED, None, entry.reason, now_s)

    def _on_rank_clocked(self, entry: RankClocked) -> None:
        attempt = self._attempt(entry.job, entry.attempt)
        rank = attempt.ranks[entry.rank]
        rank.sm_clock_mhz, rank.clock_note = entry.sm_clock_mhz, entry.clock_note
        self._note_cap(attempt, rank)

    def _note_cap(self, attempt: Attempt, rank: Rank) -> None:
        """Set `was_capped` of the attempt if a rank's SM clock limit is below the decision's clock."""
        chosen = nearest_mhz(self.nodes[rank.node].spec.sm_clocks_mhz, attempt.sm_clock_frac)
        if rank.sm_clock_mhz and (chosen == 0 or rank.sm_clock_mhz < chosen):
            attempt.was_capped = True

    def _on_attempt_ending(self, entry: AttemptEnding) -> None:
        attempt = self._attempt(entry.job, entry.attempt)
        attempt.ending, attempt.ending_reason = entry.outcome, entry.reason
        attempt.charged, attempt.lost = entry.charged, entry.lost

    def _on_pair_seen(self, entry: PairSeen) -> None:
        job = self.jobs.get(entry.job)
        if job is not None and job.active is not None and job.active.number == entry.attempt:
            job.active.is_learnt = True
        beside = self.jobs.get(entry.beside)
        if job is not None and beside is not None:
            learn_pair(self.profiles, entry, job, beside)
        self.models.observe(Observed(entry.workload, entry.partner, entry.gpu_type, entry.speed))

    def _on_gpu_memory_seen(self, entry: GpuMemorySeen) -> None:
        job = self.jobs.get(entry.job)
        if job is None or not job.live:
            return
        job.seen_gpu_mib = max(job.seen_gpu_mib, entry.gpu_memory_mib)
        self.cluster.raise_gpu_need(job.seq, entry.gpu_memory_mib)

    def _on_unshared(self, entry: JobUnshared) -> None:
        job = self.jobs.get(entry.job)
        if job is None or not job.live:
            return
        job.alone, job.alone_reason = True, entry.reason
        self.cluster.unshare_job(job.seq)

    def _attempt(self, job: int, number: int) -> Attempt:
        attempt = self.jobs[job].active
        if attempt is None or attempt.number != number:
            raise JournalError(f"job {job}: expected the active attempt, got attempt {number}")
        return attempt

    def _on_submitted(self, entry: JobSubmitted, now_s: float) -> None:
        spec = msgspec.structs.replace(entry, said=b"")  # `said` has 728 bytes, and only predictions need it
        job = Job(entry.job, spec, now_s, -1, REJECTED if entry.rejected else QUEUED)
        if entry.rejected:
            job.end_s, job.reason = now_s, entry.rejected
            self.outcomes[REJECTED] = self.outcomes.get(REJECTED, 0) + 1
            self._finish(job, now_s)
        else:
            limit_s = math.nan if entry.time_limit_s is None else entry.time_limit_s
            level, ln_weight = self.priorities.level_and_weight(entry)
            job.seq = self.cluster.add_job(
                demand=demand_of(entry),
                vc=entry.vc,
                submit_s=now_s,
                predicted_s=entry.predicted_s,
                spread=entry.spread,
                time_limit_s=limit_s,
                preemptible=entry.preemptible,
                workload=runs_as(entry),
                energy_weight=entry.speed_energy,
                **sharing_of(entry),
                level=level,
                ln_weight=ln_weight,
                slack_s=entry.slack_s,
            )
            self.cluster.set_use(job.seq, learnt_use(entry.profiles, runs_as(entry)))
            self.models.add_energy_weight(job.number, entry.speed_energy)
            self.priorities.add_ranked(entry, job.seq)
            self.job_of_seq[job.seq] = job
            self.number_of_seq.add(job.seq, job.number)
            self.quotas.add_waiting(job.seq, owner_of(entry), entry.num_gpus, now_s)
            self.gates.add_gates(job.seq, entry, now_s)
            self.arrays.add_task(entry)
        self.jobs[job.number] = job
        self.numbers.append(job.number)
        self.last_number = max(self.last_number, job.number)
        self.tokens[entry.token] = job.number
        self.predictions.record_submission(entry, now_s)

    def _on_updated(self, entry: JobUpdated, now_s: float) -> None:
        job = self.jobs.get(entry.job)
        if job is None:
            self.arrays.update_array(entry)
            change_ledger(self.cluster, self.priorities, self.gates, NO_SEQ, None, entry, now_s)
            return
        job.spec = updated(job.spec, entry)
        change_ledger(
            self.cluster,
            self.priorities,
            self.gates,
            job.seq,
            job.spec,
            entry,
            now_s,
            learnt_gpu_mib=job.learnt_gpu_mib,
            alone=job.alone,
        )

    def _on_decided(self, entry: Decided, now_s: float, already_decided: bool) -> None:
        if not already_decided:
            apply_decision(self.cluster, Decision(action=entry.action, source=entry.source), now_s)
        self.decisions[entry.source] = self.decisions.get(entry.source, 0) + 1
        if entry.source == "guard":
            kind = entry.guard.partition(":")[0] or "unknown"
            self.interventions[kind] = self.interventions.get(kind, 0) + 1
        if entry.contested:
            self.contested[entry.source] = self.contested.get(entry.source, 0) + 1
        self.quotas.charge_action(entry.action, now_s)
        match entry.action:
            case Start():
                self._start(entry, entry.action, now_s)
            case Preempt(seq=seq, moved_for=other):
                job = self.job_of_seq[seq]
                assert job.attempt is not None
                self._shares_no_more(job.attempt, now_s)
                taker = self.job_of_seq.get(other)
                moved_for = None if taker is None else taker.called
                self.seats.add_leaving(job, job.attempt, entry.number, moved_for)
            case Wait(until_s=None):
                self.asked_for_s.pop(entry.partition, None)
            case Wait(until_s=float() as until_s):
                self.asked_for_s[entry.partition] = until_s

    def _start(self, entry: Decided, start: Start, now_s: float) -> None:
        job = self.job_of_seq[start.seq]
        earlier = max(job.attempt.number if job.attempt else 0, self.last_attempt)
        ranks = self._ranks(start.gpus)
        self.highest_attempt = max(self.highest_attempt, earlier + 1)
        job.attempt = Attempt(earlier + 1, now_s, ranks, entry.number, entry.source)
        job.attempt.sm_clock_frac = start.sm_clock_frac
        job.attempt.was_lent = self.cluster.cpu_milli_each(job.seq)[1] > 0
        slot, jobs = self.cluster.slot_of(job.seq), columns(self.cluster.arrays.job)
        if self.models.shares and not jobs["unshared"][slot]:
            job.attempt.gpu_need_mib = max(int(jobs["gpu_need_mib"][slot]), 0)
        job.become(LAUNCHING)
        job.reason = ""
        self._share_anew([job.seq, *self.cluster.beside(job.seq)], now_s)
        self.gates.resolve_start(job.number, now_s)
        self.arrays.start_task(job.spec, now_s)
        job.attempts += 1
        if job.first_start_s is None:
            job.first_start_s = now_s
        for rank in ranks:
            self.nodes[rank.node].live_jobs.add(job.number)
        if self.seats.wait_for_gpus(job, job.attempt):
            self._start_run(job, job.attempt, now_s)

    def _share_anew(self, seqs: Iterable[int], now_s: float) -> None:
        """Update the number of tenants on the GPUs of each job in `seqs`, after a tenant started or left."""
        for seq in seqs:
            attempt = self.job_of_seq[seq].active
            if attempt is not None:
                attempt.shares_with(1 + len(self.cluster.beside(seq)), now_s)

    def _shares_no_more(self, attempt: Attempt, now_s: float) -> None:
        """Update the number of tenants of an attempt that lost its GPUs, and of its former co-tenants."""
        if attempt.tenants > 1:
            attempt.shares_with(1, now_s)
            held = [(rank.node, rank.gpus) for rank in attempt.ranks]
            self._share_anew(
                (
                    other.seq
                    for other in self.job_of_seq.values()
                    if other.active is not None
                    and other.active.tenants > 1
                    and [(rank.node, rank.gpus) for rank in other.active.ranks] == held
                ),
                now_s,
            )

    def _start_run(self, job: Job, attempt: Attempt, now_s: float) -> None:
        attempt.seated_s = now_s
        attempt.price_sum = self.price_sums.until(now_s)
        attempt.bill_price_sum = self.bill_price_sums.until(now_s)
        self.predictions.record_start(job.number, now_s)

    def _ranks(self, gpus: Iterable[int]) -> list[Rank]:
        """Return one new rank per node, in node order. `gpus`: indexes of the GPUs in the ledger."""
        by_node: dict[int, list[int]] = {}
        for gpu in gpus:
            node, local = self.cluster.gpu_location(gpu)
            by_node.setdefault(node, []).append(local)
        return [Rank(self.cluster.node_names[node], sorted(by_node[node])) for node in sorted(by_node)]

    def _on_rank_launched(self, entry: RankLaunched) -> None:
        attempt = self._attempt(entry.job, entry.attempt)
        rank = attempt.ranks[entry.rank]
        rank.become(RUNNING)
        rank.pid = entry.pid
        person = self.jobs[entry.job].spec.user
        self.ran_on[person] = self.ran_on.get(person, 0) | 1 << self.nodes[rank.node].number
        rank.sm_clock_mhz, rank.clock_note = entry.sm_clock_mhz, entry.clock_note
        self._note_cap(attempt, rank)
        if all(other.state != LAUNCHING for other in attempt.ranks):
            self.jobs[entry.job].become(RUNNING)

    def _on_rank_ended(self, entry: RankEnded, now_s: float) -> None:
        attempt = self._attempt(entry.job, entry.attempt)
        rank = attempt.ranks[entry.rank]
        rank.become(ENDED)
        rank.exit_code, rank.reason = entry.exit_code, entry.reason
        rank.ran_s, rank.usage = entry.ran_s, entry.usage
        reported_s = now_s if entry.ended_s is None else entry.ended_s
        if entry.ran_s is not None:
            reported_s = attempt.start_s + entry.ran_s
            if attempt.seated_s < math.inf:
                reported_s = attempt.seated_s + entry.ran_s
        rank.ended_s = min(max(reported_s, attempt.start_s), now_s)
        if entry.exit_code != 0 and attempt.first_failure is None:
            attempt.first_failure = (entry.exit_code, entry.reason)
        self.nodes[rank.node].live_jobs.discard(entry.job)
        for job in self.seats.remove_rank(entry.job, entry.rank, self.job_of_seq.values()):
            assert job.attempt is not None
            self._start_run(job, job.attempt, now_s)

    def _on_attempt_over(self, entry: AttemptOver, now_s: float) -> None:
        job = self.jobs[entry.job]
        attempt = self._attempt(entry.job, entry.attempt)
        end_s = max(rank.ended_s for rank in attempt.ranks)
        run_s = attempt.run_s
        attempt.shares_with(attempt.tenants, now_s)
        job.gpu_s += job.spec.num_gpus * attempt.held_s
        used_j = attempt.energy_j
        used_until_s = end_s if attempt.seated_s == math.inf else max(end_s, attempt.seated_s)
        job.cost, job.carbon_kg, job.currency = self.job_bill(job, used_j, used_until_s)
        job.spans += self.spans_of(job, attempt, used_j, used_until_s)
        attempt.price_sum = attempt.bill_price_sum = 0.0
        if used_j is not None:
            job.energy_j = (job.energy_j or 0.0) + used_j
        attempt.speed_frac = mean_speed(self.profiles, job, attempt, self.nodes)
        learn(self.profiles, job, attempt, self.nodes, has_completed=entry.outcome == COMPLETED)
        self.usage.charge_attempt(job, attempt, end_s, now_s)
        self.seats.remove_leaving(job)
        if entry.outcome == QUEUED:
            job.retries += attempt.charged
            job.losses = job.losses + 1 if attempt.lost else 0
            if attempt.ending == PREEMPTED:
                job.preemptions += 1
                if attempt.moved:
                    job.moves, job.last_move = job.moves + 1, attempt.ending_reason
                job.earlier_s += run_s
            job.gpu_memory_mib = max(job.gpu_memory_mib, entry.gpu_memory_mib)
            job.alone = job.alone or entry.alone
            job.enlarged = job.enlarged or (entry.gpu_memory_mib > 0 and not entry.alone)
            self.cluster.requeue(job.seq, now_s, entry.gpu_memory_mib, alone=entry.alone)
            self._shares_no_more(attempt, now_s)
            self.quotas.return_gpus(job.seq, now_s, waits=True)
            if attempt.seated_s < math.inf:
                self.predictions.record_requeue(job.number, now_s)
            job.become(QUEUED)
            job.reason = entry.reason
            with_node = any(rank.reason == NODE_STOPPED for rank in attempt.ranks)
            with_node = with_node or (attempt.lost and self._has_declared_down(attempt))
            with_node = with_node and attempt.ending != PREEMPTED
            job.stopped = Stopped(attempt.number, attempt.start_s, end_s, entry.reason, with_node=with_node)
            return
        self.cluster.release(job.seq, now_s, ended=entry.outcome != CANCELLED)
        self._shares_no_more(attempt, now_s)
        self.quotas.return_gpus(job.seq, now_s, waits=False)
        if attempt.ending in ("", FAILED, PREEMPTED):
            self.predictions.record_run_time(job.spec, job.earlier_s + run_s, now_s)
        else:
            self.predictions.discard_job(job.number)
        self._close(job, entry.outcome, entry.exit_code, entry.reason, end_s)

    def _has_declared_down(self, attempt: Attempt) -> bool:
        """Return whether an operator has removed a node of an attempt, or has declared such a node down."""
        nodes = (self.nodes.get(rank.node) for rank in attempt.ranks)
        return any(node is None or node.removed or not node.up for node in nodes)

    def _close(self, job: Job, state: JobState, exit_code: int | None, reason: str, end_s: float) -> None:
        del self.job_of_seq[job.seq]
        self.models.remove_energy_weight(job.number)
        self.priorities.remove_ranked(job.number)
        self.gates.resolve_end(job.number, state, self.now_s)
        self.arrays.end_task(job.spec, state, self.now_s)
        job.become(state)
        job.exit_code, job.reason, job.end_s = exit_code, reason, end_s
        self.outcomes[state] = self.outcomes.get(state, 0) + 1
        self._finish(job, self.now_s)

    def _finish(self, job: Job, now_s: float) -> None:
        job.forget_start()
        self.ended_jobs.append((now_s, job.number))
        self.on_finished(job)
