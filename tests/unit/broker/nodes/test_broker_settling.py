"""Cost of a tick after a restore; new work waits for nodes that register after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JOURNAL_FILE, journal_events, redecide
from rlsched.broker.nodes.unknown_attempts import UnknownAttempts
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import DrainNode, Leaving, Release, ResumeNode
from tests.support.broker.hand import LIMITS, TICK, hello, make, state, states, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import actions


def test_tick_checks_settling_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert asked <= 3, "not once per job"
    broker.journal.close()


def restarted(journal: Journal, *left: str) -> HandBroker:
    """Three nodes of 4 GPUs, a gang for all of them ahead of a small job, both held.

    The nodes `away` leave, and the broker restarts; once the nodes `back` have registered, it can start both
    jobs.
    """
    broker = make(journal, nodes=3)
    broker.ask(submit(12, hold=True))
    broker.ask(submit(1, hold=True))
    for name in left:
        broker.says(name, Leaving(name=name))
    again = make(journal)
    for job in (1, 2):
        again.ask(Release(job=job))
    return again


def test_new_work_waits_for_returning_nodes(journal: Journal) -> None:
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


def test_wait_is_at_most_a_lease(journal: Journal) -> None:
    broker = restarted(journal, "n0", "n1", "n2")
    for name in ("n0", "n1"):
        broker.says(name, hello(name))
    broker.wait(LIMITS.lease_s, "n0", "n1")
    assert (states(broker)["n0"], states(broker)["n1"]) == ("up", "up")
    assert (state(broker, 1), state(broker, 2)) == ("queued", "launching")


def test_single_node_does_not_wait(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.says("n0", Leaving(name="n0"))
    again = make(journal)
    again.says("n0", hello("n0"))
    assert states(again)["n0"] == "up"


def test_orders_of_an_operator_meanwhile_are_kept(journal: Journal) -> None:
    broker = restarted(journal, "n0", "n1")
    broker.says("n0", hello("n0"))
    broker.ask(DrainNode(node="n0", reason="disk"))
    broker.says("n1", hello("n1"))
    assert states(broker) == {"n0": "drained", "n1": "up", "n2": "up"}
