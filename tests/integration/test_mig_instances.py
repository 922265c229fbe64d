"""A job on a MIG instance, with real processes on the fake NVML."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rlsched.errors import RlschedError
from tests.support.online.cluster import Cluster, until

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
TELL = 'echo "$CUDA_VISIBLE_DEVICES" >> {0}; until [ -e {1} ]; do sleep 0.02; done'


@pytest.mark.slow
def test_jobs_run_on_instances_and_a_removed_instance_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-DGPUS=3", "-o", library, source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_PROCESSES", "/dev/null")
    monkeypatch.setenv("FAKE_NVML_MIG", "1:0-1 2:")
    cluster = Cluster(tmp_path, nodes=(), broker_options=("--policy", "fifo-backfill"))
    cluster._spawn(
        "n0",
        *("node", "--name", "n0", "--broker", cluster.address, "--dir", str(tmp_path / "n0")),
        *("--allow-root", "--min-free-mib", "0", "--gpu-type", "H200-141GB/1g.18gb"),
    )
    places, gate = tmp_path / "places", tmp_path / "gate"
    command = ["sh", "-c", TELL.format(places, gate)]
    try:
        with cluster.client() as client:
            until(lambda: [one.state for one in client.nodes()] == ["up"], "the node is up")
            node = client.nodes()[0]
            assert (node.gpus, node.gpu_type) == (3, "H200-141GB/1g.18gb")
            assert node.notes[0].startswith("GPU 2: in MIG mode, and had no usable instance")
            assert any("not offered, because a node has one GPU type" in note for note in node.notes)
            jobs = [client.submit(command, gpu_types=["h200/1g.18gb"]) for _ in range(3)]
            until(lambda: places.exists() and len(places.read_text().split()) == 2, "two jobs run")
            assert sorted(places.read_text().split()) == ["MIG-fake-1-0", "MIG-fake-1-1"]
            states = ["running", "running", "queued"]  # a process can write before the broker knows
            until(lambda: [client.job(job).state for job in jobs] == states, "two jobs are running")
            assert "GPU 2: in MIG mode" in str(client.why(jobs[2]))
            gate.touch()
            assert [client.wait(job).state for job in jobs] == ["completed"] * 3
            for request in ({"gpu_types": ["H200"]}, {"num_gpus": 2}):
                with pytest.raises(RlschedError):
                    client.submit(command, **request)
    finally:
        cluster.close()
