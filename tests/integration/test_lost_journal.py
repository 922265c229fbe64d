"""The journal is emptied while a job runs: no job is killed, and no number is reused without a request."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.online.cluster import RLSCHED, Cluster, all_up, until


def processes_of(gate: Path) -> list[str]:
    """Processes whose command line names a file."""
    found = subprocess.run(["pgrep", "-f", str(gate)], capture_output=True, text=True, check=False)
    return [pid for pid in found.stdout.split() if int(pid) != os.getpid()]


@pytest.mark.slow
def test_job_survives_an_emptied_journal(tmp_path: Path) -> None:
    gate, over = tmp_path / "gate", tmp_path / "over"
    command = ["sh", "-c", f"while ! [ -e {gate} ]; do sleep 0.02; done; touch {over}"]
    options = ("--policy", "fifo", "--lease-s", "2", "--forecaster", "none")
    cluster = Cluster(tmp_path, nodes=("n0",), broker_options=options)
    try:
        with cluster.client() as client:
            all_up(client, 1)
            job = client.submit(command, num_gpus=2)
            waits = client.submit(["true"], num_gpus=4)
            until(lambda: client.job(job).state == "running", "it runs")
        backup = tmp_path / "backup.sqlite"
        verb = [*RLSCHED, "journal", "backup", str(backup), "--dir", str(tmp_path / "broker")]
        subprocess.run(verb, check=True)
        cluster.kill("broker")
        cluster.journal.write_bytes(b"")
        for suffix in ("-wal", "-shm"):
            cluster.journal.with_name(cluster.journal.name + suffix).unlink(missing_ok=True)

        words = [*RLSCHED, "broker", "--address", cluster.address, "--dir", str(tmp_path / "broker")]
        refused = subprocess.run(
            [*words, "--keys", str(cluster.keys), *options], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert "is empty, but cluster.json next to it is of cluster" in refused.stderr

        cluster.broker_options = (*options, "--new-cluster")
        cluster.start("broker")
        with cluster.client() as client:
            until(lambda: [node.state for node in client.nodes()] == ["foreign"], "the node shows itself")
            new = client.submit(["true"])
            assert new == job, "the number of another cluster"
            until(lambda: "belongs to cluster" in client.nodes()[0].reason, "it reports it")
            assert client.job(new).state == "queued"
        assert processes_of(gate), cluster.log("n0")
        assert cluster.log("n0").count("this node obeys none of its orders") == 1

        cluster.kill("broker")
        restored = [*RLSCHED, "journal", "restore", str(backup), "--dir", str(tmp_path / "broker")]
        subprocess.run(restored, check=True)
        cluster.broker_options = options
        cluster.start("broker")
        with cluster.client() as client:
            until(lambda: [node.state for node in client.nodes()] != ["foreign"], "its own broker is back")
            assert client.job(job).state == "running"
            gate.touch()
            assert client.wait(job).exit_code == 0
            assert client.wait(waits).exit_code == 0
        assert over.exists()
    finally:
        gate.touch()
        cluster.close()
