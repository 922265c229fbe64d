"""The broker's state machine: outside the ranges seen in training, a rule replaces the policy."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.report import drift_curves
from rlsched.broker.server.broker_policy import load_policy
from rlsched.broker.state.jobs import Job
from rlsched.cli.operators.metrics import figures
from rlsched.cli.users.status import _lines, problems
from rlsched.decide import guard as module
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.drift import Familiar
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError
from rlsched.wire.messages import Stats, StatsReport
from tests.support.broker.hand import LIMITS, ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker

BUDGET_MS = 60_000.0


def short_queues(most_jobs: int) -> Familiar:
    """All observations are within the ranges, except queues of more than this number of jobs."""
    columns = dict.fromkeys(NAMES, (-3.0, 3.0)) | {"waiting_jobs": (0.0, math.log1p(most_jobs) / 5)}
    return Familiar(columns=columns, nodes=(4, 8))


def dialled(path: Path, familiar: Familiar | None) -> Scheduler:
    """`easy` with dials that change with observations, and its guard."""
    weights = np.random.default_rng(2).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))
    msgspec.structs.replace(Strategy.from_layers(weights), familiar=familiar).write(path)
    return load_policy(Policy("easy", reserve_after="1s", dials=str(path)), None, BUDGET_MS)[0]


def records(broker: HandBroker) -> list[DecisionRecord]:
    return [record for kept in broker.records for record in kept.records]


def report(broker: HandBroker) -> StatsReport:
    found = broker.ask(Stats())
    assert isinstance(found, StatsReport)
    return found


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_SETTINGS", 4)


def launch_all(broker: HandBroker) -> None:
    """All jobs that are being launched run now."""
    for job in [one for one in broker.state.job_of_seq.values() if one.state == "launching"]:
        assert job.attempt is not None
        broker.says("n0", launched(job.number, job.attempt.number))


def finish_one(broker: HandBroker) -> None:
    """The first running job ends; jobs that start in its place run."""
    job = min((one for one in broker.state.job_of_seq.values() if one.state != "queued"), key=_number)
    assert job.attempt is not None
    broker.says("n0", ended(job.number, job.attempt.number))
    launch_all(broker)


def _number(job: Job) -> int:
    return job.number


def pass_time(broker: HandBroker) -> None:
    """The dials are set once more, and the first job ends."""
    broker.wait(601.0, "n0")
    finish_one(broker)


def dials(broker: HandBroker) -> list[float]:
    dial = broker.state.cluster.arrays.dials.dial
    return [float(dial[name][0]) for name in RANGES]


def crowded(scheduler: Scheduler, journal: Journal, jobs: int) -> HandBroker:
    """A broker with two GPUs and this number of jobs of two GPUs."""
    broker = HandBroker(scheduler, journal, limits=LIMITS)
    broker.says("n0", hello("n0", 2))
    for _ in range(jobs):
        broker.ask(submit(2))
    launch_all(broker)
    return broker


@pytest.mark.usefixtures("few")
def test_drift_while_the_queue_is_longer_than_in_training_is_reported(
    journal: Journal, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    broker = crowded(dialled(path, short_queues(10)), journal, 40)
    kinds = list[str]()
    while len(broker.state.job_of_seq) > 1:
        pass_time(broker)
        kinds.append(report(broker).guard.now.partition(":")[0])  # type: ignore[union-attr]
        if kinds[-1] == "drift":
            drifting = report(broker)
    assert kinds[0] == "", "the memory is not full yet"
    began = kinds.index("drift")
    assert kinds.index("", began) > began, "it ends"
    assert "drift" not in kinds[kinds.index("", began) :], "and does not start again"

    assert drifting.guard is not None
    assert drifting.guard.drift is not None
    (outside, *_) = drifting.guard.drift.outside
    assert (outside.column, drifting.guard.drift.active) == ("waiting_jobs", True)
    assert outside.value > outside.high * 1.1
    assert any("decides instead of" in one and "drift: waiting_jobs is " in one for one in problems(drifting))
    page = "\n".join(_lines(drifting))
    assert "drift: the policy's inputs are outside its training\n  waiting_jobs is " in page
    assert "  differs from training: partition shared has 1 nodes, trained on 4 to 8" in page
    exposed = {metric.name: metric for metric in figures(drifting)}
    assert exposed["rlsched_drift_active"].samples[0].value == 1.0
    (sample, *_) = exposed["rlsched_drift_outside_ratio"].samples
    assert (sample.labels, sample.value) == ({"column": "waiting_jobs"}, outside.share_frac)

    events = journal_events(journal.path)
    drifted = [one for one in events.decisions if one.guard.startswith("drift: waiting_jobs is ")]
    assert drifted
    assert {one.source for one in drifted} == {"guard"}
    assert broker.state.interventions["drift"] == len(drifted)
    assert all(record.guard.startswith("drift: ") for record in records(broker) if record.source == "guard")
    again = redecide(events, dialled(path, short_queues(10)))
    assert [(one.action, one.source, one.guard, one.state_digest) for one in again] == [
        (one.action, one.source, one.guard, one.state_digest) for one in records(broker)
    ], "it is a function of the states: a replay drifts at the same decisions"


@pytest.mark.usefixtures("few")
def test_restart_keeps_the_memory_and_the_counters(journal: Journal, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    before = dialled(path, short_queues(1))
    broker = crowded(before, journal, 40)
    for _ in range(20):
        pass_time(broker)
    counted = dict(broker.state.interventions)
    assert counted["drift"] > 0
    curves = drift_curves(before)
    assert curves["drift/active"] == curves["drift/outside_waiting_jobs_frac"] == 1.0
    assert curves["drift/value_waiting_jobs"] == pytest.approx(math.log1p(19) / 5, abs=0.02)
    scheduler = dialled(path, short_queues(1))
    again = HandBroker(scheduler, journal, limits=LIMITS)
    assert again.state.interventions == counted
    assert scheduler.replaced_by_fallback() == before.replaced_by_fallback() != ""
    assert drift_curves(scheduler) == curves


def test_strategy_without_ranges_is_not_watched_and_reports_it(journal: Journal, tmp_path: Path) -> None:
    scheduler = dialled(tmp_path / "old.json", None)
    broker = HandBroker(scheduler, journal, limits=LIMITS)
    page = _lines(report(broker))
    assert "drift: not monitored: the strategy has no ranges" in page
    assert problems(report(broker)) == []
    assert drift_curves(scheduler) == {}


def test_rule_has_no_ranges_and_no_report(journal: Journal) -> None:
    broker = HandBroker(load_policy(Policy.of("easy"), None, BUDGET_MS)[0], journal, limits=LIMITS)
    assert not any("drift" in line for line in _lines(report(broker)))


def test_ranges_with_swapped_ends_are_refused(tmp_path: Path) -> None:
    odd = Familiar(columns={"waiting_jobs": (2.0, 1.0)})
    strategy = msgspec.structs.replace(
        Strategy.from_layers(np.zeros((NUM_DIALS, NUM_COLUMNS + 1))), familiar=odd
    )
    strategy.write(tmp_path / "odd.json")
    with pytest.raises(InputError, match=r"odd\.json: familiar: waiting_jobs: expected the least"):
        Strategy.read(tmp_path / "odd.json")


# ---- a strategy -----------------------------------------------------------------------------------


def test_strategy_without_ranges_keeps_its_digest() -> None:
    one = Strategy.from_layers(np.full((NUM_DIALS, NUM_COLUMNS + 1), 0.5))
    assert b"familiar" not in msgspec.json.encode(one)


@pytest.mark.usefixtures("few")
def test_dials_are_0_outside_the_training_ranges_also_after_a_restart(
    journal: Journal, tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    scheduler = dialled(path, short_queues(6))
    broker = crowded(scheduler, journal, 30)
    assert any(dials(broker))
    for _ in range(6):
        pass_time(broker)
    assert not any(dials(broker))
    assert scheduler.replaced_by_fallback().startswith("drift: waiting_jobs is ")
    guards = {one.guard.partition(" is ")[0] for one in journal_events(journal.path).decisions[-2:]}
    assert guards == {"drift: waiting_jobs"}

    fresh = dialled(path, short_queues(6))
    again = HandBroker(fresh, journal, limits=LIMITS)
    assert fresh.replaced_by_fallback() == scheduler.replaced_by_fallback(), "replayed from the journal"
    assert dials(again) == dials(broker)
    broker = again
    broker.says("n0", hello("n0", 2, cluster="c1", epoch=1))
    launch_all(broker)
    for _ in range(20):
        pass_time(broker)
    assert len(broker.state.job_of_seq) < 6
    assert any(dials(broker))
    assert fresh.replaced_by_fallback() == ""
    events = journal_events(journal.path)
    assert {one.source for one in events.decisions} >= {"rule", "guard"}
