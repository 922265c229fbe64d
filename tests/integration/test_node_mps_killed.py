"""kill -9 of a node daemon while an MPS control daemon starts or ends, with a fake control program.

The node daemon dies at a file operation of its own, or at a point of the control program, which then waits.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rlsched.client.client import Client
from rlsched.wire.states import FINISHED
from rlsched_node.mps.control import MpsControl, find_processes
from tests.support import fake_mps
from tests.support.online.cluster import DEADLINE_S, RLSCHED, Cluster, all_up, until

pytestmark = pytest.mark.slow
PROGRAM = "*/nvidia-cuda-mps-control"
JOB = (
    "echo $RLSCHED_JOB $RLSCHED_ATTEMPT >> {0}/starts; "
    "echo $$ $CUDA_MPS_PIPE_DIRECTORY > {0}/{1}.tmp; mv {0}/{1}.tmp {0}/{1}.up; "
    "until [ -e {0}/{1} ]; do sleep 0.02; done; exit {2}"
)


class Running(NamedTuple):
    """A job whose command runs.

    Attributes:
        pid: Process of the command.
        pipes: Pipe directory of its control daemon.
    """

    job: int
    pid: int
    pipes: Path


class OneNode(Cluster):
    """A broker, and a node with four simulated GPUs that shares them by MPS.

    Attributes:
        mode: File of the fake control program's mode.
        dies_at: Arguments of `die_at` for the next node daemon; (): it does not kill itself.
    """

    def __init__(self, directory: Path) -> None:
        self.mode, self.dies_at = fake_mps.install(directory / "bin"), tuple[object, ...]()
        self.ends: set[str] = set()
        options = ("--policy", "pack", "--share", "--prediction", "running-mean", "--forecaster", "none")
        super().__init__(
            directory,
            nodes=("n0",),
            broker_options=(*options, "--decision-budget-ms", "60000"),
            node_options=("--sharing", "mps"),
        )

    def command(self, name: str, *args: str) -> list[str]:
        if name != "n0" or not self.dies_at:
            return super().command(name, *args)
        dies = f"from tests.support.killed import die_at; die_at(*{self.dies_at!r})"
        return [sys.executable, "-c", f"{dies}; {RLSCHED[-1]}", *args]

    def restart(self, *dies_at: object) -> None:
        """Start the node daemon; a running one is stopped first, and leaves its jobs."""
        if self.running["n0"].poll() is None:
            self.running["n0"].terminate()
        self.running["n0"].wait(DEADLINE_S)
        self.dies_at = dies_at
        self.start("n0")

    def has_died(self) -> None:
        assert self.running["n0"].wait(DEADLINE_S) == -signal.SIGKILL, self.log("n0")

    def submit(self, client: Client, name: str, exit_code: int = 0) -> int:
        """A job on all GPUs, which is a client of MPS and runs until its gate opens."""
        return client.submit(
            ["mps-client", "sh", "-c", JOB.format(self.directory, name, exit_code)],
            num_gpus=4,
            workload="a2c-b64",
            gpu_memory_mib=100,
            share="yes",
        )

    def wait_up(self, name: str, job: int) -> Running:
        until((self.directory / f"{name}.up").exists, f"{name} runs")
        pid, pipes = (self.directory / f"{name}.up").read_text().split()
        return Running(job, int(pid), Path(pipes))

    def open_gate(self, name: str) -> None:
        (self.directory / name).touch()

    @property
    def directories(self) -> list[Path]:
        return sorted((self.directory / "n0" / "mps").glob("*"))

    @property
    def mps_processes(self) -> set[int]:
        """Control daemons and servers of this node, also of directories that were removed."""
        root, number = self.directory / "n0" / "mps", range(1, 10)
        found = [find_processes(root / str(one) / "pipe") for one in number]
        return {pid for one in found for pid in (one.control, *one.servers)} - {0}

    @property
    def starts(self) -> list[str]:
        """A line `JOB ATTEMPT` for each start of a command."""
        return (self.directory / "starts").read_text().splitlines()


@pytest.fixture(scope="module")
def cluster() -> Iterator[OneNode]:
    """In a directory with a short path: paths of sockets are limited."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
        made = OneNode(Path(directory))
        yield made
        made.close()


@pytest.fixture
def client(cluster: OneNode) -> Iterator[Client]:
    """A client of the cluster; no job, and no step at which to die, is left for the next test."""
    for path in (*cluster.directory.glob("*.up"), *(cluster.directory / name for name in ("one", "two"))):
        path.unlink(missing_ok=True)
    (cluster.directory / "starts").write_text("")
    with cluster.client() as client:
        all_up(client, 1)
        yield client
        cluster.mode.write_text("")
        for name in ("one", "two"):
            cluster.open_gate(name)
        if cluster.dies_at or cluster.running["n0"].poll() is not None:  # of a failed test
            cluster.restart()
        for job in client.jobs():
            client.cancel(job.job)
        until(lambda: not client.jobs() and not cluster.mps_processes, "all has ended")


def clients_of(running: Running) -> frozenset[int]:
    return MpsControl(running.pipes.parent, [], None, os.environ, set()).clients()


def check_sharing_and_ends(cluster: OneNode, client: Client, one: Running, exit_code: int) -> None:
    """A second job shares with the first under one control daemon; both end as written; nothing is left."""
    two = cluster.wait_up("two", cluster.submit(client, "two"))
    assert client.job(two.job).beside == [str(one.job)]
    assert two.pipes == one.pipes
    assert clients_of(one) == {one.pid, two.pid}
    until(lambda: cluster.directories == [one.pipes.parent], "one control daemon is left")
    assert clients_of(one) == {one.pid, two.pid}
    cluster.open_gate("one")
    cluster.open_gate("two")
    until(lambda: all(client.job(each.job).state in FINISHED for each in (one, two)), "both have ended")
    assert [client.job(each.job).exit_code for each in (one, two)] == [exit_code, 0]
    assert cluster.starts == [f"{one.job} 1", f"{two.job} 1"]
    until(lambda: not cluster.mps_processes, "no MPS process is left")
    until(lambda: not cluster.directories, "no directory is left")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(("os.mkdir", "*/mps/1"), id="directory"),
        pytest.param(("open", "*/mps/1/daemon.json.tmp"), id="record"),
        pytest.param(("os.mkdir", "*/mps/1/pipe"), id="pipes"),
        pytest.param(("subprocess.Popen", PROGRAM), id="program"),
        pytest.param(("open", "*/mps/1/daemon.json.tmp", 2), id="record with the process"),
        pytest.param(("os.mkdir", "*/records/*/*.*.*"), id="attempt"),
        pytest.param(("open", "*/launch.json"), id="launch"),
        pytest.param(("open", "*/exit.tmp"), id="launch record"),
    ],
)
def test_kill_9_at_a_step_of_a_start(cluster: OneNode, client: Client, step: tuple[object, ...]) -> None:
    cluster.restart(*step)
    all_up(client, 1)
    job = cluster.submit(client, "one", exit_code=3)
    cluster.has_died()
    assert not cluster.starts
    cluster.restart()
    check_sharing_and_ends(cluster, client, cluster.wait_up("one", job), 3)


def restarts_and_ends(cluster: OneNode, client: Client, job: int, code: int, *, is_late: bool) -> None:
    """Let the control program continue before the next node daemon starts, or after it runs the job."""
    if not is_late:
        cluster.mode.write_text("")
    cluster.restart()
    one = cluster.wait_up("one", job)
    cluster.mode.write_text("")
    check_sharing_and_ends(cluster, client, one, code)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", ["start", "started"])
def test_kill_9_while_the_control_program_starts(
    cluster: OneNode, client: Client, point: str, is_late: bool
) -> None:
    cluster.mode.write_text(f"kill {cluster.running['n0'].pid} {point}")
    job = cluster.submit(client, "one", exit_code=3)
    cluster.has_died()
    assert not cluster.starts
    restarts_and_ends(cluster, client, job, 3, is_late=is_late)


def end_first(cluster: OneNode, client: Client) -> None:
    """Run a job that is the last client of its control daemon, and end it."""
    first = cluster.wait_up("one", cluster.submit(client, "one", exit_code=3))
    cluster.open_gate("one")
    until(lambda: client.job(first.job).state in FINISHED, "it has ended")
    assert client.job(first.job).exit_code == 3
    cluster.has_died()
    for path in (cluster.directory / "one", cluster.directory / "one.up", cluster.directory / "starts"):
        path.unlink()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(("shutil.rmtree", "*/mps/1"), id="directory"),
        pytest.param(("os.remove", "daemon.json"), id="record"),
        pytest.param(("os.rmdir", "*/mps/1"), id="empty directory"),
    ],
)
def test_kill_9_at_a_step_of_an_end(cluster: OneNode, client: Client, step: tuple[object, ...]) -> None:
    cluster.restart(*step)
    all_up(client, 1)
    end_first(cluster, client)
    assert not cluster.mps_processes
    job = cluster.submit(client, "one", exit_code=4)
    cluster.restart()
    check_sharing_and_ends(cluster, client, cluster.wait_up("one", job), 4)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", ["quit", "quitting", "quitted"])
def test_kill_9_while_the_control_daemon_ends(
    cluster: OneNode, client: Client, point: str, is_late: bool
) -> None:
    """A job that waits is launched as soon as the next node daemon runs. It gets another control daemon."""
    cluster.mode.write_text(f"kill {cluster.running['n0'].pid} {point}")
    end_first(cluster, client)
    assert cluster.mps_processes
    job = cluster.submit(client, "one", exit_code=4)
    restarts_and_ends(cluster, client, job, 4, is_late=is_late)
