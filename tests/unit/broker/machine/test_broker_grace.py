"""The time between SIGTERM and SIGKILL: the broker's default, or a job's own up to the broker's maximum."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.journal.journal import Journal
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    Cancel,
    Explanation,
    Jobs,
    Kill,
    Launch,
    LaunchRefused,
    ListJobs,
    Refused,
    Requeue,
    Submit,
    SubmitMany,
    Tasks,
    Why,
)
from tests.support.broker.hand import LIMITS, draft, hello, launched, of_kind, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import make_preempting

BOUND = msgspec.structs.replace(LIMITS, grace_s=20.0, max_grace_s=100.0)


def bounded(journal: Journal, nodes: int = 1) -> HandBroker:
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=BOUND)
    for number in range(nodes):
        broker.says(f"n{number}", hello(f"n{number}"))
    return broker


def running(broker: HandBroker, grace_s: float | None, **more: object) -> Launch:
    """A running job; returns its launch."""
    broker.ask(submit(4, grace_s=grace_s, **more))
    order = broker.sent.orders[-1][1]
    assert isinstance(order, Launch)
    broker.says("n0", launched(order.job))
    return order


def kills(broker: HandBroker) -> list[Kill]:
    return [order for _, order in broker.sent.orders if isinstance(order, Kill)]


@pytest.mark.parametrize(("asked_s", "expected_s"), [(None, 20.0), (0.0, 0.0), (60.0, 60.0), (100.0, 100.0)])
@pytest.mark.parametrize("how", [Cancel, Requeue])
def test_launch_and_every_kill_have_the_grace(
    journal: Journal, how: type[Cancel | Requeue], asked_s: float | None, expected_s: float
) -> None:
    broker = bounded(journal)
    order = running(broker, asked_s)
    broker.ask(how(job=order.job))
    assert (order.grace_s, [kill.grace_s for kill in kills(broker)]) == (expected_s, [expected_s])


def test_preempted_job_has_its_own_grace(journal: Journal) -> None:
    broker = make_preempting(journal, 1)
    running(broker, 60.0, preemptible=True)
    broker.wait(12.0, "n0")
    broker.ask(submit(4))
    assert [kill.grace_s for kill in kills(broker)] == [60.0]


def test_partly_failed_gang_has_its_own_grace(journal: Journal) -> None:
    broker = bounded(journal, nodes=2)
    broker.ask(submit(8, grace_s=60.0))
    broker.says("n0", launched(1))
    out = broker.says("n1", LaunchRefused(job=1, attempt=1, rank=1, message="no such directory"))
    assert [kill.grace_s for kill in of_kind(out, Kill)] == [60.0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("asked_s", [-1.0, 100.1, float("inf"), float("nan")])
def test_grace_above_the_maximum_is_refused_in_one_line(journal: Journal, asked_s: float) -> None:
    broker = bounded(journal)
    said = f"grace_s must be 0 to 100 s (the broker's --max-grace-s), got {asked_s:g} s"
    assert broker.ask(submit(1, grace_s=asked_s)) == Refused(message=said)
    many = SubmitMany(jobs=[submit(1), submit(1, grace_s=asked_s)])
    assert broker.ask(many) == Refused(message=f"job 2: {said}")


def test_grace_survives_restarts_and_falls_with_the_maximum(journal: Journal) -> None:
    broker = bounded(journal)
    broker.ask(submit(4))
    waits = submit(4, grace_s=60.0)
    broker.ask(waits)
    lower = msgspec.structs.replace(BOUND, max_grace_s=30.0)
    for limits, expected_s in ((BOUND, 60.0), (lower, 30.0)):
        again = HandBroker(load_scheduler("fifo-backfill"), journal, limits=limits)
        (info,) = again.ask(ListJobs(job=2)).jobs  # type: ignore[union-attr]
        assert info.grace_s == expected_s


def test_tasks_of_an_array_have_its_grace(journal: Journal) -> None:
    broker = bounded(journal)
    broker.ask(submit(4, grace_s=60.0, tasks=[Tasks(0, 3)]))
    orders = [order for _, order in broker.sent.orders if isinstance(order, Launch)]
    assert [order.grace_s for order in orders] == [60.0]


@pytest.mark.parametrize(
    ("asked_s", "said"), [(None, "20 s, the broker's default"), (60.0, "1 min, as submitted")]
)
def test_why_and_job_show_the_grace(journal: Journal, asked_s: float | None, said: str) -> None:
    broker = bounded(journal)
    running(broker, asked_s)
    why, jobs = broker.ask(Why(job=1)), broker.ask(ListJobs(job=1))
    assert isinstance(why, Explanation)
    assert isinstance(jobs, Jobs)
    assert f"when it is ended, SIGKILL follows SIGTERM after {said}" in why.details
    assert jobs.jobs[0].grace_s == (asked_s or 20.0)


def test_submission_without_a_grace_is_encoded_as_before() -> None:
    plain = submit(1)
    assert b"grace_s" not in msgspec.msgpack.encode(plain)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=Submit).grace_s is None
    older = msgspec.to_builtins(draft())
    del older["grace_s"]
    assert msgspec.convert(older, JobSubmitted).grace_s is None
