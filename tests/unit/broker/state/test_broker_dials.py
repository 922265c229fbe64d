"""The broker's state machine: dials across restarts, and strategies that return no finite numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.server.broker_policy import load_policy
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.guard import Guarded
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError
from tests.support.broker.hand import LIMITS, ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import shape

BUDGET_MS = 60_000.0
HUGE = 1.7e308


def strategy(path: Path, weights: np.ndarray) -> Policy:
    """`easy` with the dials of a linear strategy."""
    Strategy.from_layers(weights).write(path)
    return Policy("easy", reserve_after="1s", dials=str(path))


@pytest.fixture
def lively(tmp_path: Path) -> Scheduler:
    """A policy whose dials change with every observation."""
    weights = np.random.default_rng(2).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))
    scheduler, fallback = load_policy(strategy(tmp_path / "lively.json", weights), None, BUDGET_MS)
    assert fallback == "easy* without dials"
    return scheduler


def make(journal: Journal, scheduler: Scheduler) -> HandBroker:
    return HandBroker(scheduler, journal, limits=LIMITS)


def work(broker: HandBroker, jobs: int, first: int = 1) -> None:
    """This number of jobs is submitted and all but the last end, some with a wait in between."""
    for job in range(first, first + jobs):
        broker.ask(submit(1 + job % 4, time_limit_s=60.0 * job))
        if broker.state.jobs[job].state == "launching":
            broker.says("n0", launched(job))
        broker.wait(97.0 * (job % 5) + 1.0, "n0")
        for live in [one for one in broker.state.job_of_seq.values() if one.state == "running"][:1]:
            broker.says("n0", ended(live.number))
        for live in [one for one in broker.state.job_of_seq.values() if one.state == "launching"]:
            broker.says("n0", launched(live.number))


def dials(broker: HandBroker) -> list[float]:
    dial = broker.state.cluster.arrays.dials.dial
    return [float(dial[name][0]) for name in RANGES]


def records(broker: HandBroker) -> list[DecisionRecord]:
    return [record for kept in broker.records for record in kept.records]


def test_restart_restores_dials_and_counters(journal: Journal, lively: Scheduler) -> None:
    """Decisions after a restart are those without it, to the last bit."""
    broker = make(journal, lively)
    broker.says("n0", hello("n0"))
    work(broker, 40)
    assert any(dials(broker)), "the strategy set nothing: the test would not see a loss"
    again = make(journal, lively)
    assert dials(again) == dials(broker)
    assert shape(again.state) == shape(broker.state)
    assert again.state.cluster.arrays.dials.counted.tobytes() == (
        broker.state.cluster.arrays.dials.counted.tobytes()
    )
    again.says("n0", hello("n0", 4, cluster="c1", epoch=1))
    work(again, 20, first=41)
    events, made = journal_events(journal.path), [*records(broker), *records(again)]
    replayed = redecide(events, lively)
    assert [(one.number, one.state_digest, one.action) for one in replayed] == [
        (one.number, one.state_digest, one.action) for one in made
    ]


def test_strategy_that_returns_nan_leaves_the_settings_unchanged(journal: Journal, tmp_path: Path) -> None:
    """Finite weights can be so large that their sum is not a number."""
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[:, -1], weights[:, NAMES.index("running_per_gpu")] = -HUGE, HUGE
    weights[:, NAMES.index("load_1_h")] = HUGE
    scheduler, _ = load_policy(strategy(tmp_path / "huge.json", weights), None, BUDGET_MS)
    broker = make(journal, scheduler)
    broker.says("n0", hello("n0"))
    broker.ask(submit(4))
    seen = dict(zip(NAMES, broker.state.cluster.arrays.dials.seen[0].tolist(), strict=True))
    assert seen["running_per_gpu"] == -1.0, "no job ran: the sum is minus infinity ..."
    assert seen["load_1_h"] > 1.1, "... to which infinity is added"
    broker.ask(submit(1))
    assert not any(dials(broker))
    decided = journal_events(journal.path).decisions
    assert {one.source for one in decided} == {"guard"}
    assert {one.guard for one in decided} == {
        "dials: the strategy set dials out of range, or to NaN; all are at 0"
    }


def test_strategy_that_raises_stops_no_decision(
    journal: Journal, lively: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(lively, Guarded)
    broker = make(journal, lively)
    broker.says("n0", hello("n0"))
    work(broker, 6)
    assert any(dials(broker))

    def fail(*_: object) -> None:
        raise FloatingPointError("overflow")

    with monkeypatch.context() as patched:
        patched.setattr(lively._policy, "begin_instant", fail)
        broker.ask(submit(1))
    assert not any(dials(broker))
    assert lively.interventions["dials"] >= 1
    assert records(broker)[-1].guard == "dials: FloatingPointError: overflow; all are at 0"
    broker.wait(1_000.0, "n0")
    broker.ask(submit(1))
    assert any(dials(broker)), "set at the next update"
    assert records(broker)[-1].source == "rule"


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "null", "1e999"])
def test_file_with_nan_is_refused(word: str, tmp_path: Path) -> None:
    policy = strategy(tmp_path / "s.json", np.full((NUM_DIALS, NUM_COLUMNS + 1), 0.125))
    text = (tmp_path / "s.json").read_text()
    (tmp_path / "s.json").write_text(text.replace("0.125", word, 1))
    with pytest.raises(InputError, match=r"s\.json: (expected a strategy|layers: matrix 1)") as error:
        load_policy(policy, None, BUDGET_MS)
    assert "\n" not in str(error.value)
