"""A broker with a power limit: clocks, pauses and waiting jobs, as orders to nodes, and nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import PricesRead
from rlsched.broker.journal.journal import Journal
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.energy.limits import ConstantLimit, EnergyTable, LimitTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.wire.messages import (
    AttemptReport,
    ClockHeld,
    Explanation,
    HoldClock,
    Kill,
    Launch,
    PowerLimitReport,
    Stats,
    StatsReport,
    Submitted,
    Why,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import (
    decided_alike,
    ended,
    hello,
    launched,
    of_kind,
    pass_until,
    shown,
    state,
    submit,
)
from tests.support.broker.hand_broker import HandBroker

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEGINS_S = NOON.timestamp()
CLOCKS = list(range(1380, 660, -15))
"""Clocks of the GPUs, MHz."""
LIMITS = Limits(lease_s=1e6, heartbeat_s=10.0, launch_timeout_s=1e6)
POLICY = Policy("gittins")
WORKLOAD = "resnet50-imagenet-b64"
DAY_S = 24 * HOUR_S


def limits(*kw: float, ahead_s: float = 0.0, soft: bool = False) -> EnergyTable:
    """A limit for each hour from noon."""
    return EnergyTable(None, LimitTable(Series("limit", NOON, HOUR_S, np.array(kw)), ahead_s, soft=soft))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def make(
    journal: Journal, known: EnergyTable | None, at_s: float = BEGINS_S + 60.0, *clocks: int
) -> HandBroker:
    """A broker, and a node whose first jobs run at these clocks, MHz."""
    broker = HandBroker(load_scheduler(POLICY), journal, limits=LIMITS, now_s=at_s, prices=known)
    runs = [
        AttemptReport(job=job, attempt=1, rank=0, state="running", sm_clock_mhz=mhz)
        for job, mhz in enumerate(clocks, start=1)
    ]
    told = msgspec.structs.replace(hello("n0", 4, *runs), gpu_type="V100", sm_clocks_mhz=CLOCKS)
    broker.says("n0", told)
    return broker


def queue(
    broker: HandBroker, slack_s: float = 0.0, *, preemptible: bool = True, limit_s: float = 40 * HOUR_S
) -> int:
    reply = broker.ask(
        submit(1, workload=WORKLOAD, slack_s=slack_s, preemptible=preemptible, time_limit_s=limit_s)
    )
    assert isinstance(reply, Submitted), reply
    return reply.job


def start(broker: HandBroker, slack_s: float = 0.0, *, preemptible: bool = True) -> int:
    job = queue(broker, slack_s, preemptible=preemptible)
    broker.says("n0", launched(job))
    return job


def answer(broker: HandBroker, orders: Sequence[object]) -> dict[int, int]:
    """Answer each order for clocks as a node does; returns the clocks by job."""
    held = {order.job: order for order in of_kind(list(orders), HoldClock) if isinstance(order, HoldClock)}
    for order in held.values():
        told = ClockHeld(
            job=order.job, attempt=order.attempt, rank=order.rank, sm_clock_mhz=order.sm_clock_mhz
        )
        broker.says("n0", told)
    return {job: order.sm_clock_mhz for job, order in held.items()}


def report(broker: HandBroker) -> PowerLimitReport:
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert stats.power_limit is not None
    return stats.power_limit


def test_report_has_the_limit_and_the_power_by_the_models(journal: Journal) -> None:
    broker = make(journal, EnergyTable(None, ConstantLimit(2_000.0)))
    before_w = report(broker).most_w
    for _ in range(3):
        start(broker)
    found = report(broker)
    assert (found.limit_w, found.until_s, found.waiting) == (2_000.0, math.inf, 0)
    assert (found.urgent_clock_frac, found.flexible_clock_frac) == (1.0, 1.0)
    assert 300.0 < found.most_w - before_w < 3 * 300.0


def test_flexible_jobs_get_lower_clocks_while_the_limit_is_low(journal: Journal) -> None:
    broker = make(journal, EnergyTable(None, ConstantLimit(1e6)))
    urgent, flexible = start(broker), start(broker, DAY_S)
    full_w = report(broker).most_w
    said = broker.batch([PricesRead(limits(full_w / 1e3, 0.95 * full_w / 1e3, full_w / 1e3))])
    assert answer(broker, said) == {}
    clocks = answer(broker, pass_until(broker, BEGINS_S + HOUR_S))
    assert set(clocks) == {flexible}
    assert 0.5 * CLOCKS[0] <= clocks[flexible] < CLOCKS[0]
    found = report(broker)
    assert found.most_w <= found.limit_w == pytest.approx(0.95 * full_w)
    assert found.urgent_clock_frac == 1.0 > found.flexible_clock_frac
    assert shown(broker, flexible).sm_clocks_mhz == [clocks[flexible]]
    why = broker.ask(Why(job=flexible))
    assert isinstance(why, Explanation)
    assert any("power limit" in line for line in why.details), why.details
    assert answer(broker, pass_until(broker, BEGINS_S + 2 * HOUR_S)) == {flexible: 0}
    assert state(broker, urgent) == state(broker, flexible) == "running"
    assert broker.state.jobs[flexible].attempt.was_capped  # type: ignore[union-attr]
    assert not broker.state.jobs[urgent].attempt.was_capped  # type: ignore[union-attr]
    decided_alike(journal, POLICY)


def test_flexible_job_pauses_and_an_urgent_job_waits_for_power(journal: Journal) -> None:
    broker = make(journal, EnergyTable(None, ConstantLimit(1e6)))
    urgent = start(broker, preemptible=False)
    one_w = report(broker).most_w
    flexible = start(broker, DAY_S)
    broker.batch([PricesRead(limits(100.0, one_w / 1e3 + 0.001, 100.0))])
    said = pass_until(broker, BEGINS_S + HOUR_S)
    assert [one.job for one in said if isinstance(one, Kill)] == [flexible]
    broker.says("n0", ended(flexible, exit_code=143, reason="killed"))
    assert state(broker, urgent) == "running"
    assert shown(broker, flexible).reason.startswith("Power: the job needs at least 0.")
    waits = queue(broker, DAY_S)
    assert state(broker, waits) == "queued"
    assert report(broker).waiting == 2
    said = pass_until(broker, BEGINS_S + 2 * HOUR_S)
    assert sorted(one.job for one in said if isinstance(one, Launch)) == [flexible, waits]
    assert report(broker).waiting == 0
    decided_alike(journal, POLICY)


def test_job_that_starts_under_the_limit_is_launched_at_the_lower_clock(journal: Journal) -> None:
    broker = make(journal, EnergyTable(None, ConstantLimit(1e6)))
    first = start(broker)
    one_w = report(broker).most_w
    broker.batch([PricesRead(EnergyTable(None, ConstantLimit(one_w + 80.0)))])
    job = queue(broker, DAY_S)
    (launch,) = [order for _, order in broker.sent.orders if isinstance(order, Launch) and order.job == job]
    assert 0 < launch.sm_clock_mhz < CLOCKS[0]
    assert state(broker, first) == "running"
    assert report(broker).most_w <= one_w + 80.0


@pytest.mark.parametrize("change", ["restart", "restart without a limit", "compaction"])
def test_restarted_broker_keeps_or_lifts_the_limit(journal: Journal, change: str) -> None:
    broker = make(journal, EnergyTable(None, ConstantLimit(1e6)))
    start(broker)
    flexible = start(broker, DAY_S)
    full_w = report(broker).most_w
    low = EnergyTable(None, ConstantLimit(0.95 * full_w))
    (mhz,) = answer(broker, broker.batch([PricesRead(low)])).values()
    path, at_s = journal.path, broker.now_s + 1.0
    if change == "compaction":
        journal.close()
        with compacted(path, at_s) as again:
            other = make(again, low, at_s + 1.0, 0, mhz)
            assert answer(other, [order for _, order in other.sent.orders]) == {}
            assert shown(other, flexible).sm_clocks_mhz == [mhz]
            assert other.state.jobs[flexible].attempt.was_capped  # type: ignore[union-attr]
        return
    other = make(journal, low if change == "restart" else None, at_s, 0, mhz)
    clocks = answer(other, [order for _, order in other.sent.orders])
    assert clocks == ({} if change == "restart" else {flexible: 0})
    decided_alike(journal, POLICY)


def test_orders_that_cross_the_answers_of_a_node_end_at_the_right_clock(journal: Journal) -> None:
    """The limit is lifted and comes back before the node has answered."""
    broker = make(journal, EnergyTable(None, ConstantLimit(1e6)))
    start(broker)
    flexible = start(broker, DAY_S)
    full_w = report(broker).most_w
    low, free = (EnergyTable(None, ConstantLimit(watts)) for watts in (0.95 * full_w, 1e6))
    (mhz,) = answer(broker, broker.batch([PricesRead(low)])).values()
    sent = [order for table in (free, low) for order in of_kind(broker.batch([PricesRead(table)]), HoldClock)]
    assert [order.sm_clock_mhz for order in sent if isinstance(order, HoldClock)] == [0, mhz]
    for order in sent:
        answer(broker, [order])
    assert shown(broker, flexible).sm_clocks_mhz == [mhz]
    assert answer(broker, broker.batch([PricesRead(free)])) == {flexible: 0}


def test_announced_fall_holds_back_jobs_that_would_still_run(journal: Journal) -> None:
    broker = make(journal, EnergyTable(None, ConstantLimit(1e6)))
    urgent = start(broker, preemptible=False)
    one_w = report(broker).most_w
    low_w = one_w - 80.0  # enough for one job at a lower clock
    falls = limits(100.0, low_w / 1e3, 100.0, ahead_s=600.0)
    broker.batch([PricesRead(falls)])
    assert report(broker).falls == ()
    early = start(broker, DAY_S)
    pass_until(broker, BEGINS_S + HOUR_S - 600.0)
    assert report(broker).falls == ((BEGINS_S + HOUR_S, pytest.approx(low_w)),)
    assert state(broker, early) == "running"
    late, pinned = queue(broker, DAY_S, preemptible=False), queue(broker, preemptible=False)
    short = queue(broker, DAY_S, limit_s=300.0)
    assert [state(broker, job) for job in (late, pinned, short)] == ["queued", "queued", "launching"]
    for job in (late, pinned):
        assert "from 2026-03-01 13:00 UTC on, before its predicted end, leaves" in shown(broker, job).reason
    assert report(broker).waiting == 2
    broker.says("n0", launched(short))
    broker.says("n0", ended(short))
    said = pass_until(broker, BEGINS_S + HOUR_S)
    assert [one.job for one in said if isinstance(one, Kill)] == [early]
    assert report(broker).falls == ()
    broker.says("n0", ended(early, exit_code=143, reason="killed"))
    assert "limit of 100 kW from" not in shown(broker, late).reason
    assert state(broker, urgent) == "running"
    decided_alike(journal, POLICY)


@pytest.mark.parametrize("change", ["restart", "compaction"])
def test_restarted_broker_knows_the_announced_falls(journal: Journal, change: str) -> None:
    falls = limits(100.0, 0.1, 100.0, ahead_s=2 * HOUR_S)
    broker = make(journal, falls)
    job = queue(broker, preemptible=False)
    before = report(broker)
    assert before.falls == ((BEGINS_S + HOUR_S, 100.0),)
    path, at_s = journal.path, broker.now_s + 1.0
    if change == "compaction":
        journal.close()
        with compacted(path, at_s) as again:
            other = make(again, falls, at_s + 1.0)
            assert report(other) == before
            assert state(other, job) == "queued"
        return
    other = make(journal, falls, at_s)
    assert report(other) == before
    assert state(other, job) == "queued"


def test_soft_limit_leaves_urgent_jobs_alone_until_a_restart_makes_it_hard(journal: Journal) -> None:
    broker = make(journal, limits(0.2, soft=True))
    urgent = start(broker)
    flexible = queue(broker, DAY_S)
    assert (state(broker, urgent), state(broker, flexible)) == ("running", "queued")
    found = report(broker)
    assert found.soft
    assert found.most_w > found.limit_w
    assert (found.urgent_clock_frac, found.flexible_clock_frac, found.waiting) == (1.0, 0.5, 1)
    other = make(journal, limits(0.2), broker.now_s + 1.0, 0)
    assert not report(other).soft
    assert report(other).urgent_clock_frac < 1.0
    decided_alike(journal, POLICY)
