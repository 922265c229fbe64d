"""A broker that knows the price of electricity: jobs with slack wait and pause, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import Due, PricesRead
from rlsched.broker.journal.journal import Journal
from rlsched.broker.nodes.sleepers import SleepPlan
from rlsched.broker.queries.as_history import history_of
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.energy.limits import EnergyTable
from rlsched.energy.relative import PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.power_down.plan import PowerDownPlan
from rlsched.wire.messages import (
    Cancel,
    DrainNode,
    Hold,
    Kill,
    Launch,
    Release,
    Stats,
    StatsReport,
    Submitted,
    Update,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import decided_alike, ended, hello, launched, pass_until, shown, state, submit
from tests.support.broker.hand_broker import HandBroker

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEGINS_S = NOON.timestamp()
DEAR_H = 3
"""The first hours are expensive, the others cheap."""
LIMITS = Limits(lease_s=1e6, heartbeat_s=10.0, launch_timeout_s=1e6)
POLICY = Policy("priced")
SPARED = Policy("gittins", price={"defer": 5.0, "spare": 1.0})
WINDOW, PERCENTILE = Policy("price-window"), Policy("price-percentile")


def prices(hours: int = 48, dear: tuple[int, ...] = tuple(range(DEAR_H))) -> EnergyTable:
    values = np.full(hours, 20.0)
    values[list(dear)] = 100.0
    return EnergyTable(PriceTable(Series("price.csv", NOON, HOUR_S, values), 24 * HOUR_S))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def make(
    journal: Journal,
    known: EnergyTable | None,
    at_s: float = BEGINS_S + 60.0,
    sleep: SleepPlan | None = None,
    policy: Policy = POLICY,
) -> HandBroker:
    broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS, now_s=at_s, prices=known, sleep=sleep)
    broker.says("n0", hello("n0", 4))
    return broker


def queue(broker: HandBroker, **more: object) -> int:
    reply = broker.ask(submit(2, **more))
    assert isinstance(reply, Submitted), reply
    return reply.job


def test_a_job_with_slack_waits_for_the_cheap_hour(journal: Journal) -> None:
    broker = make(journal, prices())
    urgent, patient = queue(broker), queue(broker, slack_s=12 * HOUR_S)
    assert (state(broker, urgent), state(broker, patient)) == ("launching", "queued")
    reason = shown(broker, patient).reason
    assert reason == (
        "Price: electricity costs 3.33 times its mean; waits for 2026-03-01 15:00 UTC, 80 % cheaper, or "
        "until 2026-03-01 21:37 UTC at most"
    )
    report = broker.ask(Stats())
    assert isinstance(report, StatsReport)
    assert report.price is not None
    price = report.price
    assert (price.price, price.deferred, price.deferred_gpus) == (100.0, 1, 2)
    assert price.waiting_since_s == pytest.approx(BEGINS_S + 60.0, abs=0.1)
    pass_until(broker, BEGINS_S + DEAR_H * HOUR_S - 1.0)
    assert state(broker, patient) == "queued"
    said = pass_until(broker, BEGINS_S + DEAR_H * HOUR_S)
    assert [one.job for one in said if isinstance(one, Launch)] == [patient]
    decided_alike(journal, POLICY)


def test_a_job_starts_when_it_has_used_its_share_of_the_slack(journal: Journal) -> None:
    policy = POLICY.changed(["price.spare=0"])
    broker = make(journal, prices(), policy=policy)
    job = queue(broker, slack_s=HOUR_S)
    pass_until(broker, BEGINS_S + 60.0 + 0.79 * HOUR_S)
    assert state(broker, job) == "queued"
    pass_until(broker, BEGINS_S + 61.0 + 0.8 * HOUR_S)
    assert state(broker, job) == "launching"
    decided_alike(journal, policy)


def test_a_job_returns_to_the_queue_in_time_for_the_work_of_other_jobs(journal: Journal) -> None:
    """A job of 10 h and one of 30 min, on 2 of 4 GPUs each, need 5.25 h of all GPUs: 5 h 20 min in steps."""
    broker = make(journal, prices(), policy=SPARED)
    long = queue(broker, time_limit_s=10 * HOUR_S)
    broker.says("n0", launched(long))
    slot = broker.state.cluster.slot_of(broker.state.jobs[long].seq)
    broker.state.cluster.arrays.job.predicted_s[slot] = 10 * HOUR_S
    patient = queue(broker, slack_s=7 * HOUR_S, time_limit_s=30 * 60.0)
    assert state(broker, patient) == "queued"
    latest_s = BEGINS_S + 60.0 + 7 * HOUR_S - 320 * 60.0
    latest = datetime.fromtimestamp(latest_s, UTC)
    assert f"or until {latest:%Y-%m-%d %H:%M} UTC at most" in shown(broker, patient).reason
    assert " 0 % cheaper" not in shown(broker, patient).reason
    pass_until(broker, latest_s - 1.0)
    assert state(broker, patient) == "queued"
    for minute in range(60):
        pass_until(broker, latest_s + 60.0 * minute)
    assert state(broker, patient) == "queued", "the long job has run meanwhile"
    broker.state.cluster.arrays.job.predicted_s[slot] = 20 * HOUR_S
    queue(broker, slack_s=20 * HOUR_S)
    assert state(broker, patient) == "launching"


def test_a_preemptible_job_pauses_while_electricity_is_expensive(journal: Journal) -> None:
    broker = make(journal, prices(dear=(2, 3)))
    job = queue(broker, slack_s=24 * HOUR_S, preemptible=True, time_limit_s=40 * HOUR_S)
    stays = queue(broker, slack_s=24 * HOUR_S)
    for number in (job, stays):
        broker.says("n0", launched(number))
    before = pass_until(broker, BEGINS_S + 2 * HOUR_S - 1.0)
    assert not [one for one in before if isinstance(one, Kill)]
    broker.state.cluster.arrays.job.predicted_s[broker.state.cluster.slot_of(broker.state.jobs[job].seq)] = (
        1e5
    )
    said = pass_until(broker, BEGINS_S + 2 * HOUR_S)
    assert [one.job for one in said if isinstance(one, Kill)] == [job]
    broker.says("n0", ended(job, exit_code=143, reason="killed"))
    assert (state(broker, job), state(broker, stays)) == ("queued", "running")
    assert shown(broker, job).reason.startswith("Price: ")
    said = pass_until(broker, BEGINS_S + 4 * HOUR_S)
    assert [(one.job, one.attempt) for one in said if isinstance(one, Launch)] == [(job, 2)]


def test_the_node_of_a_paused_job_sleeps_until_the_price_falls(journal: Journal) -> None:
    """Demand of the last hours would keep it awake: a job of the same length that ends does."""
    plan = SleepPlan(
        plan=PowerDownPlan(buffer_nodes=0, wake_buffer_nodes=0),
        suspend_timeout_s=30.0,
        resume_timeout_s=300.0,
    )
    broker = make(journal, prices(dear=(2, 3)), sleep=plan)
    job = queue(broker, slack_s=24 * HOUR_S, preemptible=True, time_limit_s=40 * HOUR_S)
    broker.says("n0", launched(job))
    slot = broker.state.cluster.slot_of(broker.state.jobs[job].seq)
    broker.state.cluster.arrays.job.predicted_s[slot] = 1e5
    pass_until(broker, BEGINS_S + 2 * HOUR_S)
    broker.says("n0", ended(job, exit_code=143, reason="killed"))

    def wait(minutes: int) -> str:
        for _ in range(minutes):
            broker.wait(60.0)
        return broker.state.nodes["n0"].sleep

    assert wait(25) == "asleep"
    assert shown(broker, job).reason.startswith("Price: ")
    assert wait(90) == "asleep"
    assert wait(10) == "waking", "the price has fallen"
    broker.says("n0", hello("n0", 4))
    assert state(broker, job) == "launching"
    broker.says("n0", launched(job, attempt=2))
    broker.says("n0", ended(job, attempt=2))
    assert wait(60) == "", "demand of the last three hours"


def test_a_review_waits_for_the_processes_of_a_paused_job(journal: Journal) -> None:
    """Price and slot change at the same time. The job needs 20 s to stop; its node then sleeps at once."""
    plan = SleepPlan(plan=PowerDownPlan(buffer_nodes=0, wake_buffer_nodes=0))
    broker = make(journal, prices(dear=(2, 3)), sleep=plan)
    job = queue(broker, slack_s=24 * HOUR_S, preemptible=True, time_limit_s=40 * HOUR_S)
    broker.says("n0", launched(job))
    slot = broker.state.cluster.slot_of(broker.state.jobs[job].seq)
    broker.state.cluster.arrays.job.predicted_s[slot] = 1e5
    said = pass_until(broker, BEGINS_S + 2 * HOUR_S)
    assert [one.job for one in said if isinstance(one, Kill)] == [job]
    assert broker.machine.due_s() == BEGINS_S + 2 * HOUR_S + 60.001, "the review waits at most a minute"
    broker.batch([], after_s=20.0)
    assert broker.state.nodes["n0"].sleep == ""
    broker.says("n0", ended(job, exit_code=143, reason="killed"))
    assert broker.machine.due_s() <= broker.now_s
    broker.batch([Due()])
    assert broker.state.nodes["n0"].sleep == "asleep"
    decided_alike(journal, POLICY)


def test_a_job_on_a_drained_node_does_not_pause(journal: Journal) -> None:
    broker = make(journal, prices(dear=(2, 3)))
    job = queue(broker, slack_s=24 * HOUR_S, preemptible=True, time_limit_s=40 * HOUR_S)
    broker.says("n0", launched(job))
    broker.ask(DrainNode(node="n0"))
    broker.state.cluster.arrays.job.predicted_s[broker.state.cluster.slot_of(broker.state.jobs[job].seq)] = (
        1e5
    )
    said = pass_until(broker, BEGINS_S + 3 * HOUR_S)
    assert not [one for one in said if isinstance(one, Kill)]
    assert state(broker, job) == "running"


@pytest.mark.parametrize("policy", [POLICY, WINDOW])
def test_a_restart_keeps_what_waits(policy: Policy, journal: Journal) -> None:
    broker = make(journal, prices(), policy=policy)
    job = queue(broker, slack_s=12 * HOUR_S)
    before = broker.state.cluster.digest()
    again = make(journal, prices(), broker.now_s + 1.0, policy=policy)
    assert again.state.cluster.digest() == before
    assert state(again, job) == "queued"
    assert shown(again, job).reason.startswith("Price: ")
    pass_until(again, BEGINS_S + DEAR_H * HOUR_S)
    assert state(again, job) == "launching"


@pytest.mark.parametrize("policy", [POLICY, WINDOW])
def test_a_compacted_journal_keeps_price_and_slack(policy: Policy, journal: Journal) -> None:
    broker = make(journal, prices(), policy=policy)
    job = queue(broker, slack_s=12 * HOUR_S)
    before, known = broker.state.cluster.digest(), broker.state.energy_price
    path, at_s = journal.path, broker.now_s
    journal.close()
    with compacted(path, at_s + 1.0) as again:
        other = make(again, prices(), at_s + 2.0, policy=policy)
        assert other.state.energy_price == known
        assert other.state.cluster.digest() == before
        assert shown(other, job).reason.startswith("Price: ")
        pass_until(other, BEGINS_S + DEAR_H * HOUR_S)
        assert state(other, job) == "launching"


@pytest.mark.parametrize("change", ["restart without prices", "file without present prices", "prices fall"])
def test_jobs_go_on_when_the_price_is_not_known_any_more(journal: Journal, change: str) -> None:
    broker = make(journal, prices())
    job = queue(broker, slack_s=12 * HOUR_S)
    assert state(broker, job) == "queued"
    if change == "restart without prices":
        broker = make(journal, None, broker.now_s + 1.0)
    else:
        late = prices(dear=()) if change == "prices fall" else prices(2, dear=(0, 1))
        broker.batch([PricesRead(late)])
        pass_until(broker, BEGINS_S + 2 * HOUR_S)
    assert state(broker, job) == "launching"
    if change != "restart without prices":
        decided_alike(journal, POLICY)


def test_orders_reach_a_job_that_waits_for_the_price(journal: Journal) -> None:
    broker = make(journal, prices())
    cancelled, held, changed = (queue(broker, slack_s=12 * HOUR_S) for _ in range(3))
    broker.ask(Cancel(job=cancelled))
    assert state(broker, cancelled) == "cancelled"
    broker.ask(Hold(job=held))
    broker.ask(Update(job=changed, gpu_types=["generic"], priority="low"))
    pass_until(broker, BEGINS_S + DEAR_H * HOUR_S)
    assert (state(broker, held), state(broker, changed)) == ("queued", "launching")
    broker.ask(Release(job=held))
    assert state(broker, held) == "launching"
    decided_alike(journal, POLICY)


def test_slack_can_change_while_a_job_waits_or_runs(journal: Journal) -> None:
    broker = make(journal, prices())
    waits, runs = (
        queue(broker, slack_s=12 * HOUR_S),
        queue(broker, preemptible=True, time_limit_s=40 * HOUR_S),
    )
    broker.says("n0", launched(runs))
    assert (state(broker, waits), state(broker, runs)) == ("queued", "running")
    broker.ask(Update(job=waits, slack_s=2 * HOUR_S))
    assert state(broker, waits) == "queued"
    broker.ask(Update(job=waits, slack_s=0.0))
    assert state(broker, waits) == "launching"
    decided_alike(journal, POLICY)
    broker.state.cluster.arrays.job.predicted_s[broker.state.cluster.slot_of(broker.state.jobs[runs].seq)] = (
        1e5
    )
    broker.ask(Update(job=runs, slack_s=24 * HOUR_S))
    assert broker.state.jobs[runs].spec.slack_s == 24 * HOUR_S
    assert "slack_s must be 0 to a year" in str(broker.ask(Update(job=runs, slack_s=1e9)))
    broker.says("n0", ended(runs, exit_code=143, reason="killed"))
    assert state(broker, runs) == "queued", "it pauses"


def test_without_a_price_slack_changes_nothing(journal: Journal) -> None:
    broker = make(journal, None)
    assert state(broker, queue(broker, slack_s=12 * HOUR_S)) == "launching"


def test_history_has_the_slack_and_the_jobs_that_can_be_preempted(journal: Journal) -> None:
    broker = make(journal, None)
    queue(broker, slack_s=3600.0, preemptible=True)
    job = queue(broker)
    broker.ask(Update(job=job, slack_s=60.0))
    extra = history_of(journal.path).trace.extra
    assert extra["slack_s"].tolist() == [3600.0, 60.0]
    assert extra["preemptible"].tolist() == ["true", "false"]


def test_jobs_of_a_history_cannot_be_preempted_if_they_did_not_permit_it(journal: Journal) -> None:
    broker = make(journal, None)
    queue(broker)
    extra = history_of(journal.path).trace.extra
    assert extra["preemptible"].tolist() == ["false"]
    assert "slack_s" not in extra


def valley() -> EnergyTable:
    """A price of 60, 50 in the next hour, 30 three to five hours later, then 80."""
    values = np.array([60.0, 50.0, 60.0, 30.0, 30.0, *[80.0] * 43])
    return EnergyTable(PriceTable(Series("price.csv", NOON, HOUR_S, values), 24 * HOUR_S))


def test_a_job_waits_for_its_cheapest_window(journal: Journal) -> None:
    broker = make(journal, valley(), policy=WINDOW)
    urgent, patient = queue(broker), queue(broker, slack_s=8 * HOUR_S, time_limit_s=2 * HOUR_S)
    soon = queue(broker, slack_s=2 * HOUR_S, time_limit_s=600.0)
    broker.says("n0", launched(urgent))
    assert (state(broker, patient), state(broker, soon)) == ("queued", "queued")
    mean = (60 + 50 + 60 + 30 + 30 + 19 * 80) / 24
    assert shown(broker, patient).reason == (
        f"Price: electricity costs {60 / mean:.2f} times its mean; waits for 2026-03-01 15:00 UTC, 50 % "
        "cheaper, or until 2026-03-01 18:25 UTC at most"
    )
    assert "; waits for 2026-03-01 13:00 UTC, 17 % cheaper" in shown(broker, soon).reason
    pass_until(broker, BEGINS_S + HOUR_S - 1.0)
    assert state(broker, soon) == "queued"
    pass_until(broker, BEGINS_S + HOUR_S)
    assert (state(broker, soon), state(broker, patient)) == ("launching", "queued")
    known = broker.state.energy_price
    assert known is not None
    assert (len(known.ahead), known.rank, known.from_s) == (48, 0.0, BEGINS_S + HOUR_S)
    broker.says("n0", ended(urgent))
    pass_until(broker, BEGINS_S + 3 * HOUR_S - 1.0)
    assert state(broker, patient) == "queued"
    pass_until(broker, BEGINS_S + 3 * HOUR_S)
    assert state(broker, patient) == "launching"
    decided_alike(journal, WINDOW)


def test_a_job_waits_and_pauses_above_the_percentile(journal: Journal) -> None:
    values = np.array([50.0, 10.0, 40.0, 60.0, 70.0, 80.0, 5.0, *[90.0] * 41])
    known = EnergyTable(PriceTable(Series("price.csv", NOON, HOUR_S, values), 0.0))
    broker = make(journal, known, policy=PERCENTILE)
    job = queue(broker, slack_s=24 * HOUR_S, preemptible=True, time_limit_s=40 * HOUR_S)
    assert state(broker, job) == "launching", "the first price is the lowest of the past week"
    broker.says("n0", launched(job))
    slot = broker.state.cluster.slot_of(broker.state.jobs[job].seq)
    broker.state.cluster.arrays.job.predicted_s[slot] = 1e5
    pass_until(broker, BEGINS_S + 2 * HOUR_S - 1.0)
    assert state(broker, job) == "running"
    said = pass_until(broker, BEGINS_S + 2 * HOUR_S)
    assert [one.job for one in said if isinstance(one, Kill)] == [job], "a third of the prices were lower"
    broker.says("n0", ended(job, exit_code=143, reason="killed"))
    price = broker.state.energy_price
    assert price is not None
    assert (price.ahead, price.rank) == ((), pytest.approx(1.0 / 3.0, abs=1e-6))
    assert "waits for" not in shown(broker, job).reason
    assert "; waits until " in shown(broker, job).reason
    pass_until(broker, BEGINS_S + 6 * HOUR_S - 1.0)
    assert state(broker, job) == "queued"
    said = pass_until(broker, BEGINS_S + 6 * HOUR_S)
    assert [(one.job, one.attempt) for one in said if isinstance(one, Launch)] == [(job, 2)]
    decided_alike(journal, PERCENTILE)


def test_policies_that_ignore_the_price_record_no_details(journal: Journal) -> None:
    broker = make(journal, valley(), policy=Policy("tuned"))
    queue(broker, slack_s=12 * HOUR_S)
    known = broker.state.energy_price
    assert known is not None
    assert (known.from_s, known.ahead, known.rank) == (0.0, (), 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_planned_start_comes_true(seed: int, journal: Journal) -> None:
    draw = np.random.default_rng(seed)
    values = np.array([300.0, *np.exp(draw.normal(4.0, 1.0, 95))])
    broker = make(journal, EnergyTable(PriceTable(Series("price.csv", NOON, HOUR_S, values), 48 * HOUR_S)))
    broker.says("n1", hello("n1", 64))
    jobs = [queue(broker, slack_s=float(hours) * HOUR_S) for hours in draw.uniform(1.0, 20.0, 12)]
    planned_s = {job: begins_s(shown(broker, job).reason) for job in jobs if state(broker, job) == "queued"}
    said = [
        (one.job, broker.now_s)
        for minute in range(20 * 60)
        for one in pass_until(broker, BEGINS_S + 60.0 * minute)
        if isinstance(one, Launch)
    ]
    started_s = dict(said)
    assert planned_s
    assert {job: started_s[job] for job in planned_s} == pytest.approx(planned_s, abs=60.0)


def test_a_trained_policy_states_the_planned_start(journal: Journal) -> None:
    broker = make(journal, prices(), policy=Policy("ppo"))
    job = queue(broker, slack_s=12 * HOUR_S)
    assert begins_s(shown(broker, job).reason) == BEGINS_S + DEAR_H * HOUR_S
    pass_until(broker, BEGINS_S + DEAR_H * HOUR_S - 1.0)
    assert state(broker, job) == "queued"
    pass_until(broker, BEGINS_S + DEAR_H * HOUR_S)
    assert state(broker, job) == "launching"


def begins_s(reason: str) -> float:
    """Return the planned start that a reason states, Unix seconds."""
    when = reason.split("; waits for ")[1].split(" UTC", 1)[0]
    return datetime.strptime(when, "%Y-%m-%d %H:%M").replace(tzinfo=UTC).timestamp()


def test_the_prices_of_the_next_hours_are_recorded_once_for_equal_steps(journal: Journal) -> None:
    broker = make(journal, prices(96, dear=()))
    queue(broker, slack_s=12 * HOUR_S)
    first = broker.state.energy_price
    pass_until(broker, BEGINS_S + 30 * HOUR_S)
    assert first is not None
    assert first.from_s == BEGINS_S
    assert first.ahead == (1.0,) * 48
    assert broker.state.energy_price == first
