"""Findings of `rlsched doctor` on real machines."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.online.cluster import RLSCHED, Cluster, all_up, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("doctor"), broker_options=("--policy", "fifo-backfill"))
    yield cluster
    cluster.close()


def doctor(*words: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    said = subprocess.run(
        [*RLSCHED, "doctor", "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert said.stderr == ""
    return said.returncode, {finding["what"]: finding for finding in json.loads(said.stdout)}


def test_healthy_cluster_and_a_cluster_that_lost_a_node(cluster: Cluster) -> None:
    where = ("--broker", cluster.address, "--keys", str(cluster.keys))
    with cluster.client() as client:
        all_up(client)
        code, found = doctor(*where)
        assert (code, found["broker"]["state"], found["nodes"]["line"]) == (0, "ok", "2 up")
        assert (found["keys"]["state"], found["disk"]["state"]) == ("ok", "ok")
        cluster.running["n1"].terminate()
        until(
            lambda: {node.name: node.state for node in client.nodes()}["n1"] == "unreachable",
            "its farewell arrived",
        )
    code, found = doctor(*where)
    assert (code, found["nodes"]["state"]) == (1, "wrong")
    assert "n1 (unreachable)" in found["nodes"]["line"]


def test_fresh_machine_lacks_much_but_has_no_error(tmp_path: Path) -> None:
    code, found = doctor("--keys", str(tmp_path / "none"), "--timeout-s", "0.2", XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert found["keys"]["state"] == found["broker"]["state"] == found["kernels"]["state"] == "note"
    assert "none compiled yet" in found["kernels"]["line"]
    assert not (tmp_path / "none").exists(), "it changes nothing"


def test_keys_readable_by_others_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "client-default.key").write_text("secret")
    (tmp_path / "client-default.key").chmod(0o644)
    code, found = doctor("--keys", str(tmp_path), "--timeout-s", "0.2")
    assert code == 1
    assert f"chmod 600 {tmp_path / 'client-default.key'}" in json.dumps(found)
