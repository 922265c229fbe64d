"""Prometheus metrics with and without a running broker."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.online.cluster import RLSCHED, Cluster, all_up, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("metrics"), broker_options=("--policy", "fifo-backfill"))
    yield cluster
    cluster.close()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Name and label values -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_brokers_counters(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        client.wait(client.submit(["true"]))
        client.wait(client.submit(["false"]))
        running = client.submit(["sleep", "60"], num_gpus=8)
        client.submit(["true"], num_gpus=3)
        until(lambda: client.job(running).state == "running", "it runs")
        words = [
            "metrics",
            "--listen",
            "127.0.0.1:0",
            "--broker",
            cluster.address,
            "--keys",
            str(cluster.keys),
        ]
        with subprocess.Popen([*RLSCHED, *words], stdout=subprocess.PIPE, text=True) as exporter:
            assert exporter.stdout is not None
            where = exporter.stdout.readline().split()[-1]
            with urllib.request.urlopen(where, timeout=60.0) as answer:
                found = samples(answer.read().decode())
            exporter.terminate()
        client.cancel(running)
    assert found["rlsched_up",] == 1.0
    assert found["rlsched_jobs_over_total", "completed"] == 1.0
    assert found["rlsched_jobs_over_total", "failed"] == 1.0
    assert (found["rlsched_jobs", "running"], found["rlsched_jobs", "queued"]) == (1.0, 1.0)
    assert found["rlsched_queued_gpus",] == 3.0
    assert found["rlsched_ineligible_jobs", "Quota"] == 0.0
    assert found["rlsched_gpus", "generic", "held"] == 8.0
    assert found["rlsched_nodes", "up"] == 2.0
    assert found["rlsched_decision_seconds_count",] >= 3.0
    assert found["rlsched_commit_seconds_bucket", "+Inf"] == found["rlsched_commit_seconds_count",] > 0


def test_missing_broker_is_a_metric_too(tmp_path: Path) -> None:
    words = [
        "metrics",
        "--once",
        "--broker",
        "tcp://127.0.0.1:1",
        "--keys",
        str(tmp_path),
        "--timeout-s",
        "0.2",
    ]
    said = subprocess.run([*RLSCHED, *words], capture_output=True, text=True, check=True, timeout=60)
    assert samples(said.stdout) == {("rlsched_up",): 0.0}


def test_invalid_address_is_one_line() -> None:
    said = subprocess.run(
        [*RLSCHED, "metrics", "--listen", "9461"], capture_output=True, text=True, check=False, timeout=60
    )
    assert said.returncode == 2
    assert said.stderr == "error: --listen '9461': expected HOST:PORT, such as 127.0.0.1:9461\n"
