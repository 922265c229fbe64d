"""Converts a broker's journal to inputs and decisions that a simulator can replay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from rlsched.broker.base.eligibility import Eligibility
from rlsched.broker.base.entries import (
    AttemptOver,
    BasePart,
    BrokerStarted,
    Decided,
    EligibilityReviewed,
    EnergyPriced,
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
    NodeEntry,
    NodeSlept,
    NodeWoken,
    PairSeen,
    QuotaSet,
    TasksCancelled,
    TasksHeld,
    TaskSubmitted,
)
from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.broker.journal.journal import JOURNAL_FILE as JOURNAL_FILE
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.broker.state.arrays import NO_SEQ, Arrays
from rlsched.broker.state.gates import Gates
from rlsched.broker.state.holdings import NodeHoldings
from rlsched.broker.state.job_requests import demand_of, learnt_use, runs_as, sharing_of
from rlsched.broker.state.jobs import called
from rlsched.broker.state.nodes import Node, change_node
from rlsched.broker.state.priorities import Priorities
from rlsched.broker.state.quotas import QuotaTable, owner_of
from rlsched.broker.state.tasks import Heads
from rlsched.broker.state.updates import change_ledger, updated
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.loop import apply, decide_all
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Decision, Scheduler, permit
from rlsched.decisions.reading import read_records
from rlsched.errors import JournalError
from rlsched.models.learning import Observed
from rlsched.wire.messages import Holding
from rlsched.wire.states import CANCELLED, QUEUED

Change = (
    NodeEntry
    | GpusHeld
    | GpuMemoryLimited
    | JobSubmitted
    | JobHeld
    | TasksHeld
    | TasksCancelled
    | JobUpdated
    | JobCancelled
    | JobsRanked
    | AttemptOver
    | PairSeen
    | GpuMemorySeen
    | JobUnshared
    | JoinsLimited
    | QuotaSet
    | EligibilityReviewed
    | EnergyPriced
    | Decided
)
"""A fact (journal entry) that changes the cluster other than by a decision of the scheduler.

A `Decided` is a change only if it records a start that an engine made itself.
"""


@dataclass
class Instant:
    """Effects of one batch on the cluster: first the changes, then the decisions.

    Attributes:
        now_s: Time of the batch, Unix seconds.
        changes: Changes, in order. The scheduler is also called after a `NodeUp` that changes nothing. A job
            with `JobSubmitted.rejected` does not enter the cluster. An `AttemptOver` with outcome `queued`
            requeues its job; any other outcome removes the job. A preempted job loses its GPUs already with
            the decision.
        decisions: Decisions, in order. They are numbered consecutively over all batches, from 0.
        speed_energy: New weight of energy against time, 0 to 1, set before all changes; None: unchanged.
        shares: Whether jobs can share GPUs, set before all changes; None: unchanged.
    """

    now_s: float
    changes: list[Change] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    speed_energy: float | None = None
    shares: bool | None = None


@dataclass
class JournalEvents:
    """All events of a journal.

    Attributes:
        instants: Batches that change the cluster, by increasing `now_s`.
        seq_of: Sequence number in the `ClusterState` of each job that entered the cluster, by job number.
        starts: The entries of brokers that started, in order.
    """

    instants: list[Instant] = field(default_factory=list)
    seq_of: dict[int, int] = field(default_factory=dict)
    starts: list[BrokerStarted] = field(default_factory=list)

    @property
    def decisions(self) -> list[Decided]:
        """All decisions of all instants, in order."""
        return [decision for instant in self.instants for decision in instant.decisions]


@dataclass
class _FromAttempts:
    """Results of attempts that affect how jobs share GPUs. A broker stores them in `Job`.

    Attributes:
        gpu_memory_mib: GPU memory that a job needs according to its attempts, MiB per GPU, by job number
            (`Job.learnt_gpu_mib`).
        unshared: Job numbers of the jobs that can no longer share GPUs (`Job.alone`).
    """

    gpu_memory_mib: dict[int, int] = field(default_factory=dict)
    unshared: set[int] = field(default_factory=set)

    def note(self, entry: AttemptOver) -> None:
        """Record an `AttemptOver` after which the job is queued again."""
        self.note_memory(entry)
        if entry.alone:
            self.unshared.add(entry.job)

    def note_memory(self, entry: AttemptOver | GpuMemorySeen) -> None:
        """Record the GPU memory that a job needs according to a journal entry, if it is more than before."""
        known = self.gpu_memory_mib.get(entry.job, 0)
        self.gpu_memory_mib[entry.job] = max(known, entry.gpu_memory_mib)


def journal_events(path: str | Path) -> JournalEvents:
    """Read the events of a journal. A broker may write it at the same time.

    `path`: the journal, or the directory of the broker.

    Raises:
        JournalError: the journal is missing, damaged or compacted.
    """
    path = Path(path)
    events = JournalEvents()
    next_seq, held = 0, dict[str, list[Holding]]()
    heads = Heads()
    for row in read_journal(path / JOURNAL_FILE if path.is_dir() else path):
        entry = row.entry
        heads.note(entry)
        if isinstance(entry, TaskSubmitted):
            entry = heads[entry.array].task(entry)
        if isinstance(entry, BasePart):
            raise JournalError(
                f"{path}: compacted: entries before {row.n} are missing; use a backup from before the "
                "compaction"
            )
        if isinstance(entry, BrokerStarted):
            before = events.starts[-1] if events.starts else None
            events.starts.append(entry)
            was = (0.0, False) if before is None else (before.speed_energy, before.shares)
            if (entry.speed_energy, entry.shares) == was:
                continue
        elif not isinstance(entry, Change):
            continue
        if not events.instants or events.instants[-1].now_s != row.now_s:
            events.instants.append(Instant(row.now_s))
        if isinstance(entry, BrokerStarted):
            events.instants[-1].speed_energy = entry.speed_energy
            events.instants[-1].shares = entry.shares
            continue
        if isinstance(entry, Decided) and entry.source != "engine":
            events.instants[-1].decisions.append(entry)
            continue
        events.instants[-1].changes.append(entry)
        if isinstance(entry, JobSubmitted) and not entry.rejected and not entry.tasks:
            events.seq_of[entry.job] = next_seq
            next_seq += 1
        elif isinstance(entry, GpusHeld):
            known = held.get(entry.name, [])
            next_seq += sum(one not in known for one in entry.held)
            held[entry.name] = entry.held
    return events


def records_by_number(directory: str | Path) -> dict[int, DecisionRecord]:
    """Return the decision records in a broker's directory, by decision number."""
    return {record.number: record for record in read_records(Path(directory) / STORE_FOLDER)}


def redecide(events: JournalEvents, scheduler: Scheduler) -> list[DecisionRecord]:
    """Apply a journal's changes to a new state, let a scheduler decide, and return its decision records.

    If the same deterministic scheduler decided in the journal, the decisions are identical, bit for bit.
    """
    state = ClusterState.empty(OrderedQueue(scheduler.order))
    permit(state, scheduler)
    state.stops_take_time = True
    models, priorities, eligibility = LedgerModels(state), Priorities(state), Eligibility(state)
    quotas, gates = QuotaTable(eligibility), Gates(eligibility)
    arrays, specs = Arrays(gates), dict[int, JobSubmitted]()
    attempts = _FromAttempts()
    job_of = {seq: job for job, seq in events.seq_of.items()}
    nodes: dict[str, Node] = {}
    held = NodeHoldings(state)
    records: list[DecisionRecord] = []
    for instant in events.instants:
        if instant.speed_energy is not None:
            models.weigh(instant.speed_energy)
        if instant.shares is not None:
            models.share(instant.shares)
        for change in instant.changes:
            if isinstance(change, JobSubmitted):
                specs[change.job] = change
            elif isinstance(change, JobUpdated) and change.job in specs:
                specs[change.job] = updated(specs[change.job], change)
            _happen(
                state,
                models,
                priorities,
                quotas,
                gates,
                held,
                nodes,
                events.seq_of,
                specs,
                attempts,
                change,
                instant.now_s,
            )
            _happen_to_arrays(arrays, specs, change, instant.now_s)
            if isinstance(change, Decided) and isinstance(change.action, Start):
                gates.resolve_start(job_of[change.action.seq], instant.now_s)
                arrays.start_task(specs[job_of[change.action.seq]], instant.now_s)
        if instant.decisions or any(_is_asked_after(one, models) for one in instant.changes):
            made = decide_all(
                state,
                scheduler,
                instant.now_s,
                record=True,
                job_name=lambda seq: called(specs[job_of[seq]]) if seq in job_of else "of others",
            )
            for _, decision in made:
                quotas.charge_action(decision.action, instant.now_s)
                if isinstance(decision.action, Start):
                    gates.resolve_start(job_of[decision.action.seq], instant.now_s)
                    arrays.start_task(specs[job_of[decision.action.seq]], instant.now_s)
                records += [decision.record] if decision.record else []
    return records


def _happen_to_arrays(arrays: Arrays, specs: dict[int, JobSubmitted], change: Change, now_s: float) -> None:
    """Apply a change to the job arrays, after the caller has applied it to the jobs."""
    match change:
        case JobSubmitted(rejected="") if change.tasks:
            arrays.add_array(change, now_s)
        case JobSubmitted(rejected=""):
            arrays.add_task(change)
        case TasksHeld():
            arrays.hold_tasks(change)
        case TasksCancelled():
            arrays.cancel_tasks(change, now_s)
        case JobUpdated(job=job) if job in arrays.live:
            arrays.update_array(change)
        case JobCancelled(job=job) if job in arrays.live:
            arrays.stop_array(job, change.reason, now_s)
        case JobCancelled(job=job):
            arrays.end_task(specs[job], CANCELLED, now_s)
        case AttemptOver(job=job, outcome=outcome) if outcome != QUEUED:
            arrays.end_task(specs[job], outcome, now_s)


def _is_asked_after(change: Change, models: LedgerModels) -> bool:
    """Return whether the scheduler is called after this change."""
    if isinstance(change, NodeSlept | NodeWoken):
        return models.limits_power
    return not isinstance(change, Decided | PairSeen | GpuMemorySeen | JobUnshared) and not (
        isinstance(change, JobSubmitted) and change.rejected
    )


def _happen(
    state: ClusterState,
    models: LedgerModels,
    priorities: Priorities,
    quotas: QuotaTable,
    gates: Gates,
    held: NodeHoldings,
    nodes: dict[str, Node],
    seq_of: dict[int, int],
    specs: dict[int, JobSubmitted],
    attempts: _FromAttempts,
    change: Change,
    now_s: float,
) -> None:
    match change:
        case node_entry if isinstance(node_entry, NodeEntry):
            change_node(nodes, state, models, node_entry)
        case GpusHeld():
            held.set(change, nodes[change.name], now_s)
        case GpuMemoryLimited(name=name, usable_mib=usable_mib):
            state.limit_gpu_memory(nodes[name].number, usable_mib)
        case Decided(source=source, action=action):
            apply(state, Decision(action=action, source=source), now_s)
            quotas.charge_action(action, now_s)
        case JobSubmitted(rejected="") if not change.tasks:
            level, ln_weight = priorities.level_and_weight(change)
            seq = state.add_job(
                demand=demand_of(change),
                vc=change.vc,
                submit_s=now_s,
                spread=change.spread,
                predicted_s=change.predicted_s,
                time_limit_s=math.nan if change.time_limit_s is None else change.time_limit_s,
                preemptible=change.preemptible,
                workload=runs_as(change),
                energy_weight=change.speed_energy,
                **sharing_of(change),
                level=level,
                ln_weight=ln_weight,
                slack_s=change.slack_s,
            )
            state.set_use(seq, learnt_use(change.profiles, runs_as(change)))
            models.add_energy_weight(change.job, change.speed_energy)
            priorities.add_ranked(change, seq)
            quotas.add_waiting(seq, owner_of(change), change.num_gpus, now_s)
            gates.add_gates(seq, change, now_s)
        case JobHeld(job=job):
            gates.set_hold(seq_of.get(job, NO_SEQ), change, now_s)
        case PairSeen():
            models.observe(Observed(change.workload, change.partner, change.gpu_type, change.speed))
        case GpuMemorySeen(job=job):
            attempts.note_memory(change)
            state.raise_gpu_need(seq_of[job], change.gpu_memory_mib)
        case JobUnshared(job=job):
            attempts.unshared.add(job)
            state.unshare_job(seq_of[job])
        case JoinsLimited(name=name, most_mib=most_mib):
            state.limit_joins(nodes[name].number, most_mib)
        case JobUpdated(job=job):
            seq = seq_of.get(job, NO_SEQ)
            change_ledger(
                state,
                priorities,
                gates,
                seq,
                specs.get(job),
                change,
                now_s,
                learnt_gpu_mib=attempts.gpu_memory_mib.get(job, 0),
                alone=job in attempts.unshared,
            )
        case JobsRanked():
            priorities.rank(change, now_s)
        case JobCancelled(job=job) if job in seq_of:
            state.remove_waiting(seq_of[job])
            quotas.remove_cancelled(seq_of[job], now_s)
            models.remove_energy_weight(job)
            priorities.remove_ranked(job)
            gates.resolve_end(job, CANCELLED, now_s)
        case QuotaSet():
            quotas.set(change, now_s)
        case EligibilityReviewed():
            quotas.review_quotas(now_s)
            gates.open_due_gates(now_s)
        case EnergyPriced():
            models.limit_power(change.limit_w, change.limit_falls, soft=change.limit_soft)
            state.set_price(
                change.ratio, change.outlook, change.until_s, change.from_s, change.ahead, change.rank
            )
        case AttemptOver(job=job, outcome=outcome) if outcome == QUEUED:
            attempts.note(change)
            state.requeue(seq_of[job], now_s, change.gpu_memory_mib, alone=change.alone)
            quotas.return_gpus(seq_of[job], now_s, waits=True)
        case AttemptOver(job=job, outcome=outcome):
            state.release(seq_of[job], now_s, ended=outcome != CANCELLED)
            quotas.return_gpus(seq_of[job], now_s, waits=False)
            models.remove_energy_weight(job)
            priorities.remove_ranked(job)
            gates.resolve_end(job, outcome, now_s)
