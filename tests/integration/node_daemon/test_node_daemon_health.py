"""`rlsched node` as a process: health reports, and checks that hang."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.wire.messages import Heartbeat, Launched
from rlsched_node.processes import shim
from rlsched_node.processes.health import NOT_YET
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, until

OPTIONS = ("--gpus", "4", "--simulated", "--min-free-mib", "0")


def beat(broker: FakeBroker, unhealthy: str) -> None:
    """A heartbeat with this `unhealthy` arrives from now on."""
    broker._unread.clear()
    broker.receive(Heartbeat, lambda beat: beat.unhealthy == unhealthy)


def test_check_runs_before_the_node_registers_and_again(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    sick, runs = tmp_path / "sick", tmp_path / "runs"
    sick.touch()
    check = f"echo x >> {runs}; test ! -e {sick} || {{ echo no scratch; exit 1; }}"
    node = start_node(*OPTIONS, "--health-check", check, "--health-check-every-s", "1")
    assert broker.greet().unhealthy == "health check: no scratch"
    sick.unlink()
    beat(broker, "")
    sick.touch()
    beat(broker, "health check: no scratch")
    assert "gets no new jobs: health check: no scratch" in node.log
    assert len(runs.read_text()) >= 2 * 3


def test_hanging_check_blocks_nothing_and_is_killed_with_the_daemon(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    """The check does not count as a process left by a job whose shim was killed."""
    pids = tmp_path / "pids"
    check = f"trap '' TERM; echo $$ >> {pids}; sleep 300"
    node = start_node(*OPTIONS, "--health-check", check, "--health-check-timeout-s", "200")
    assert broker.greet().unhealthy == NOT_YET
    broker.launch("sleep", "300")
    shim_pid = broker.receive(Launched).pid
    os.kill(shim_pid, signal.SIGKILL)
    assert broker.end_of(1).exit_code == 137
    (pid,) = map(int, pids.read_text().split())
    assert shim.start_ticks(pid) is not None
    broker.receive(Heartbeat)
    assert node.signal(signal.SIGTERM) == 0
    until(lambda: shim.start_ticks(pid) is None)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
def test_gpu_that_falls_off_the_bus_drains_its_node(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    library, lost = tmp_path / "libnvidia-ml.so.1", tmp_path / "lost"
    subprocess.run(["gcc", "-shared", "-fPIC", "-DGPUS=1", "-o", library, source], check=True)
    monkeypatch.setenv("FAKE_NVML_LOST", str(lost))
    start_node("--gpus", "1", libraries=tmp_path)
    assert broker.greet().unhealthy == ""
    lost.touch()
    found = broker.receive(Heartbeat, lambda beat: beat.unhealthy != "")
    assert found.unhealthy == "GPU 0 is lost: NVML, memory(0,): GPU is lost"
    lost.unlink()
    beat(broker, "")


def test_invalid_number_is_one_line(start_node: Callable[..., Node], broker: FakeBroker) -> None:
    assert broker.port
    node = start_node(*OPTIONS, "--health-check", "true", "--health-check-every-s", "0")
    assert node.process.wait(DEADLINE_S) == 2
    assert "--health-check-every-s" in node.log
