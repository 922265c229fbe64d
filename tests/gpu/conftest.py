"""Tests on a real NVIDIA GPU, skipped with a reason without one. They use GPU 0 and change no setting of it.

A load that needs only the driver (`tests/support/gpu_load.py`) runs directly, or as jobs of a real broker
and node daemon.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.wire.states import FINISHED
from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.mps.control import find_processes
from rlsched_node.processes.mps_commands import PROGRAM
from tests.support.online.cluster import Cluster, all_up, until

LOAD = Path(__file__).parents[1] / "support" / "gpu_load.py"
PASSED = ("LD_LIBRARY_PATH", "FAKE_NVML_PROCESSES", "FAKE_NVML_MPS_PROCESSES", "FAKE_NVML_MEMORY_MIB")
"""Variables that a load needs to find the driver's libraries; jobs do not get them from the node."""
FOUR_JOBS = 'order = "area"\nshare = { max_jobs = 4, min_speed = 0.05 }\n'
"""Policy that lets four jobs share a GPU, at any predicted speed."""


@pytest.fixture
def gpus() -> Iterator[GpuSet]:
    """The GPUs of this machine; GPU 0 is used by no other process."""
    try:
        from rlsched_node.gpu.nvml import NvmlGpus

        found = NvmlGpus()
    except (GpuError, ModuleNotFoundError) as error:
        pytest.skip(f"gpu: no NVIDIA GPU here ({error})")
    try:
        others = found.foreign_processes(0, lambda pid: pid == os.getpid())
        if others:
            pytest.skip(f"gpu: GPU 0 is in use by {len(others)} processes, such as {others[0].pid}")
        yield found
    finally:
        found.close()


class Loads:
    """Loads as processes of the test.

    Args:
        folder: Directory of their files.
        uuid: GPU that they use.
    """

    def __init__(self, folder: Path, uuid: str) -> None:
        self._folder, self._uuid = folder, uuid
        self.gate = folder / "gate"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *, mib: int = 256, busy: float = 1.0) -> subprocess.Popen[str]:
        """Start a load, and wait until it works."""
        words = ("--mib", str(mib), "--busy", str(busy), "--until", str(self.gate))
        process = subprocess.Popen(
            [sys.executable, str(LOAD), *words],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": self._uuid},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("up"), "the load did not start; its error is above"
        return process

    def close(self) -> None:
        """End all loads."""
        self.gate.touch()
        for process in self.running:
            process.communicate(timeout=60.0)


@pytest.fixture
def loads(tmp_path: Path, gpus: GpuSet) -> Iterator[Loads]:
    started = Loads(tmp_path, gpus.uuid(0))
    yield started
    started.close()


class OneGpu(Cluster):
    """A broker whose jobs may share GPUs, and a node that offers GPU 0."""

    gpu_options = ("--gpus", "1", "--min-free-mib", "0")

    @property
    def pipes(self) -> list[Path]:
        """Pipe directories of the node's MPS control daemons."""
        return [path / "pipe" for path in (self.directory / "n0" / "mps").glob("*")]

    @property
    def mps_processes(self) -> set[int]:
        """Control daemons of the node, and their servers."""
        found = [find_processes(pipes) for pipes in self.pipes]
        return {pid for one in found for pid in (one.control, *one.servers)} - {0}

    def load(
        self,
        client: Client,
        gate: str,
        *,
        mib: int,
        gpu_memory_mib: int,
        exit_code: int = 0,
        without: str = "",
    ) -> int:
        """Submit a load that works until its gate, a file in the directory, exists. Returns its job.

        `without`: a variable of the node's that the load does not get.
        """
        words = ("--mib", str(mib), "--busy", "0.5", "--until", str(self.directory / gate))
        unset = ("env", "-u", without) if without else ()
        return client.submit(
            [*unset, sys.executable, str(LOAD), *words, "--exit-code", str(exit_code)],
            workload="a2c-b64",
            share="yes",
            gpu_memory_mib=gpu_memory_mib,
            env={name: os.environ[name] for name in PASSED if name in os.environ},
        )


def works(client: Client, job: int) -> bool:
    """Whether the load holds its memory and computes."""
    return client.job(job).state == "running" and client.read_log(job).data.startswith(b"up")


def ended(client: Client, job: int) -> tuple[str, int | None]:
    until(lambda: client.job(job).state in FINISHED, f"job {job} has ended")
    found = client.job(job)
    return found.state, found.exit_code


def pid_of(client: Client, job: int) -> int:
    """Process of a load."""
    return int(client.read_log(job).data.split()[1])


def total_mib(gpus: GpuSet) -> int:
    total = gpus.memory_total_mib(0)
    assert total is not None
    return total


@contextmanager
def _running(directory: Path, policy: str, *node_options: str) -> Iterator[OneGpu]:
    """A cluster whose jobs are cancelled at the end."""
    options = ("--policy", policy, "--share", "--prediction", "running-mean", "--forecaster", "none")
    started = OneGpu(directory, nodes=("n0",), broker_options=options, node_options=node_options)
    try:
        with started.client() as client:
            all_up(client, 1)
        yield started
        with started.client() as client:
            for job in client.jobs():
                client.cancel(job.job)
            until(lambda: not client.jobs(), "all jobs have ended")
    finally:
        started.close()


@pytest.fixture
def cluster(tmp_path: Path, gpus: GpuSet) -> Iterator[OneGpu]:
    assert gpus.count
    with _running(tmp_path, "pack") as started:
        yield started


@pytest.fixture
def mps_cluster(gpus: GpuSet) -> Iterator[OneGpu]:
    """A node that shares its GPU by MPS, in a directory with a short path: paths of sockets are limited."""
    assert gpus.count
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"gpu: {PROGRAM} is not installed")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        policy = Path(directory, "four.toml")
        policy.write_text(FOUR_JOBS)
        with _running(Path(directory), str(policy), "--sharing", "mps") as started:
            yield started


@pytest.fixture
def smi() -> Callable[[str], list[list[str]]]:
    """Asks `nvidia-smi --query-gpu` for fields; returns a row per GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("gpu: nvidia-smi is not installed")

    def ask(fields: str) -> list[list[str]]:
        done = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        )
        return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]

    return ask
