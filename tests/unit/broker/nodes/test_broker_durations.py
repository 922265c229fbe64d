"""Run times are measured by nodes. Wrong clocks are reported and change no run time."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import BrokerStarted
from rlsched.broker.events import NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.cli.users.status import problems
from rlsched.decide.registry import load_scheduler
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import AttemptReport, Heartbeat, Hello, ListNodes, Nodes, Stats, StatsReport
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker

DAY_S = 86_400.0


def run_times(broker: HandBroker) -> list[float]:
    """Run times that the predictor received, seconds."""
    said: list[float] = []
    learn = broker.state.predictions.record_run_time

    def note(spec: object, run_s: float, now_s: float) -> None:
        said.append(run_s)
        learn(spec, run_s, now_s)  # type: ignore[arg-type]

    broker.state.predictions.record_run_time = note  # type: ignore[assignment,method-assign]
    return said


def test_journal_400_days_ahead_of_the_nodes_leaves_run_times_intact(journal: Journal) -> None:
    broker = HandBroker(load_scheduler("fifo"), journal, now_s=1e9 + 400 * DAY_S)
    said = run_times(broker)
    broker.says("n0", hello("n0"))
    broker.ask(submit())
    broker.says("n0", launched(1))
    broker.says("n0", msgspec.structs.replace(ended(1), ended_s=1e9 + 90.0, ran_s=90.0), after_s=100.0)
    assert said == [90.0]
    job = broker.state.jobs[1]
    assert job.attempt is not None
    assert job.end_s == pytest.approx(job.attempt.start_s + 90.0)


def test_node_that_registers_again_reports_run_times(journal: Journal) -> None:
    """The broker's clock stood still meanwhile; a run time longer than by the journal still counts."""
    broker = make(journal, nodes=1)
    said = run_times(broker)
    broker.ask(submit())
    broker.says("n0", launched(1))
    report = AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=0, ended_s=5.0, ran_s=7_200.0)
    broker.says("n0", msgspec.structs.replace(hello("n0"), cluster="c1", attempts=[report]))
    assert said == [7_200.0]
    assert broker.state.jobs[1].end_s == broker.now_s


@pytest.mark.parametrize("ran_s", [float("nan"), float("inf"), -1.0, 1e12, None])
def test_impossible_run_time_is_ignored(journal: Journal, ran_s: float | None) -> None:
    broker = make(journal, nodes=1)
    said = run_times(broker)
    broker.ask(submit())
    broker.says("n0", launched(1))
    broker.says("n0", msgspec.structs.replace(ended(1), ran_s=ran_s), after_s=100.0)
    assert said == [pytest.approx(100.0, abs=0.1)]


# ---- clocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("skew_s", "words"), [(6.5, "6.5 s ahead of"), (-3600.0, "3600.0 s behind")])
def test_node_with_a_wrong_clock_is_named(
    journal: Journal, caplog: pytest.LogCaptureFixture, skew_s: float, words: str
) -> None:
    broker = make(journal, nodes=0)
    greeting = msgspec.structs.replace(hello("n0"), wall_s=5e8 + skew_s)
    with caplog.at_level(logging.WARNING, "rlsched.broker"):
        broker.batch([NodeSaid("n0", 1, greeting, 5e8)])
        broker.batch([NodeSaid("n1", 1, msgspec.structs.replace(hello("n1"), wall_s=5e8 + 1.0), 5e8)])
        broker.batch([NodeSaid("n2", 1, hello("n2"), 5e8)])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"node n0: its clock is {words} the clock of the broker's machine")
    answer = broker.ask(ListNodes())
    assert isinstance(answer, Nodes)
    assert [node.clock_skew_s for node in answer.nodes] == [skew_s, 1.0, None]
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.nodes_off_clock, stats.clock_skews_s) == (1, {"n0": skew_s})
    (line,) = problems(stats)
    assert line.startswith("node n0: its clock is ")


def test_corrected_clock_ends_the_warning_which_is_logged_once(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make(journal, nodes=0)

    def off(said: Hello | Heartbeat, skew_s: float | None) -> dict[str, float]:
        wall_s = None if skew_s is None else 5e8 + skew_s
        broker.batch([NodeSaid("n0", 1, msgspec.structs.replace(said, wall_s=wall_s), 5e8)])
        stats = broker.ask(Stats())
        assert isinstance(stats, StatsReport)
        return stats.clock_skews_s

    with caplog.at_level(logging.WARNING, "rlsched.broker"):
        assert off(hello("n0"), 75.0) == {"n0": 75.0}
        beat = Heartbeat(name="n0")
        assert off(beat, None) == {"n0": 75.0}, "an older node reports its clock only in its hello"
        assert off(beat, 76.0) == {"n0": 76.0}
        assert len(caplog.records) == 1
        assert off(beat, 0.5) == {}
        assert off(beat, -5.5) == {"n0": -5.5}
        assert len(caplog.records) == 2
        assert off(beat, float("nan")) == {}


def test_broker_with_a_clock_behind_its_journal_warns(tmp_path: Path) -> None:
    KeyHome(tmp_path).broker()
    start = BrokerStarted(epoch=1, cluster="c", version="0", policy="fifo", fallback="", order="submit")

    def line(last_s: float) -> str:
        directory = tmp_path / f"{last_s:g}"
        journal = Journal(directory / JOURNAL_FILE)
        journal.commit([start], last_s)
        journal.close()
        broker = Broker(
            BrokerSettings(address="tcp://127.0.0.1:0", directory=directory, keys=tmp_path, policy="fifo")
        )
        broker.close()
        return broker.clock_line()

    said = line(5e9)
    assert "days ahead of this machine's clock: set the clock" in said
    assert "\n" not in said
    assert line(1e9) == ""
