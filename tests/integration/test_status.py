"""`rlsched status` of real processes: all right, a full disk under the records, a node away, no broker."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlsched.decide.actions import Wait
from rlsched.decide.record import DecisionRecord, append_records, read_records
from tests.integration.cluster import RLSCHED, Cluster, all_up, until

OLD_BYTES = 1 << 20
OPTIONS = ("--lease-s", "2", "--policy", "fifo-backfill", "--prediction", "running-mean")


def old_records(path: Path) -> None:
    """A file of records that is OLD_BYTES long."""
    one = DecisionRecord(
        source="rule", policy_id="x" * 10_000, schema_hash="", state_digest="", number=0, now_s=0.0,
        partition="shared", halves=[], temperature=0.0, value=None, action=Wait(), took_us=0.0,
    )  # fmt: skip
    path.parent.mkdir(mode=0o700, parents=True)
    append_records(path, [one] * (OLD_BYTES // 10_000 + 1))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    old_records(tmp_path / "broker" / "records.msgpack")
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


def room_for_records(cluster: Cluster, size: int) -> None:
    """Let the broker write no file beyond this; only its records are that long."""
    resource.prlimit(cluster.running["broker"].pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_status_says_what_is_wrong_and_jobs_run_whatever_becomes_of_records(cluster: Cluster) -> None:
    records = cluster.directory / "broker" / "records.msgpack"
    with cluster.client() as client:
        all_up(client, 1)
        code, report = as_data(cluster)
        assert [line for line in report["problems"] if not line.startswith("the disk of ")] == []
        assert code == int(bool(report["problems"])), "a disk may be nearly full where this runs"
        assert (report["nodes"], report["epoch"], report["address"]) == ({"up": 1}, 1, cluster.address)
        assert report["journal"]["size_bytes"] > 0
        assert report["journal"]["last_commit_ms"] > 0

        room_for_records(cluster, OLD_BYTES)
        jobs = [client.submit(["true"], num_gpus=4) for _ in range(3)]
        assert [client.wait(job).state for job in jobs] == ["completed"] * 3
        code, out = status(cluster)
        assert code == 1
        assert f"degraded: records: {records}: cannot keep decision records: File too large" in out
        room_for_records(cluster, resource.RLIM_INFINITY)
        assert client.wait(client.submit(["true"])).state == "completed"
        until(lambda: read_records(records)[-1].policy_id == "fifo-backfill", "records are kept again")
        _, report = as_data(cluster)
        assert report["records"]["troubles"] == {}
        assert report["records"]["lost"] == {"written": 3}
        lines = [line for line in cluster.log("broker").splitlines() if "decision records" in line]
        assert [" again; 3 were lost" in line for line in lines] == [False, True]

        cluster.kill("n0")
        until(lambda: client.nodes()[0].state == "away", "the node is missed")
        code, out = status(cluster)
        assert code == 1
        assert "degraded: 1 node is away" in out
        assert "  n0 is away: not heard of for 2 s" in out
    cluster.kill("broker")
    code, out = status(cluster, "--timeout-s", "0.5")
    assert code == 2
    assert out.startswith("error: no broker answers at ")
