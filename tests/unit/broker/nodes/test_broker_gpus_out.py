"""Nodes of rlsched with a lost GPU or a foreign process: only this GPU is out of service."""

from __future__ import annotations

import pytest

from rlsched.broker.events import NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.cli.shared.job_tables import node_lines
from rlsched.cli.users.status import problems
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    Explanation,
    Held,
    Hello,
    Holding,
    Launch,
    LaunchRefused,
    ListNodes,
    NodeInfo,
    Nodes,
    Stats,
    StatsReport,
    Why,
)
from tests.support.broker.hand import ended, launched, make, state, states, submit
from tests.support.broker.hand_broker import HandBroker

USED = "in use by process 4711 (python, 900 MiB), not started by rlsched"
LOST = "lost: NVML, memory(0,): GPU is lost"


def out(gpu: int = 1, why: str = USED) -> Held:
    return Held(held=[Holding(by=why, gpus=[gpu])])


def refused(job: int, attempt: int = 1, why: str = f"GPU 1 is {USED}") -> LaunchRefused:
    return LaunchRefused(job=job, attempt=attempt, rank=0, message=why, is_for_now=True)


def node(broker: HandBroker) -> NodeInfo:
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return nodes.nodes[0]


def why(broker: HandBroker, job: int) -> str:
    answer = broker.ask(Why(job=job))
    assert isinstance(answer, Explanation)
    return str(answer)


def gpus_of(answers: list[object]) -> list[list[int]]:
    return [one.gpus for one in answers if isinstance(one, Launch)]


def two_gpus(journal: Journal) -> HandBroker:
    broker = make(journal)
    broker.says("n0", Hello(name="n0", gpus=2))
    return broker


@pytest.mark.parametrize("reason", [USED, LOST])
def test_other_gpus_serve_and_the_failed_one_is_named(journal: Journal, reason: str) -> None:
    broker = two_gpus(journal)
    broker.says("n0", out(1, reason))
    broker.ask(submit())
    broker.says("n0", launched(1))
    broker.ask(submit())
    assert (state(broker, 1), state(broker, 2), states(broker)) == ("running", "queued", {"n0": "up"})
    assert (node(broker).free_gpus, node(broker).notes) == (0, [f"GPU 1: {reason}"])
    assert f"GPU 1: {reason}" in "\n".join(str(line) for line in node_lines([node(broker)], None))
    assert f"node n0, GPU 1: {reason}" in why(broker, 2)
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.gpus_out, stats.nodes_with_gpus_out) == (1, {"n0": f"GPU 1: {reason}"})
    assert problems(stats) == ["1 GPU is lost, or in use by a process that rlsched did not start"]
    assert gpus_of(broker.says("n0", Held(held=[]))) == [[1]]
    assert node(broker).notes == []


@pytest.mark.parametrize("together", [True, False])
def test_job_refused_for_such_a_gpu_waits_and_uses_no_retry(journal: Journal, together: bool) -> None:
    """The node reports the GPU as out of service before it refuses the job."""
    broker = two_gpus(journal)
    broker.ask(submit())
    broker.says("n0", launched(1))
    for attempt in range(1, 7):
        broker.ask(submit()) if attempt == 1 else None
        assert state(broker, 2) == "launching"
        if together:
            broker.batch([NodeSaid("n0", 0, out()), NodeSaid("n0", 0, refused(2, attempt))])
        else:
            broker.says("n0", out())
            broker.says("n0", refused(2, attempt))
        job = broker.state.jobs[2]
        assert (job.state, job.retries, states(broker)) == ("queued", 0, {"n0": "up"})
        assert "in use by process 4711" in why(broker, 2)
        broker.says("n0", Held(held=[]))
    broker.says("n0", launched(2, 7))
    broker.says("n0", ended(2, 7))
    assert (state(broker, 2), broker.state.jobs[2].exit_code) == ("completed", 0)


def test_job_starts_on_another_gpu_at_once(journal: Journal) -> None:
    broker = two_gpus(journal)
    broker.ask(submit())
    answers = broker.batch([NodeSaid("n0", 0, out(0)), NodeSaid("n0", 0, refused(1))])
    assert gpus_of(answers) == [[1]]


def test_refusal_for_another_reason_drains_the_node(journal: Journal) -> None:
    broker = two_gpus(journal)
    broker.says("n0", out(1))
    broker.ask(submit())
    broker.says("n0", refused(1, why="the disk is full"))
    assert states(broker) == {"n0": "drained"}


def test_gang_waits_for_the_whole_node_and_a_lost_node_returns(journal: Journal) -> None:
    broker = two_gpus(journal)
    broker.says("n0", out(0, LOST))
    broker.ask(submit(2))
    assert state(broker, 1) == "queued"
    broker.wait(60.0)
    assert states(broker) == {"n0": "unreachable"}
    broker.says("n0", Hello(name="n0", gpus=2, held=[Holding(by=LOST, gpus=[0])]))
    assert (state(broker, 1), states(broker)) == ("queued", {"n0": "up"})
    broker.says("n0", Hello(name="n0", gpus=2))
    assert state(broker, 1) == "launching", "it registers again without this GPU"


def test_replay_gives_the_same_cluster_and_decisions(journal: Journal) -> None:
    broker = two_gpus(journal)
    broker.says("n0", out(0))
    broker.ask(submit())
    broker.batch([NodeSaid("n0", 0, out(1, LOST)), NodeSaid("n0", 0, refused(1))])
    broker.ask(submit(2))
    broker.says("n0", Held(held=[]))
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert [(one.state_digest, one.action) for one in made] == [
        (one.state_digest, one.action) for one in records
    ]
