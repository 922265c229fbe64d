"""Converts facts (journal entries) to job and node events for the store of decisions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlsched.broker.base.entries import (
    AttemptOver,
    Decided,
    Entry,
    JobCancelled,
    JobSubmitted,
    NodeEntry,
    TaskSubmitted,
)
from rlsched.decide.actions import Start
from rlsched.decisions.outlook import UNKNOWN, Outlook, outlook
from rlsched.decisions.schema import JobEvent, JobKind, NodeChange
from rlsched.wire.states import REJECTED

if TYPE_CHECKING:
    from rlsched.broker.state.broker_state import BrokerState
    from rlsched.broker.state.jobs import Job
    from rlsched.broker.state.nodes import Node
    from rlsched.decide.record import DecisionRecord

Happened = JobEvent | NodeChange


def events_of_fact(
    entry: Entry, state: BrokerState, now_s: float, record: DecisionRecord | None = None
) -> list[Happened]:
    """Return the job and node events that a fact (journal entry) causes; most facts cause none.

    Args:
        entry: The fact.
        state: The state just after this fact.
        now_s: Time of the fact, Unix seconds.
        record: Record of the decision, if the fact is a decision and has one.
    """
    match entry:
        case JobSubmitted() if entry.tasks:
            return []  # only its tasks are jobs
        case JobSubmitted() | TaskSubmitted():
            job = state.jobs[entry.job]
            events: list[Happened] = [_event(job, "submit", now_s, predicted_s=entry.predicted_s)]
            return [*events, _event(job, "end", now_s)] if job.state == REJECTED else events
        case JobCancelled(job=number) if number in state.jobs:
            return [_event(state.jobs[entry.job], "end", now_s)]
        case Decided(action=Start() as start):
            job = state.job_of_seq[start.seq]
            found = outlook(record, counts_cores=False)
            return [_started(job, now_s, start.share_milli, start.sm_clock_frac, found)]
        case AttemptOver():
            job = state.jobs[entry.job]
            assert job.attempt is not None
            attempt = job.attempt
            return [
                _event(
                    job,
                    "end",
                    now_s,
                    attempt=attempt.number,
                    run_s=attempt.run_s,
                    energy_j=attempt.energy_j,
                    speed_frac=attempt.speed_frac,
                )
            ]
        case node_entry if isinstance(node_entry, NodeEntry):
            return [_of_node(state.nodes[node_entry.name], now_s)]
    return []


def as_it_stands(state: BrokerState) -> list[Happened]:
    """Return the first events of a new store: states of nodes, and submissions and starts of live jobs."""
    found: list[Happened] = [_of_node(node, state.now_s) for node in state.nodes.values()]
    for job in state.job_of_seq.values():
        found.append(_event(job, "submit", job.submit_s, predicted_s=job.spec.predicted_s))
        attempt = job.active
        if attempt is not None:
            share_milli = int(state.cluster.arrays.job.share_milli[state.cluster.slot_of(job.seq)])
            found.append(_started(job, attempt.start_s, share_milli, attempt.sm_clock_frac))
    return found


def _of_node(node: Node, now_s: float) -> NodeChange:
    return NodeChange(
        time_s=now_s,
        node=node.spec.name,
        num_gpus=node.spec.gpus,
        gpu_type=node.spec.gpu_type,
        state="removed" if node.removed else node.state,
        reason=node.reason,
    )


def _event(
    job: Job,
    kind: JobKind,
    now_s: float,
    *,
    predicted_s: float = math.nan,
    attempt: int = 0,
    run_s: float = math.nan,
    energy_j: float | None = None,
    speed_frac: float | None = None,
) -> JobEvent:
    ends = kind == "end"
    return JobEvent(
        time_s=now_s,
        kind=kind,
        job=job.called,
        name=job.spec.name,
        user=job.spec.user,
        vc=job.spec.vc,
        num_gpus=float(job.spec.num_gpus),
        predicted_s=predicted_s,
        attempt=attempt,
        state=job.state if ends else "",
        reason=job.reason if ends else "",
        run_s=run_s,
        energy_j=math.nan if energy_j is None else energy_j,
        speed_frac=math.nan if speed_frac is None else speed_frac,
    )


def _started(
    job: Job, now_s: float, share_milli: int, sm_clock_frac: float, expected: Outlook = UNKNOWN
) -> JobEvent:
    assert job.attempt is not None
    ranks = job.attempt.ranks
    return JobEvent(
        time_s=now_s,
        kind="start",
        job=job.called,
        name=job.spec.name,
        user=job.spec.user,
        vc=job.spec.vc,
        num_gpus=float(job.spec.num_gpus),
        attempt=job.attempt.number,
        nodes=[rank.node for rank in ranks for _ in rank.gpus],
        gpus=[gpu for rank in ranks for gpu in rank.gpus],
        share_milli=share_milli,
        sm_clock_frac=sm_clock_frac,
        predicted_speed_frac=expected.speed_frac,
        predicted_energy_j=expected.energy_j,
    )
