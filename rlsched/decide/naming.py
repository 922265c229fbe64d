"""What people call the jobs and nodes of a decision record, beside the numbers of the cluster's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from rlsched.decide.actions import Preempt, Start
from rlsched.decide.record import DecisionRecord, Names

JobName = Callable[[int], str]
"""What people call a job, by its number in the cluster's state."""


def with_names(record: DecisionRecord, job_name: JobName, node_names: Sequence[str]) -> DecisionRecord:
    """The record with its jobs and nodes named; as it is where a name cannot be found."""
    try:
        names = Names(
            jobs={seq: job_name(seq) for seq in sorted({*_jobs(record)} - {-1})},
            nodes={node: node_names[node] for node in sorted({*_nodes(record)} - {-1})},
        )
    except Exception:  # what a record cannot say does not stop a decision
        return record
    return msgspec.structs.replace(record, names=names)


def _jobs(record: DecisionRecord) -> Iterator[int]:
    yield record.turn
    if isinstance(record.action, Start):
        yield from (record.action.seq, record.action.share_with)
    elif isinstance(record.action, Preempt):
        yield from (record.action.seq, record.action.moved_for)
    for half in record.halves:
        yield from half.seqs
    for plan in record.plans:
        yield plan.share_with


def _nodes(record: DecisionRecord) -> Iterator[int]:
    if isinstance(record.action, Start):
        yield record.action.node
    for half in record.halves:
        yield from half.nodes
