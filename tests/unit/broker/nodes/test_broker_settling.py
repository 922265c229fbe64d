"""After a restore, what a tick costs; after a restart, how new work waits for the nodes that come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JOURNAL_FILE, journal_events, redecide
from rlsched.broker.nodes.unknown_attempts import UnknownAttempts
from rlsched.broker.server.fakes import HandBroker
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import DrainNode, Leaving, Release, ResumeNode
from tests.support.broker.hand import LIMITS, TICK, hello, make, state, states, submit
from tests.support.broker.preempting import actions


def test_a_tick_asks_once_what_has_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broker" / JOURNAL_FILE
    before = make(Journal(path), nodes=2)
    before.journal.close()
    back_up(path, tmp_path / "copy.sqlite")
    restore(tmp_path / "copy.sqlite", path.parent)
    broker = make(Journal(path), nodes=2)
    for node in ("n0", "n1"):
        broker.ask(ResumeNode(node=node))
    for _ in range(8):
        broker.ask(submit(1))
    assert sum(job.state == "launching" for job in broker.state.jobs.values()) == 8
    asked, settled_s = 0, UnknownAttempts.settled_s

    def counted(unknown_attempts: UnknownAttempts) -> float:
        nonlocal asked
        asked += 1
        return settled_s(unknown_attempts)

    monkeypatch.setattr(UnknownAttempts, "settled_s", counted)
    broker.batch([TICK])
    assert asked <= 3, "not once a job"
    broker.journal.close()


def restarted(journal: Journal, *left: str) -> HandBroker:
    """Three nodes of 4 GPUs, a gang for all of them ahead of a small job, both held; these nodes leave, and
    the broker is started again; it may start both jobs once these nodes are back."""
    broker = make(journal, nodes=3)
    broker.ask(submit(12, hold=True))
    broker.ask(submit(1, hold=True))
    for name in left:
        broker.says(name, Leaving(name=name))
    again = make(journal)
    for job in (1, 2):
        again.ask(Release(job=job))
    return again


def test_new_work_waits_for_the_nodes_that_come_back(journal: Journal) -> None:
    broker = restarted(journal, "n0", "n1", "n2")
    for name in ("n0", "n1"):
        broker.says(name, hello(name))
        assert states(broker)[name] == "drained"
        assert (state(broker, 1), state(broker, 2)) == ("queued", "queued")
    broker.says("n2", hello("n2"))
    assert states(broker) == dict.fromkeys(("n0", "n1", "n2"), "up")
    assert (state(broker, 1), state(broker, 2)) == ("launching", "queued")
    made = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert [record.action for record in made] == actions(journal)


def test_it_waits_for_a_lease_at_most(journal: Journal) -> None:
    broker = restarted(journal, "n0", "n1", "n2")
    for name in ("n0", "n1"):
        broker.says(name, hello(name))
    broker.wait(LIMITS.lease_s, "n0", "n1")
    assert (states(broker)["n0"], states(broker)["n1"]) == ("up", "up")
    assert (state(broker, 1), state(broker, 2)) == ("queued", "launching")


def test_one_node_that_comes_back_waits_for_nobody(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.says("n0", Leaving(name="n0"))
    again = make(journal)
    again.says("n0", hello("n0"))
    assert states(again)["n0"] == "up"


def test_what_an_operator_says_meanwhile_stands(journal: Journal) -> None:
    broker = restarted(journal, "n0", "n1")
    broker.says("n0", hello("n0"))
    broker.ask(DrainNode(node="n0", reason="disk"))
    broker.says("n1", hello("n1"))
    assert states(broker) == {"n0": "drained", "n1": "up", "n2": "up"}
