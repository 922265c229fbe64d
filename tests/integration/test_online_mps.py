"""Jobs that share GPUs under MPS: real daemons and processes on the fake NVML and a fake control program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.wire.states import FINISHED
from rlsched_node.mps.control import find_processes
from tests.support import fake_mps
from tests.support.online.cluster import DEADLINE_S, Cluster, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML"),
]
JOB = (
    "echo $$ $CUDA_MPS_PIPE_DIRECTORY > {0}/{1}.tmp; mv {0}/{1}.tmp {0}/{1}.up; "
    "until [ -e {0}/{1} ]; do sleep 0.02; done;"
)


class Node:
    """A cluster with one node of two GPUs, which shares them by MPS."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.processes = path, path / "processes"
        source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", path / "libnvidia-ml.so.1", source], check=True)
        fake_mps.install(path / "bin")
        self.processes.write_text("")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(path))
        monkeypatch.setenv("FAKE_NVML_PROCESSES", str(self.processes))
        monkeypatch.setenv("PATH", f"{path / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_NVML_MEMORY_MIB", "16160")
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/of/another/daemon")
        options = ("--policy", "pack", "--share", "--prediction", "running-mean", "--forecaster", "none")
        self.cluster = Cluster(path, nodes=(), broker_options=(*options, "--decision-budget-ms", "60000"))
        self.start()

    def start(self) -> None:
        self.cluster._spawn(
            "n0",
            *("node", "--name", "n0", "--broker", self.cluster.address, "--dir", str(self.path / "n0")),
            *("--gpu-type", "V100", "--allow-root", "--min-free-mib", "0", "--sharing", "mps"),
        )

    def begin(
        self,
        client: Client,
        name: str,
        *,
        exit_code: int = 0,
        program: str = "mps-client",
        share: str = "yes",
    ) -> tuple[int, int, str]:
        """A job on both GPUs that runs until its gate opens: its number, its process, its pipe directory."""
        (self.path / f"{name}.up").unlink(missing_ok=True)
        command = f"{JOB.format(self.path, name)} exit {exit_code}"
        job = client.submit(
            [program, "sh", "-c", command],
            num_gpus=2,
            workload="a2c-b64",
            gpu_memory_mib=100,
            share=share,
        )
        pid, pipes = self.wait_up(name)
        return job, pid, pipes

    def wait_up(self, name: str) -> tuple[int, str]:
        """Wait until a job's command runs, and put its process on a GPU."""
        until((self.path / f"{name}.up").exists, f"{name} runs")
        pid, *pipes = (self.path / f"{name}.up").read_text().split()
        with self.processes.open("a") as file:
            file.write(f"0 {pid}\n")
        return int(pid), "".join(pipes)

    def open_gate(self, name: str) -> None:
        (self.path / name).touch()

    @property
    def control_daemons(self) -> set[int]:
        found = {find_processes(path / "pipe").control for path in (self.path / "n0" / "mps").glob("*")}
        return found - {0}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short path: paths of sockets are limited."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def test_jobs_share_under_mps_through_a_killed_node_daemon_and_a_fault(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(short_path, monkeypatch)
    try:
        with node.cluster.client() as client:
            until(lambda: [one.state for one in client.nodes()] == ["up"], "the node is up")
            assert client.nodes()[0].sharing == "mps"
            apart, _, _ = node.begin(client, "apart", program="env")  # it is no client
            until(lambda: "runs without MPS" in str(client.why(apart)), "it is seen outside of MPS")
            assert any(note.startswith(f"job {apart} without MPS") for note in client.nodes()[0].notes)
            node.processes.write_text("")
            node.open_gate("apart")
            until(lambda: client.job(apart).state in FINISHED, "it has ended")

            one, neighbour, pipes = node.begin(client, "one")
            two, culprit, same = node.begin(client, "two", exit_code=3)
            assert (pipes, client.job(two).beside) == (same, [str(one)])
            assert client.job(one).shared_by == ["mps"]
            assert "its memory limit is 100 MiB" in str(client.why(one))
            (control,) = node.control_daemons

            node.cluster.kill("n0")
            node.start()
            until(lambda: "adopted for 2 ranks" in node.cluster.log("n0"), "the control daemon is adopted")
            assert node.control_daemons == {control}
            until(lambda: [one.state for one in client.nodes()] == ["up"], "the node is up again")
            assert [client.job(job).state for job in (one, two)] == ["running"] * 2
            assert "runs without MPS" not in str(client.why(one))

            (short_path / "one.up").unlink()
            with (Path(pipes).parent / "log" / "server.log").open("a") as log:
                log.write(f"[Server 1] Client {{PID: {culprit}, Context ID: 0}} fatal exception\n")
            node.processes.write_text("")
            os.kill(neighbour, signal.SIGKILL)
            node.open_gate("two")
            until(lambda: client.job(two).state in FINISHED, "the job at fault has ended")
            assert (client.job(two).state, client.job(two).exit_code) == ("failed", 3)
            node.wait_up("one")
            assert client.job(one).attempt > 1, "its neighbour starts again"
            node.processes.write_text("")
            node.open_gate("one")
            assert client.wait(one).state == "completed"
            until(lambda: not node.control_daemons, "no control daemon is left")
    finally:
        for name in ("one", "two", "apart"):
            node.open_gate(name)
        node.cluster.close()
    node.cluster.running["n0"].wait(DEADLINE_S)
    assert not node.control_daemons
