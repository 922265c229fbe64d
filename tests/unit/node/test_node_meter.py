"""The meter's thread: real processes, GPUs that hang or are lost, and replayed recordings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rlsched.errors import InputError
from rlsched.wire.messages import AttemptKey
from rlsched_node.gpu.device import (
    GpuError,
    GpuLostError,
    GpuNotSupportedError,
    GpuReading,
    Tenant,
)
from rlsched_node.gpu.replayed import Recorder, ReplayedGpus
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.processes import shim
from rlsched_node.usage.books import Place
from rlsched_node.usage.meter import DayEnergy, Meter, kept_usage
from rlsched_node.usage.processes import RankProcesses, children_of_all

DEADLINE_S = 60.0
KEY = AttemptKey(1, 1, 0, "c")


def until(look: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.005)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def meter() -> tuple[SimulatedGpus, Clock, Meter]:
    clock = Clock()
    gpus = SimulatedGpus(2, clock=clock)
    return gpus, clock, Meter(gpus, "V100", clock=clock, today=lambda: "2026-11-25")


# ---- processes ------------------------------------------------------------------------------------------

BUSY = """
import sys, time
while time.process_time() < 0.3: pass
print("done", flush=True)
sys.stdin.read()
"""


def test_usage_of_a_rank_includes_ended_processes() -> None:
    """A shell instead of the shim: one ended child and one live child, each with 0.3 s of CPU time."""
    command = f'"{sys.executable}" -c "$1" </dev/null; "{sys.executable}" -c "$1"; :'
    with subprocess.Popen(
        ["sh", "-c", command, "sh", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        assert [shell.stdout.readline() for _ in range(2)] == ["done\n", "done\n"]
        rank = RankProcesses(shell.pid)
        assert rank.needs_tree
        rank.find(children_of_all())
        seen = rank.read()
        assert seen is not None
        assert len(seen.pids) == 1
        assert shell.pid not in seen.pids
        assert 0.55 <= seen.cpu_s < 10.0, "except for the rounding of the kernel's ticks"
        assert seen.memory_mib is not None
        assert seen.memory_mib > 0
        shell.communicate("")
    assert rank.read() is None


def test_control_group_has_the_usage_of_all_processes(tmp_path: Path) -> None:
    files = {
        "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nnr_periods 40\nnr_throttled 10\n",
        "memory.stat": "anon 104857600\nfile 999999999\nshmem 1048576\n",
        "io.stat": "8:0 rbytes=1048576 wbytes=5 rios=1\n8:16 rbytes=2097152 wbytes=5\n",
        "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0 total=7\n",
        "cgroup.procs": "10\n11\n",
        "inner/cgroup.procs": "12\n",
    }
    (tmp_path / "inner").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    rank = RankProcesses(10, str(tmp_path))
    seen = rank.read()
    assert seen is not None
    assert (seen.cpu_s, seen.memory_mib, seen.read_bytes, seen.io_stall_s) == (2.5, 101, 3 << 20, 1.5)
    assert (seen.periods, seen.throttled, seen.pids) == (40, 10, {11, 12})
    for name in ("memory.stat", "io.stat", "io.pressure"):
        (tmp_path / name).unlink()
    (tmp_path / "cpu.stat").write_text("usage_usec 3000000\n")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    bare = rank.read()
    assert bare is not None
    assert (bare.cpu_s, bare.io_stall_s, bare.periods, bare.throttled) == (3.0, None, None, None)
    assert (bare.memory_mib or 0) > 1, "from its processes if the group does not count it"
    (tmp_path / "cpu.stat").unlink()
    assert rank.read() is None


# ---- the thread -----------------------------------------------------------------------------------------


def test_rank_on_simulated_gpus_uses_their_readings(meter: tuple[SimulatedGpus, Clock, Meter]) -> None:
    gpus, clock, metered = meter
    metered.read_all()
    metered.begin(KEY, Place((0,), os.getpid()))
    gpus.follow({0: [Tenant(os.getpid())]})
    for _ in range(25):
        clock.now_s += 1.0
        metered.read_all()
    news = metered.news()
    assert news is not None
    assert (news.day, news.power_w) == ("2026-11-25", gpus.power_w(0) + gpus.power_w(1))
    assert news.energy_day_j == pytest.approx(25 * (gpus.power_w(0) + gpus.power_w(1)), abs=0.1)
    assert {(one.job, one.usage.gpu_milli) for one in news.ranks} == {
        (1, round(1e3 * gpus.utilisation_frac(0)))
    }
    assert metered.news() is None, "nothing is reported twice"
    kept = metered.usage_to_keep()[KEY]
    used = kept_usage(metered.end(KEY))
    assert used is not None
    assert used.energy_mj == pytest.approx(25e3 * gpus.power_w(0), rel=1e-6)
    before = kept_usage(kept)
    assert before is not None
    assert before.energy_mj == used.energy_mj
    assert kept_usage(b"{") is None
    other = msgspec.json.decode(kept) | {"boot_id": "another"}
    assert kept_usage(msgspec.json.encode(other)) is None, "counters of another boot are ignored"


def test_day_total_survives_a_restart_and_ends_at_midnight() -> None:
    clock, today = Clock(), ["2026-11-25"]
    gpus = SimulatedGpus(1, clock=clock)
    metered = Meter(gpus, "V100", day=DayEnergy("2026-11-25", 1e6), clock=clock, today=lambda: today[0])
    metered.read_all()
    clock.now_s += 10.0
    metered.read_all()
    assert metered.day() == DayEnergy("2026-11-25", 1e6 + 10.0 * gpus.power_w(0))
    today[0] = "2026-11-26"
    clock.now_s += 3.0
    metered.read_all()
    assert metered.day() == DayEnergy("2026-11-26", pytest.approx(3.0 * gpus.power_w(0)))


class Stuck(SimulatedGpus):
    """The driver does not respond until the test lets it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked, self.answers = threading.Event(), threading.Event()

    def read(self, gpu: int) -> GpuReading:
        self.asked.set()
        self.answers.wait(DEADLINE_S)
        return super().read(gpu)


def test_hanging_driver_blocks_only_the_thread() -> None:
    gpus = Stuck()
    metered = Meter(gpus, "V100")
    metered.begin(KEY, Place((0,), os.getpid()))
    metered.start()
    until(gpus.asked.is_set)
    assert metered.end(KEY) is None
    assert metered.news() is not None
    assert metered.usage_to_keep() == {}
    assert not metered.close(), "the driver is not closed during its call"
    gpus.answers.set()
    until(metered.close)


class Failing(SimulatedGpus):
    """The first GPU is lost, the second sometimes raises an unexpected error."""

    def __init__(self) -> None:
        super().__init__(2)
        self.looks = 0

    def read(self, gpu: int) -> GpuReading:
        self.looks += gpu
        if gpu == 0:
            raise GpuLostError("GPU is lost")
        if self.looks == 1:
            raise RuntimeError("a driver's bug")
        return super().read(gpu)


def test_thread_survives_errors(caplog: pytest.LogCaptureFixture) -> None:
    gpus = Failing()
    metered = Meter(gpus, "V100")
    with pytest.raises(RuntimeError):
        metered.read_all()
    gpus.looks = 0
    metered.start()
    until(lambda: gpus.looks >= 2)
    assert metered.close()
    assert "the meter missed a reading" in caplog.text


# ---- recordings -----------------------------------------------------------------------------------------


def test_recording_replays_unchanged_and_its_energy_continues(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "gpus.jsonl"
    gpus = SimulatedGpus(2, "n0", clock=clock)
    recorder = Recorder(gpus, path, clock)
    metered = Meter(gpus, "V100", recorder=recorder, clock=clock)
    told: list[GpuReading] = []
    for second in range(11):
        gpus.follow({1: [Tenant(7, "no such workload")]} if second % 2 else {})
        told.append(gpus.read(1))
        metered.read_all()
        clock.now_s += 1.0
    assert metered.close()
    played = ReplayedGpus(path, clock)
    assert (played.count, played.uuid(1), played.name(0)) == (
        2,
        "SIMULATED-n0-1",
        "simulated GPU (recorded)",
    )
    assert played.capabilities(1).energy
    for reading in told[:10]:
        assert played.read(1) == reading
        clock.now_s += 1.0
    again = played.read(1)
    assert again == told[0]._replace(energy_j=(told[0].energy_j or 0.0) + (told[10].energy_j or 0.0))
    with pytest.raises(GpuNotSupportedError, match="is a recording"):
        played.lock_sm_clock(0, 1500)
    with pytest.raises(GpuError, match="GPU 2: expected 0 to 1"):
        played.read(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a recording"),
        ("{}", "expected a recording"),
        ('{"form": 9, "gpus": [{"uuid": "a", "name": "b"}]}', "of form 1"),
        ('{"form": 1, "gpus": []}', "with at least one GPU"),
        ('{"form": 1, "gpus": [{"uuid": "a", "name": "b"}]}', "expected readings of GPU 0"),
        (
            '{"form": 1, "gpus": [{"uuid": "a", "name": "b"}]}\n{"at_s": 0, "gpu": 3, "reading": {}}',
            "line 2: got GPU 3, expected a number below 1",
        ),
        (
            '{"form": 1, "gpus": [{"uuid": "a", "name": "b"}]}\n'
            '{"at_s": 0, "gpu": 0, "reading": {"power_w": "x"}}',
            "line 2: Expected",
        ),
    ],
)
def test_invalid_recording_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gpus.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        ReplayedGpus(path)
    with pytest.raises(InputError, match="cannot be read"):
        ReplayedGpus(tmp_path / "missing")
    with pytest.raises(InputError, match="cannot be written"):
        Recorder(SimulatedGpus(1), tmp_path / "no" / "such")
    assert shim.boot_id()
