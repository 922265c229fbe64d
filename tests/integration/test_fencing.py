"""A daemon, or the broker, is away for longer than leases last: two attempts of a job never run at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from tests.integration.cluster import Cluster, all_up, until

pytestmark = pytest.mark.slow
LEASES = ("--lease-s", "2", "--lost-after", "5", "--policy", "fifo-backfill", "--prediction", "running-mean")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, broker_options=LEASES)
    yield cluster
    cluster.close()


def alone(cluster: Cluster, client: Client, **facts: str) -> int:
    """A job that fails where another attempt of it is at work, and else goes on until the gate is open."""
    lock, gate, ran = (cluster.directory / name for name in ("lock", "gate", "ran"))
    held = f"echo $RLSCHED_ATTEMPT >> {ran}; until [ -e {gate} ]; do sleep 0.05; done"
    job = client.submit(["flock", "--nonblock", "-E", "9", str(lock), "sh", "-c", held], num_gpus=4, **facts)  # type: ignore[arg-type]
    until(lambda: client.job(job).state == "running" and ran.exists(), "it runs")
    return job


def attempts(cluster: Cluster) -> list[str]:
    return (cluster.directory / "ran").read_text().split()


@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_a_daemon_that_is_away_for_too_long_has_ended_its_job_before_another_begins(
    cluster: Cluster, away: str
) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client)
        (name,) = client.job(job).nodes
        if away == "killed":
            cluster.kill(name)
        else:
            cluster.signal(name, signal.SIGSTOP)
        until(lambda: {node.name: node.state for node in client.nodes()}[name] == "away", "it is missed")
        assert client.job(job).attempt == 1
        until(lambda: attempts(cluster) == ["1", "2"], "the job runs elsewhere")
        if away == "killed":
            cluster.start(name)
        else:
            cluster.signal(name, signal.SIGCONT)
        all_up(client)
        (cluster.directory / "gate").touch()
        info = client.wait(job)
        assert (info.state, info.exit_code, info.attempt) == ("completed", 0, 2)
    assert away == "killed" or "fenced" in cluster.log(name)


def test_a_daemon_that_is_back_in_time_has_lost_nothing(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client)
        (name,) = client.job(job).nodes
        cluster.running[name].terminate()
        cluster.running[name].wait()
        until(lambda: {node.name: node.state for node in client.nodes()}[name] == "away", "it has said so")
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).attempt, attempts(cluster)) == (1, ["1"])


def test_a_job_that_waits_for_its_node_goes_on_without_daemon_and_broker(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client, on_lost="wait")
        (name,) = client.job(job).nodes
        cluster.kill(name)
        until(lambda: {node.name: node.state for node in client.nodes()}[name] == "down", "it is given up")
        assert client.job(job).state == "running"
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).exit_code, attempts(cluster)) == (0, ["1"])


def test_a_frozen_broker_blames_no_node(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client)
        cluster.signal("broker", signal.SIGSTOP)
        time.sleep(3.0)  # longer than the lease, shorter than what fences
        cluster.signal("broker", signal.SIGCONT)
        assert {node.state for node in client.nodes()} == {"up"}
        (cluster.directory / "gate").touch()
        assert (client.wait(job).attempt, attempts(cluster)) == (1, ["1"])


def test_without_a_broker_jobs_end_by_themselves_and_begin_again_with_it(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client)
        cluster.kill("broker")
        until(lambda: "fenced" in cluster.log("n0") + cluster.log("n1"), "its lease is over")
        cluster.start("broker")
        until(lambda: attempts(cluster) == ["1", "2"], "it begins again")
        (cluster.directory / "gate").touch()
        info = client.wait(job)
        assert (info.exit_code, info.attempt) == (0, 2)
