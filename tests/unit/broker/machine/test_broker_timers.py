"""A scheduler that asks for a decision at a later time is called exactly then, also without an event."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.base.entries import Decided
from rlsched.broker.events import Due, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.wire.messages import Explanation, Jobs, ListJobs, Why
from tests.support.broker.hand import LIMITS, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import tiresias


def at_ticks() -> RuleScheduler:
    """`tiresias`, which decides every minute."""
    return tiresias(threshold_gpu_s=100.0, tick="1m")


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    """One node of four GPUs at 1,000.002 s."""
    broker = HandBroker(at_ticks(), journal, limits=LIMITS)
    broker.says("n0", hello("n0"))
    return broker


def decided(broker: HandBroker) -> list[tuple[float, Action]]:
    return [(row.now_s, row.entry.action) for row in broker.journal.rows() if isinstance(row.entry, Decided)]


def at(broker: HandBroker, now_s: float) -> None:
    """Run the broker's loop at its requested time."""
    broker.batch([Due()], after_s=now_s - broker.now_s)


def test_rule_that_decides_at_ticks_is_called_at_each_tick(broker: HandBroker) -> None:
    broker.ask(submit(4, preemptible=True))
    assert decided(broker)[-1] == (broker.now_s, Wait(until_s=1020.0))
    assert broker.machine.due_s() == 1020.0
    at(broker, 1020.0)
    assert decided(broker)[-1] == (1020.0, Start(seq=0, gpus=(0, 1, 2, 3)))
    broker.says("n0", launched(1))
    broker.ask(submit(4))
    assert decided(broker)[-1][1] == Wait(until_s=1080.0)
    at(broker, 1080.0)
    assert [action for _, action in decided(broker)[-2:]] == [
        Preempt(seq=0),
        Start(seq=1, gpus=(0, 1, 2, 3)),
    ], "240 GPU-seconds exceed 100; then no job waits, so no call"
    assert broker.machine.due_s() == float("inf")


def test_reason_names_the_next_tick(broker: HandBroker) -> None:
    """GPUs are free and no other job waits, yet nothing starts before the tick."""
    broker.ask(submit(4, preemptible=True))
    listed, why = broker.ask(ListJobs(job=1)), broker.ask(Why(job=1))
    assert isinstance(listed, Jobs)
    assert isinstance(why, Explanation)
    assert listed.jobs[0].reason == "Priority: held back until the policy decides again"
    assert "the policy decides again when a job or a node changes, and in 20 s at the latest" in why.details
    at(broker, 1020.0)
    broker.says("n0", launched(1))
    broker.ask(submit(4))
    waits = broker.ask(Why(job=2))
    assert isinstance(waits, Explanation)
    assert (
        "the policy decides again when a job or a node changes, and in 1 min at the latest" in waits.details
    )


def test_scheduler_is_not_called_before_the_time(broker: HandBroker) -> None:
    broker.ask(submit(4))
    made = decided(broker)
    broker.batch([Due()])
    broker.batch([Tick()])
    assert decided(broker) == made


def test_later_wait_replaces_the_time(broker: HandBroker) -> None:
    broker.ask(submit(4, preemptible=True))
    at(broker, 1020.0)
    broker.ask(submit(4))
    assert broker.machine.due_s() == 1080.0
    broker.state.apply(msgspec.structs.replace(_wait(broker), number=99), broker.now_s)
    assert broker.machine.due_s() == float("inf")


def _wait(broker: HandBroker) -> Decided:
    entry = [row.entry for row in broker.journal.rows() if isinstance(row.entry, Decided)][-1]
    return msgspec.structs.replace(entry, action=Wait())


def test_fractions_of_a_millisecond_are_rounded_up(broker: HandBroker) -> None:
    broker.state.asked_for_s["shared"] = 1020.00049
    assert broker.machine.due_s() == 1020.001


def test_time_that_passed_during_downtime_is_handled_at_once(broker: HandBroker, journal: Journal) -> None:
    broker.ask(submit(4))
    again = HandBroker(at_ticks(), journal, limits=LIMITS, now_s=5_000.5)
    assert decided(again)[-1] == (again.now_s, Wait(until_s=5_040.0))
    at(again, 5_040.0)
    assert decided(again)[-1] == (5_040.0, Start(seq=0, gpus=(0, 1, 2, 3)))


def test_future_time_survives_a_restart(broker: HandBroker, journal: Journal) -> None:
    broker.ask(submit(4))
    again = HandBroker(at_ticks(), journal, limits=LIMITS, now_s=1_005.0)
    assert again.machine.due_s() == 1020.0


def test_decisions_at_ticks_are_replayed_from_the_journal(broker: HandBroker, journal: Journal) -> None:
    broker.ask(submit(4, preemptible=True))
    at(broker, 1020.0)
    broker.says("n0", launched(1))
    broker.ask(submit(4))
    at(broker, 1080.0)
    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), at_ticks())
    assert len(made) == len(records)
    assert any(isinstance(record.action, Preempt) for record in made)
    for theirs, ours in zip(records, made, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs
