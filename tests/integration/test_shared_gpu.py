"""A foreign process on one GPU of a node, with real processes on the fake NVML: the other GPU serves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.online.cluster import Cluster, until

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
GPU_0, GPU_1 = "GPU-fake-0", "GPU-fake-1"
TELL = 'echo "$CUDA_VISIBLE_DEVICES" >> {0}; until [ -e {1} ]; do sleep 0.02; done'


@pytest.fixture
def foreign() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.mark.slow
def test_gpu_is_avoided_the_others_serve_and_no_retry_is_used(
    tmp_path: Path, foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    processes, failing = tmp_path / "processes", tmp_path / "failing"
    processes.write_text(f"1 {foreign}\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_PROCESSES", str(processes))
    monkeypatch.setenv("FAKE_NVML_FAIL", str(failing))
    cluster = Cluster(tmp_path, nodes=(), broker_options=("--policy", "fifo-backfill"))
    name = os.path.basename(sys.executable)[:15]
    used = f"in use by process {foreign} ({name}, 100 MiB), not started by rlsched"
    cluster._spawn(
        "n0",
        *("node", "--name", "n0", "--broker", cluster.address, "--dir", str(tmp_path / "n0")),
        *("--allow-root", "--min-free-mib", "0"),
    )
    places, gate = tmp_path / "places", tmp_path / "gate"
    command = ["sh", "-c", TELL.format(places, gate)]
    try:
        with cluster.client() as client:
            until(lambda: [one.state for one in client.nodes()] == ["up"], "the node is up")
            first, second = client.submit(command), client.submit(command)
            until(places.exists, "the first job runs")
            assert client.nodes()[0].notes[0] == f"GPU 1: {used}"
            assert f"node n0, GPU 1: {used}" in str(client.why(second))
            processes.write_text("")
            until(lambda: places.read_text() == f"{GPU_0}\n{GPU_1}\n", "the second has the GPU that is free")
            gate.touch()
            assert [client.wait(job).state for job in (first, second)] == ["completed"] * 2
            # a process that starts between two checks: the job is refused and goes to the other GPU
            processes.write_text(f"0 {foreign}\n")
            third = client.submit(command)
            assert client.wait(third).state == "completed"
            assert places.read_text().splitlines()[2] == GPU_1
            processes.write_text("")
            until(lambda: not client.stats().gpus_out, "it is free again")
            # a GPU that falls off the bus and returns
            failing.write_text("* 0 15\n")
            until(lambda: client.stats().gpus_out == 1, "it is lost")
            assert "GPU 0: lost: NVML" in client.nodes()[0].notes[0]
            assert client.wait(client.submit(command)).state == "completed"
            assert places.read_text().splitlines()[3] == GPU_1
            failing.unlink()
            until(lambda: not client.stats().gpus_out, "it is back")
            assert [one.state for one in client.nodes()] == ["up"]
            stats = client.stats()
            assert (stats.health_failures, stats.outcomes) == (0, {"completed": 4})
    finally:
        cluster.close()
