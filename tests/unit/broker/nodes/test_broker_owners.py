"""The launch names the job's user; a node without this account is not tried again and again."""

from __future__ import annotations

from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.nodes.launches import MAX_RETRIES, REFUSED_EXIT_CODE
from rlsched.transport.roles import Peer
from rlsched.wire.messages import BrokerToNode, ClientReply, Explanation, Launch, LaunchRefused, Why
from tests.support.broker.hand import ended, launched, make, state, states, submit
from tests.support.broker.hand_broker import HandBroker

ADA = Peer("user", "laptop", "ada")
ADMIN = Peer("admin", "default", "root")


def sent_by(broker: HandBroker, by: Peer, num_gpus: int = 1, user: str = "") -> list[Launch]:
    """The launch that follows a submission."""
    return launches(broker.batch([ClientAsked(b"peer", 1, submit(num_gpus, user=user), by)]))


def launches(out: list[ClientReply | BrokerToNode]) -> list[Launch]:
    return [message for message in out if isinstance(message, Launch)]


def refused(job: int = 1, attempt: int = 1, rank: int = 0) -> LaunchRefused:
    message = "ada has no account on this node"
    return LaunchRefused(job=job, attempt=attempt, rank=rank, message=message, is_about_owner=True)


def test_launch_has_the_user_of_the_key(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    sent = [*sent_by(broker, ADA), *sent_by(broker, ADA, user="ada"), *sent_by(broker, ADMIN, user="bob")]
    assert [launch.person for launch in sent] == ["ada", "ada", "bob"]
    assert sent_by(broker, ADA, user="bob") == [], "not the user in the message"


def test_job_of_an_unknown_user_fails_once_and_drains_no_node(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    sent_by(broker, ADA)
    assert launches(broker.says("n0", refused())) == []
    assert (state(broker, 1), broker.state.jobs[1].exit_code) == ("failed", REFUSED_EXIT_CODE)
    assert states(broker) == {"n0": "up", "n1": "up"}
    why = broker.ask(Why(job=1))
    assert isinstance(why, Explanation)
    assert "n0 refused to start it: ada has no account on this node" in str(why)


def test_both_nodes_of_a_gang_may_refuse(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    sent_by(broker, ADA, 8)
    broker.says("n0", refused())
    broker.says("n1", refused(rank=1))
    assert state(broker, 1) == "failed"
    assert states(broker) == {"n0": "up", "n1": "up"}


def test_node_without_the_account_is_drained_and_the_job_runs_elsewhere(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    (first,) = sent_by(broker, ADA, 4)
    knows, lacks = first.nodes[0], "n1" if first.nodes[0] == "n0" else "n0"
    broker.says(knows, launched(1))
    (second,) = sent_by(broker, ADA)
    assert second.nodes == [lacks]
    broker.says(lacks, refused(2))
    assert (state(broker, 2), states(broker)[lacks]) == ("queued", "drained")
    again = make(journal)
    assert again.state.ran_on == broker.state.ran_on, "the journal has it too"
    out = broker.says(knows, ended(1))
    assert [(launch.job, launch.nodes) for launch in launches(out)] == [(2, [knows])]


def test_node_without_the_account_is_not_tried_for_ever(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    (first,) = sent_by(broker, ADA, 4)
    knows, lacks = first.nodes[0], "n1" if first.nodes[0] == "n0" else "n0"
    broker.says(knows, launched(1))
    sent_by(broker, ADA)
    for attempt in range(1, MAX_RETRIES + 2):
        assert state(broker, 2) == "launching"
        broker.says(lacks, refused(2, attempt))
        while state(broker, 2) == "queued":
            broker.wait(1.0, "n0", "n1")
    assert state(broker, 2) == "failed"


def test_temporarily_missing_account_uses_no_retry(journal: Journal) -> None:
    """The node has run jobs of this user before; for example, its directory service is down."""
    broker = make(journal, nodes=1)
    sent_by(broker, ADA)
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    sent_by(broker, ADA)
    for attempt in range(1, MAX_RETRIES + 4):
        assert state(broker, 2) == "launching"
        broker.says("n0", refused(2, attempt))
        assert (state(broker, 2), states(broker)["n0"]) == ("queued", "drained")
        while state(broker, 2) == "queued":
            broker.wait(1.0, "n0")
    broker.says("n0", launched(2, MAX_RETRIES + 4))
    assert state(broker, 2) == "running"
