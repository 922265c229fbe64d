"""A broker's forecaster: forecasts of real jobs, kill -9, restart, and comparison with the outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlsched.broker.forecasts.forecasting import forecast_command
from rlsched.cli.operators.predictor import RULES
from rlsched.client.client import Client
from rlsched.decisions.reading import last_forecasts
from rlsched.wire.messages import ForecastReport
from rlsched.yielding import BACKGROUND
from tests.support.online.cluster import RLSCHED, Cluster, all_up, until

PATIENCE_S = 240.0
"""Kernels may have to be compiled, at the lowest priority."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("forecasts"),
        nodes=("n0",),
        broker_options=("--policy", "fifo-backfill"),
        node_options=("--end-jobs-on-exit",),
    )
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without jobs of earlier tests."""
    yield one_cluster
    with one_cluster.client() as client:
        for job in client.list_jobs().jobs:
            client.cancel(job.job)


def forecaster(cluster: Cluster) -> int | None:
    """The forecaster process of this cluster's broker."""
    module = forecast_command()[-1].encode()
    broker = cluster.running["broker"].pid
    for task in Path(f"/proc/{broker}/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):
                if module in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
    return None


def report(client: Client) -> ForecastReport:
    found = client.stats().forecasts
    assert found is not None
    return found


def test_forecasts_appear_go_stale_and_are_renewed(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client, 1)
        jobs = [client.submit(["sleep", "600"], num_gpus=4, time_limit_s=700.0) for _ in range(2)]
        rows = client.dry_run(num_gpus=2).rows
        assert [row.what for row in rows[:2]] == ["as asked", "half the GPUs"]
        assert len(client.list_jobs().jobs) == 2, "no job is queued"
        until(lambda: client.job(jobs[1]).forecast is not None, "there is a forecast", PATIENCE_S)
        waits, runs = client.job(jobs[1]), client.job(jobs[0])
        assert waits.forecast is not None
        assert runs.forecast is not None
        assert runs.forecast.start_s is None
        start_s, end_s = waits.forecast.start_s, waits.forecast.end_s
        assert start_s is not None
        assert all(time is not None and time >= waits.forecast.said_s for time in start_s)
        assert runs.start_s is not None
        assert start_s[2] is not None
        assert start_s[2] <= runs.start_s + 700.0 + 5.0, "the first ends at its time limit"
        assert end_s[0] is not None
        assert any(line.startswith("starts in") for line in client.why(jobs[1]).details)

        process = forecaster(cluster)
        assert process is not None
        assert os.getpriority(os.PRIO_PROCESS, process) == os.getpriority(os.PRIO_PROCESS, 0) + BACKGROUND
        os.kill(process, signal.SIGKILL)
        until(lambda: report(client).note, "it is missed")
        old = client.job(jobs[1]).forecast
        assert old is not None, "the old forecast stays with its age"
        assert client.submit(["true"]) == 3, "submissions do not wait for it"
        until(lambda: not report(client).note, "another one speaks", PATIENCE_S)
        new = client.job(jobs[1]).forecast
        assert new is not None
        assert new.said_s > old.said_s


def test_outcomes_are_kept_and_counted(cluster: Cluster) -> None:
    store = cluster.directory / "broker" / "decisions"
    with cluster.client() as client:
        jobs = [client.submit(["sleep", "20"], num_gpus=4) for _ in range(2)]
        until(lambda: client.job(jobs[1]).state == "completed", "both have ended", PATIENCE_S)
        mine = {str(job) for job in jobs}
        until(
            lambda: {one.what for one in last_forecasts(store, 0.0) if one.job in mine} >= {"start", "end"},
            "it is kept",
            PATIENCE_S,
        )
        (start,) = [one for one in last_forecasts(store, 0.0) if one.job in mine and one.what == "start"]
        info = client.job(int(start.job))
        assert info.start_s == pytest.approx(start.said_s + start.seen_s)
        scores = report(client).scores
    assert {one.what for one in scores} >= {"start", "end"}
    assert set(scores[0].rules) == set(RULES)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-c", "100000"), "100000 cores can never be given with 2 GPUs"),
        (("--mem", "999T"), "of memory can never be given with 2 GPUs"),
        (("--gpu-memory", "999G"), "or more can never be given"),
        (("--gpu-type", "h100"), "no node that it may use has GPUs of type H100"),
        (("--prefer", "h100"), "no node that it may use has GPUs of type H100 that it prefers"),
        (("--gpu-type", "generic", "--prefer", "h100"), "--prefer H100: expected a GPU type that --gpu-type"),
    ],
)
def test_dry_run_of_an_impossible_job_is_refused_like_the_job(
    cluster: Cluster, options: tuple[str, ...], said: str
) -> None:
    place = ("--broker", cluster.address, "--keys", str(cluster.keys))
    for more in (("--dry-run",), ("--", "true")):
        asked = [*RLSCHED, "submit", "--gpus", "2", *options, *place, *more]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_dry_run_on_the_command_line(cluster: Cluster) -> None:
    types = ("--gpu-type", "generic", "--prefer", "generic")
    asked = [*RLSCHED, "submit", "--gpus", "2", "-t", "10", *types, "--dry-run", "--json"]
    place = ("--broker", cluster.address, "--keys", str(cluster.keys))
    command = ("--", "python", "train.py")
    done = subprocess.run(
        [*asked, *place, *command], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows.pop("any GPU type")["start_s"]
    assert set(rows) == {"as asked", "half the GPUs", "preemptible", "shared", "frugal clock", "tonight"}
    assert rows["as asked"]["start_s"]
    assert rows["shared"]["note"]
