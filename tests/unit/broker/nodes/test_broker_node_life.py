"""Operators drain, resume, requeue and remove nodes."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
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
from tests.support.broker.hand_broker import HandBroker


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


def test_drained_node_keeps_its_job_and_gets_no_other_until_resumed(broker: HandBroker) -> None:
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


def test_drain_survives_restarts_of_daemon_machine_and_broker(broker: HandBroker, journal: Journal) -> None:
    broker.ask(DrainNode(node="n0", reason="new driver"))
    broker.says("n0", Leaving(name="n0"))
    assert states(broker)["n0"] == "unreachable"
    assert broker.ask(DownNode(node="n0")) == Ok()
    assert states(broker)["n0"] == "down"
    again = make(journal)
    assert states(again)["n0"] == "down"
    again.says("n0", hello("n0", cluster="c1"))
    assert (states(again)["n0"], reasons(again)["n0"]) == ("drained", "new driver")


def test_drain_with_requeue_requeues_jobs_without_using_retries(broker: HandBroker) -> None:
    broker.ask(DrainNode(node="n0", reason="power off", requeue=True))
    kills = [order for name, order in broker.sent.orders if name == "n0" and isinstance(order, Kill)]
    assert [(kill.job, kill.grace_s) for kill in kills] == [(1, LIMITS.grace_s)]
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("launching", 0)
    assert broker.state.jobs[1].attempt.ranks[0].node == "n1"  # type: ignore[union-attr]


def test_only_an_unreachable_node_can_be_removed(broker: HandBroker) -> None:
    refused = broker.ask(RemoveNode(node="n0"))
    assert isinstance(refused, Refused)
    assert "drain it (`rlsched node drain n0`), and stop its daemon" in refused.message
    broker.says("n0", Leaving(name="n0"))
    assert broker.ask(RemoveNode(node="n0", reason="sold")) == Ok()
    assert set(states(broker)) == {"n1"}
    assert broker.state.jobs[1].attempt.ranks[0].node == "n1", "it restarts elsewhere"  # type: ignore[union-attr]
    missing = broker.ask(DrainNode(node="n0"))
    assert isinstance(missing, Refused)
    assert "there is no node 'n0'" in missing.message
    broker.says("n0", hello("n0", cluster="c1"))
    assert states(broker) == {"n0": "up", "n1": "up"}, "it may return"


def test_job_that_only_removed_nodes_could_run_is_refused(broker: HandBroker) -> None:
    assert isinstance(broker.ask(submit(8)), Submitted)
    broker.says("n0", Leaving(name="n0"))
    for _ in range(2):  # the first hello ends its jobs
        broker.says("n0", hello("n0", 2, cluster="c1"))
    refused = broker.ask(submit(8))
    assert isinstance(refused, Refused), "it has returned with two GPUs"
    assert "8 GPUs can never be given together: its nodes have 4 + 2 GPUs" in refused.message
    assert isinstance(broker.ask(submit(6)), Submitted)
    broker.says("n0", Leaving(name="n0"))
    assert broker.ask(RemoveNode(node="n0")) == Ok()
    assert isinstance(broker.ask(submit(6)), Refused), "it was removed"


def test_removed_node_must_kill_its_running_jobs(broker: HandBroker) -> None:
    broker.says("n0", Leaving(name="n0"))
    broker.ask(RemoveNode(node="n0"))
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, report, cluster="c1", epoch=1))
    assert out[0].forget == [(1, 1)]  # type: ignore[union-attr]


@pytest.mark.parametrize("order", [ResumeNode(node="n0"), ResumeNode(node="n9"), RemoveNode(node="n9")])
def test_impossible_operations_are_refused(broker: HandBroker, order: ResumeNode | RemoveNode) -> None:
    refused = broker.ask(order)
    assert isinstance(refused, Refused)
    assert order.node in refused.message


def test_operators_orders_are_replayed_from_the_journal(broker: HandBroker, journal: Journal) -> None:
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


# ---- a node that registers with other GPUs ----------------------------------------------------------------


def test_node_that_lost_a_gpu_registers_with_the_rest(journal: Journal) -> None:
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


def test_its_jobs_are_requeued_before_it_registers(broker: HandBroker) -> None:
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
    assert broker.sent.dropped == ["n0"], "so that it sends another hello"
    broker.says("n0", hello("n0", 8, cluster="c1", epoch=1))
    assert states(broker) == {"n0": "up", "n1": "up"}
    broker.ask(submit(8))
    assert state(broker, 2) == "launching"


def test_jobs_are_requeued_if_the_numbers_of_mig_instances_changed(journal: Journal) -> None:
    """Admins remove and create instances: number 1 may be another instance after a restart of the daemon."""
    broker = make(journal, nodes=0)
    before = msgspec.structs.replace(hello("n0", 2, cluster="c1"), gpu_uuids=["MIG-a", "MIG-b"])
    broker.says("n0", before)
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    running = AttemptReport(job=1, attempt=1, rank=0, state="running")
    report = {"attempts": [running], "epoch": 1}
    out = broker.says("n0", msgspec.structs.replace(before, **report))
    assert [type(message) for message in out] == [Welcome]
    out = broker.says("n0", msgspec.structs.replace(before, gpu_uuids=["MIG-c", "MIG-a"], **report))
    assert [type(message) for message in out] == [Welcome, Kill]
    assert "n0 came back with other MIG instances" in reasons(broker)["n0"]
