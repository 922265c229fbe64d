"""A broker's journal as inputs and decisions, so that a simulator can be fed with the same life."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from rlsched.broker.clocks import Clocks, workload_number
from rlsched.broker.entries import (
    AttemptOver,
    BrokerStarted,
    Decided,
    JobCancelled,
    JobsRanked,
    JobSubmitted,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeRemoved,
    NodeResumed,
    NodeUp,
)
from rlsched.broker.journal import read_journal
from rlsched.broker.nodes import Node, NodeChange, change_node
from rlsched.broker.priorities import Priorities
from rlsched.broker.records import RECORDS_FILE
from rlsched.cluster.state import ClusterState
from rlsched.decide.loop import decide_all
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.record import DecisionRecord, read_records
from rlsched.decide.scheduler import Scheduler, permit

JOURNAL_FILE = "journal.sqlite"
Change = NodeChange | JobSubmitted | JobCancelled | JobsRanked | AttemptOver


@dataclass
class Instant:
    """What one batch did to the cluster: first the changes, in order, then the decisions.

    Attributes:
        now_s: Unix seconds.
        changes: `NodeUp` of a node that is known and not down changes nothing but is a decision point.
            `JobSubmitted` with `rejected` does not enter the cluster. `AttemptOver` with outcome `queued`
            requeues its job, any other releases it; a preempted job has lost its GPUs before.
        decisions: In order; the first has the number that the state counted before.
        speed_energy: What energy counts from now on, before all changes; None: as before.
    """

    now_s: float
    changes: list[Change] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    speed_energy: float | None = None


@dataclass
class JournalEvents:
    """A whole journal.

    Attributes:
        instants: In order; `now_s` grows.
        seq_of: Job number -> number in the `ClusterState`, of the jobs that entered it.
        starts: Each start of a broker.
    """

    instants: list[Instant] = field(default_factory=list)
    seq_of: dict[int, int] = field(default_factory=dict)
    starts: list[BrokerStarted] = field(default_factory=list)

    @property
    def decisions(self) -> list[Decided]:
        """All decisions, in order."""
        return [decision for instant in self.instants for decision in instant.decisions]


def journal_events(path: str | Path) -> JournalEvents:
    """Read a journal (or the broker's directory that holds it), also of a broker that runs.

    Raises:
        JournalError: there is none, or it is damaged.
    """
    path = Path(path)
    events = JournalEvents()
    for row in read_journal(path / JOURNAL_FILE if path.is_dir() else path):
        entry = row.entry
        if isinstance(entry, BrokerStarted):
            weighed = events.starts[-1].speed_energy if events.starts else 0.0
            events.starts.append(entry)
            if entry.speed_energy == weighed:
                continue
        elif not isinstance(entry, Change | Decided):
            continue
        if not events.instants or events.instants[-1].now_s != row.now_s:
            events.instants.append(Instant(row.now_s))
        if isinstance(entry, BrokerStarted):
            events.instants[-1].speed_energy = entry.speed_energy
            continue
        if isinstance(entry, Decided):
            events.instants[-1].decisions.append(entry)
            continue
        events.instants[-1].changes.append(entry)
        if isinstance(entry, JobSubmitted) and not entry.rejected:
            events.seq_of[entry.job] = len(events.seq_of)
    return events


def records_by_number(directory: str | Path) -> dict[int, DecisionRecord]:
    """The decision records of a broker's directory."""
    return {record.number: record for record in read_records(Path(directory) / RECORDS_FILE)}


def redecide(events: JournalEvents, scheduler: Scheduler) -> list[DecisionRecord]:
    """What a scheduler decides on a fresh state to which the journal's changes happen.

    A deterministic scheduler that made the journal's decisions makes them again, bit for bit.
    """
    state = ClusterState.empty(OrderedQueue(scheduler.order))
    permit(state, scheduler)
    state.stops_take_time = True
    clocks, priorities = Clocks(state), Priorities(state)
    names = {seq: str(job) for job, seq in events.seq_of.items()}
    nodes: dict[str, Node] = {}
    records: list[DecisionRecord] = []
    for instant in events.instants:
        if instant.speed_energy is not None:
            clocks.weigh(instant.speed_energy)
        for change in instant.changes:
            _happen(state, clocks, priorities, nodes, events.seq_of, change, instant.now_s)
        rejected = [isinstance(change, JobSubmitted) and change.rejected for change in instant.changes]
        if instant.decisions or not all(rejected):
            made = decide_all(state, scheduler, instant.now_s, record=True, job_name=names.__getitem__)
            records += [decision.record for _, decision in made if decision.record]
    return records


def _happen(
    state: ClusterState,
    clocks: Clocks,
    priorities: Priorities,
    nodes: dict[str, Node],
    seq_of: dict[int, int],
    change: Change,
    now_s: float,
) -> None:
    match change:
        case NodeUp() | NodeAway() | NodeDown() | NodeDrained() | NodeResumed() | NodeRemoved():
            change_node(nodes, state, clocks, change)
        case JobSubmitted(rejected=""):
            level, ln_weight = priorities.of(change)
            seq = state.add_job(
                num_gpus=change.num_gpus,
                vc=change.vc,
                submit_s=now_s,
                spread=change.spread,
                predicted_s=change.predicted_s,
                time_limit_s=math.nan if change.time_limit_s is None else change.time_limit_s,
                preemptible=change.preemptible,
                workload=workload_number(change.workload),
                energy_weight=change.speed_energy,
                level=level,
                ln_weight=ln_weight,
            )
            clocks.came(change.job, change.speed_energy)
            priorities.came(change, seq)
        case JobsRanked():
            priorities.rank(change, now_s)
        case JobCancelled(job=job):
            state.remove_waiting(seq_of[job])
            clocks.gone(job)
            priorities.gone(job)
        case AttemptOver(job=job, outcome="queued"):
            state.requeue(seq_of[job], now_s)
        case AttemptOver(job=job, outcome=outcome):
            state.release(seq_of[job], now_s, ended=outcome != "cancelled")
            clocks.gone(job)
            priorities.gone(job)
