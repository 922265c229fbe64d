"""What operators do with nodes."""

from __future__ import annotations

import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.server.fakes import HandBroker
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    DownNode,
    DrainNode,
    Kill,
    Leaving,
    ListNodes,
    Nodes,
    Ok,
    Refused,
    RemoveNode,
    ResumeNode,
    Submitted,
    Welcome,
)
from tests.support.broker.hand import LIMITS, ended, hello, launched, make, state, states, submit


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    """Job 1 runs on n0; n1 is empty."""
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    return broker


def reasons(broker: HandBroker) -> dict[str, str]:
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return {node.name: node.reason for node in nodes.nodes}


def test_a_drained_node_keeps_its_job_and_gets_no_other_until_it_is_resumed(broker: HandBroker) -> None:
    assert broker.ask(DrainNode(node="n0", reason="new driver")) == Ok()
    assert broker.ask(DrainNode(node="n1")) == Ok()
    assert states(broker) == {"n0": "drained", "n1": "drained"}
    assert reasons(broker) == {"n0": "new driver", "n1": "drained by an operator"}
    broker.ask(submit(1))
    broker.wait(100.0, "n0", "n1")
    assert (state(broker, 1), state(broker, 2)) == ("running", "queued")
    assert broker.ask(ResumeNode(node="n1")) == Ok()
    assert state(broker, 2) == "launching"
    assert states(broker) == {"n0": "drained", "n1": "up"}


def test_a_drain_outlasts_daemon_reboot_and_broker(broker: HandBroker, journal: Journal) -> None:
    broker.ask(DrainNode(node="n0", reason="new driver"))
    broker.says("n0", Leaving(name="n0"))
    assert states(broker)["n0"] == "unreachable"
    assert broker.ask(DownNode(node="n0")) == Ok()
    assert states(broker)["n0"] == "down"
    again = make(journal)
    assert states(again)["n0"] == "down"
    again.says("n0", hello("n0", cluster="c1"))
    assert (states(again)["n0"], reasons(again)["n0"]) == ("drained", "new driver")


def test_maintenance_that_does_not_wait_queues_the_jobs_again_uncharged(broker: HandBroker) -> None:
    broker.ask(DrainNode(node="n0", reason="power off", requeue=True))
    kills = [order for name, order in broker.sent.orders if name == "n0" and isinstance(order, Kill)]
    assert [(kill.job, kill.grace_s) for kill in kills] == [(1, LIMITS.grace_s)]
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("launching", 0)
    assert broker.state.jobs[1].attempt.ranks[0].node == "n1"  # type: ignore[union-attr]


def test_a_node_that_lives_is_not_removed_and_one_that_is_gone_is(broker: HandBroker) -> None:
    refused = broker.ask(RemoveNode(node="n0"))
    assert isinstance(refused, Refused)
    assert "drain it (`rlsched node drain n0`), and stop its daemon" in refused.message
    broker.says("n0", Leaving(name="n0"))
    assert broker.ask(RemoveNode(node="n0", reason="sold")) == Ok()
    assert set(states(broker)) == {"n1"}
    assert broker.state.jobs[1].attempt.ranks[0].node == "n1", "it begins again elsewhere"  # type: ignore[union-attr]
    missing = broker.ask(DrainNode(node="n0"))
    assert isinstance(missing, Refused)
    assert "there is no node 'n0'" in missing.message
    broker.says("n0", hello("n0", cluster="c1"))
    assert states(broker) == {"n0": "up", "n1": "up"}, "it may come back"


def test_what_only_nodes_that_are_gone_could_hold_is_refused(broker: HandBroker) -> None:
    assert isinstance(broker.ask(submit(8)), Submitted)
    broker.says("n0", Leaving(name="n0"))
    for _ in range(2):  # the first ends what it had
        broker.says("n0", hello("n0", 2, cluster="c1"))
    refused = broker.ask(submit(8))
    assert isinstance(refused, Refused), "it has come back with two GPUs"
    assert "8 GPUs can never be given together: its nodes have 4 + 2 GPUs" in refused.message
    assert isinstance(broker.ask(submit(6)), Submitted)
    broker.says("n0", Leaving(name="n0"))
    assert broker.ask(RemoveNode(node="n0")) == Ok()
    assert isinstance(broker.ask(submit(6)), Refused), "it was removed"


def test_a_removed_node_is_told_to_end_what_it_still_runs(broker: HandBroker) -> None:
    broker.says("n0", Leaving(name="n0"))
    broker.ask(RemoveNode(node="n0"))
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, report, cluster="c1", epoch=1))
    assert out[0].forget == [(1, 1)]  # type: ignore[union-attr]


@pytest.mark.parametrize("order", [ResumeNode(node="n0"), ResumeNode(node="n9"), RemoveNode(node="n9")])
def test_what_cannot_be_done_is_said(broker: HandBroker, order: ResumeNode | RemoveNode) -> None:
    refused = broker.ask(order)
    assert isinstance(refused, Refused)
    assert order.node in refused.message


def test_operators_orders_are_decided_again_from_the_journal(broker: HandBroker, journal: Journal) -> None:
    broker.ask(DrainNode(node="n1"))
    for gpus in (1, 4):
        broker.ask(submit(gpus))
    broker.ask(ResumeNode(node="n1"))
    broker.says("n0", Leaving(name="n0"))
    broker.ask(RemoveNode(node="n0"))
    broker.says("n0", hello("n0", cluster="c1"))
    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert [record.action for record in made] == [record.action for record in records]
    assert [record.state_digest for record in made] == [record.state_digest for record in records]


# ---- a node that comes back with other GPUs ---------------------------------------------------------------


def test_a_node_that_lost_a_gpu_registers_with_what_it_has(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(DrainNode(node="n0", reason="a GPU fell off the bus"))
    broker.says("n0", hello("n0", 3, cluster="c1"))
    assert (states(broker)["n0"], reasons(broker)["n0"]) == ("drained", "a GPU fell off the bus")
    broker.ask(ResumeNode(node="n0"))
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    assert [(node.name, node.gpus, node.free_gpus) for node in nodes.nodes] == [("n0", 3, 3)]
    broker.ask(submit(3))
    assert state(broker, 1) == "launching"
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()


def test_its_jobs_begin_again_before_it_does(broker: HandBroker) -> None:
    running = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 8, running, cluster="c1", epoch=1))
    assert [type(message) for message in out] == [Welcome, Kill]
    assert (states(broker)["n0"], state(broker, 1)) == ("down", "running")
    assert "came back with 8 GPUs, and had 4" in reasons(broker)["n0"]
    broker.wait(1.0, "n0", "n1")
    assert broker.sent.dropped == []
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("launching", 0)
    broker.wait(1.0, "n0", "n1")
    assert broker.sent.dropped == ["n0"], "so that it says hello again"
    broker.says("n0", hello("n0", 8, cluster="c1", epoch=1))
    assert states(broker) == {"n0": "up", "n1": "up"}
    broker.ask(submit(8))
    assert state(broker, 2) == "launching"
