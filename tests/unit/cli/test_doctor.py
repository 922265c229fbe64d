"""`rlsched doctor` on an incomplete machine: findings, and never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlsched.cli.main import run
from rlsched.cli.operators import doctor
from rlsched.cli.operators.doctor import Finding
from rlsched.client.client import Client
from rlsched.transport.starting import Starting, starting_in
from rlsched.wire.messages import NodeInfo, StatsReport


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    assert run(["doctor", "--json", "--timeout-s", "0.2", *words]) in (0, 1)
    return {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize("is_there", [True, False])
def test_starting_broker_is_named_with_any_address(
    is_there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    if is_there:
        home.mkdir()
    address = "tcp://127.0.0.1:7998"
    assert starting_in(home) == ""
    with Starting(home, address) as word:
        word.report_step("compiling: 12 of 40")
        keys = found(capsys, "--keys", str(home), "--broker", "tcp://127.0.0.1:7997")["keys"]
        assert keys["state"] == "note"
        assert f"a broker is starting at {address}: compiling: 12 of 40; it makes the keys" in keys["line"]
        broker = found(capsys, "--keys", str(home), "--broker", address)["broker"]
        assert "a broker is starting at" in broker["line"]
    assert "start a broker here" in found(capsys, "--keys", str(home))["keys"]["line"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "/x/y"), "the check failed: /x/y: Permission denied"),
        (ValueError("two\nlines"), "the check failed: ValueError: two lines"),
        (RuntimeError(), "the check failed: RuntimeError"),
    ],
)
@pytest.mark.parametrize("check", ["_keys", "_broker", "_disk", "_gpus", "_cgroups", "_kernels"])
def test_failed_check_is_a_finding_and_the_others_run(
    check: str,
    error: Exception,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> Iterator[Finding]:
        raise error
        yield

    monkeypatch.setattr(doctor, check, fails)
    lines = [finding["line"] for finding in found(capsys, "--keys", str(tmp_path)).values()]
    assert lines.count(line) == 1
    assert len(lines) >= 6


@pytest.mark.parametrize("library", ["no such file", "no library", "without functions", "not to be read"])
def test_broken_or_missing_driver_is_a_finding(library: str, tmp_path: Path) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    if library == "no library":
        path.write_text("this is no library")
    elif library == "not to be read":
        path.mkdir()
    elif library == "without functions":
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc")
        (tmp_path / "empty.c").write_text("int nothing;")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, tmp_path / "empty.c"], check=True)
    code = "from rlsched.cli.operators.doctor import _gpus, _looked_at; print(*_looked_at('GPUs', _gpus))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert "state='note', line='NVML finds none (" in done.stdout
    assert done.stderr == ""


def test_node_with_a_wrong_clock_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def node(name: str, skew_s: float | None) -> NodeInfo:
        return NodeInfo(
            name=name, state="up", gpus=1, free_gpus=1, gpu_type="", vc="", jobs=[], last_seen_s=0.0,
            clock_skew_s=skew_s,
        )  # fmt: skip

    nodes = [node("n0", 75.0), node("n1", 5.0), node("n2", None)]
    stats = StatsReport(policy="fifo", decisions={}, contested={}, queued=0, running=0, ended=0, uptime_s=1.0)
    monkeypatch.setattr(Client, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(Client, "close", lambda _: None)
    monkeypatch.setattr(Client, "stats", lambda _: stats)
    monkeypatch.setattr(Client, "nodes", lambda _: nodes)
    off = {
        "what": "time",
        "state": "wrong",
        "line": "node n0: its clock is 75 s ahead of the broker's; run NTP on both (`timedatectl`)",
    }
    assert found(capsys, "--keys", str(tmp_path))["time"] == off
    nodes[0] = node("n0", -4.9)
    assert "time" not in found(capsys, "--keys", str(tmp_path))
