"""Accounts: membership, charges and quotas."""

from __future__ import annotations

import pytest

from rlsched.broker.base.entries import MemberSet
from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Accounts,
    ClientReply,
    ListAccounts,
    Member,
    Ok,
    Refused,
    SetMember,
    SetQuota,
    Submit,
    Submitted,
)
from tests.support.broker.hand import make, state, submit
from tests.support.broker.hand_broker import HandBroker

ALICE = Peer("user", "laptop", "alice")


def ask(broker: HandBroker, message: Submit, by: Peer = ALICE) -> ClientReply:
    broker.batch([ClientAsked(b"peer", 1, message, by)])
    return broker.sent.replies[-1][2]


def join(broker: HandBroker, account: str, person: str = "alice", *, member: bool = True) -> ClientReply:
    return broker.ask(SetMember(account=account, person=person, member=member))


def charged(broker: HandBroker) -> list[str]:
    return [job.spec.account for job in broker.state.jobs.values()]


def test_job_is_charged_to_its_account_or_the_first_of_its_user(journal: Journal) -> None:
    broker = make(journal)
    ask(broker, submit())
    for account in ("ml", "hep"):
        assert join(broker, account) == Ok()
    ask(broker, submit())
    ask(broker, submit(account="hep"))
    join(broker, "ml", member=False)
    ask(broker, submit())
    assert charged(broker) == ["", "ml", "hep", "hep"]
    again = make(journal)
    assert charged(again) == charged(broker)
    assert again.ask(ListAccounts()) == Accounts(
        members=[Member(account="hep", person="alice", default=True)]
    )


def test_non_member_is_refused_in_one_line(journal: Journal) -> None:
    broker = make(journal)
    assert ask(broker, submit(account="ml")) == Refused(
        message="account 'ml': alice is a member of no account; an admin adds members with "
        "`rlsched quota account add`"
    )
    join(broker, "hep")
    reply = ask(broker, submit(account="ml"))
    assert isinstance(reply, Refused)
    assert reply.message.startswith("account 'ml': alice may charge jobs only to hep; an admin adds")
    assert broker.ask(submit(account="hep", user="alice")) == Submitted(job=1), "an admin on her behalf"
    assert isinstance(broker.ask(submit(account="hep", user="bob")), Refused)


def test_account_limits_all_its_members_together(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(SetQuota(kind="account", name="ml", gpus=3))
    join(broker, "ml")
    join(broker, "ml", "bob")
    ask(broker, submit(2))
    ask(broker, submit(2), Peer("user", "b", "bob"))
    assert [state(broker, job) for job in (1, 2)] == ["launching", "queued"]
    ask(broker, submit(1), Peer("user", "b", "bob"))
    assert state(broker, 3) == "launching"


def test_order_without_effect_is_not_journalled(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        assert join(broker, "ml") == Ok()
    assert sum(isinstance(row.entry, MemberSet) for row in journal.rows()) == 1
    assert join(broker, "ml", "bob", member=False) == Refused(message="bob is not a member of account ml")


@pytest.mark.parametrize(
    ("account", "person"), [("", "alice"), ("ml", ""), ("m\x1bl", "alice"), ("m" * 65, "a")]
)
def test_invalid_names_are_refused(broker: HandBroker, account: str, person: str) -> None:
    reply = join(broker, account, person)
    assert isinstance(reply, Refused)
    assert "expected 1 to 64 characters, no control characters" in reply.message


def test_submission_with_an_invalid_account_is_refused(broker: HandBroker) -> None:
    assert ask(broker, submit(account="a\nb")) == Refused(
        message="account must not contain control characters, got a\\nb"
    )
