"""`rlsched policy set`: the policy of a running broker changes, and jobs keep running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.base.entries import BrokerStarted
from rlsched.broker.journal.reading import read_journal
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy, default_checkpoint
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from tests.support.online.cluster import Cluster, all_up, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("set"), broker_options=("--policy", "fifo-backfill"))
    yield cluster
    cluster.close()


def test_policy_is_set_while_jobs_run_and_wait(cluster: Cluster) -> None:
    with cluster.client() as client:
        all_up(client)
        gate = cluster.directory / "gate"
        held = client.submit(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done"], num_gpus=8)
        until(lambda: client.job(held).state == "running", "it runs")
        waits = client.submit(["true"], num_gpus=3)
        said = subprocess.run(
            [
                *(sys.executable, "-c", "from rlsched.cli.operators.policy import policy; policy()"),
                *("set", "easy", "--set", "order=area"),
                *("--broker", cluster.address, "--keys", str(cluster.keys)),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert said.stdout == "policy easy* decides\n"
        assert client.stats().policy == "easy*"
        gate.touch()
        assert (client.wait(held).exit_code, client.wait(held).attempt) == (0, 1)
        assert client.wait(waits).state == "completed"
        all_up(client)
    starts = [row.entry for row in read_journal(cluster.journal) if isinstance(row.entry, BrokerStarted)]
    assert [start.policy for start in starts] == ["fifo-backfill", "easy*"]
    assert [start.epoch for start in starts] == [1, 2]


def test_invalid_policy_is_refused_and_the_current_one_stays(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.client() as client:
        before = client.stats()
        with pytest.raises(InputError, match="true run times"):
            client.set_policy(Policy("srtf"))
        with pytest.raises(InputError, match="no/such"):
            client.set_policy(Policy("tuned", dials=str(tmp_path / "no" / "such")))
        after = client.stats()
        assert (after.policy, after.epoch) == (before.policy, before.epoch)
        all_up(client)
        assert client.wait(client.submit(["true"])).state == "completed"


def test_files_named_by_a_client_are_read_only_by_the_client(cluster: Cluster, tmp_path: Path) -> None:
    """The broker cannot reach the client's folder, which is removed before the next request."""
    shutil.copytree(default_checkpoint(), tmp_path / "net")
    (tmp_path / "mine.py").write_text("")
    with cluster.client(timeout_s=300.0) as client:  # it may be compiled first
        client.set_policy(Policy.of(f"ppo:{tmp_path / 'net'}"))
        assert client.stats().policy == f"ppo:{tmp_path / 'net'}"
        code = Policy.of(f"{tmp_path / 'mine.py'}:Rule")
        shutil.rmtree(tmp_path)
        with pytest.raises(InputError, match=r"'Rule' is Python code, which is not sent: .* as .*mine\.py$"):
            client.set_policy(code)
        all_up(client)
        assert client.wait(client.submit(["true"])).state == "completed"
    started = [row.entry for row in read_journal(cluster.journal) if isinstance(row.entry, BrokerStarted)]
    chosen = started[-1].chosen
    assert chosen is not None
    assert Policy.parse(chosen.policy).settings.dials.startswith("{")


def test_setting_a_policy_starts_an_epoch_without_a_restart(cluster: Cluster) -> None:
    with cluster.client() as client:
        before = client.stats()
        until(lambda: client.stats().uptime_s > before.uptime_s + 0.2, "it is up for a while")
        before = client.stats()
        client.set_policy(Policy("fifo"))
        after = client.stats()
    assert after.epoch == before.epoch + 1
    assert after.uptime_s >= before.uptime_s


def with_strategy(folder: Path) -> str:
    """A policy file that names a strategy; returns the file's name and the files that it must leave."""
    weights = np.random.default_rng(2).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))
    Strategy.from_layers(weights).write(folder / "mine.json")
    (folder / "mine.toml").write_text('base = "easy"\nreserve_after = "1s"\ndials = "mine.json"\n')
    return "mine without dials"


@pytest.mark.slow
def test_policy_file_is_sent_with_its_files_and_survives_the_broker(tmp_path: Path) -> None:
    """The broker runs in another directory and never reads the files."""
    mine = tmp_path / "mine"
    mine.mkdir()
    behind = with_strategy(mine)
    cluster = Cluster(
        tmp_path, nodes=("n0",), broker_options=("--policy", "fifo-backfill", "--forecaster", "none")
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    try:
        said = subprocess.run(
            [
                *(sys.executable, "-c", "from rlsched.cli.operators.policy import policy; policy()"),
                *("set", os.path.relpath(mine / "mine.toml", elsewhere)),
                *("--broker", cluster.address, "--keys", str(cluster.keys)),
            ],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (said.returncode, said.stderr) == (0, "")
        assert said.stdout == f"policy mine decides, fallback {behind}\n"
        shutil.rmtree(mine)
        cluster.kill("broker")
        cluster.start("broker")
        with cluster.client() as client:
            all_up(client, 1)
            assert client.stats().policy == "mine"
            assert client.wait(client.submit(["true"])).state == "completed"
        cluster.kill("broker")
        cluster.broker_options = ("--policy", "fifo", "--forecaster", "none")
        cluster.start("broker")
        with cluster.client() as client:
            assert client.stats().policy == "fifo", "another --policy was given"
    finally:
        cluster.close()
