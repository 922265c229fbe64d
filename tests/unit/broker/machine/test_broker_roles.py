"""Permissions on jobs: they depend on the user of the key, not on the user in the message."""

from __future__ import annotations

import pytest

from rlsched.broker.events import ClientAsked, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.machine.log_reads import MAX_LOG_READS
from rlsched.transport.roles import Peer, Role, may_send
from rlsched.wire.messages import (
    Cancel,
    ClientReply,
    ClientRequest,
    DrainNode,
    FetchLog,
    Jobs,
    Join,
    ListJobs,
    ListQuotas,
    LogData,
    Message,
    Ok,
    ReadLog,
    Refused,
    RemoveNode,
    SetMember,
    SetQuota,
    Submitted,
    Why,
)
from tests.support.broker.hand import hello, make, state, submit
from tests.support.broker.hand_broker import HandBroker

ADA = Peer("user", "laptop", "ada")
BOB = Peer("user", "bob", "bob")
ROOT = Peer("admin", "default", "root")
QUOTA, MEMBER = SetQuota(kind="user", name="bob", gpus=9), SetMember(account="ml", person="bob")


def ask(broker: HandBroker, by: Peer, message: ClientRequest) -> ClientReply | None:
    """The reply, or None if there is none yet."""
    before = len(broker.sent.replies)
    broker.batch([ClientAsked(b"peer", 1, message, by)])
    return broker.sent.replies[-1][2] if len(broker.sent.replies) > before else None


def test_job_belongs_to_the_user_of_the_key_also_in_the_journal(journal: Journal) -> None:
    broker = make(journal)
    assert ask(broker, ADA, submit()) == Submitted(job=1)
    assert ask(broker, ADA, submit(user="ada")) == Submitted(job=2)
    assert ask(broker, ROOT, submit()) == Submitted(job=3)
    assert ask(broker, ROOT, submit(user="ada")) == Submitted(job=4)
    again = make(journal)
    assert [job.spec.user for job in again.state.jobs.values()] == ["ada", "ada", "root", "ada"]


def test_reads_of_one_user_do_not_block_a_node(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    laptop, desk = ADA, Peer("user", "desk", "ada")
    ask(broker, laptop, submit())
    ask(broker, BOB, submit())
    for number in range(MAX_LOG_READS):
        assert ask(broker, (laptop, desk)[number % 2], ReadLog(job=1)) is None
    refused = ask(broker, desk, ReadLog(job=1))
    assert isinstance(refused, Refused)
    assert "16 of your output reads already wait for an answer" in refused.message
    assert ask(broker, BOB, ReadLog(job=2)) is None, "another user's"
    broker.batch([NodeSaid("n0", 1, LogData(data=b"x", offset=0, eof=False))])
    assert ask(broker, desk, ReadLog(job=1)) is None, "one read was answered"
    assert len([order for _, order in broker.sent.orders if isinstance(order, FetchLog)]) == MAX_LOG_READS + 2


def test_user_may_not_submit_as_another_user(broker: HandBroker) -> None:
    assert ask(broker, BOB, submit(user="ada")) == Refused(
        message="this key belongs to bob: only an admin may submit as 'ada'"
    )
    assert not broker.state.jobs


@pytest.mark.parametrize("message", [Cancel(job=1), ReadLog(job=1)], ids=["cancel", "logs"])
def test_only_its_user_and_admins_control_a_job(journal: Journal, message: ClientRequest) -> None:
    broker = make(journal, nodes=1)
    ask(broker, ADA, submit())
    reply = ask(broker, BOB, message)
    assert isinstance(reply, Refused)
    assert reply.message.startswith("job 1 is ada's, and this key is bob's: only ada and admins may")
    assert state(broker, 1) == "launching"
    assert not [order for _, order in broker.sent.orders if isinstance(order, FetchLog)]
    for by in (ADA, ROOT):
        assert not isinstance(ask(broker, by, message), Refused)


def test_guessed_job_number_in_the_batch_of_its_submission_is_refused(broker: HandBroker) -> None:
    broker.batch([ClientAsked(b"a", 1, submit(), ADA), ClientAsked(b"b", 2, Cancel(job=1), BOB)])
    assert state(broker, 1) == "queued"
    assert isinstance(broker.sent.replies[-1][2], Refused)


def test_every_user_may_call_why_and_list(broker: HandBroker) -> None:
    ask(broker, ADA, submit())
    jobs = ask(broker, BOB, ListJobs())
    assert isinstance(jobs, Jobs)
    assert [job.user for job in jobs.jobs] == ["ada"]
    assert not isinstance(ask(broker, BOB, Why(job=1)), Refused)


def test_admin_may_cancel_a_job_without_a_user(broker: HandBroker) -> None:
    broker.ask(submit(user=""))
    assert isinstance(ask(broker, BOB, Cancel(job=1)), Refused)
    assert ask(broker, ROOT, Cancel(job=1)) == Ok()


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("user", [submit(), Cancel(job=1), ListQuotas()], [DrainNode(node="n0"), QUOTA, MEMBER, hello("n")]),
        (
            "admin",
            [submit(), DrainNode(node="n0"), RemoveNode(node="n0"), QUOTA, MEMBER],
            [hello("n"), Join(public="")],
        ),
        ("node", [hello("n")], [submit(), ListJobs(), Join(public="")]),
        ("joining", [Join(public="")], [submit(), ListJobs(), hello("n")]),
    ],
)
def test_messages_that_each_role_may_send(role: Role, may: list[Message], may_not: list[Message]) -> None:
    assert [may_send(role, message) for message in may] == [True] * len(may)
    assert [may_send(role, message) for message in may_not] == [False] * len(may_not)
