"""Real preemption: a broker with `tiresias`, a node daemon on the fake NVML, scripts that save or not.

The rule is the built-in one; its tick is a quarter of a second here, and its threshold a third of a
GPU-second.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from rlsched.broker.base.entries import AttemptOver, Decided, RankEnded
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import journal_events, records_by_number, redecide
from rlsched.cli.main import run
from rlsched.client.client import Client
from rlsched.decide.actions import Preempt
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.transport.keys import KeyHome
from tests.support.online.processes import until

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")

TICK_S = 0.25
TIRESIAS = Policy("tiresias", preempt={"threshold_gpu_s": 0.3, "tick": TICK_S})
TRAINED = Policy("ppo")
SAVES = """
trap 'sleep 0.2; echo $n > {0}/save; rm {0}/there; exit 143' TERM
touch {0}/there
n=$(cat {0}/save 2>/dev/null || echo 0)
echo "$RLSCHED_ATTEMPT $n $RLSCHED_GRACE_S" >> {0}/starts
while [ $n -lt 25 ]; do sleep 0.04; n=$((n + 1)); done
rm {0}/there
echo $n >> {0}/ends
"""
"""Counts to 25 within a second, across all its attempts."""
IS_STOPPED = SAVES.replace("while [ $n -lt 25 ]", "while [ $RLSCHED_ATTEMPT = 1 ] || [ $n -lt 25 ]")
"""The same; its first attempt runs until it is stopped."""
LOOKS = (
    "if [ -e {0}/there ]; then echo together; else echo alone; fi >> {0}/looks; sleep 0.1"  # prose: quoted
)


class Cluster:
    """A broker that can be killed, and a node with one GPU of the fake NVML or several simulated ones."""

    def __init__(self, directory: Path, policy: Policy = TIRESIAS, gpus: int = 1) -> None:
        self.policy = directory / "ours.toml"
        self.policy.write_text(policy.toml, encoding="utf-8")
        self.directory, self.keys = directory, directory / "home"
        self.journal = directory / "broker" / "journal.sqlite"
        self.address = "tcp://127.0.0.1:0"
        source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
        library = directory / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-DGPUS=1", "-o", library, source], check=True)
        KeyHome(self.keys).broker()
        self.grace_s = 0.0
        self.children: list[subprocess.Popen[bytes]] = []
        self.broker = self.start_broker(20.0)
        self.spawn(
            *("node", "--broker", self.address, "--name", "n0", "--dir", str(directory / "n0")),
            *("--gpu-type", "h200", "--end-jobs-on-exit"),
            *(("--simulated", "--gpus", str(gpus)) if gpus > 1 else ()),
        )

    def spawn(self, *args: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{args[0]}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "rlsched", *args, "--keys", str(self.keys)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": str(self.directory)},
            )
        self.children.append(child)
        return child

    def start_broker(self, grace_s: float) -> subprocess.Popen[bytes]:
        found = self.directory / "broker" / "address"
        found.unlink(missing_ok=True)
        child = self.spawn(
            *("broker", "--address", self.address, "--dir", str(self.directory / "broker")),
            *("--policy", str(self.policy), "--grace-s", str(grace_s), "--prediction", "running-mean"),
        )
        until(lambda: (found.exists() and found.read_text().endswith("\n")) or child.poll() is not None)
        assert child.poll() is None, (self.directory / "broker.log").read_text()
        self.address, self.grace_s = found.read_text().strip(), grace_s
        return child

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.wait()

    def place(self, name: str) -> Path:
        place = self.directory / name
        place.mkdir()
        return place

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.terminate()
        for child in self.children:
            child.wait(60.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("preempting"))
    yield cluster
    cluster.close()


@pytest.fixture
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four GPUs with the trained policy, which preempts jobs that declare it."""
    cluster = Cluster(tmp_path_factory.mktemp("trained"), TRAINED, 4)
    yield cluster
    cluster.close()


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("RLSCHED_BROKER", cluster.address)
    monkeypatch.setenv("RLSCHED_HOME", str(cluster.keys))
    with Client(cluster.address, home=cluster.keys, timeout_s=10.0) as client:
        until(lambda: any(node.state == "up" for node in client.nodes()))
        yield client
        for job in client.jobs():
            client.cancel(job.job)
        until(lambda: not client.jobs())


def shell(script: str, place: Path) -> list[str]:
    return ["sh", "-c", script.format(place)]


def started(place: Path) -> list[list[float]]:
    """(attempt, first count, grace) of each attempt."""
    path = place / "starts"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[float(word) for word in line.split()] for line in lines]


def was_preempted(cluster: Cluster, job: int) -> list[float]:
    """Times at which decisions preempted this job."""
    seq = journal_events(cluster.journal).seq_of[job]
    return [
        row.now_s
        for row in read_journal(cluster.journal)
        if isinstance(row.entry, Decided) and row.entry.action == Preempt(seq=seq)
    ]


F = TypeVar("F", AttemptOver, RankEnded)


def facts(cluster: Cluster, kind: type[F], job: int) -> list[F]:
    """The journal's facts of this kind about a job, in order."""
    entries = (row.entry for row in read_journal(cluster.journal))
    return [entry for entry in entries if isinstance(entry, kind) and entry.job == job]


def test_preemptible_job_is_preempted_and_completes_later(
    cluster: Cluster, client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    place = cluster.place("saves")
    assert run(["submit", "--preemptible", "--name", "long", "--", *shell(IS_STOPPED, place)]) == 0
    long = int(capfd.readouterr().out.split()[1])
    until(lambda: started(place))
    short = client.submit(shell(LOOKS, place), name="short")
    assert client.wait(short).state == "completed"
    info = client.wait(long)
    assert (info.state, info.exit_code, info.attempt, info.preemptions) == ("completed", 0, 2, 1)
    (first, second) = started(place)
    assert first == [1, 0, 20]
    assert second[0] == 2
    assert second[1] > 0, "it continued at its last count"
    assert int((place / "ends").read_text()) == max(25, second[1])
    assert (place / "looks").read_text() == "alone\n", "not before the GPU was free"
    (at_s,) = was_preempted(cluster, long)
    assert at_s % TICK_S == 0.0, "exactly at the tick"
    (over, _) = facts(cluster, AttemptOver, long)
    assert over.outcome == "queued"
    assert over.reason.startswith("preempted by decision ")
    assert over.reason.endswith(f" for job {short}")
    assert run(["queue", "--all", "--json"]) == 0
    rows = {row["job"]: row for row in json.loads(capfd.readouterr().out)}
    assert (rows[long]["preemptible"], rows[long]["preemptions"]) == (True, 1)
    assert (rows[short]["preemptible"], rows[short]["preemptions"]) == (False, 0)


def test_job_not_declared_preemptible_is_not_preempted(cluster: Cluster, client: Client) -> None:
    place = cluster.place("undeclared")
    long = client.submit(shell(SAVES, place))
    until(lambda: started(place))
    short = client.submit(shell(LOOKS, place))
    assert client.wait(short).state == "completed"
    info = client.job(long)
    assert (info.state, info.attempt, info.preemptions) == ("completed", 1, 0)
    assert (place / "ends").read_text() == "25\n"
    assert was_preempted(cluster, long) == []
    assert started(place) == [[1, 0, 20]]


def test_job_that_completes_within_its_grace_is_completed(cluster: Cluster, client: Client) -> None:
    place = cluster.place("finishes")
    script = "trap 'echo done >> {0}/ends; exit 0' TERM; echo 1 >> {0}/starts; while :; do sleep 0.05; done"
    long = client.submit(shell(script, place), preemptible=True)
    until(lambda: started(place))
    short = client.submit(shell(LOOKS, place))
    assert client.wait(short).state == "completed"
    info = client.job(long)
    assert (info.state, info.exit_code, info.attempt, info.preemptions) == ("completed", 0, 1, 0)
    assert (place / "ends").read_text() == "done\n"
    assert len(was_preempted(cluster, long)) == 1


def test_broker_killed_before_the_node_answers_loses_nothing(cluster: Cluster, client: Client) -> None:
    """The job is preempted, the broker crashes, the job exits; the next broker has a shorter grace."""
    place = cluster.place("killed")
    script = IS_STOPPED.replace("sleep 0.2;", "touch {0}/told; until [ -e {0}/gate ]; do sleep 0.02; done;")
    long = client.submit(shell(script, place), preemptible=True, token="long")
    until(lambda: started(place))
    short = client.submit(shell(LOOKS, place), token="short")
    until((place / "told").exists)
    assert client.job(short).state == "launching"
    assert client.job(short).reason == f"waits until job {long}, preempted, has left its GPUs"
    cluster.kill_broker()
    (place / "gate").touch()
    until((place / "save").exists)
    cluster.broker = cluster.start_broker(0.4)
    assert client.submit(["true"], token="long") == long, "the same token is the same job"
    assert (client.wait(short).attempt, client.job(short).state) == (1, "completed")
    info = client.wait(long)
    assert (info.state, info.attempt, info.preemptions) == ("completed", 2, 1)
    assert [attempt for attempt, *_ in started(place)] == [1, 2]
    assert (place / "looks").read_text() == "alone\n", "once, not before"
    assert int((place / "ends").read_text()) == max(25, started(place)[1][1])


def test_job_that_ignores_sigterm_is_killed_after_its_grace(cluster: Cluster, client: Client) -> None:
    place = cluster.place("ignores")
    assert cluster.grace_s == 0.4
    script = (
        "echo $RLSCHED_ATTEMPT >> {0}/starts; [ $RLSCHED_ATTEMPT = 1 ] || exit 0; "
        "trap '' TERM; while :; do sleep 0.05; done"
    )
    long = client.submit(shell(script, place), preemptible=True)
    until(lambda: started(place))
    short = client.submit(shell(LOOKS, place))
    assert client.wait(short).state == "completed"
    info = client.wait(long)
    assert (info.state, info.attempt, info.preemptions) == ("completed", 2, 1)
    (at_s,) = was_preempted(cluster, long)
    end = facts(cluster, RankEnded, long)[0]
    assert (end.exit_code, end.reason) == (137, "killed")
    assert end.ended_s is not None
    assert end.ended_s - at_s >= cluster.grace_s


SLOW = """
trap 'echo told; sleep 1; echo saved; exit 143' TERM
echo up $RLSCHED_GRACE_S
while [ $RLSCHED_ATTEMPT = 1 ]; do sleep 0.05; done
"""
"""Takes a second to save."""
STUBBORN = "trap '' TERM; echo up; while [ $RLSCHED_ATTEMPT = 1 ]; do sleep 0.05; done"


def ended_by(
    cluster: Cluster, client: Client, how: str, script: str, grace_s: float | None
) -> tuple[int, str]:
    """Run a job until it is ended in this way; returns its number and the output of its first attempt."""
    limit_s = 1.0 if how == "time limit" else None
    job = client.submit(
        ["sh", "-c", script], preemptible=how == "preemption", time_limit_s=limit_s, grace_s=grace_s
    )

    def output() -> str:
        attempts = cluster.directory / "n0" / "attempts"
        return "".join(path.read_text() for path in attempts.glob(f"*/{job}.1.0/output.log"))

    until(lambda: "up" in output())
    if how == "cancel":
        client.cancel(job)
    elif how == "preemption":
        client.wait(client.submit(["true"]))
    client.wait(job)
    return job, output()


@pytest.mark.parametrize("how", ["cancel", "time limit", "preemption"])
def test_job_saves_in_its_own_grace(cluster: Cluster, client: Client, how: str) -> None:
    assert cluster.grace_s == 0.4
    job, output = ended_by(cluster, client, how, SLOW, 60.0)
    assert [line for line in output.splitlines() if line in ("up 60", "told", "saved")] == [
        "up 60",
        "told",
        "saved",
    ]
    end = facts(cluster, RankEnded, job)[0]
    assert (end.exit_code, end.reason) == ((124, "time_limit") if how == "time limit" else (143, "killed"))


@pytest.mark.parametrize("how", ["cancel", "time limit"])
def test_job_without_its_own_grace_is_killed_after_the_default(
    cluster: Cluster, client: Client, how: str
) -> None:
    assert cluster.grace_s == 0.4
    job, _ = ended_by(cluster, client, how, STUBBORN, None)
    end = facts(cluster, RankEnded, job)[0]
    assert (end.exit_code, end.reason) == ((124, "time_limit") if how == "time limit" else (137, "killed"))


def test_journal_of_all_tests_replays_bit_for_bit(cluster: Cluster, client: Client) -> None:
    until(lambda: not client.jobs())
    events = journal_events(cluster.journal)
    until(lambda: max(records_by_number(cluster.journal.parent)) == len(events.decisions) - 1)
    kept = records_by_number(cluster.journal.parent)
    made = redecide(events, load_scheduler(cluster.policy))
    assert [record.number for record in made] == list(range(len(events.decisions)))
    assert sum(isinstance(record.action, Preempt) for record in made) == 5
    assert len(kept) > 20
    for record in made:
        if record.number in kept:  # a killed broker loses its last records
            live = kept[record.number]
            theirs = msgspec.structs.replace(live, took_us=record.took_us)
            assert theirs == record


@pytest.mark.slow
def test_trained_policy_preempts_a_gang_for_a_job_that_costs_less(trained: Cluster) -> None:
    """A gang of four costs more than a job of one GPU with the same prediction, by more than the margin."""
    place = trained.place("gang")
    with Client(trained.address, home=trained.keys, timeout_s=10.0) as client:
        until(lambda: any(node.state == "up" for node in client.nodes()))
        gang = client.submit(shell(IS_STOPPED, place), num_gpus=4, preemptible=True)
        until(lambda: started(place))
        single = client.submit(shell(LOOKS, place), preemptible=True)
        assert client.wait(single).state == "completed"
        info = client.wait(gang)
        assert (info.state, info.attempt, info.preemptions) == ("completed", 2, 1)
    assert (place / "looks").read_text() == "alone\n"
    assert int((place / "ends").read_text()) >= 25
    kept = records_by_number(trained.journal.parent)
    assert {record.source for record in kept.values()} == {"rule"}, "never the guard"
    (stopped,) = (record for record in kept.values() if isinstance(record.action, Preempt))
    assert stopped.policy_id == load_scheduler(trained.policy).policy_id
    made = redecide(journal_events(trained.journal), load_scheduler(trained.policy))
    for record in made:
        live = kept[record.number]
        theirs = msgspec.structs.replace(live, took_us=record.took_us)
        assert theirs == record
