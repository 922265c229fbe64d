"""Nodes that sleep, online: selection, wake-ups, failures, and recovery after a crash of the broker."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlsched.broker.compaction.compaction import DAY_S
from rlsched.broker.events import ClientAsked, Due, PowerDone, Tick
from rlsched.broker.forecasts.process import _FollowedBook
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.nodes.sleepers import SleepPlan
from rlsched.cli.operators.sleeping import sleep_plan
from rlsched.cluster.arrays import NODE_ASLEEP, NODE_UP
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    DrainNode,
    Explanation,
    Hello,
    Jobs,
    Leaving,
    ListJobs,
    ListNodes,
    Nodes,
    Ok,
    Refused,
    RemoveNode,
    ResumeNode,
    Submitted,
    Why,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import LIMITS, ended, hello, launched, state, states, submit
from tests.support.broker.hand_broker import HandBroker

SLEEP = SleepPlan(plan=sleep_plan(None, "2m"), suspend_timeout_s=30.0, resume_timeout_s=300.0)
NAMES = ("n0", "n1", "n2")


def broker_of(journal: Journal, sleep: SleepPlan | None = SLEEP) -> HandBroker:
    return HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, sleep=sleep)


def cluster(journal: Journal, sleep: SleepPlan = SLEEP, *nodes: Hello) -> HandBroker:
    broker = broker_of(journal, sleep)
    for node in nodes or map(hello, NAMES):
        broker.says(node.name, node)
    return broker


def powered(broker: HandBroker) -> list[tuple[str, str]]:
    """Power commands since the last call."""
    found = [(one.order, one.node) for one in broker.powered]
    broker.powered.clear()
    return found


def live(broker: HandBroker, seconds: float) -> None:
    """Time passes; the nodes that are up send heartbeats."""
    until_s = broker.now_s + seconds
    while broker.now_s < until_s:
        up = [name for name, is_now in states(broker).items() if is_now in ("up", "drained")]
        broker.wait(min(4.0, until_s - broker.now_s), *up)


def put_to_sleep(broker: HandBroker) -> None:
    """All nodes have been idle for long enough and are now off."""
    live(broker, 300.0)
    assert set(states(broker).values()) == {"asleep"}
    assert sorted(powered(broker)) == [("suspend", name) for name in NAMES]


def reason(broker: HandBroker, job: int) -> str:
    jobs = broker.ask(ListJobs(job=job))
    assert isinstance(jobs, Jobs)
    return jobs.jobs[0].reason


def node_reason(broker: HandBroker, name: str) -> str:
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return next(node.reason for node in nodes.nodes if node.name == name)


def woken(broker: HandBroker, name: str) -> None:
    broker.says(name, hello(name, cluster="c1"))


def test_node_that_is_idle_for_long_enough_sleeps(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(2))
    broker.says("n0", launched(1))
    live(broker, 100.0)
    assert powered(broker) == []
    live(broker, 100.0)
    assert states(broker) == {"n0": "up", "n1": "asleep", "n2": "asleep"}
    assert sorted(powered(broker)) == [("suspend", "n1"), ("suspend", "n2")]
    assert node_reason(broker, "n2").startswith("idle for 2 min")
    broker.says("n1", Leaving(name="n1"))
    live(broker, 1_000.0)
    assert states(broker) == {"n0": "up", "n1": "asleep", "n2": "asleep"}, (
        "no heartbeats, yet neither away nor down"
    )
    broker.says("n0", ended(1))
    live(broker, 100.0)
    assert states(broker)["n0"] == "up"
    live(broker, 100.0)
    assert states(broker)["n0"] == "asleep"
    assert powered(broker) == [("suspend", "n0")], "one command for each node"


def test_minimum_number_of_nodes_stays_awake(journal: Journal) -> None:
    plan = msgspec.structs.replace(SLEEP, keep_awake=1, exclude=["n[2-9]"])
    broker = cluster(journal, plan, *map(hello, ("n0", "n1", "n2", "n3")))
    live(broker, 400.0)
    assert states(broker) == {"n0": "asleep", "n1": "asleep", "n2": "up", "n3": "up"}
    plan = msgspec.structs.replace(SLEEP, keep_awake=3)
    again = broker_of(journal, plan)
    for name in ("n2", "n3"):
        woken(again, name)
    live(again, 30.0)
    assert states(again)["n0"] == "waking", "nodes are woken up to the minimum"
    assert powered(again) == [("resume", "n0")]


def test_job_that_needs_a_sleeping_node_wakes_it(journal: Journal) -> None:
    broker = cluster(journal)
    put_to_sleep(broker)
    asked = (submit(8), ListJobs(job=1), submit(13))
    broker.batch([ClientAsked(b"peer", at, one, Peer("admin", "hand")) for at, one in enumerate(asked)])
    jobs, submitted, refused = (broker.sent.replies[at][2] for at in (-1, -3, -2))
    assert isinstance(submitted, Submitted), "sleeping nodes count as available"
    assert isinstance(refused, Refused)
    assert isinstance(jobs, Jobs)
    assert jobs.jobs[0].reason == "NodeAsleep: waits for nodes n0, n1, n2 to be woken"
    assert broker.machine.due_s() == round(broker.now_s + 0.001, 3)
    broker.batch([Due()])
    assert states(broker) == {"n0": "waking", "n1": "waking", "n2": "asleep"}
    assert sorted(powered(broker)) == [("resume", "n0"), ("resume", "n1")]
    assert reason(broker, 1) == "NodeAsleep: waits for nodes n0, n1 to wake"
    why = broker.ask(Why(job=1))
    assert isinstance(why, Explanation)
    assert why.summary == "waits for nodes n0, n1 to wake"
    woken(broker, "n1")
    assert reason(broker, 1) == "NodeAsleep: waits for node n0 to wake"
    woken(broker, "n0")
    assert state(broker, 1) == "launching"
    live(broker, 400.0)
    assert states(broker) == {"n0": "up", "n1": "up", "n2": "asleep"}, "nodes with jobs never sleep"


def test_node_is_powered_up_only_once_it_is_off(journal: Journal) -> None:
    broker = cluster(journal)
    live(broker, 130.0)
    while "asleep" not in states(broker).values():
        live(broker, 1.0)
    slept_s = broker.now_s
    powered(broker)
    broker.ask(submit(4))
    broker.says("n0", hello("n0", cluster="c1"))
    live(broker, 2.0)
    assert states(broker)["n0"] == "waking", "its messages while it powers down are ignored"
    while not broker.powered:
        live(broker, 1.0)
    assert powered(broker) == [("resume", "n0")]
    assert 27.0 <= broker.now_s - slept_s <= 34.0
    woken(broker, "n0")
    assert state(broker, 1) == "launching"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (PowerDone("n0", "resume", "exit code 3: no such chassis"), "its resume command failed: exit code 3"),
        (PowerDone("n0", "resume", ""), "was woken, and did not register within 5 min"),
    ],
)
def test_node_that_does_not_wake_is_down_with_a_reason(journal: Journal, told: PowerDone, said: str) -> None:
    broker = cluster(journal)
    put_to_sleep(broker)
    broker.ask(submit(1))
    live(broker, 2.0)
    assert powered(broker) == [("resume", "n0")]
    broker.batch([told])
    if not told.error:
        live(broker, 290.0)
        assert states(broker)["n0"] == "waking"
        live(broker, 15.0)
    assert states(broker)["n0"] == "down"
    assert node_reason(broker, "n0").startswith(said)
    live(broker, 2.0)
    assert powered(broker) == [("resume", "n1")], "the job gets another node"
    assert isinstance(broker.ask(ResumeNode(node="n0")), Ok)
    assert powered(broker) == [("resume", "n0")], "an operator can retry"
    woken(broker, "n0")
    assert state(broker, 1) == "launching"


def test_node_that_fails_to_suspend_is_up_and_not_suspended_for_a_time(journal: Journal) -> None:
    broker = cluster(journal)
    live(broker, 130.0)
    while ("suspend", "n2") not in powered(broker):
        live(broker, 1.0)
    broker.batch([PowerDone("n2", "suspend", "exit code 1")])
    assert states(broker)["n2"] == "up"
    live(broker, 250.0)
    assert ("suspend", "n2") not in powered(broker)
    live(broker, 200.0)
    assert ("suspend", "n2") in powered(broker)


def test_node_that_keeps_sending_is_up(journal: Journal) -> None:
    broker = cluster(journal)
    live(broker, 130.0)
    while "asleep" not in states(broker).values():
        live(broker, 1.0)
    broker.wait(25.0, *NAMES)
    assert "asleep" in states(broker).values()
    broker.wait(10.0, "n1")
    assert states(broker) == {"n0": "asleep", "n1": "up", "n2": "asleep"}


def test_drained_sleeping_node_is_woken_only_after_resume(journal: Journal) -> None:
    broker = cluster(journal)
    put_to_sleep(broker)
    for name in ("n0", "n1"):
        assert isinstance(broker.ask(DrainNode(node=name, reason="new disk")), Ok)
    assert node_reason(broker, "n0").startswith("new disk; idle for")
    broker.ask(submit(4))
    broker.ask(submit(4))
    live(broker, 2.0)
    assert states(broker) == {"n0": "asleep", "n1": "asleep", "n2": "waking"}
    assert isinstance(broker.ask(ResumeNode(node="n0")), Ok)
    live(broker, 2.0)
    assert states(broker) == {"n0": "waking", "n1": "asleep", "n2": "waking"}, "a job needs it"
    for now in ("asleep", "waking"):
        assert isinstance(broker.ask(ResumeNode(node="n1")), Ok)
        assert states(broker)["n1"] == now, "it must be resumed first"
    refused = broker.ask(ResumeNode(node="n0"))
    assert isinstance(refused, Refused)
    assert "is waking already: jobs wait for it" in refused.message
    assert isinstance(broker.ask(RemoveNode(node="n1", reason="sold")), Ok)
    assert "n1" not in states(broker)


def test_crash_forgets_no_sleeping_node_and_repeats_no_finished_command(journal: Journal) -> None:
    broker = cluster(journal)
    put_to_sleep(broker)
    broker.ask(submit(4))
    live(broker, 2.0)
    assert powered(broker) == [("resume", "n0")]
    again = broker_of(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert states(again) == {"n0": "waking", "n1": "asleep", "n2": "asleep"}
    live(again, 60.0)
    assert powered(again) == [("resume", "n0")], (
        "commands that may not have run are run, and no node sleeps twice"
    )
    woken(again, "n0")
    assert state(again, 1) == "launching"


def test_crash_before_the_command_leaves_the_node_up_once_it_reports(journal: Journal) -> None:
    broker = cluster(journal)
    live(broker, 130.0)
    while "asleep" not in states(broker).values():
        live(broker, 1.0)
    again = broker_of(journal)
    assert set(states(again).values()) == {"asleep"}
    for name in NAMES:
        woken(again, name)
    assert set(states(again).values()) == {"asleep"}, "it may be powering down"
    again.wait(40.0, "n0", "n2")
    assert states(again) == {"n0": "up", "n1": "asleep", "n2": "up"}
    assert powered(again) == []


def test_broker_without_commands_reports_that_it_cannot_wake_a_node(journal: Journal) -> None:
    put_to_sleep(cluster(journal))
    again = broker_of(journal, None)
    again.batch([Tick()])
    assert set(states(again).values()) == {"down"}
    assert node_reason(again, "n0") == "asleep, and this broker has no command to wake it"
    refused = again.ask(ResumeNode(node="n0"))
    assert isinstance(refused, Refused)
    woken(again, "n0")
    assert states(again)["n0"] == "up"


def test_replay_decides_alike_also_after_compaction(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    broker = cluster(Journal(path))
    put_to_sleep(broker)
    broker.ask(submit(4))
    live(broker, 2.0)
    woken(broker, "n0")
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    records = [record for kept in broker.records for record in kept.records]
    again = redecide(journal_events(path), load_scheduler("fifo-backfill"))
    assert len(again) == len(records) > 0
    for theirs, ours in zip(records, again, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs
    live(broker, 2 * DAY_S / 100)
    broker.ask(submit(1, hold=True))
    digest, stood = broker.state.cluster.digest(), states(broker)
    broker.journal.close()
    with compacted(path, broker.now_s + DAY_S) as journal:
        later = broker_of(journal)
        assert later.state.cluster.digest() == digest
        assert states(later) == stood
        assert "asleep" in stood.values()


def test_forecasts_count_sleeping_nodes_and_not_drained_ones(journal: Journal) -> None:
    broker = cluster(journal)
    put_to_sleep(broker)
    broker.ask(DrainNode(node="n2"))
    broker.ask(submit(4))
    live(broker, 2.0)
    assert states(broker) == {"n0": "waking", "n1": "asleep", "n2": "asleep"}
    followed = _FollowedBook(load_scheduler("fifo-backfill"), "", None)
    followed.apply(list(journal.rows()), None)
    status = followed.state.cluster.arrays.node.status.tolist()
    assert status == [NODE_UP, NODE_UP, NODE_ASLEEP]
    woken(broker, "n0")
    rest = [row for row in journal.rows() if row.n > followed.last]
    followed.apply(rest, None)
    assert followed.state.jobs[1].state == "launching"
