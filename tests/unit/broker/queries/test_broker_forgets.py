"""Ended jobs are dropped from memory, and queries about them are answered from the journal."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.events import ClientAsked, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Cancel,
    ClientReply,
    ClientRequest,
    EndedAck,
    Explanation,
    FetchLog,
    Jobs,
    Kill,
    ListJobs,
    LogChunk,
    LogData,
    ReadLog,
    Refused,
    Submitted,
    Why,
)
from tests.support.broker.hand import LIMITS, TICK, ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker

OVER = 12
ADA = Peer("user", "ada", "ada")


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    """OVER jobs of user ada have ended: completed, failed, cancelled or rejected. One job runs, one waits."""
    limits = msgspec.structs.replace(LIMITS, ended_s=60.0, ended_jobs=100, lost_after_s=10_000.0)
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=limits)
    broker.says("n0", hello("n0"))
    for job in range(1, OVER + 1):
        kind = job % 4
        broker.ask(submit(400 if kind == 3 else 4, token=f"token-{job}", user="ada", name=f"j{job}"))
        if kind == 2:
            broker.ask(Cancel(job=job))
            broker.says("n0", ended(job, exit_code=143, reason="killed"))
        elif kind < 2:
            broker.says("n0", launched(job))
            broker.says("n0", ended(job, exit_code=kind))
    broker.ask(submit(4, token="runs"))
    broker.says("n0", launched(OVER + 1))
    broker.ask(submit(4, token="waits"))
    return broker


def forget(broker: HandBroker) -> None:
    broker.wait(70.0, "n0")
    assert sorted(broker.state.jobs) == [OVER + 1, OVER + 2]
    assert sorted(broker.state.tokens) == ["runs", "waits"]


def asked_by(broker: HandBroker, who: Peer, question: ClientRequest) -> ClientReply:
    broker.batch([ClientAsked(b"peer", 1_000, question, who)])
    return broker.sent.replies[-1][2]


QUESTIONS: list[ClientRequest] = [
    ListJobs(finished=True, before=OVER + 1),
    ListJobs(finished=True, limit=3, before=9),
    *(ListJobs(job=job) for job in range(1, OVER + 1)),
    *(Why(job=job) for job in range(1, OVER + 1)),
    *(Cancel(job=job) for job in range(1, OVER + 1)),
    *(submit(1, token=f"token-{job}", user="ada") for job in range(1, OVER + 1)),
    ReadLog(job=2, rank=5),
    ReadLog(job=3),
    ListJobs(job=77),
    Why(job=77),
    Cancel(job=77),
    ReadLog(job=77),
]


def test_answers_are_unchanged(broker: HandBroker) -> None:
    eve = Peer("user", "eve", "eve")
    before = [broker.ask(question) for question in QUESTIONS]
    theirs = [asked_by(broker, eve, one) for one in (Cancel(job=1), ReadLog(job=1))]
    entries = broker.journal.last
    forget(broker)
    after = [broker.ask(question) for question in QUESTIONS]
    assert after == before
    assert [asked_by(broker, eve, one) for one in (Cancel(job=1), ReadLog(job=1))] == theirs
    assert isinstance(theirs[0], Refused)
    assert "is ada's" in theirs[0].message
    assert broker.journal.last == entries, "queries changed nothing"
    kinds = {type(reply) for reply in before}
    assert {Submitted, Jobs, Refused} < kinds


def test_output_can_still_be_read(broker: HandBroker) -> None:
    forget(broker)
    [fetch] = [
        one
        for one in broker.batch([ClientAsked(b"peer", 7, ReadLog(job=4), ADA)])
        if isinstance(one, FetchLog)
    ]
    assert (fetch.job, fetch.attempt) == (4, 1)
    request = broker.sent.requests[-1]
    broker.batch([])
    broker.batch([NodeSaid("n0", request, LogData(data=b"x", offset=0, eof=True))])
    assert broker.sent.replies[-1][2] == LogChunk(data=b"x", offset=0, eof=True, attempt=1)


def test_reports_of_nodes_about_them_are_answered(broker: HandBroker) -> None:
    forget(broker)
    assert isinstance(broker.says("n0", launched(4))[-1], Kill)
    assert isinstance(broker.says("n0", ended(4))[-1], EndedAck)
    assert broker.state.num_finished == OVER


def test_list_continues_from_memory_to_the_journal(broker: HandBroker) -> None:
    whole = broker.ask(ListJobs(finished=True))
    assert isinstance(whole, Jobs)
    forget(broker)
    again = broker.ask(ListJobs(finished=True))
    assert isinstance(again, Jobs)
    assert [job.job for job in again.jobs] == list(range(1, OVER + 3))
    assert again.jobs[:OVER] == whole.jobs[:OVER]
    assert again.omitted == 0


def test_at_most_this_many_are_kept_plus_those_of_this_instant(journal: Journal) -> None:
    limits = msgspec.structs.replace(LIMITS, ended_s=1e9, ended_jobs=3)
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=limits)
    broker.says("n0", hello("n0"))
    for job in range(1, 7):
        broker.ask(submit(1))
        broker.says("n0", launched(job))
        broker.says("n0", ended(job))
    asked = [ClientAsked(b"p", k, submit(400), Peer("admin", "p")) for k in range(5)]
    broker.batch([*asked, TICK])
    assert sorted(broker.state.jobs) == list(range(7, 12)), "their rows are not committed yet"
    broker.batch([TICK])
    assert sorted(broker.state.jobs) == [9, 10, 11]


def test_damaged_row_is_refused_in_one_line(broker: HandBroker) -> None:
    forget(broker)
    broker.journal._db.execute("UPDATE ended_jobs SET reason = 'other' WHERE job = 4")
    for question in (Why(job=4), ListJobs(finished=True), Cancel(job=4), submit(1, token="token-4")):
        reply = broker.ask(question)
        assert isinstance(reply, Refused)
        assert "the row of ended job 4 is damaged" in reply.message
    assert isinstance(broker.ask(Why(job=5)), Explanation)
    assert (broker.state.knows_token("token-4"), broker.state.knows_token("token-5")) == (False, True)
