"""Helpers for jobs with holds, begin times and dependencies."""

from __future__ import annotations

from rlsched.broker.events import ClientAsked
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    ClientReply,
    ClientRequest,
    DependsOn,
    Jobs,
    ListJobs,
    Refused,
    Submitted,
)
from tests.support.broker.hand import ended, launched, submit
from tests.support.broker.hand_broker import HandBroker

ALICE, ADMIN = Peer("user", "laptop", "alice"), Peer("admin", "desk", "root")
POLICY = "qssf-backfill"


def ask(broker: HandBroker, message: ClientRequest, by: Peer = ALICE) -> ClientReply:
    broker.batch([ClientAsked(b"peer", 7, message, by)])
    return broker.sent.replies[-1][2]


def new(broker: HandBroker, **facts: object) -> int:
    reply = ask(broker, submit(**facts))  # type: ignore[arg-type]
    assert isinstance(reply, Submitted), reply
    return reply.job


def refused(broker: HandBroker, message: ClientRequest, by: Peer = ALICE) -> str:
    reply = ask(broker, message, by)
    assert isinstance(reply, Refused)
    return reply.message


def reason(broker: HandBroker, job: int) -> str:
    jobs = broker.ask(ListJobs(job=job))
    assert isinstance(jobs, Jobs)
    return jobs.jobs[0].reason


def finish(broker: HandBroker, job: int, exit_code: int = 0) -> None:
    attempt = broker.state.jobs[job].active
    assert attempt is not None
    broker.says("n0", launched(job, attempt.number))
    broker.says("n0", ended(job, attempt.number, exit_code=exit_code))


def on(kind: str, *jobs: int) -> list[DependsOn]:
    return [DependsOn(kind, job) for job in jobs]  # type: ignore[arg-type]
