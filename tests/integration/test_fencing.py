"""A daemon, or the broker, is away: jobs go on, or end for their --lost-after before they begin elsewhere."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.errors import InputError
from tests.support.online.cluster import Cluster, all_up, until

pytestmark = pytest.mark.slow
LEASES = ("--lease-s", "2", "--policy", "fifo-backfill", "--prediction", "running-mean")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, broker_options=LEASES)
    yield cluster
    cluster.close()


def alone(cluster: Cluster, client: Client, **facts: float) -> int:
    """A job that fails where another attempt of it is at work, and else goes on until the gate is open."""
    lock, gate, ran = (cluster.directory / name for name in ("lock", "gate", "ran"))
    held = f"echo $RLSCHED_ATTEMPT >> {ran}; until [ -e {gate} ]; do sleep 0.05; done"
    job = client.submit(["flock", "--nonblock", "-E", "9", str(lock), "sh", "-c", held], num_gpus=4, **facts)  # type: ignore[arg-type]
    until(lambda: client.job(job).state == "running" and ran.exists(), "it runs")
    return job


def state_of(client: Client, name: str) -> str:
    return next(node.state for node in client.nodes() if node.name == name)


def power_off(directory: Path) -> None:
    """Kill the shims of a node, and all processes with the directory of an attempt in their environment."""
    shims = [json.loads(pid.read_text())["pid"] for pid in directory.glob("records/*/*/pid")]
    jobs = [int(pid.name) for pid in Path("/proc").iterdir() if pid.name.isdigit() and _is_of(pid, directory)]
    for process in [*shims, *jobs]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _is_of(process: Path, directory: Path) -> bool:
    try:
        return f"RLSCHED_ATTEMPT_DIR={directory}/".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


def attempts(cluster: Cluster) -> list[str]:
    return (cluster.directory / "ran").read_text().split()


@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_a_daemon_that_is_away_for_too_long_has_ended_its_job_before_another_begins(
    cluster: Cluster, away: str
) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client, lost_after_s=5.0)
        (name,) = client.job(job).nodes
        if away == "killed":
            cluster.kill(name)
        else:
            cluster.signal(name, signal.SIGSTOP)
        until(lambda: state_of(client, name) == "unreachable", "it is missed")
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
        until(
            lambda: {node.name: node.state for node in client.nodes()}[name] == "unreachable",
            "its farewell arrived",
        )
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).attempt, attempts(cluster)) == (1, ["1"])


def test_a_job_goes_on_without_daemon_and_broker(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client)
        (name,) = client.job(job).nodes
        cluster.kill(name)
        until(lambda: state_of(client, name) == "unreachable", "it is missed")
        cluster.kill("broker")
        cluster.start("broker")
        assert client.job(job).state == "running"
        with pytest.raises(InputError, match="is up: only an unreachable one"):
            client.down_node(next(one for one in ("n0", "n1") if one != name))
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).exit_code, attempts(cluster)) == (0, ["1"])


def test_a_node_that_is_declared_down_gives_its_job_back(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client)
        (name,) = client.job(job).nodes
        cluster.kill(name)
        until(lambda: state_of(client, name) == "unreachable", "it is missed")
        power_off(cluster.directory / name)
        client.down_node(name, reason="power supply")
        until(lambda: attempts(cluster) == ["1", "2"], "the job runs elsewhere")
        assert state_of(client, name) == "down"
        assert [node.reason for node in client.nodes() if node.name == name] == ["power supply"]
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).exit_code, client.job(job).attempt) == (0, 2)


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


@pytest.mark.parametrize("lost_after_s", [0.0, 5.0])
def test_without_a_broker_only_jobs_with_a_time_end(cluster: Cluster, lost_after_s: float) -> None:
    with cluster.client() as client:
        all_up(client)
        job = alone(cluster, client, lost_after_s=lost_after_s)
        cluster.kill("broker")
        if lost_after_s:
            until(lambda: "fenced" in cluster.log("n0") + cluster.log("n1"), "its time has run out")
        else:
            time.sleep(6.0)  # longer than the lease, and than the other job's time
        cluster.start("broker")
        if lost_after_s:
            until(lambda: attempts(cluster) == ["1", "2"], "it begins again")
        all_up(client)
        (cluster.directory / "gate").touch()
        info = client.wait(job)
        assert (info.exit_code, info.attempt) == (0, 2 if lost_after_s else 1)
