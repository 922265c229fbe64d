"""Yesterday's journal on a cluster that has moved on: processes keep running, no number is used twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlsched.broker.base.entries import RankEnded
from rlsched.broker.journal.reading import read_journal
from tests.support.online.cluster import RLSCHED, Cluster, all_up, until


def journal(cluster: Cluster, *args: str) -> str:
    verb = [*RLSCHED, "journal", *args, "--dir", str(cluster.directory / "broker")]
    return subprocess.run(verb, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_cluster_continues_after_a_restore(tmp_path: Path) -> None:
    gates = [tmp_path / f"gate-{n}" for n in range(3)]
    ran = tmp_path / "ran.txt"
    script = f"echo $0 >> {ran}; while ! [ -e $0 ]; do sleep 0.02; done; echo $0 over >> {ran}"
    options = ("--policy", "fifo", "--lease-s", "1")
    cluster = Cluster(tmp_path, nodes=("n0",), broker_options=options)
    try:
        with cluster.client() as client:
            all_up(client, 1)
            known = client.submit(["sh", "-c", script, str(gates[0])], num_gpus=2)
            waiting = client.submit(["sh", "-c", script, str(gates[1])], num_gpus=4)
            until(lambda: client.job(known).state == "running", "the first runs")
            journal(cluster, "backup", str(tmp_path / "backup.sqlite"))
            client.cancel(waiting)
            unknown = client.submit(["sh", "-c", script, str(gates[2])], num_gpus=2)
            until(lambda: client.job(unknown).state == "running", "one runs that the backup does not know")
        cluster.kill("broker")
        cluster.start("broker")
        cluster.kill("broker")
        said = journal(cluster, "restore", str(tmp_path / "backup.sqlite"))
        assert "restored" in said
        cluster.start("broker")
        with cluster.client() as client:
            until(lambda: [node.state for node in client.nodes()] == ["drained"], "the node is back")
            [node] = client.nodes()
            assert f"jobs {unknown} continue" in node.reason
            assert client.job(known).state == "running"
            later = client.submit(["true"])
            assert later > 1_000_000
            for gate in gates:
                gate.touch()
            assert client.wait(known).exit_code == 0
            assert client.wait(waiting).exit_code == 0
            assert client.wait(later).exit_code == 0
            [node] = client.nodes()
            assert node.state == "up"
            assert node.clock_skew_s is not None
        assert cluster.running["n0"].poll() is None
        lines = ran.read_text().splitlines()
        ends = [row.entry for row in read_journal(cluster.journal) if isinstance(row.entry, RankEnded)]
        assert {end.job for end in ends if end.ran_s is not None} == {known, waiting, later}
        assert sorted(lines) == sorted(f"{gate}{end}" for gate in gates for end in ("", " over"))
    finally:
        cluster.close()
