"""Downtime of daemon or broker: jobs keep running, or are fenced by --lost-after."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.errors import InputError
from rlsched_node.lease_file import fence_times
from tests.support.moved_clock import MovedClock, needs_moved_clock
from tests.support.online.cluster import Cluster, all_up, until

pytestmark = [pytest.mark.slow, needs_moved_clock]
LEASE_S, STEP_S = 120.0, 25.0
"""A broker whose clock jumps by more than a quarter of the lease treats this as its own downtime."""
LEASES = ("--lease-s", str(LEASE_S), "--policy", "fifo-backfill", "--prediction", "running-mean")
LOST_AFTER_S, GRACE_S = 800.0, 100.0
ALLOWED_S, _ = fence_times(LOST_AFTER_S, GRACE_S)


@pytest.fixture
def clock(tmp_path: Path) -> MovedClock:
    return MovedClock(tmp_path / "clock")


@pytest.fixture
def cluster(tmp_path: Path, clock: MovedClock) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, broker_options=LEASES, clock=clock)
    yield cluster
    cluster.close()


def exclusive(cluster: Cluster, client: Client, lost_after_s: float = 0.0) -> int:
    """A job that fails while another of its attempts runs, and otherwise runs until the gate opens."""
    ran = cluster.directory / f"ran-{lost_after_s:g}"
    held = f"echo $RLSCHED_ATTEMPT >> {ran}; until [ -e {cluster.directory}/gate ]; do sleep 0.05; done"
    command = ["flock", "--nonblock", "-E", "9", f"{ran}.lock", "sh", "-c", held]
    job = client.submit(command, num_gpus=4, lost_after_s=lost_after_s, grace_s=GRACE_S)
    until(lambda: client.job(job).state == "running" and ran.exists(), "it runs")
    return job


def time_passes(clock: MovedClock, client: Client, missing: str, look: Callable[[], bool]) -> None:
    """Let time pass until a condition holds. The broker sees each step; all nodes but one send heartbeats."""
    for _ in range(100):
        if look():
            return
        clock.advance(STEP_S)
        until(
            lambda: all(node.state == "up" for node in client.nodes() if node.name != missing),
            "the other nodes keep up",
        )
    raise AssertionError("time passed in vain")


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


def wait_for_lock(cluster: Cluster) -> None:
    """Wait until no process holds the lock of `exclusive`: a `sleep` that was just forked ends by itself."""
    with (cluster.directory / "ran-0.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def attempts(cluster: Cluster, lost_after_s: float = 0.0) -> list[str]:
    return (cluster.directory / f"ran-{lost_after_s:g}").read_text().split()


@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_daemon_down_for_too_long_has_fenced_its_job_before_the_restart(
    cluster: Cluster, clock: MovedClock, away: str
) -> None:
    with cluster.client() as client:
        all_up(client)
        job = exclusive(cluster, client, LOST_AFTER_S)
        (name,) = client.job(job).nodes
        before_s = clock.moved_s
        if away == "killed":
            cluster.kill(name)
        else:
            cluster.signal(name, signal.SIGSTOP)
        time_passes(clock, client, name, lambda: state_of(client, name) == "unreachable")
        time_passes(clock, client, name, lambda: clock.moved_s - before_s > ALLOWED_S)
        until(lambda: any(cluster.directory.glob(f"*/records/*/{job}.1.0/exit")), "its shim has ended it")
        assert (client.job(job).attempt, attempts(cluster, LOST_AFTER_S)) == (1, ["1"])
        time_passes(clock, client, name, lambda: client.job(job).attempt == 2)
        until(lambda: attempts(cluster, LOST_AFTER_S) == ["1", "2"], "the job runs elsewhere")
        if away == "killed":
            cluster.start(name)
        else:
            cluster.signal(name, signal.SIGCONT)
        all_up(client)
        (cluster.directory / "gate").touch()
        info = client.wait(job)
        assert (info.state, info.exit_code, info.attempt) == ("completed", 0, 2)
    assert away == "killed" or "fenced" in cluster.log(name)


def test_daemon_that_restarts_in_time_loses_nothing(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        job = exclusive(cluster, client)
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


def test_job_keeps_running_without_daemon_and_broker(cluster: Cluster, clock: MovedClock) -> None:
    with cluster.client() as client:
        all_up(client)
        job = exclusive(cluster, client)
        (name,) = client.job(job).nodes
        cluster.kill(name)
        time_passes(clock, client, name, lambda: state_of(client, name) == "unreachable")
        cluster.kill("broker")
        cluster.start("broker")
        assert client.job(job).state == "running"
        with pytest.raises(InputError, match="is up: only an unreachable node"):
            client.down_node(next(one for one in ("n0", "n1") if one != name))
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).exit_code, attempts(cluster)) == (0, ["1"])


def test_jobs_of_a_node_declared_down_are_requeued(cluster: Cluster, clock: MovedClock) -> None:
    with cluster.client() as client:
        all_up(client)
        job = exclusive(cluster, client)
        (name,) = client.job(job).nodes
        cluster.kill(name)
        time_passes(clock, client, name, lambda: state_of(client, name) == "unreachable")
        power_off(cluster.directory / name)
        wait_for_lock(cluster)
        client.down_node(name, reason="power supply")
        until(lambda: attempts(cluster) == ["1", "2"], "the job runs elsewhere")
        assert state_of(client, name) == "down"
        assert [node.reason for node in client.nodes() if node.name == name] == ["power supply"]
        cluster.start(name)
        all_up(client)
        (cluster.directory / "gate").touch()
        assert (client.wait(job).exit_code, client.job(job).attempt) == (0, 2)


def test_frozen_broker_expires_no_lease(cluster: Cluster, clock: MovedClock) -> None:
    with cluster.client() as client:
        all_up(client)
        job = exclusive(cluster, client)
        cluster.signal("broker", signal.SIGSTOP)
        clock.advance(10 * LEASE_S)
        cluster.signal("broker", signal.SIGCONT)
        assert {node.state for node in client.nodes()} == {"up"}
        (cluster.directory / "gate").touch()
        assert (client.wait(job).attempt, attempts(cluster)) == (1, ["1"])


def test_only_jobs_with_lost_after_are_fenced_without_a_broker(cluster: Cluster, clock: MovedClock) -> None:
    with cluster.client() as client:
        all_up(client)
        stays, ends = exclusive(cluster, client), exclusive(cluster, client, LOST_AFTER_S)
        cluster.kill("broker")
        clock.advance(2 * LOST_AFTER_S)
        until(lambda: "fenced" in cluster.log("n0") + cluster.log("n1"), "its time has run out")
        cluster.start("broker")
        until(lambda: attempts(cluster, LOST_AFTER_S) == ["1", "2"], "it begins again")
        all_up(client)
        (cluster.directory / "gate").touch()
        found = [(info.exit_code, info.attempt) for info in (client.wait(stays), client.wait(ends))]
        assert found == [(0, 1), (0, 2)]
    assert attempts(cluster) == ["1"]
