"""A node's health checks: the operator's command as a real process, and the daemon's own checks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, cast

import pytest

from rlsched.wire.messages import Holding
from rlsched_node.gpu.device import GpuError, GpuLostError, GpuReading
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.processes import health, shim
from rlsched_node.processes.health import (
    FIRST_CHECK_WAIT_S,
    MAX_OUTPUT_BYTES,
    MAX_REASON_CHARACTERS,
    NOT_YET,
    STUCK_S,
    Health,
    HealthCheck,
    OwnChecks,
)
from rlsched_node.usage.meter import Meter
from tests.support.exited import has_exited

DEADLINE_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def until(look: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.005)


def outcome(check: HealthCheck) -> str:
    """Result of the next run."""
    said: list[str | None] = []
    until(lambda: said.append(check.step()) or said[-1] is not None)  # type: ignore[func-returns-value]
    assert said[-1] is not None
    return said[-1]


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Make this process a subreaper, as the daemon is."""
    assert shim.become_subreaper()
    yield
    shim.prctl(36, 0)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 0", ""),
        ("echo all is well; true", ""),
        ("exit 3", "health check: exit code 3"),
        ("echo looked; echo '/scratch is missing '; echo; exit 1", "health check: /scratch is missing"),
        ("echo to stderr >&2; exit 1", "health check: to stderr"),
        ("kill -9 $$", "health check: it was ended by signal 9"),
        ("printf 'a\\033[31mb\\377'; exit 1", "health check: a\\x1b[31mb�"),
        ("no-such-command-here 2>/dev/null", "health check: exit code 127"),
    ],
)
def test_last_line_is_the_reason(command: str, reason: str) -> None:
    assert outcome(HealthCheck(command)) == reason


def test_check_runs_again_when_due_and_the_node_recovers(tmp_path: Path) -> None:
    clock, well = Clock(), tmp_path / "well"
    check = HealthCheck(f"test -e {well} || {{ echo no; exit 1; }}", every_s=60.0, elapsed=clock)
    assert outcome(check) == "health check: no"
    well.touch()
    clock.now_s += 59.0
    assert check.step() is None
    assert check.pids == set()
    clock.now_s += 1.0
    assert outcome(check) == ""


@pytest.mark.usefixtures("subreaper")
def test_hanging_check_is_killed_with_all_its_children(tmp_path: Path) -> None:
    clock, pids = Clock(), tmp_path / "pids"
    command = f"echo begins; sleep 300 & echo $! $$ > {pids}; sleep 300"
    check = HealthCheck(command, every_s=1.0, timeout_s=5.0, elapsed=clock)
    assert check.step() is None
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    numbers = [int(pid) for pid in pids.read_text().split()]
    assert check.pids == {numbers[1]}
    clock.now_s += 4.9
    assert check.step() is None
    clock.now_s += 0.1
    assert check.step() == "health check: it did not end within 5 s: begins"
    pids.unlink()
    until(lambda: check.step() is None and pids.exists())
    assert all(has_exited(pid) for pid in numbers), "the next check started after the last one had exited"
    check.close()
    assert check.pids == set()


@pytest.mark.usefixtures("subreaper")
def test_processes_left_behind_are_killed_and_reaped(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    check = HealthCheck(f"sleep 300 & echo $! > {pids}; exit 0")
    assert outcome(check) == ""
    pid = int(pids.read_text())
    until(lambda: check.step() is None and not os.path.exists(f"/proc/{pid}"))


def test_endless_output_is_bounded_and_does_not_block(tmp_path: Path) -> None:
    written, gate = tmp_path / "written", tmp_path / "gate"
    waits = f"touch {written}; until [ -e {gate} ]; do sleep 0.01; done"
    check = HealthCheck(f"yes 0123456789 | head -c 20000000; {waits}; echo; echo the end; exit 1")
    until(lambda: check.step() is None and written.exists())  # each step returns before its output ends
    gate.touch()
    assert outcome(check) == "health check: the end"
    assert len(check._said) <= MAX_OUTPUT_BYTES
    assert len(outcome(HealthCheck("printf '%5000d' 7; exit 1"))) <= MAX_REASON_CHARACTERS


# ---- both checks ----------------------------------------------------------------------------------------


class Own(OwnChecks):
    """The daemon's own checks, set by hand."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def unfit_reasons(self) -> list[str]:
        return self.reasons


class Script(HealthCheck):
    """The results of the command, set by hand."""

    def __init__(self) -> None:
        self.says: str | None = None

    def step(self) -> str | None:
        says, self.says = self.says, None
        return says


def test_only_changes_are_reported_and_numbers_in_the_reason_are_none() -> None:
    check, own = Script(), Own()
    node = Health(check, own)
    assert node.news() is None
    check.says = ""
    assert node.news() == ""
    check.says = "health check: 3 errors at 12:01"
    assert node.news() == "health check: 3 errors at 12:01"
    check.says = "health check: 4 errors at 12:02"
    assert node.news() is None
    own.reasons = ["GPU 1 is lost"]
    assert node.news() == "health check: 4 errors at 12:02; GPU 1 is lost"
    check.says = ""
    assert node.news() == "GPU 1 is lost"
    own.reasons = []
    assert node.news() == ""
    assert node.news() is None


def test_slow_first_check_counts_as_not_passed() -> None:
    clock, check = Clock(), Script()
    node = Health(check, Own(), clock)
    clock.now_s += FIRST_CHECK_WAIT_S - 0.1
    assert node.news() is None
    clock.now_s += 0.1
    assert node.news() == NOT_YET
    check.says = ""
    assert node.news() == ""


def test_without_a_command_the_daemons_own_result_is_there_at_once() -> None:
    assert Health(None, Own()).news() == ""


# ---- the daemon's own checks ----------------------------------------------------------------------------


class Gpus(SimulatedGpus):
    """Behave like real GPUs for these queries."""

    kind: Literal["simulated", "nvml", "replayed"] = "nvml"

    def __init__(self) -> None:
        super().__init__(2)
        self.errors: dict[int, GpuError] = {}
        self.answers = threading.Event()
        self.answers.set()

    def read(self, gpu: int) -> GpuReading:
        self.answers.wait(DEADLINE_S)
        if gpu in self.errors:
            raise self.errors[gpu]
        return super().read(gpu)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Gpus, OwnChecks]]:
    gpus = Gpus()
    meter = Meter(gpus, "V100", every_s=0.01)
    meter.start()
    yield gpus, OwnChecks(meter, tmp_path, 0)
    gpus.answers.set()
    until(meter.close)


def test_node_is_unhealthy_only_if_all_its_gpus_are_lost(own: tuple[Gpus, OwnChecks]) -> None:
    gpus, checks = own
    outages = cast(Meter, checks._gpus).outages
    assert checks.unfit_reasons() == outages.holdings == []
    lost = "NVML, memory(1,): GPU is lost"
    gpus.errors = {0: GpuError("Timeout"), 1: GpuLostError(lost)}
    until(lambda: outages.holdings == [Holding(by=f"lost: {lost}", gpus=[1])])
    assert checks.unfit_reasons() == []
    gpus.errors = {0: GpuLostError("Unknown Error"), 1: GpuLostError("another call")}
    until(lambda: checks.unfit_reasons() == ["GPU 0 is lost: Unknown Error", f"GPU 1 is lost: {lost}"])
    assert outages.holdings == [], "reported once"
    gpus.errors = {}
    until(lambda: checks.unfit_reasons() == outages.holdings == [])


def test_power_is_reported_if_all_gpus_report_it(own: tuple[Gpus, OwnChecks]) -> None:
    gpus, checks = own
    until(lambda: checks.power_w == sum(gpus.power_w(gpu) for gpu in range(2)) > 0.0)
    gpus.errors = {1: GpuError("Timeout")}
    until(lambda: checks.power_w is None)


def test_hanging_driver_is_detected(own: tuple[Gpus, OwnChecks], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, checks = own
    gpus.answers.clear()
    until(lambda: checks._gpus.asked_s is not None)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + STUCK_S + 1.0)
    assert checks.unfit_reasons() == [f"its GPUs have not answered for {STUCK_S:g} s or more"]
    monkeypatch.undo()


def test_full_disk_is_reported_until_a_margin_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1000]
    monkeypatch.setattr(health, "free_and_wanted_mib", lambda *_: (free[0], 1000))
    checks = OwnChecks(Meter(SimulatedGpus(1), "V100"), tmp_path, None)
    seen = []
    for free[0] in (1000, 999, 1001, 1099, 1100, 1050):
        seen.append(bool(checks.unfit_reasons()))
    assert seen == [False, True, True, True, False, False]
