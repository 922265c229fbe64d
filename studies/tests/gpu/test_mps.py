"""The MPS daemon of the GPU profile, with a shell script in place of NVIDIA's program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from studies.gpu.children import MeasurementError
from studies.gpu.conductor import check_clients
from studies.gpu.mps import MpsDaemon, MpsError
from studies.tests.gpu.fake_mps import install, recorded_commands

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands recorded by the fake."""
    return install(tmp_path, monkeypatch)


def test_daemon_uses_private_directories_and_quits(calls: Path) -> None:
    with MpsDaemon("GPU-1234") as daemon:
        pipe = Path(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"])
        log = Path(daemon.environment["CUDA_MPS_LOG_DIRECTORY"])
        assert pipe.stat().st_mode & 0o777 == 0o700
        assert log.is_dir()
        assert recorded_commands(calls) == ["start"]
    assert calls.read_text().splitlines()[0] == f"start {pipe} {log} GPU-1234"
    assert recorded_commands(calls) == ["start", "quit", "ended"]
    assert not pipe.exists()


def test_daemon_quits_after_an_error(calls: Path) -> None:
    with pytest.raises(ZeroDivisionError), MpsDaemon("GPU-1234"):
        raise ZeroDivisionError
    assert recorded_commands(calls) == ["start", "quit", "ended"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_daemon_quits_on_ctrl_c_and_sigterm(calls: Path, number: signal.Signals) -> None:
    script = (
        "import signal, time\n"
        "from studies.gpu.profile_catalogue import _interrupt\n"
        "from studies.gpu.mps import MpsDaemon\n"
        "signal.signal(signal.SIGTERM, _interrupt)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent may ignore SIGINT
        "with MpsDaemon('GPU-1234'):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "node_daemon"))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(30) != 0
    assert recorded_commands(calls) == ["start", "quit", "ended"]


def test_daemon_that_ignores_quit_is_killed(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPS_TRAIT", "deaf")
    monkeypatch.setattr("studies.gpu.mps.STOP_LIMIT_S", 0.3)
    said: list[str] = []
    with MpsDaemon("GPU-1234", say=said.append):
        pass
    assert recorded_commands(calls) == ["start", "quit", "terminated"]
    assert "does not quit" in said[0]


def test_daemon_that_exits_at_once_is_an_error(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPS_TRAIT", "dies")
    with pytest.raises(MpsError, match="ended at once with exit code 3"), MpsDaemon("GPU-1234"):
        pytest.fail("it is not up")
    assert recorded_commands(calls) == ["start"]


def test_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsError, match="not installed"), MpsDaemon("GPU-1234"):
        pytest.fail("it is not up")


@pytest.mark.usefixtures("calls")
def test_jobs_without_mps_are_detected() -> None:
    with MpsDaemon("GPU-1234") as daemon:
        assert daemon.clients() == [11, 12]
        check_clients(daemon, 2)
        with pytest.raises(MeasurementError, match="2 of 3 processes are clients of MPS"):
            check_clients(daemon, 3)
        start_s = time.monotonic()
    assert time.monotonic() - start_s < 60
