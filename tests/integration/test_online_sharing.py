"""Real sharing: a broker with --share, a node daemon, and processes on the same GPUs at the same time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlsched.broker.journal.replay import journal_events, records_by_number, redecide
from rlsched.client.client import Client
from rlsched.decide.actions import Start
from rlsched.decide.registry import load_scheduler
from rlsched.wire.states import FINISHED
from tests.support.online.cluster import Cluster, all_up, until

pytestmark = pytest.mark.slow

WORKLOADS = ("a2c-b64", "vit-tiny", "gpt2-b4")
GATED = "echo GPUs $CUDA_VISIBLE_DEVICES; echo up > {0}/{1}.up; until [ -e {0}/{1} ]; do sleep 0.02; done"


@contextmanager
def cluster_of(directory: Path, policy: str) -> Iterator[Cluster]:
    options = ("--policy", policy, "--share", "--prediction", "running-mean", "--decision-budget-ms", "60000")
    cluster = Cluster(directory, nodes=("n0",), broker_options=(*options, "--forecaster", "none"))
    try:
        yield cluster
    finally:
        cluster.close()


def gated(client: Client, folder: Path, name: str, exit_code: int, gpus: int = 4) -> int:
    """A job that runs until its gate opens; returns its number once its command runs."""
    command = f"{GATED.format(folder, name)}; exit {exit_code}"
    job = client.submit(["sh", "-c", command], num_gpus=gpus, workload=WORKLOADS[0])
    until((folder / f"{name}.up").exists, f"{name} runs")
    return job


def state(client: Client, job: int) -> tuple[str, int | None]:
    found = client.job(job)
    return found.state, found.exit_code


def test_co_tenants_share_gpus_and_end_separately(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "pack") as cluster, cluster.client() as client:
        all_up(client, 1)
        one, two = gated(client, tmp_path, "one", 3), gated(client, tmp_path, "two", 0)
        until(lambda: {state(client, job)[0] for job in (one, two)} == {"running"}, "both run")
        assert client.job(one).gpus == client.job(two).gpus == [[0, 1, 2, 3]]
        assert (client.job(one).beside, client.job(two).beside) == ([str(two)], [str(one)])
        for job in (one, two):
            assert b"GPUs 0,1,2,3" in client.read_log(job).data
        client.cancel(two)
        until(lambda: state(client, two)[0] == "cancelled", "the second is cancelled")
        assert state(client, one)[0] == "running"

        three = gated(client, tmp_path, "three", 7)
        (tmp_path / "three").touch()
        until(lambda: state(client, three)[0] in FINISHED, "the third has ended")
        (tmp_path / "one").touch()
        until(lambda: state(client, one)[0] in FINISHED, "the first has ended")
        assert (state(client, one), state(client, three)) == (("failed", 3), ("failed", 7))


def test_co_tenants_survive_broker_and_daemon(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "pack") as cluster:
        with cluster.client() as client:
            all_up(client, 1)
            one, two = gated(client, tmp_path, "one", 3), gated(client, tmp_path, "two", 5)
            until(lambda: state(client, two)[0] == "running", "both run")
        for name in ("n0", "broker"):
            cluster.kill(name)
        cluster.known = cluster.address
        (tmp_path / "two").touch()  # it ends while no daemon runs
        cluster.start("broker")
        cluster.start("n0")
        with cluster.client() as client:
            until(lambda: state(client, two)[0] in FINISHED, "the end of the second is known")
            assert (state(client, one)[0], client.job(one).attempt) == ("running", 1)
            three = gated(client, tmp_path, "three", 0)
            until(lambda: client.job(one).beside == [str(three)], "another one shares its GPUs")
            for name in ("one", "three"):
                (tmp_path / name).touch()
            until(lambda: all(state(client, job)[0] in FINISHED for job in (one, three)), "all have ended")
            ends = [state(client, job) for job in (one, two, three)]
            assert ends == [("failed", 3), ("failed", 5), ("completed", 0)]


def test_live_journal_with_sharing_replays_bit_for_bit(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "tuned") as cluster, cluster.client() as client:
        all_up(client, 1)
        rng = random.Random(3)
        for _ in range(60):
            client.submit(
                ["sleep", str(rng.choice((0.1, 0.3, 0.6)))],
                num_gpus=rng.choice((1, 1, 2, 4)),
                workload=rng.choice((*WORKLOADS, "")),
                share=rng.choice(("auto", "auto", "yes", "no")),
            )
        until(lambda: all(job.state in FINISHED for job in client.jobs(finished=True)), "all have ended")
        assert {job.state for job in client.jobs(finished=True)} == {"completed"}
    broker = tmp_path / "broker"
    live = records_by_number(broker)
    made = redecide(journal_events(broker), load_scheduler("tuned"))
    starts = [record.action for record in made if isinstance(record.action, Start)]
    assert sum(action.share_with >= 0 for action in starts) >= 5
    assert len(starts) == 60
    for record in made:
        theirs = live[record.number]
        assert record.now_s == theirs.now_s
        assert record.state_digest == theirs.state_digest, f"decision {record.number}"
        assert (record.action, record.source) == (theirs.action, theirs.source)
        assert record.plans == theirs.plans
