"""`rlsched status` and the guard's counters: one line for each problem."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.queries.loop_metrics import journal_report
from rlsched.broker.state.predictions import Predictions
from rlsched.cli.users.status import _lines, problems, queued
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.guard import Guarded
from rlsched.decide.order.keys import Order
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.files.space import LOW_DISK_MIB, low_disk_mib
from rlsched.wire.messages import GuardReport, JournalReport, RecordsReport, Stats, StatsReport
from rlsched.workload.predict.kinds import HEDGE
from tests.support.broker.hand import hello, submit
from tests.support.broker.hand_broker import HandBroker

FINE = StatsReport(
    policy="ppo", decisions={}, contested={}, queued=1, running=2, ended=3, uptime_s=60.0, version="1.2",
    epoch=4, address="tcp://127.0.0.1:1", fallback="qssf", nodes={"up": 2},
    journal=JournalReport(path="/j", size_bytes=1_500, last_commit_ms=2.5, free_bytes=10**10, low_bytes=1),
    guard=GuardReport(decided={"late": 3}, now=""),
    records=RecordsReport(kept=7, lost={"written": 1}, troubles={}),
)  # fmt: skip
WRONG = [
    (
        {"clock_skews_s": {"n0": 75.0, "n1": -6.52}, "nodes_off_clock": 3},
        [
            "node n0: its clock is 75 s ahead of the broker's; run NTP on both (`timedatectl`)",
            "node n1: its clock is 6.5 s behind the broker's; run NTP on both (`timedatectl`)",
            "the clock of 1 other node is off as well: `rlsched nodes` lists them",
        ],
    ),
    ({"nodes": {"down": 2, "up": 1, "drained": 1}}, ["2 nodes are down", "1 node is drained"]),
    (
        {"guard": GuardReport(decided={}, now="late: the fallback decides the next 3 decisions")},
        ["the fallback qssf decides instead of ppo: late: the fallback decides the next 3 decisions"],
    ),
    (
        {"journal": JournalReport(path="/j", size_bytes=1, last_commit_ms=None, free_bytes=5, low_bytes=10)},
        ["the disk of /j has 5 B free, less than 10 B"],
    ),
    (
        {"records": RecordsReport(kept=0, lost={"drawn": 1}, troubles={"drawn": "tb: no room"})},
        ["records: tb: no room"],
    ),
]


def test_past_losses_and_interventions_are_shown_and_are_no_problem_now() -> None:
    assert problems(FINE) == []
    page = "\n".join(_lines(FINE))
    assert "broker 1.2 at tcp://127.0.0.1:1 epoch 4, up for 1.0 min" in page
    assert "guard: 3 late instead of the policy\n" in page
    assert "journal /j: 1.5 kB, last commit 2.5 ms, 10.0 GB free" in page
    assert "records: 7 kept, 1 not written" in page


def test_future_tasks_are_shown_next_to_the_queue() -> None:
    some = msgspec.structs.replace(FINE, queued=30, ineligible={"Quota": 12}, tasks_to_come=8)
    assert queued(some) == "30 queued (12 Quota), 8 tasks to come"
    assert queued(FINE) == "1 queued"


def test_deciders_are_shown_and_clocks_if_energy_counts() -> None:
    decided = msgspec.structs.replace(
        FINE,
        decisions={"policy": 3, "automatic": 2},
        contested={"policy": 1},
        fixed_clocks={"n1": "not root"},
    )
    page = "\n".join(_lines(decided))
    assert "decisions: 2 by automatic, 3 by policy; 1 of them with a choice" in page
    assert "energy" not in page
    page = "\n".join(_lines(msgspec.structs.replace(decided, speed_energy=0.3, clocked=1)))
    assert "energy counts 0.3 against time: 1 of 2 running jobs are at a lower clock than the highest" in page
    assert "  n1 cannot set clocks: not root" in page


@pytest.mark.parametrize(("what", "said"), WRONG)
def test_each_problem_has_a_line(what: dict[str, object], said: list[str]) -> None:
    assert problems(msgspec.structs.replace(FINE, **what)) == said


def test_failed_fit_is_a_problem() -> None:
    report = msgspec.structs.replace(Predictions(HEDGE).report(0.0), fit_error="no memory")
    (line,) = problems(msgspec.structs.replace(FINE, prediction=report))
    assert line == "predictions: the last fit failed: no memory"


def test_missing_fields_of_an_older_broker_are_no_problem() -> None:
    old = StatsReport(policy="fifo", decisions={}, contested={}, queued=0, running=0, ended=0, uptime_s=1.0)
    assert problems(old) == []
    assert _lines(old)[0] == "broker, up for 1 s"


def test_journal_size_includes_its_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(bytes(100))
    (tmp_path / "journal.sqlite-wal").write_bytes(bytes(50))
    report = journal_report(path, 1.0, LOW_DISK_MIB)
    assert (report.size_bytes, report.low_bytes) == (150, 1 << 30)
    assert report.free_bytes is not None
    assert report.free_bytes > 0


def test_broker_that_refuses_new_jobs_is_degraded() -> None:
    assert [low_disk_mib(min_free_mib) for min_free_mib in (0, 256, 4096)] == [1024, 1024, 4096]


class Failing(Scheduler):
    """Fails in a different way each time."""

    name = policy_id = "failing"
    order = Order(by="area")

    def __init__(self) -> None:
        self._ways = iter([FloatingPointError("nan"), KeyError("x"), None])

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        error = next(self._ways)
        if error is not None:
            raise error
        return Decision(action=Start(seq=99, gpus=(0,)), source="policy")


def test_interventions_are_counted_by_kind_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    broker = HandBroker(Guarded(Failing(), load_scheduler("qssf-backfill")), journal)
    broker.says("n0", hello("n0"))
    for _ in range(3):
        broker.ask(submit())
    again = HandBroker(load_scheduler("qssf-backfill"), journal, now_s=broker.now_s)
    report = again.ask(Stats())
    assert isinstance(report, StatsReport)
    assert report.guard is not None
    assert report.guard.decided == {"non-finite": 1, "failed": 1, "illegal": 1}
    assert "guard: 1 failed, 1 illegal, 1 non-finite instead of the policy" in "\n".join(_lines(report))
    journal.close()
