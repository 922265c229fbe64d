"""Usage that nodes measure: of running jobs in memory, of ended attempts in the journal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import RankEnded
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.marks import SCHEMA_VERSION
from rlsched.broker.nodes.metered import STALE_S
from rlsched.broker.queries.pages import _job_bytes
from rlsched.decisions.schema import JobEvent
from rlsched.wire.messages import (
    AttemptReport,
    Ended,
    Explanation,
    Hello,
    History,
    JobInfo,
    Jobs,
    Launch,
    ListHistory,
    ListJobs,
    ListNodes,
    ListUsage,
    Metered,
    NodeInfo,
    Nodes,
    RankMetered,
    RankUsage,
    Stats,
    StatsReport,
    Usage,
    Welcome,
    Why,
)
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker

BUSY = RankUsage(
    measured_s=10,
    energy_mj=3_000_000,
    gpu_milli=800,
    gpu_memory_mib=20_480,
    sm_active_milli=650,
    power_limited_milli=120,
    cpu_milli=3500,
    memory_mib=9_000,
    io_wait_milli=40,
    read_mib=512,
)
KWH = 3_600_000_000
SAMPLES = Path(__file__).parents[3] / "samples" / "journal"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HandBroker]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield make(journal, nodes=2)
    journal.close()


def metered(job: int, attempt: int = 1, rank: int = 0, energy_mj: int = KWH) -> RankMetered:
    return RankMetered(job=job, attempt=attempt, rank=rank, usage=BUSY, energy_mj=energy_mj)


def job(broker: HandBroker, number: int) -> JobInfo:
    page = broker.ask(ListJobs(job=number))
    assert isinstance(page, Jobs)
    return page.jobs[0]


def node(broker: HandBroker, name: str) -> NodeInfo:
    page = broker.ask(ListNodes())
    assert isinstance(page, Nodes)
    return next(one for one in page.nodes if one.name == name)


def end(broker: HandBroker, number: int, usage: RankUsage | None, rank: int = 0, exit_code: int = 0) -> None:
    broker.says(f"n{rank}", Ended(job=number, attempt=1, rank=rank, exit_code=exit_code, usage=usage))


def test_nodes_are_asked_for_usage_and_receive_the_jobs_workload(broker: HandBroker) -> None:
    sent = broker.says("n2", hello("n2"))
    assert [message.hears_usage for message in sent if isinstance(message, Welcome)] == [True]
    broker.ask(submit(4, workload="resnet50-imagenet-b16"))
    launches = [message for _, message in broker.sent.orders if isinstance(message, Launch)]
    assert [launch.workload for launch in launches] == ["resnet50-imagenet-b16"]


def test_running_job_and_its_node_show_usage(broker: HandBroker) -> None:
    broker.ask(submit(2))
    broker.says("n0", launched(1))
    assert job(broker, 1).usage is None
    broker.says("n0", Metered(ranks=[metered(1)], power_w=900.0, day="2026-11-25", energy_day_j=7200.0))
    seen = job(broker, 1)
    assert seen.usage is not None
    assert (seen.usage.gpu_frac, seen.usage.gpu_memory_mib, seen.usage.cores) == (0.8, 20_480, 3.5)
    assert (seen.energy_j, seen.usage.sm_active_frac, seen.usage.memory_mib) == (3.6e6, 0.65, 9_000)
    at = node(broker, "n0")
    assert (at.power_w, at.energy_day_j, at.gpu_frac, at.cores, at.memory_mib) == (
        900.0,
        7200.0,
        0.4,
        3.5,
        9_000,
    )
    assert node(broker, "n1").gpu_frac is None
    past = broker.ask(ListHistory(states=["running"]))
    assert isinstance(past, History)
    assert [one.energy_j for one in past.jobs] == [3.6e6]
    report = broker.ask(Stats())
    assert isinstance(report, StatsReport)
    assert (report.power_w, report.energy_day_j) == (900.0, 7200.0)
    assert report.used == {
        "gpus": 2,
        "gpus_busy": 1.6,
        "gpu_memory_mib": 40_960,
        "cores": 3.5,
        "memory_mib": 9_000,
    }
    said = broker.ask(Why(job=1))
    assert isinstance(said, Explanation)
    lines = "\n".join(said.details)
    assert "lately its GPUs worked 80 % of the time and had 20.0 GiB in use" in lines
    assert "multiprocessors active 65 %" in lines
    assert "held down by a power limit 12 % of the time" in lines
    assert "it keeps 3.5 CPU cores busy, 8.8 GiB of memory" in lines
    assert "waits for input or output 4 % of the time" in lines
    assert "its GPUs have drawn 1.00 kWh for it" in lines


def test_node_shows_each_reading_that_its_ranks_have(broker: HandBroker) -> None:
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    only_memory = RankMetered(job=1, attempt=1, rank=0, usage=RankUsage(memory_mib=700))
    broker.says("n0", Metered(ranks=[only_memory]))
    at = node(broker, "n0")
    assert (at.memory_mib, at.cores, at.gpu_frac) == (700, None, None)


def test_ranks_of_a_gang_are_one_job(broker: HandBroker) -> None:
    broker.ask(submit(8))
    for rank in range(2):
        broker.says(f"n{rank}", launched(1, rank=rank))
        broker.says(f"n{rank}", Metered(ranks=[metered(1, rank=rank)]))
    seen = job(broker, 1)
    assert seen.usage is not None
    assert (seen.usage.gpu_frac, seen.usage.cores, seen.energy_j) == (0.8, 7.0, 7.2e6)
    end(broker, 1, BUSY)
    assert job(broker, 1).energy_j == 3.6e6 + 3e3, "one rank has ended, the other still runs"


@pytest.mark.parametrize(
    "told",
    [
        metered(1, attempt=2),
        metered(1, rank=1),
        metered(9),
        metered(1, energy_mj=-1),
        RankMetered(job=1, attempt=1, rank=0, usage=RankUsage(gpu_milli=-5)),
        RankMetered(job=1, attempt=1, rank=0, usage=RankUsage(memory_mib=1 << 60)),
    ],
)
def test_invalid_usage_is_ignored(broker: HandBroker, told: RankMetered) -> None:
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    broker.says("n0", Metered(ranks=[told], power_w=math.nan, energy_day_j=-1.0))
    assert job(broker, 1).usage is None
    assert (node(broker, "n0").power_w, node(broker, "n0").energy_day_j) == (None, None)
    broker.says("n1", Metered(ranks=[metered(1)]))
    assert job(broker, 1).usage is None, "of another node's rank"


def test_stale_usage_is_not_shown(broker: HandBroker) -> None:
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    broker.says("n0", Metered(ranks=[metered(1)]))
    broker.says("n1", Metered(), after_s=STALE_S + 1.0)
    assert job(broker, 1).usage is None


def test_days_from_clocks_that_lag_are_left_out(broker: HandBroker) -> None:
    broker.says("n0", Metered(day="2026-11-24", energy_day_j=9e9))
    broker.says("n1", Metered(day="2026-11-25", energy_day_j=5.0))
    report = broker.ask(Stats())
    assert isinstance(report, StatsReport)
    assert report.energy_day_j == 5.0


def test_usage_of_attempts_is_journalled_summed_and_restored(broker: HandBroker) -> None:
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    end(broker, 1, BUSY, exit_code=0)
    broker.ask(submit(1))
    broker.says("n0", launched(2))
    broker.says("n0", Ended(job=2, attempt=1, rank=0, exit_code=143, reason="node_stopped", usage=BUSY))
    broker.says("n0", launched(2, attempt=2))
    broker.says("n0", Ended(job=2, attempt=2, rank=0, exit_code=0, usage=BUSY))
    broker.ask(submit(1))
    broker.says("n0", launched(3))
    broker.says("n0", ended(3))
    entries = [row.entry for row in broker.journal.rows() if isinstance(row.entry, RankEnded)]
    assert [entry.usage for entry in entries] == [BUSY, BUSY, BUSY, None]

    def energies(of: HandBroker) -> tuple[list[float | None], list[float | None]]:
        past, used = of.ask(ListHistory()), of.ask(ListUsage())
        assert isinstance(past, History)
        assert isinstance(used, Usage)
        return [one.energy_j for one in past.jobs], [one.energy_j for one in used.jobs]

    assert energies(broker) == ([None, 6000.0, 3000.0], [None, 6000.0, 3000.0])
    ends = [
        event.energy_j
        for kept in broker.records
        for event in kept.happened
        if isinstance(event, JobEvent) and event.kind == "end"
    ]
    assert ends[:3] == [3000.0] * 3, "the store of decisions has the usage of each attempt"
    assert math.isnan(ends[3])
    usage = job(broker, 1).usage
    assert usage is not None
    assert (usage.at_s, usage.gpu_frac, usage.energy_j, usage.read_mib) == (None, 0.8, 3000.0, 512)
    path = broker.journal.path
    broker.journal.close()
    assert check(path).damage == []
    again = make(Journal(path))
    assert energies(again) == ([None, 6000.0, 3000.0], [None, 6000.0, 3000.0])
    assert job(again, 2).usage == usage
    assert job(again, 3).usage is None
    again.journal.close()


def test_node_that_registers_reports_usage_of_ended_ranks(broker: HandBroker) -> None:
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    report = AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=0, usage=BUSY)
    broker.says("n0", Hello(name="n0", gpus=4, attempts=[report], cluster=broker.state.identity))
    assert job(broker, 1).energy_j == 3000.0


LONG = RankUsage(
    measured_s=600,
    energy_mj=150_000_000,
    gpu_milli=800,
    gpu_memory_mib=20_480,
    cpu_milli=3500,
    memory_mib=9_000,
)


def test_later_jobs_of_the_same_command_have_the_same_expected_usage(broker: HandBroker) -> None:
    command = ["python", "train.py", "--seed", "{}"]

    def run(number: int, usage: RankUsage | None) -> None:
        broker.ask(submit(1, user="ann", command=[*command[:-1], str(number)]))
        broker.says("n0", launched(number))
        end(broker, number, usage)

    run(1, LONG)
    run(2, LONG)
    run(3, BUSY)  # measured too briefly
    run(4, None)
    broker.ask(submit(1, user="ann", command=[*command[:-1], "5"]))
    broker.ask(submit(1, user="bob", command=[*command[:-1], "6"]))
    assert broker.state.jobs[1].spec.profiles == {}
    assert broker.state.jobs[6].spec.profiles == {}
    stamped = broker.state.jobs[5].spec.profiles
    found = stamped["generic"].known_figures()
    assert {field: round(one.value, 3) for field, one in found.items()} == {
        "util_frac": 0.8,
        "memory_mib": 20_480.0,
        "dynamic_w": 235.0,
        "cores_each": 3.5,
        "host_mib": 9_000.0,
        "full_util_frac": 0.8,
    }
    assert {one.count for one in found.values()} == {2}
    broker.says("n0", launched(5))
    broker.says("n0", Metered(ranks=[metered(5)]))
    said = broker.ask(Why(job=5))
    assert isinstance(said, Explanation)
    assert (
        "by 2 earlier attempts of the same command on generic it was expected to use: GPU 80 % (80 % seen), "
        "GPU memory 20.0 GiB (20.0 GiB seen), cores a GPU 3.5 (3.5 seen), memory 8.8 GiB (8.8 GiB seen), "
        "power a GPU 250 W"
    ) in said.details
    broker.wait(100.0, "n0")
    broker.says("n0", Metered(ranks=[metered(5, energy_mj=20_020_000)]))
    said = broker.ask(Why(job=5))
    assert isinstance(said, Explanation)
    assert any(line.endswith("power a GPU 250 W (200 W seen)") for line in said.details), said.details
    end(broker, 5, LONG)
    path, kept = broker.journal.path, broker.state.profiles.kept_profiles()
    broker.journal.close()
    again = make(Journal(path))
    assert again.state.profiles.kept_profiles() == kept, "a restart learns the same"
    again.journal.close()


def test_ended_ranks_are_forgotten(broker: HandBroker) -> None:
    for number in range(1, 141):
        broker.ask(submit(1))
        broker.says("n0", launched(number))
        broker.says("n0", Metered(ranks=[metered(number)]))
        end(broker, number, BUSY)
    assert len(broker.machine._members.metered._ranks) <= 65


def test_journal_of_version_6_gains_usage(tmp_path: Path) -> None:
    """Written by a broker without usage: completed, failed, running and waiting jobs."""
    path = tmp_path / "journal.sqlite"
    shutil.copy(SAMPLES / "version-6.sqlite", path)
    broker = make(Journal(path))
    assert [(one.state, one.energy_j) for one in broker.state.jobs.values()] == [
        ("completed", None),
        ("failed", None),
        ("running", None),
        ("queued", None),
    ]
    assert broker.state.profiles.kept_profiles() == []
    broker.says("n0", hello("n0", 4, AttemptReport(job=3, attempt=1, rank=0, state="running")))
    broker.says("n0", Ended(job=3, attempt=1, rank=0, exit_code=0, usage=LONG))
    assert job(broker, 3).energy_j == 150_000.0
    broker.journal.close()
    report = check(path)
    assert (report.version, report.damage, report.derived) == (SCHEMA_VERSION, [], [])


def test_row_with_all_figures_is_within_the_size_assumed_for_a_page(broker: HandBroker) -> None:
    full = RankUsage(**dict.fromkeys(RankUsage.__struct_fields__, 99_999))
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    bare = job(broker, 1)
    told = RankMetered(job=1, attempt=1, rank=0, usage=full, energy_mj=10**12)
    broker.says("n0", Metered(ranks=[told]))
    seen = job(broker, 1)
    assert len(msgspec.msgpack.encode(bare)) <= _job_bytes(bare)
    assert len(msgspec.msgpack.encode(seen)) <= _job_bytes(seen)
