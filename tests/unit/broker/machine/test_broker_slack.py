"""A broker whose policy orders jobs by slack: places change in time, and nothing is lost by a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.limits import Limits
from rlsched.broker.journal.journal import Journal
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import Explanation, Launch, Submitted, Update, Why
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import decided_alike, ended, hello, launched, pass_until, state, submit
from tests.support.broker.hand_broker import HandBroker

LIMITS = Limits(lease_s=1e6, heartbeat_s=1e5, launch_timeout_s=1e6)
POLICY = Policy("qssf-backfill", slack={"early_weight": 0.05, "late_weight": 4.0})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def make(journal: Journal, now_s: float = 1_000.0, policy: Policy = POLICY) -> HandBroker:
    return HandBroker(load_scheduler(policy), journal, limits=LIMITS, now_s=now_s)


def queue(broker: HandBroker, **more: object) -> int:
    reply = broker.ask(submit(4, time_limit_s=600.0, **more))
    assert isinstance(reply, Submitted), reply
    return reply.job


def full(journal: Journal) -> tuple[HandBroker, int, int, int]:
    """A broker with a full node, a job with slack 1,000 s, and two jobs that came before and after it."""
    broker = make(journal)
    broker.says("n0", hello("n0", 4))
    queue(broker)
    broker.says("n0", launched(1))
    return broker, queue(broker), queue(broker, slack_s=1_000.0), queue(broker)


def waiting(broker: HandBroker) -> list[int]:
    """Numbers of the waiting jobs, in the order of the queue."""
    return [broker.state.number_of_seq[seq] for seq in broker.state.cluster.waiting(0)]


def why(broker: HandBroker, job: int) -> str:
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation), reply
    return str(reply)


def test_a_job_with_slack_gives_way_until_it_has_used_half(journal: Journal) -> None:
    broker, first, patient, last = full(journal)
    assert waiting(broker) == [first, last, patient]
    assert "slack: counts 0.05 times a job without slack until 1970-01-01 00:25 UTC" in why(broker, patient)
    assert "slack: " not in why(broker, first)
    pass_until(broker, 1_550.0)
    assert waiting(broker) == [first, patient, last]
    assert "slack: " not in why(broker, patient)
    pass_until(broker, 1_850.0)
    assert waiting(broker) == [patient, first, last]
    line = "slack: counts 4 times a job without slack, because it has used most of its slack"
    assert line in why(broker, patient)
    said = broker.says("n0", ended(1))
    assert [one.job for one in said if isinstance(one, Launch)] == [patient]
    decided_alike(journal, POLICY)


def test_an_update_of_the_slack_counts_at_once(journal: Journal) -> None:
    broker, first, patient, last = full(journal)
    broker.ask(Update(job=last, slack_s=100.0))
    broker.ask(Update(job=patient, slack_s=0.0))
    assert waiting(broker) == [first, patient, last]
    decided_alike(journal, POLICY)


@pytest.mark.parametrize("way", ["restart", "compaction"])
@pytest.mark.parametrize("late", [False, True])
def test_a_restart_keeps_the_order(way: str, late: bool, journal: Journal) -> None:
    """Also if a place has changed while no broker ran (`late`)."""
    broker, first, patient, last = full(journal)
    at_s = 1_900.0 if late else broker.now_s + 1.0
    order = [patient, first, last] if late else [first, last, patient]
    if way == "restart":
        again = make(journal, at_s)
        pass_until(again, at_s + 1.0)
        assert waiting(again) == order
        again.says("n0", hello("n0", 4))
        return
    path = journal.path
    journal.close()
    with compacted(path, at_s) as cut:
        again = make(cut, at_s)
        pass_until(again, at_s + 1.0)
        assert waiting(again) == order
        assert state(again, patient) == "queued"


def test_a_restart_with_another_policy_orders_anew(journal: Journal) -> None:
    broker, first, patient, last = full(journal)
    assert waiting(broker) == [first, last, patient]
    assert waiting(make(journal, 1_010.0, Policy("qssf-backfill"))) == [first, patient, last]
    assert waiting(make(journal, 1_020.0)) == [first, last, patient]
