"""A standby on the same journal takes over from a killed broker, and only after that broker has exited."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rlsched.broker.base.entries import AttemptOver, BrokerStarted, Decided, JobSubmitted
from rlsched.broker.journal.reading import read_journal
from rlsched.decide.actions import Start
from rlsched.errors import BrokerUnavailableError
from tests.support.online.cluster import DEADLINE_S, RLSCHED, Cluster, all_up, until
from tests.support.ports import free_addresses

OPTIONS = ("--policy", "qssf-backfill", "--prediction", "running-mean")
WITHIN_S = 60.0
"""An upper limit for a busy machine; the measured time is printed."""


class Doubled(Cluster):
    """A cluster whose broker can have a standby; jobs write one line each."""

    def __init__(self, directory: Path, **where: str) -> None:
        self.ran = directory / "ran.txt"
        self.ran.touch()
        super().__init__(directory, broker_options=OPTIONS, node_options=("--end-jobs-on-exit",), **where)

    def stand_by(self, name: str, until_it_says: str = "entries followed", address: str = "") -> None:
        """Start a standby, by default for the broker's address, and wait until it has read the journal."""
        place = ("--address", address or self.address, "--dir", str(self.directory / "broker"))
        self._spawn(name, "broker", *place, *OPTIONS, "--standby")
        until(lambda: until_it_says in self.log(name), f"{name} stands by")

    def take_over(self, name: str) -> None:
        """From now on this standby is the broker."""
        self.running["broker"] = self.running.pop(name)

    def lines(self) -> Counter[str]:
        return Counter(self.ran.read_text().split())


@pytest.fixture
def cluster(tmp_path: Path) -> Doubled:  # type: ignore[misc]
    cluster = Doubled(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_jobs_of_a_killed_broker_continue_under_its_standby(cluster: Doubled) -> None:
    answered_s: list[float] = []
    with cluster.client() as client:
        all_up(client)
        for turn in range(3):
            cluster.stand_by(f"standby-{turn}")
            jobs: dict[str, int] = {}
            enough = threading.Event()

            def submit(
                turn: int = turn, jobs: dict[str, int] = jobs, enough: threading.Event = enough
            ) -> None:
                with cluster.client(timeout_s=WITHIN_S) as other:
                    for n in range(40):
                        token = f"t{turn}-{n}"
                        script = f"echo {token} >> {cluster.ran}; sleep 0.{n % 5}"
                        began_s = time.monotonic()
                        jobs[token] = other.submit(
                            ["sh", "-c", script], num_gpus=1 + n % 3, token=token, name=token
                        )
                        answered_s.append(time.monotonic() - began_s)
                        if n == 12:
                            enough.set()

            thread = threading.Thread(target=submit)
            thread.start()
            assert enough.wait(DEADLINE_S)
            cluster.kill("broker")
            thread.join(DEADLINE_S)
            cluster.take_over(f"standby-{turn}")
            assert len(jobs) == 40
            known = {job.name: job.job for job in client.jobs(finished=True)}
            assert jobs.items() <= known.items(), "acknowledged jobs are known"
            assert "took over from process" in cluster.log(f"standby-{turn}")
            longest_ms = 1000 * max(answered_s[-40:])
            print(f"\nkill -9 to the first answered submission: at most {longest_ms:.0f} ms;", end=" ")
            print(cluster.log(f"standby-{turn}").splitlines()[-2])
        for job in client.jobs(finished=True):
            info = client.wait(job.job)
            assert (info.state, info.attempt) == ("completed", 1)
            assert cluster.lines()[job.name] == len(info.nodes), f"{job.name} ran once"
    assert max(answered_s) < WITHIN_S
    entries = [row.entry for row in read_journal(cluster.journal)]
    assert [one.epoch for one in entries if isinstance(one, BrokerStarted)] == [1, 2, 3, 4]
    numbers = [one.job for one in entries if isinstance(one, JobSubmitted)]
    assert numbers == list(range(1, 121))
    decided = [one for one in entries if isinstance(one, Decided)]
    assert [one.number for one in decided] == list(range(len(decided)))
    started = [one.action.seq for one in decided if isinstance(one.action, Start)]
    over = [one.job for one in entries if isinstance(one, AttemptOver)]
    assert len(started) == len(set(started)) == len(over) == len(set(over)) == 120


@pytest.mark.slow
def test_standby_waits_for_a_frozen_broker_and_refuses_one_that_restarts(cluster: Doubled) -> None:
    cluster.stand_by("standby")
    with cluster.client() as client:
        all_up(client)
    cluster.signal("broker", signal.SIGSTOP)
    with cluster.client(timeout_s=1.0) as client, pytest.raises(BrokerUnavailableError):
        client.stats()
    assert "took over" not in cluster.log("standby"), "its lock is held"
    cluster.signal("broker", signal.SIGCONT)
    with cluster.client() as client:
        assert client.stats().epoch == 1
        cluster.running["broker"].terminate()
        assert cluster.running["broker"].wait(DEADLINE_S) == 0
        until(lambda: client.stats().epoch == 2, "the standby serves")
    again = [*RLSCHED, "broker", "--address", cluster.address, "--dir", str(cluster.directory / "broker")]
    back = subprocess.run(
        [*again, "--keys", str(cluster.keys), *OPTIONS], capture_output=True, text=True, check=False
    )
    assert back.returncode == 2
    assert "another broker holds this journal" in back.stderr


@pytest.mark.slow
def test_standby_with_its_own_address_is_found_by_clients_and_nodes(tmp_path: Path) -> None:
    first, second = free_addresses(2)
    cluster = Doubled(tmp_path, address=first, known=f"{first},{second}")
    try:
        with cluster.client() as client:
            all_up(client)
            gate = tmp_path / "gate"
            job = client.submit(
                ["sh", "-c", f"echo one >> {cluster.ran}; until [ -e {gate} ]; do sleep 0.02; done"]
            )
            until(lambda: client.job(job).state == "running", "it runs")
            for name, address, turn in (("standby", second, 2), ("back", first, 3)):
                cluster.stand_by(name, address=address)
                cluster.kill("broker")
                began_s = time.monotonic()
                other = client.submit(["true"], num_gpus=8)
                took_ms = 1000 * (time.monotonic() - began_s)
                print(f"\nkill -9 to the first answered submission: {took_ms:.0f} ms")
                cluster.take_over(name)
                all_up(client)
                assert client.stats().epoch == turn
                assert client.job(job).state == "running"
                assert client.job(other).state == "queued"
                client.cancel(other)
            gate.touch()
            assert client.wait(job).exit_code == 0
        assert cluster.lines()["one"] == 1
    finally:
        cluster.close()


def test_standby_without_a_journal_is_refused(tmp_path: Path) -> None:
    verb = [
        *RLSCHED,
        "broker",
        "--standby",
        "--dir",
        str(tmp_path / "none"),
        "--keys",
        str(tmp_path / "home"),
        *OPTIONS,
    ]
    said = subprocess.run(verb, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert said.returncode == 2
    assert "there is no journal to stand by for" in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.slow
def test_standby_stops_on_sigterm(cluster: Doubled) -> None:
    cluster.stand_by("standby")
    cluster.running["standby"].terminate()
    assert cluster.running["standby"].wait(DEADLINE_S) == 0
    with cluster.client() as client:
        assert client.stats().epoch == 1
