"""The examples run unchanged, each in an empty folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rlsched as rs
from rlsched.decide.registry import load_scheduler
from tests.support.ports import free_addresses

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
DEADLINE_S = 180.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user's shell: `rlsched` on the path, a separate home and port."""
    (address,) = free_addresses(1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = str(tmp_path / "home")
    return {**os.environ, "PATH": path, "RLSCHED_HOME": home, "RLSCHED_BROKER": address}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Standard output of a command."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return done.stdout


@contextmanager
def cluster(folder: Path, environment: dict[str, str], *options: str) -> Iterator[None]:
    """A local cluster that is ready."""
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(["rlsched", "up", *options], env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while "ready" not in (folder / "up.log").read_text():
            assert up.poll() is None, (folder / "up.log").read_text()
            assert time.monotonic() < deadline, "the cluster did not start"
            time.sleep(0.05)
        yield
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)


def test_replay_and_compare(tmp_path: Path, environment: dict[str, str]) -> None:
    said = run([sys.executable, str(EXAMPLES / "replay_and_compare.py")], tmp_path, environment)
    report = json.loads((tmp_path / "runs.json").read_text())
    assert list(report["policies"]) == ["fifo", "qssf", "ours", "tuned"]
    assert report["baseline"] == "qssf"
    assert "ratios to qssf" in said
    assert 'reserve_after = "30m"' in said
    assert len((tmp_path / "ours.csv").read_text().splitlines()) == 2001


def test_submit_jobs(tmp_path: Path, environment: dict[str, str]) -> None:
    with cluster(tmp_path, environment, "--nodes", "1", "--gpus", "4", "--policy", "fifo-backfill"):
        said = run([sys.executable, str(EXAMPLES / "submit_jobs.py")], tmp_path, environment)
    for trial in range(4):
        assert f"completed on n0: trial {trial} on GPUs " in said
    assert said.splitlines()[4].startswith("job 4: ")


def test_own_rule_is_one_file_and_runs_compiled() -> None:
    """While one job holds all four GPUs, jobs of 4, 2 and 1 GPUs arrive; the smallest starts first."""
    file = EXAMPLES / "own_rule.py"
    assert len(file.read_text().splitlines()) <= 60
    trace = rs.Trace.from_columns(
        name="four", submit_s=[0, 1, 2, 3], duration_s=[100, 50, 50, 50], num_gpus=[4, 4, 2, 1]
    )
    policy = rs.Policy.of(str(file))
    assert load_scheduler(policy).rule is not None  # simulators run it in the compiled loop
    hasty = policy.with_settings(own=[10.0])
    runs = rs.simulate(trace, rs.Cluster.uniform(1, 4), {"own": policy, "hasty": hasty})
    assert runs["own"].jobs.start_s.tolist() == [0, 150, 100, 100]
    assert runs["hasty"].jobs.start_s.tolist() == [0, 100, 150, 150]


def test_first_own_rule_reduces_waiting() -> None:
    """On the trace of the tutorial, jobs wait less than with the rule that the tutorial compares it with."""
    trace, spec = rs.synthesize("helios", jobs=2000, load=0.9, gpus=64, seed=1, predictability="informative")
    runs = rs.simulate(trace, spec, ["fifo-backfill", str(EXAMPLES / "own_rule.py")])
    ratio = runs.compare().paired["own_rule"].queue_mean_ratio
    assert ratio is not None
    assert ratio.high is not None
    assert ratio.high < 0.8


def test_own_scheduler_is_a_class_in_plain_python() -> None:
    """While one job holds all four GPUs, jobs of 4, 2 and 1 GPUs arrive; the smallest starts first."""
    trace = rs.Trace.from_columns(
        name="four", submit_s=[0, 1, 2, 3], duration_s=[100, 50, 50, 50], num_gpus=[4, 4, 2, 1]
    )
    policy = rs.Policy.of(f"{EXAMPLES / 'own_scheduler.py'}:FewestGpus")
    runs = rs.simulate(trace, rs.Cluster.uniform(1, 4), [policy])
    assert runs["FewestGpus"].jobs.start_s.tolist() == [0, 150, 100, 100]


@pytest.mark.parametrize("rule", ["own_rule.py", "own_scheduler.py:FewestGpus"])
def test_own_rule_decides_online(rule: str, tmp_path: Path, environment: dict[str, str]) -> None:
    rule = str(EXAMPLES / rule)
    with cluster(tmp_path, environment, "--nodes", "1", "--gpus", "2", "--policy", rule):
        run(["rlsched", "submit", "--gpus", "2", "--wait", "--", "true"], tmp_path, environment)
        said = json.loads(run(["rlsched", "queue", "--all", "--json"], tmp_path, environment))
    assert [(job["state"], job["decided_by"]) for job in said] == [("completed", "rule")]


@pytest.mark.slow
def test_train_and_serve(tmp_path: Path, environment: dict[str, str]) -> None:
    said = run([str(EXAMPLES / "train_and_serve.sh")], tmp_path, environment)
    assert "keep what you have" in said or "better by" in said
    served = "ours" if (tmp_path / "ours.toml").exists() else "last"
    assert ("not confirmed to be better; serving runs/ours/last.toml" in said) == (served == "last")
    assert re.search(rf"^ {served} +2,000 ", said, re.M), "it is compared"
    assert f"policy {served}" in (tmp_path / "home" / "up" / "broker.log").read_text(), "it is served"
    assert re.search(r"^on GPUs \d,\d$", said, re.M)
    assert "job 1: " in said
