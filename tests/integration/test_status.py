"""`rlsched status` of real processes: healthy, a full disk for records, an unreachable node, no broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlsched.decisions.reading import read_records
from tests.support.online.cluster import RLSCHED, Cluster, all_up, until

OPTIONS = ("--lease-s", "2", "--policy", "fifo-backfill", "--prediction", "running-mean")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, nodes=["n0"], broker_options=OPTIONS)
    yield cluster
    cluster.close()


def status(cluster: Cluster, *options: str) -> tuple[int, str]:
    """Exit code and standard output."""
    done = subprocess.run(
        [*RLSCHED, "status", "--broker", cluster.address, "--keys", str(cluster.keys), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout or done.stderr


def as_data(cluster: Cluster) -> tuple[int, dict[str, Any]]:
    code, out = status(cluster, "--json")
    return code, json.loads(out)


def test_status_shows_problems_and_jobs_run_without_records(cluster: Cluster) -> None:
    store = cluster.directory / "broker" / "decisions"
    with cluster.client() as client:
        all_up(client, 1)
        code, report = as_data(cluster)
        assert [line for line in report["problems"] if not line.startswith("the disk of ")] == []
        assert code == int(bool(report["problems"])), "the disk of this machine may be nearly full"
        assert (report["nodes"], report["epoch"], report["address"]) == ({"up": 1}, 1, cluster.address)
        assert report["journal"]["size_bytes"] > 0
        assert report["journal"]["last_commit_ms"] > 0

        store.rename(store.with_name("elsewhere"))
        store.write_text("no folder")
        jobs = [client.submit(["true"], num_gpus=4) for _ in range(3)]
        assert [client.wait(job).state for job in jobs] == ["completed"] * 3
        code, out = status(cluster)
        assert code == 1
        assert f"degraded: records: {store}: cannot keep decisions: " in out
        store.unlink()
        store.with_name("elsewhere").rename(store)
        assert client.wait(client.submit(["true"])).state == "completed"
        until(lambda: not as_data(cluster)[1]["records"]["troubles"], "decisions are kept again")
        _, report = as_data(cluster)
        lost = report["records"]["lost"]["written"]
        assert 0 < lost <= 3
        assert len(read_records(store)) >= 1
        lines = [line for line in cluster.log("broker").splitlines() if "decisions are kept" in line]
        assert [f" again; {lost} were lost" in line for line in lines] == [True]

        cluster.kill("n0")
        until(lambda: client.nodes()[0].state == "unreachable", "the node is missed")
        code, out = status(cluster)
        assert code == 1
        assert "degraded: 1 node is unreachable" in out
        assert "  n0 is unreachable: no heartbeat for 2 s" in out
    cluster.kill("broker")
    code, out = status(cluster, "--timeout-s", "0.5")
    assert code == 2
    assert out.startswith("error: no broker answers at ")
