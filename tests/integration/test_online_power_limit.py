"""Power limits that fall and rise again: a real broker, a real node daemon on the fake NVML, real jobs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.cli.main import run
from rlsched.client.client import Client
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.limit import drawn_w
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.energy.series import Series
from tests.integration.test_online_clocks import CLOCKS, LOWEST, Cluster, pytestmark  # noqa: F401
from tests.support.online.processes import until

STEP_S = 10.0
HIGH_S, LOW_S = 50.0, 20.0
"""Time from the start of the test until the limit falls, and until it rises again."""


def most_kw(cpus: int) -> float:
    """Power of the node while a job uses its GPU at full clock, as the broker computes it."""
    cluster = ClusterState([NodeSpec(name="n0", gpus=1, gpu_type="h200", cpus=cpus)], OrderedQueue(Order()))
    LedgerModels(cluster).limit_power(1e9)
    seq = cluster.add_job(num_gpus=1, submit_s=0.0, predicted_s=60.0, spread=1.0)
    cluster.start(seq, (0,), 0.0)
    return float(drawn_w(cluster.arrays, 1.0, 1.0)) / 1e3


def write_limit(low_kw: float, folder: Path, known_ahead_h: float = 0.0) -> float:
    """Write a limit that is low from `HIGH_S` on, for `LOW_S`. Returns the time of its first step."""
    began_s = STEP_S * (time.time() // STEP_S)
    steps = np.full(round(86_400.0 / STEP_S), 10.0)
    steps[round(HIGH_S / STEP_S) : round((HIGH_S + LOW_S) / STEP_S)] = low_kw
    Series("limit", datetime.fromtimestamp(began_s, UTC), STEP_S, steps).write(folder / "limit.csv")
    (folder / "e.toml").write_text(
        f'[energy]\npower_limit = "limit.csv"\npower_limit_known_ahead_h = {known_ahead_h}\n',
        encoding="utf-8",
    )
    return began_s


@pytest.mark.slow
def test_clock_of_a_running_job_falls_and_rises_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_kw = most_kw(os.cpu_count() or 1)
    began_s = write_limit(full_kw - 0.05, tmp_path)
    cluster = Cluster(tmp_path, "--energy", str(tmp_path / "e.toml"), weight="0")
    try:
        monkeypatch.setenv("RLSCHED_HOME", str(cluster.keys))
        with Client(cluster.address, home=cluster.keys, timeout_s=10.0) as client:
            cluster.start_node()
            until(lambda: bool(client.nodes()))
            job = client.submit(["sleep", "600"], slack_s=86_400.0)
            until(lambda: client.job(job).state == "running")
            assert time.time() < began_s + HIGH_S, "the machine is too slow for this test"
            assert cluster.calls() == []
            until(lambda: bool(cluster.calls()))
            assert time.time() >= began_s + HIGH_S
            (call,) = cluster.calls()
            highest = int(call.split()[-1])
            assert call == f"lock 0 {LOWEST} {highest}"
            assert CLOCKS[0] / 2 <= highest < CLOCKS[0]
            limit = client.stats().power_limit
            assert limit is not None
            assert limit.most_w <= limit.limit_w < 1e3 * full_kw
            assert client.job(job).state == "running"
            until(lambda: len(cluster.calls()) > 1)
            assert time.time() >= began_s + HIGH_S + LOW_S
            assert cluster.calls() == [call, "reset 0 0 0"]
            client.cancel(job)
    finally:
        cluster.close()


@pytest.mark.slow
def test_job_that_would_run_into_an_announced_fall_starts_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = write_limit(0.02, tmp_path, known_ahead_h=1.0)
    cluster = Cluster(tmp_path, "--energy", str(tmp_path / "e.toml"), weight="0")
    try:
        monkeypatch.setenv("RLSCHED_HOME", str(cluster.keys))
        with Client(cluster.address, home=cluster.keys, timeout_s=10.0) as client:
            cluster.start_node(FAKE_NVML_MEMORY_MIB="100000")
            until(lambda: bool(client.nodes()))
            long = client.submit(["true"], slack_s=86_400.0)
            short = client.submit(["true"], slack_s=86_400.0, time_limit_s=3.0)
            until(lambda: client.job(short).state == "completed")
            assert time.time() < began_s + HIGH_S, "the machine is too slow for this test"
            assert client.job(long).state == "queued"
            fall_s = began_s + HIGH_S
            reason = client.why(long).summary
            assert (
                f"limit of 0.02 kW from {datetime.fromtimestamp(fall_s, UTC):%Y-%m-%d %H:%M} UTC on" in reason
            )
            limit = client.stats().power_limit
            assert limit is not None
            assert limit.falls == ((fall_s, pytest.approx(20.0)),)
            assert run(["status", "--broker", cluster.address, "--keys", str(cluster.keys)]) == 0
            told = f"power limit 10 kW, 0.02 kW from {time.strftime('%F %H:%M', time.localtime(fall_s))} on"
            assert told in capsys.readouterr().out
            until(lambda: client.stats().power_limit.limit_w < 1e3)  # type: ignore[union-attr]
            assert client.job(long).state == "queued"
            until(lambda: client.job(long).state == "completed")
            started_s = client.job(long).start_s
            assert started_s is not None
            assert started_s >= fall_s + LOW_S
    finally:
        cluster.close()
