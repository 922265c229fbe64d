"""Helpers for job arrays."""

from __future__ import annotations

from rlsched.client.array_text import tasks_of
from rlsched.wire.messages import (
    JobInfo,
    Jobs,
    ListJobs,
)
from tests.support.broker.hand import TICK
from tests.support.broker.hand_broker import HandBroker
from tests.unit.broker.state.test_broker_gates import new


def array(broker: HandBroker, text: str, **facts: object) -> int:
    tasks, limit = tasks_of(text)
    return new(broker, tasks=tasks, array_limit=limit, **facts)


def info(broker: HandBroker, number: int, task: int | None = None) -> JobInfo:
    jobs = broker.ask(ListJobs(job=number, task=task))
    assert isinstance(jobs, Jobs), jobs
    return jobs.jobs[0]


def job_of(broker: HandBroker, number: int, task: int) -> int:
    return info(broker, number, task).job


def settle(broker: HandBroker) -> None:
    """Run batches until nothing is due."""
    while broker.machine.due_s() <= broker.machine.now_s:
        broker.batch([TICK])
