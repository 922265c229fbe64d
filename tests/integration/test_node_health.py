"""Broker, node and client as processes: a check fails, the queue waits, the check passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.online.cluster import Cluster, all_up, until


@pytest.mark.slow
def test_node_is_drained_by_its_check_and_returns_by_itself(tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    check = f"test ! -e {sick} || {{ echo no scratch; exit 1; }}"
    options = ("--health-check", check, "--health-check-every-s", "1", "--min-free-mib", "0")
    cluster = Cluster(tmp_path, nodes=("n0",), node_options=options)
    try:
        with cluster.client() as client:
            all_up(client, 1)
            sick.touch()
            until(lambda: client.nodes()[0].state == "drained", "the node is drained")
            assert client.nodes()[0].reason == "health check: no scratch"
            job = client.submit(["true"])
            until(lambda: "until its own checks pass" in str(client.why(job)), "`why` shows it")
            cluster.kill("broker")
            cluster.start("broker")
            until(lambda: client.nodes()[0].state == "drained", "the broker knows it still")
            assert client.stats().unhealthy_nodes == 1
            sick.unlink()
            assert client.wait(job).state == "completed"
            assert (client.nodes()[0].state, client.stats().health_failures) == ("up", 1)
    finally:
        cluster.close()
