"""A standby with a copy of the journal takes over from a broker that is killed, frozen or cut off."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.entries import BrokerStarted, JobSubmitted, Restored
from rlsched.broker.journal.reading import read_journal
from rlsched.client.client import Client
from rlsched.decide.dials.strategy import default_checkpoint
from rlsched.decide.policies.policy import Policy
from rlsched.transport.keys import KeyHome
from tests.support.online.cluster import DEADLINE_S, RLSCHED, Cluster, all_up, until
from tests.support.ports import free_addresses

OPTIONS = (
    "--policy",
    "fifo-backfill",
    "--prediction",
    "running-mean",
    "--lease-s",
    "5",
)


class Apart(Cluster):
    """Two brokers with separate directories and key homes; nodes and clients know both addresses.

    Attributes:
        places: Address, directory and keys of each broker.
    """

    def __init__(self, directory: Path) -> None:
        self.ran = directory / "ran.txt"
        self.ran.touch()
        a, b = free_addresses(2)
        super().__init__(
            directory,
            broker_options=OPTIONS,
            node_options=("--end-jobs-on-exit",),
            address=a,
            known=f"{a},{b}",
        )
        KeyHome(self.keys).client()
        shutil.copytree(self.keys, directory / "home-b")
        self.places = {
            "broker": (a, directory / "broker", self.keys),
            "b": (b, directory / "b", directory / "home-b"),
        }

    def begin(self, name: str, *options: str, says: str) -> None:
        """Start a broker or a standby at a place, and wait for a line."""
        address, directory, keys = self.places[name]
        before = self.log(name).count(says) if (self.directory / f"{name}.log").exists() else 0
        with (self.directory / f"{name}.log").open("ab") as log:
            place = ("--address", address, "--dir", str(directory), "--keys", str(keys))
            self.running[name] = subprocess.Popen(
                [*RLSCHED, "broker", *place, *OPTIONS, *options], stdout=log, stderr=subprocess.STDOUT
            )
        until(lambda: self.log(name).count(says) > before, f"{name} says {says!r}")

    def stand_by(self, name: str, of: str, *options: str, through: str = "") -> None:
        """Start a standby, and wait until its copy is whole."""
        self.begin(
            name,
            "--standby",
            "--of",
            through or self.places[of][0],
            *options,
            says="the copy is complete",
        )

    def copied(self, name: str, of: str) -> None:
        """Wait until a copy is complete."""

        def last(place: str) -> int:
            return read_journal(self.places[place][1] / "journal.sqlite")[-1].n

        until(lambda: last(name) == last(of), f"{name} has copied what {of} has")

    def held(self, client: Client, token: str, gpus: int) -> int:
        """A job that writes a line and runs until its gate opens."""
        script = f"echo {token} >> {self.ran}; until [ -e {self.directory / token} ]; do sleep 0.02; done"
        return client.submit(["sh", "-c", script], num_gpus=gpus, name=token, token=token)

    def lines(self) -> Counter[str]:
        return Counter(self.ran.read_text().split())


class Forwarder:
    """A connection to an address that can be cut."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(self._to)
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass, args=(one, other)))
                    self._threads[-1].start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    def cut(self) -> None:
        """Forward nothing from now on."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Apart]:
    cluster = Apart(tmp_path)
    yield cluster
    cluster.close()


def started_elsewhere(reason: str) -> bool:
    """Whether a job was removed from the queue because it started elsewhere, unknown to the copy."""
    return "this attempt continues" in reason or "lacks this attempt" in reason


def serves(client: Client, began_s: float, what: str) -> int:
    """The number of the first job that is answered."""
    job = client.submit(["true"])
    print(f"\n{what} to the first answered submission: {time.monotonic() - began_s:.1f} s")
    return job


@pytest.mark.slow
def test_standby_takes_over_its_copy_and_the_restarted_broker_is_refused(cluster: Apart) -> None:
    cluster.stand_by("b", "broker", "--take-over-after-s", "3")
    with cluster.client(timeout_s=DEADLINE_S) as client:
        all_up(client)
        jobs = {token: cluster.held(client, token, gpus) for token, gpus in (("one", 6), ("two", 4))}
        until(lambda: client.job(jobs["one"]).state == "running", "one runs")
        assert client.job(jobs["two"]).state == "queued"
        KeyHome(cluster.keys).node("later")
        until(lambda: (cluster.directory / "home-b/authorised/node-later.public").exists(), "keys are copied")
        cluster.copied("b", "broker")
        cluster.kill("broker")
        new = serves(client, time.monotonic(), "kill -9")
        assert new > 1_000_000
        all_up(client)
        assert client.job(jobs["one"]).state == "running"
        (cluster.directory / "one").touch()
        assert client.wait(jobs["one"]).exit_code == 0
        (cluster.directory / "two").touch()
        assert client.wait(jobs["two"]).exit_code == 0
        assert client.wait(new).exit_code == 0
        assert cluster.held(client, "one", 6) == jobs["one"], "the same token is the same job"
        epoch = client.stats().epoch
        assert epoch > 1_000

        cluster.begin("broker", says="a later broker of this cluster serves")
        assert cluster.running["broker"].wait(DEADLINE_S) == 1
        cluster.begin("broker", says="as recorded here")
        assert cluster.running["broker"].wait(DEADLINE_S) == 1
        assert client.stats().epoch == epoch

        cluster.stand_by("broker", "b")
        assert "was renamed to" in cluster.log("broker")
        cluster.copied("broker", "b")
        last = serves(client, time.monotonic(), "nothing")
        cluster.copied("broker", "b")
        cluster.kill("b")
        until(lambda: "kill -USR1" in cluster.log("broker"), "it waits for the signal")
        cluster.signal("broker", signal.SIGUSR1)
        again = serves(client, time.monotonic(), "SIGUSR1")
        assert again > last > new
        assert client.wait(again).exit_code == 0
        assert client.stats().epoch > epoch + 1_000
    assert cluster.lines() == {"one": 2, "two": 1}, "a line for each rank, of one attempt"
    entries = [row.entry for row in read_journal(cluster.journal)]
    numbers = [one.job for one in entries if isinstance(one, JobSubmitted)]
    assert numbers == sorted(set(numbers))
    assert sum(isinstance(one, Restored) and one.taken_over for one in entries) == 2
    epochs = [one.epoch for one in entries if isinstance(one, BrokerStarted | Restored)]
    assert epochs == sorted(set(epochs))


@pytest.mark.slow
def test_frozen_broker_is_replaced_and_stops_when_it_continues(cluster: Apart) -> None:
    cluster.stand_by("b", "broker", "--take-over-after-s", "3")
    with cluster.client(timeout_s=DEADLINE_S) as client:
        all_up(client)
        job = cluster.held(client, "one", 6)
        until(lambda: client.job(job).state == "running", "it runs")
        waits = cluster.held(client, "two", 8)
        cluster.copied("b", "broker")
        cluster.signal("broker", signal.SIGSTOP)
        new = serves(client, time.monotonic(), "SIGSTOP")
        all_up(client)
        (cluster.directory / "one").touch()
        assert client.wait(job).exit_code == 0
        until(lambda: client.job(waits).state == "running", "the waiting job runs")
        cluster.signal("broker", signal.SIGCONT)
        assert cluster.running["broker"].wait(DEADLINE_S) == 1
        assert "a later broker of this cluster serves" in cluster.log("broker")
        assert (cluster.directory / "broker" / "journal.sqlite").exists()
        (cluster.directory / "two").touch()
        assert client.wait(waits).exit_code == 0
        assert client.wait(new).exit_code == 0
        for number in (job, waits, new):
            assert client.job(number).attempt in (1, 1_001)
    assert cluster.lines() == {"one": 2, "two": 2}, "a line for each rank, of one attempt"


@pytest.mark.slow
def test_standby_that_is_cut_off_takes_over_only_on_request(cluster: Apart) -> None:
    line = Forwarder(cluster.places["broker"][0])
    try:
        cluster.stand_by("b", "broker", "--take-over-after-s", "3", through=line.address)
        with cluster.client(timeout_s=DEADLINE_S) as client:
            all_up(client)
            job = cluster.held(client, "one", 6)
            until(lambda: client.job(job).state == "running", "it runs")
            waits = cluster.held(client, "two", 8)
            cluster.copied("b", "broker")
            line.cut()
            until(lambda: "but most nodes reach it" in cluster.log("b"), "it asks the nodes")
            assert "took over" not in cluster.log("b")
            assert client.stats().epoch == 1
            cluster.signal("b", signal.SIGUSR1)
            until(lambda: "took over" in cluster.log("b"), "it received the signal")
            assert cluster.running["broker"].wait(DEADLINE_S) == 1, "the nodes have reported it"
            assert "most nodes obey it" in cluster.log("broker")
            (cluster.directory / "one").touch()
            assert client.wait(job).exit_code == 0
            (cluster.directory / "two").touch()
            assert client.wait(waits).exit_code == 0
    finally:
        line.cut()
    assert cluster.lines() == {"one": 2, "two": 2}, "a line for each rank, of one attempt"


@pytest.mark.slow
def test_both_can_be_started_with_the_same_command(cluster: Apart) -> None:
    a, b = ("--standby", "--of", cluster.places["b"][0]), ("--standby", "--of", cluster.places["broker"][0])
    with cluster.client(timeout_s=DEADLINE_S) as client:
        all_up(client)
        first = client.submit(["true"])
        cluster.stand_by("b", "broker")
        cluster.copied("b", "broker")
        cluster.kill("broker")
        cluster.begin("broker", *a, says="ready at")
        assert client.stats().epoch == 2, "the other one only has a copy"
        until(lambda: client.job(first).state == "completed", "the job is known")
        cluster.copied("b", "broker")
        cluster.kill("broker")
        cluster.signal("b", signal.SIGUSR1)
        until(lambda: "took over" in cluster.log("b"), "it received the signal")
        epoch = client.stats().epoch
        cluster.kill("b")
        cluster.begin("b", *b, says="ready at")
        assert client.stats().epoch == epoch + 1, "it had taken over, so it serves again"
        cluster.begin("broker", *a, says="the copy is complete")
        assert client.job(first).state == "completed"


@pytest.mark.slow
def test_copy_has_the_strategy_of_a_policy_set_at_run_time(cluster: Apart, tmp_path: Path) -> None:
    shutil.copytree(default_checkpoint(), tmp_path / "net")
    cluster.stand_by("b", "broker", "--take-over-after-s", "20")  # longer than the policy may take to compile
    with cluster.client(timeout_s=DEADLINE_S) as client:
        client.set_policy(Policy.of(f"ppo:{tmp_path / 'net'}"))
        shutil.rmtree(tmp_path / "net")
        cluster.copied("b", "broker")
        cluster.kill("broker")
        until(lambda: client.stats().epoch > 1_000, "the copy is taken over")
        assert client.stats().policy == f"ppo:{tmp_path / 'net'}"


@pytest.mark.slow
@pytest.mark.parametrize("answered", [3, 31])
def test_incomplete_copy_runs_no_job_twice_and_reuses_no_number(cluster: Apart, answered: int) -> None:
    cluster.stand_by("b", "broker", "--take-over-after-s", "3")
    jobs: dict[str, int] = {}
    with cluster.client(timeout_s=DEADLINE_S) as client:
        all_up(client)

        def submit() -> None:
            with cluster.client(timeout_s=DEADLINE_S) as other:
                for n in range(60):
                    script = f"echo t{n} >> {cluster.ran}; sleep 0.{n % 4}"
                    command = ["sh", "-c", script]
                    jobs[f"t{n}"] = other.submit(command, num_gpus=1 + n % 6, name=f"t{n}", token=f"t{n}")

        thread = threading.Thread(target=submit)
        thread.start()
        until(lambda: len(jobs) >= answered, "some are answered")
        cluster.kill("broker")
        thread.join(DEADLINE_S)
        assert len(jobs) == 60
        assert len(set(jobs.values())) == 60, "no number is used twice"
        for job in client.jobs(finished=True):
            over = client.wait(job.job)
            assert over.state == "completed" or started_elsewhere(over.reason)
        known = {job.name: job for job in client.jobs(finished=True)}
        lost = set(jobs) - set(known)
        print(f"\n{len(lost)} of {len(jobs)} acknowledged submissions were not in the copy")
        all_up(client)
    entries = [row.entry for row in read_journal(cluster.places["b"][1] / "journal.sqlite")]
    numbers = [one.job for one in entries if isinstance(one, JobSubmitted)]
    assert len(numbers) == len(set(numbers))
    lines = cluster.lines()
    for token in jobs:
        ranks = len(known[token].nodes) if token in known and known[token].state == "completed" else 2
        assert lines[token] <= ranks, f"{token} ran {lines[token]} times"
        assert lines[token] == ranks or token not in known or known[token].state == "cancelled"
    assert lost <= {token for token, job in jobs.items() if job < 1_000_000}
