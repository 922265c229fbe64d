"""Events for the store of decisions: predicted and seen speed and energy of a broker's attempts."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.machine.store_events import as_it_stands
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.schema import JobEvent
from rlsched.wire.messages import Capabilities, Ended, Hello, RankUsage
from tests.support.broker.hand import LIMITS, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed

LIGHT = "a2c-b64"
SOLO = RankUsage(measured_s=60, gpu_milli=600, gpu_memory_mib=4_000, energy_mj=9_000_000)
CLOCKS = list(range(1980, 344, -15))


def h100(gpus: int = 1, **facts: Any) -> Hello:
    can = Capabilities(shares=True, gpu_memory_mib=81_559, fences=True)
    return msgspec.structs.replace(hello("n0", gpus), gpu_type="H100", capabilities=can, **facts)


def sharing(journal: Journal) -> HandBroker:
    broker = HandBroker(load_scheduler("pack"), journal, limits=LIMITS, shares=True)
    broker.says("n0", h100())
    return broker


def start(broker: HandBroker, **facts: Any) -> int:
    """Submit a job that starts; returns its number."""
    broker.ask(submit(**facts))
    number = len(broker.state.jobs)
    broker.says("n0", launched(number))
    assert broker.state.jobs[number].state == "running"
    return number


def end(broker: HandBroker, job: int, usage: RankUsage | None) -> None:
    attempt = broker.state.jobs[job].attempts
    said = Ended(job=job, attempt=attempt, rank=0, exit_code=0, usage=usage)
    broker.says("n0", said, after_s=60.0)


def events(broker: HandBroker, job: int) -> list[JobEvent]:
    """The start and the end of a job."""
    told = [event for kept in broker.records for event in kept.happened if isinstance(event, JobEvent)]
    return [event for event in told if event.job == str(job) and event.kind != "submit"]


def taken(broker: HandBroker, job: int) -> PlanSeen:
    """The plan of the decision that started a job."""
    records: list[DecisionRecord] = [record for kept in broker.records for record in kept.records]
    seq = broker.state.jobs[job].seq
    return next(plan for record in records if record.turn == seq for plan in record.plans if plan.chosen)


def test_prediction_of_a_start_is_that_of_its_plan(journal: Journal) -> None:
    broker = sharing(journal)
    one, two = start(broker, workload=LIGHT), start(broker, workload=LIGHT)
    for job, how in ((one, "free"), (two, "share")):
        plan, (event,) = taken(broker, job), events(broker, job)
        assert (plan.how, event.kind) == (how, "start")
        assert plan.gpu_w is not None
        assert event.predicted_speed_frac == plan.rate == pytest.approx(plan.speed_frac)
        assert event.predicted_energy_j == plan.gpu_w * plan.run_s
        assert [event.speed_frac, event.energy_j] == pytest.approx([math.nan] * 2, nan_ok=True)
    assert taken(broker, one).rate == 1.0
    assert 0.5 < events(broker, two)[0].predicted_speed_frac < 1.0
    assert events(broker, two)[0].predicted_energy_j < events(broker, one)[0].predicted_energy_j


def test_seen_speed_and_energy_are_those_of_the_meter(journal: Journal) -> None:
    broker = sharing(journal)
    end(broker, start(broker, workload=LIGHT), SOLO)
    one, two = start(broker, workload=LIGHT), start(broker, workload=LIGHT)
    shared = {"measured_s": 60, "energy_mj": 4_500_000}
    end(broker, one, RankUsage(gpu_milli=450, shared_gpu_milli=450, **shared))
    end(broker, two, RankUsage(gpu_milli=540, shared_gpu_milli=500, **shared))
    solo, first, second = (events(broker, job)[1] for job in (1, one, two))
    assert [event.energy_j for event in (solo, first, second)] == [9_000.0, 4_500.0, 4_500.0]
    assert first.speed_frac == pytest.approx(450 / 600)
    assert second.speed_frac == pytest.approx(540 / 600)  # of the whole attempt, unshared at the end
    assert math.isnan(solo.speed_frac)  # the reference itself
    assert math.isnan(second.predicted_speed_frac)
    again = replayed(journal)
    assert [again.jobs[job].attempt.speed_frac for job in (1, one, two)] == [  # type: ignore[union-attr]
        None,
        pytest.approx(0.75),
        pytest.approx(0.9),
    ]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        RankUsage(measured_s=60, energy_mj=1_000),
        RankUsage(measured_s=60, gpu_milli=450),  # of the whole GPU: the driver does not tell processes apart
        RankUsage(measured_s=19, gpu_milli=450, shared_gpu_milli=450),
    ],
)
def test_speed_is_unknown_without_enough_measurements(journal: Journal, usage: RankUsage | None) -> None:
    broker = sharing(journal)
    end(broker, start(broker, workload=LIGHT), SOLO)
    one, _ = start(broker, workload=LIGHT), start(broker, workload=LIGHT)
    end(broker, one, usage)
    assert math.isnan(events(broker, one)[1].speed_frac)


def test_speed_is_unknown_without_an_earlier_run_without_co_tenants(journal: Journal) -> None:
    broker = sharing(journal)
    one, two = start(broker, workload=LIGHT), start(broker, workload=LIGHT)
    usage = RankUsage(measured_s=60, gpu_milli=450, shared_gpu_milli=450)
    end(broker, one, usage)
    assert math.isnan(events(broker, one)[1].speed_frac)
    end(broker, two, usage)
    assert math.isnan(events(broker, two)[1].speed_frac)


def test_lower_clock_is_predicted_and_seen(journal: Journal) -> None:
    broker = HandBroker(load_scheduler("fifo"), journal, limits=LIMITS)
    broker.says("n0", h100(sm_clocks_mhz=CLOCKS))
    end(broker, start(broker, workload=LIGHT), SOLO)
    assert math.isnan(events(broker, 1)[0].predicted_speed_frac)  # no models: no energy is weighed
    frugal = start(broker, workload=LIGHT, speed_energy=1.0)
    plan, clock = taken(broker, frugal), events(broker, frugal)[0].sm_clock_frac
    predicted = broker.state.models.speed_frac(LIGHT, "H100", clock)
    assert clock < 1.0
    assert events(broker, frugal)[0].predicted_speed_frac == pytest.approx(predicted)
    assert plan.gpu_w is not None
    assert plan.run_s == pytest.approx(broker.state.jobs[frugal].spec.predicted_s / predicted)
    assert events(broker, frugal)[0].predicted_energy_j == plan.gpu_w * plan.run_s
    end(broker, frugal, RankUsage(measured_s=60, gpu_milli=680, energy_mj=6_000_000))
    seen = events(broker, frugal)[1]
    assert seen.speed_frac == pytest.approx((1.0 - 0.68) / (1.0 - 0.6))
    assert seen.energy_j == 6_000.0


def test_attempt_that_is_stopped_has_its_own_speed_and_energy(journal: Journal) -> None:
    broker = sharing(journal)
    end(broker, start(broker, workload=LIGHT), SOLO)
    _, two = start(broker, workload=LIGHT), start(broker, workload=LIGHT)
    usage = RankUsage(measured_s=30, gpu_milli=300, shared_gpu_milli=300, energy_mj=2_000_000)
    lost = Ended(job=two, attempt=1, rank=0, exit_code=-1, reason="node daemon lost it", usage=usage)
    broker.says("n0", lost, after_s=60.0)
    stopped = events(broker, two)[1]
    assert (stopped.kind, stopped.attempt, stopped.energy_j) == ("end", 1, 2_000.0)
    assert stopped.speed_frac == pytest.approx(0.5)


def test_start_before_the_store_began_has_no_prediction(journal: Journal) -> None:
    broker = sharing(journal)
    start(broker, workload=LIGHT)
    told = as_it_stands(broker.state)
    (event,) = [one for one in told if isinstance(one, JobEvent) and one.kind == "start"]
    assert math.isnan(event.predicted_speed_frac)
    assert math.isnan(event.predicted_energy_j)
