"""Health checks of nodes: a failed check drains the node until it passes; an operator's drain is separate."""

from __future__ import annotations

import math

import msgspec

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    DrainNode,
    Explanation,
    Heartbeat,
    ListNodes,
    NodeInfo,
    Nodes,
    Ok,
    Refused,
    ResumeNode,
    Stats,
    StatsReport,
    Welcome,
    Why,
)
from tests.support.broker.hand import ended, hello, launched, make, state, states, submit
from tests.support.broker.hand_broker import HandBroker

SICK = Heartbeat(name="n0", unhealthy="health check: no scratch")
WELL = Heartbeat(name="n0")


def node(broker: HandBroker, name: str = "n0") -> NodeInfo:
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return next(found for found in nodes.nodes if found.name == name)


def report(broker: HandBroker) -> StatsReport:
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    return stats


def test_node_with_a_failed_check_gets_no_new_jobs_until_it_passes(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    broker.says("n0", SICK)
    broker.ask(submit())
    assert (state(broker, 1), state(broker, 2)) == ("running", "queued")
    assert (node(broker).state, node(broker).reason) == ("drained", "health check: no scratch")
    why = broker.ask(Why(job=2))
    assert isinstance(why, Explanation)
    assert "n0 gets no new jobs until its own checks pass: health check: no scratch" in str(why)
    assert (report(broker).unhealthy_nodes, report(broker).health_failures) == (1, 1)
    broker.wait(10.0)
    broker.says("n0", WELL)
    assert (state(broker, 2), states(broker)) == ("launching", {"n0": "up"})
    assert (report(broker).unhealthy_nodes, report(broker).health_failures) == (0, 1)


def test_repeated_health_report_is_not_journalled_and_a_new_one_is(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.says("n0", SICK)
    before = sum(1 for _ in journal.rows())
    broker.says("n0", SICK)
    assert sum(1 for _ in journal.rows()) == before
    broker.says("n0", Heartbeat(name="n0", unhealthy="health check: \x1b[31mGPU"))
    assert sum(1 for _ in journal.rows()) == before + 1
    assert node(broker).reason == "health check: \\x1b[31mGPU"
    assert report(broker).health_failures == 1, "it continued"


def test_operators_drain_stays_when_the_check_passes(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(DrainNode(node="n0", reason="new driver"))
    broker.says("n0", SICK)
    assert node(broker).reason == "new driver; health check: no scratch"
    broker.says("n0", WELL)
    assert (node(broker).state, node(broker).reason) == ("drained", "new driver")
    assert broker.ask(ResumeNode(node="n0")) == Ok()
    assert states(broker) == {"n0": "up"}


def test_operator_cannot_resume_an_unhealthy_node(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.says("n0", SICK)
    refused = broker.ask(ResumeNode(node="n0"))
    assert isinstance(refused, Refused)
    assert "health check: no scratch" in refused.message
    broker.ask(DrainNode(node="n0", reason="new driver"))
    assert broker.ask(ResumeNode(node="n0")) == Ok()
    assert (node(broker).state, node(broker).reason) == ("drained", "health check: no scratch")


def test_node_that_registers_unhealthy_gets_no_job(journal: Journal) -> None:
    broker = make(journal)
    broker.ask(submit())
    sick = msgspec.structs.replace(hello("n0"), unhealthy="health check: no", notes=["no control groups"])
    broker.says("n0", sick)
    assert (state(broker, 1), states(broker)) == ("queued", {"n0": "drained"})
    assert node(broker).notes == ["no control groups"]
    other = msgspec.structs.replace(sick, gpus=8)
    broker.says("n0", other)
    assert (state(broker, 1), states(broker)) == ("queued", {"n0": "drained"}), "with other GPUs too"
    broker.says("n0", hello("n0", 8))
    assert (state(broker, 1), node(broker).notes) == ("launching", [])


def test_replay_gives_the_same_cluster_and_decisions(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    for gpus in (3, 2, 4):
        broker.ask(submit(gpus))
    broker.says("n0", SICK)
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    broker.ask(submit(1))
    broker.says("n0", WELL)
    broker.says("n0", SICK)
    records = [record for kept in broker.records for record in kept.records]
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert (states(again)["n0"], report(again).health_failures) == ("drained", 2)
    made = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(made) == len(records) > 3
    for theirs, ours in zip(records, made, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs


def test_power_is_that_of_the_last_heartbeat(broker: HandBroker) -> None:
    def power_w() -> float | None:
        page = broker.ask(ListNodes())
        assert isinstance(page, Nodes)
        return page.nodes[0].power_w

    sent = broker.says("n0", hello("n0"))
    assert [message.hears_power for message in sent if isinstance(message, Welcome)] == [True]
    assert power_w() is None
    broker.says("n0", Heartbeat(name="n0", power_w=1_206.0))
    assert power_w() == 1_206.0
    for nonsense in (math.nan, math.inf, -1.0, None):
        broker.says("n0", Heartbeat(name="n0", power_w=7.0))
        broker.says("n0", Heartbeat(name="n0", power_w=nonsense))
        assert power_w() is None
