"""Real clocks: a broker that weighs energy, node daemons on the fake NVML, and every kind of end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.ledger_models import nearest_mhz
from rlsched.cli.main import run
from rlsched.client.client import Client
from rlsched.errors import InputError
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import NodeInfo
from rlsched_node.clocks import CLOCKS_FILE
from tests.support.online.processes import until

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")

CLOCKS = list(range(1980, 344, -15))
LOWEST = 345
NO_PERMISSION = "4"
GATED = "echo up >> {0}/up; until [ -e {0}/gate ]; do sleep 0.02; done; {1}"


class Cluster:
    """A broker with `fifo-backfill` that weighs only energy, and nodes with one GPU of the fake NVML.

    `options`: further options of the broker; `weight`: weight of energy against time.

    Attributes:
        clocks: Calls to NVML, one line each: `WHAT GPU LOWEST HIGHEST`.
    """

    def __init__(self, directory: Path, *options: str, weight: str = "1") -> None:
        self.directory, self.keys, self.clocks = directory, directory / "home", directory / "clocks"
        self.address = "tcp://127.0.0.1:0"
        source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
        library = directory / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-DGPUS=1", "-o", library, source], check=True)
        KeyHome(self.keys).broker()
        self.children: list[subprocess.Popen[bytes]] = []
        found = directory / "broker" / "address"
        broker = self.spawn(
            *("broker", "--address", self.address, "--dir", str(directory / "broker")),
            *("--policy", "fifo-backfill", "--prediction", "running-mean", "--lease-s", "5"),
            *options,
            RLSCHED_SPEED_ENERGY=weight,
        )
        until(lambda: (found.exists() and found.read_text().endswith("\n")) or broker.poll() is not None)
        assert broker.poll() is None, (directory / "broker.log").read_text()
        self.address = found.read_text().strip()

    def spawn(self, *args: str, **env: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{args[0]}.log").open("ab") as log:
            child = subprocess.Popen(
                [
                    *(sys.executable, "-c", "from rlsched.cli.main import main; main()"),
                    *(*args, "--keys", str(self.keys)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {"OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": str(self.directory)}
                | {"FAKE_NVML_CLOCKS": str(self.clocks)}
                | env,
            )
        self.children.append(child)
        return child

    def start_node(self, *options: str, **env: str) -> subprocess.Popen[bytes]:
        return self.spawn(
            *("node", "--broker", self.address, "--name", "n0", "--dir", str(self.directory / "n0")),
            *("--gpu-type", "h200", *options),
            **env,
        )

    def calls(self) -> list[str]:
        """Calls to NVML so far."""
        return self.clocks.read_text().splitlines() if self.clocks.exists() else []

    def job(self, then: str = "exit 0") -> tuple[list[str], Path]:
        """A command that creates `up` when it runs, and exits once `gate` exists."""
        place = self.directory / f"job{len(list(self.directory.glob('job*')))}"
        place.mkdir()
        return ["sh", "-c", GATED.format(place, then)], place

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.terminate()
        for child in self.children:
            child.wait(60.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("clocks"))
    yield cluster
    cluster.close()


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("RLSCHED_BROKER", cluster.address)
    monkeypatch.setenv("RLSCHED_HOME", str(cluster.keys))
    with Client(cluster.address, home=cluster.keys, timeout_s=10.0) as client:
        yield client
        for job in client.jobs():
            client.cancel(job.job)
        until(lambda: not client.jobs())


@pytest.fixture
def node(cluster: Cluster, client: Client) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the node and waits until it is registered; stops it with its jobs after the test."""
    nodes: list[subprocess.Popen[bytes]] = []

    def start(**env: str) -> subprocess.Popen[bytes]:
        cluster.clocks.unlink(missing_ok=True)
        before_s = seen_s(client)
        nodes.append(cluster.start_node(**env))
        until(lambda: seen_s(client) > before_s)
        return nodes[-1]

    yield start
    for job in client.jobs():
        client.cancel(job.job)
    until(lambda: not client.jobs())
    for child in nodes:
        if child.poll() is None:
            child.terminate()
            child.wait(30.0)


def registered(client: Client) -> NodeInfo | None:
    found = client.nodes()
    return found[0] if found else None


def seen_s(client: Client) -> float:
    """Time of the node's last heartbeat; an exited daemon sends no more."""
    told = registered(client)
    return told.last_seen_s if told is not None else 0.0


def locked(client: Client, job: int) -> str:
    """The line of NVML's log that locks the decided clock."""
    clock = client.job(job).sm_clock_frac
    assert clock is not None
    assert clock < 1.0
    return f"lock 0 {LOWEST} {nearest_mhz(CLOCKS, clock)}"


def test_clock_is_locked_before_the_job_runs_and_reset_after_any_end(
    cluster: Cluster, client: Client, node: Callable[..., subprocess.Popen[bytes]]
) -> None:
    node()
    assert cluster.calls() == [], "the GPU is not changed before the first job"
    look = ["sh", "-c", f"cat {cluster.clocks} > {cluster.directory}/seen"]
    first = client.submit(look)
    assert client.wait(first).exit_code == 0
    lock = locked(client, first)
    assert (cluster.directory / "seen").read_text().splitlines() == [lock]
    until(lambda: cluster.calls() == [lock, "reset 0 0 0"])
    ways: list[tuple[list[str], float | None]] = [
        (["sh", "-c", "exit 3"], None),
        (["sh", "-c", "kill -9 $$"], None),
        (["sleep", "60"], 0.2),
        (["/no/such/program"], None),
    ]
    for command, limit_s in ways:
        assert client.wait(client.submit(command, time_limit_s=limit_s)).state == "failed"
    command, place = cluster.job()
    cancelled = client.submit(command)
    until((place / "up").exists)
    client.cancel(cancelled)
    until(lambda: cluster.calls() == [lock, "reset 0 0 0"] * 6)
    assert not (cluster.directory / "n0" / CLOCKS_FILE).exists()


def test_job_at_full_speed_changes_no_clock_and_lists_show_clocks(
    cluster: Cluster,
    client: Client,
    node: Callable[..., subprocess.Popen[bytes]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    node()
    assert client.wait(client.submit(["true"], speed_energy=0.0)).exit_code == 0
    assert cluster.calls() == []
    command, place = cluster.job()
    assert run(["submit", "--workload", "vit-tiny", "--speed-energy", "1", "--", *command]) == 0
    job = int(capfd.readouterr().out.split()[1])
    until((place / "up").exists)
    until(lambda: client.job(job).state == "running")
    mhz = int(cluster.calls()[0].split()[-1])
    assert run(["queue"]) == 0
    assert f"n0[0] {mhz} MHz" in " ".join(capfd.readouterr().out.split())
    assert run(["queue", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["workload"], row["speed_energy"], row["sm_clocks_mhz"]) == ("vit-tiny", 1.0, [mhz])
    assert run(["why", str(job)]) == 0
    assert (
        f"of the highest SM clock, {mhz} MHz, with 1 as the weight of energy against speed"
        in capfd.readouterr().out
    )
    assert run(["status"]) == 0
    assert "energy counts 1 against time: 1 of 1 running jobs are at a lower" in capfd.readouterr().out
    assert run(["nodes"]) == 0
    assert "up to 1980 MHz" in capfd.readouterr().out
    until(lambda: client.nodes()[0].power_w == 301.5 * client.nodes()[0].gpus)
    (place / "gate").touch()
    assert client.wait(job).exit_code == 0


def test_next_daemon_resets_the_clock_of_a_killed_one(
    cluster: Cluster, client: Client, node: Callable[..., subprocess.Popen[bytes]]
) -> None:
    daemon = node()
    command, place = cluster.job(then="exit 7")
    job = client.submit(command)
    until(lambda: (place / "up").exists() and client.job(job).state == "running")
    lock = locked(client, job)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    daemon = node()
    until(lambda: client.job(job).state == "running")
    assert cluster.calls() == [lock], "the job keeps running at its clock"
    assert client.job(job).sm_clocks_mhz == [int(lock.split()[-1])]
    (place / "gate").touch()
    assert client.wait(job).exit_code == 7
    until(lambda: cluster.calls() == [lock, "reset 0 0 0"])

    command, place = cluster.job(then="exit 8")
    job = client.submit(command)
    until(lambda: (place / "up").exists() and client.job(job).state == "running")
    assert json.loads((cluster.directory / "n0" / CLOCKS_FILE).read_bytes())["mhz"]
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    (place / "gate").touch()
    until(lambda: list((cluster.directory / "n0" / "records").glob(f"*/{job}.1.0/exit")))
    node()
    assert cluster.calls() == ["reset 0 0 0"], "before anything else"
    assert client.wait(job).exit_code == 8
    assert not (cluster.directory / "n0" / CLOCKS_FILE).exists()


def test_node_without_permission_reports_it_and_gets_no_clocks(
    cluster: Cluster,
    client: Client,
    node: Callable[..., subprocess.Popen[bytes]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    node(FAKE_NVML_NO_ROOT="1")
    job = client.submit(["true"])
    assert client.wait(job).exit_code == 0
    assert client.job(job).sm_clock_frac == 1.0
    assert cluster.calls() == []
    told = registered(client)
    assert told is not None
    assert "setting clocks needs root" in told.clocks_note
    assert run(["status"]) == 0
    assert "n0 cannot set clocks: GPU 0: NVML" in capfd.readouterr().out
    assert run(["why", str(job)]) == 0
    assert "node n0 cannot set clocks" in capfd.readouterr().out
    log = (cluster.directory / "node.log").read_text()
    assert log.count("node n0 cannot set clocks: GPU 0: NVML") == 1


def test_refused_lock_leaves_full_clock_and_is_not_retried(
    client: Client,
    node: Callable[..., subprocess.Popen[bytes]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    node(FAKE_NVML_LOCK_ERROR=NO_PERMISSION)
    first = client.submit(["true"])
    assert client.wait(first).exit_code == 0
    assert client.job(first).sm_clocks_mhz == [0]
    assert run(["why", str(first)]) == 0
    assert "node n0 did not set its clocks: NVML, lock_sm_clock" in capfd.readouterr().out
    until(lambda: (told := registered(client)) is not None and told.max_sm_clock_mhz == 0)
    second = client.submit(["true"])
    assert client.wait(second).exit_code == 0
    assert client.job(second).sm_clock_frac == 1.0


def test_invalid_options_are_refused_in_one_line(client: Client) -> None:
    with pytest.raises(InputError, match=r"got 'vit' \(near: vit-"):
        client.submit(["true"], workload="vit")
    assert run(["submit", "--speed-energy", "2", "--", "true"]) == 2
