"""kill -9 of the broker with jobs running and waiting: the next broker knows them all, and each runs once."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.entries import AttemptOver, Decided, JobSubmitted
from rlsched.broker.journal.reading import read_journal
from rlsched.client.client import Client
from rlsched.decide.actions import Start
from rlsched.errors import BrokerUnavailableError
from tests.quick import quick
from tests.support.online.cluster import DEADLINE_S, RLSCHED, Cluster, all_up, until


class Noted(Cluster):
    """Jobs write one line each."""

    def __init__(self, directory: Path) -> None:
        self.ran = directory / "ran.txt"
        self.ran.touch()
        super().__init__(
            directory, broker_options=("--policy", "qssf-backfill"), node_options=("--end-jobs-on-exit",)
        )

    def submit(self, client: Client, token: str, *, gpus: int = 1, seconds: float = 0.3) -> int:
        """A job that writes one line, starting with its token, for each rank."""
        script = f"echo {token} >> {self.ran}; sleep {seconds}"
        return client.submit(["sh", "-c", script], num_gpus=gpus, name=token, token=token)

    def lines(self) -> Counter[str]:
        return Counter(self.ran.read_text().split())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Noted]:
    cluster = Noted(tmp_path_factory.mktemp("killed"))
    yield cluster
    cluster.close()


def instant_after_acknowledgement(cluster: Noted, client: Client, tag: str) -> dict[str, int]:
    """Kill right after the last reply."""
    return {f"{tag}-{n}": cluster.submit(client, f"{tag}-{n}", gpus=2) for n in range(7)}


def instant_when_started(cluster: Noted, client: Client, tag: str) -> dict[str, int]:
    """Kill as soon as a job runs while others wait: ranks may be unacknowledged."""
    jobs = {f"{tag}-{n}": cluster.submit(client, f"{tag}-{n}", gpus=4, seconds=0.5) for n in range(5)}
    until(lambda: any(token.startswith(tag) for token in cluster.lines()), "one runs")
    return jobs


def instant_in_the_middle(cluster: Noted, client: Client, tag: str) -> dict[str, int]:
    """Kill while jobs end and start: a gang on both nodes, many short jobs."""
    jobs = {f"{tag}-gang": cluster.submit(client, f"{tag}-gang", gpus=8, seconds=0.2)}
    jobs |= {
        f"{tag}-{n}": cluster.submit(client, f"{tag}-{n}", gpus=1 + n % 4, seconds=0.05 * n)
        for n in range(10)
    }
    until(lambda: sum(token.startswith(tag) for token in cluster.lines()) >= 4, "some have run")
    return jobs


def instant_while_submitting(cluster: Noted, _: Client, tag: str) -> dict[str, int]:
    """Kill between a request and its reply: acknowledged jobs count, the rest is retried later."""
    done: dict[str, int] = {}

    def submit_on_and_on() -> None:
        with cluster.client(timeout_s=0.5) as other:
            for n in range(500):
                try:
                    done[f"{tag}-{n}"] = cluster.submit(other, f"{tag}-{n}", seconds=0.0)
                except BrokerUnavailableError:
                    return

    thread = threading.Thread(target=submit_on_and_on)
    thread.start()
    until(lambda: len(done) >= 8, "some are acknowledged")
    cluster.kill("broker")
    thread.join()
    return dict(done)


Instant = Callable[[Noted, Client, str], dict[str, int]]
INSTANTS: list[Instant] = [
    instant_after_acknowledgement,
    instant_when_started,
    instant_in_the_middle,
    instant_while_submitting,
]


@pytest.mark.parametrize(
    "instant", quick(INSTANTS, lambda one: one is instant_in_the_middle), ids=lambda instant: instant.__name__
)
def test_every_job_runs_once(cluster: Noted, instant: Instant) -> None:
    tag = instant.__name__.replace("_", "-")
    with cluster.client() as client:
        all_up(client)
        jobs = instant(cluster, client, tag)
        cluster.kill("broker")
        before = {
            row.entry.job for row in read_journal(cluster.journal) if isinstance(row.entry, JobSubmitted)
        }
        assert set(jobs.values()) <= before, "acknowledged jobs are on disk"
        cluster.start("broker")
        known = {job.name: job.job for job in client.jobs(finished=True)}
        assert set(known.values()) == before
        assert jobs.items() <= known.items()
        for token in jobs:
            assert cluster.submit(client, token) == jobs[token], "the same token is the same job"
        for job in known.values():
            assert client.wait(job).state == "completed"
        finished = {job.name: job for job in client.jobs(finished=True)}
    lines = cluster.lines()
    for token, job in finished.items():
        assert job.attempt == 1, f"{token} was started again"
        assert lines[token] == len(job.nodes), f"{token} ran {lines[token]} times on {len(job.nodes)} nodes"


def test_journal_of_all_these_brokers_is_consistent(cluster: Noted) -> None:
    rows = read_journal(cluster.journal)
    times = [row.now_s for row in rows]
    assert times == sorted(times)
    decisions = [row.entry for row in rows if isinstance(row.entry, Decided)]
    assert [decision.number for decision in decisions] == list(range(len(decisions)))
    started = [decision.action.seq for decision in decisions if isinstance(decision.action, Start)]
    over = [row.entry.job for row in rows if isinstance(row.entry, AttemptOver)]
    assert len(started) == len(set(started)) == len(over) == len(set(over))


def test_stopped_broker_leaves_jobs_running_and_adopts_them(cluster: Noted) -> None:
    with cluster.client() as client:
        all_up(client)
        gate = cluster.directory / "gate"
        script = f"echo clean >> {cluster.ran}; until [ -e {gate} ]; do sleep 0.02; done"
        job = client.submit(["sh", "-c", script])
        until(lambda: client.job(job).state == "running", "it runs")
        cluster.running["broker"].terminate()
        assert cluster.running["broker"].wait(DEADLINE_S) == 0
        cluster.start("broker")
        assert client.job(job).state == "running"
        gate.touch()
        assert client.wait(job).exit_code == 0
    assert cluster.lines()["clean"] == 1


def test_job_that_ends_while_the_broker_is_down_has_its_true_end_time(cluster: Noted) -> None:
    with cluster.client() as client:
        all_up(client)
        gate = cluster.directory / "gate-away"
        job = client.submit(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done"])
        until(lambda: client.job(job).state == "running", "it runs")
        cluster.kill("broker")
        gate.touch()
        until(lambda: list(cluster.directory.glob(f"*/records/*/{job}.1.0/exit")), "it has ended")
        (ended,) = cluster.directory.glob(f"*/records/*/{job}.1.0/exit")
        back_s = time.time()
        cluster.start("broker")
        info = client.wait(job)
        assert info.state == "completed"
        assert info.end_s is not None
        assert info.start_s is not None
        assert info.end_s == pytest.approx(info.start_s + json.loads(ended.read_text())["ran_s"], abs=0.001)
        assert info.end_s <= back_s, "its start and run time, without the launch"


@pytest.mark.slow
def test_second_broker_on_the_same_journal_is_refused(cluster: Noted) -> None:
    second = subprocess.run(
        [
            *RLSCHED,
            "broker",
            "--address",
            "tcp://127.0.0.1:0",
            "--dir",
            str(cluster.directory / "broker"),
            "--keys",
            str(cluster.keys),
            "--policy",
            "qssf-backfill",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert second.returncode == 2
    assert second.stderr.startswith("error: ")
    assert "another broker holds this journal" in second.stderr
    assert second.stderr.count("\n") == 1
