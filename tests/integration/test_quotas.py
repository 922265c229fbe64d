"""Quotas end to end: keys of two users, verbs, real jobs, and a broker that is killed in between."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.journal.checking import check
from rlsched.broker.journal.replay import journal_events, records_by_number, redecide
from rlsched.client.client import Client
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.transport.access import AccessEntry
from rlsched.transport.keys import KeyHome
from rlsched.transport.roles import Peer
from tests.support.online.cluster import RLSCHED, Cluster, all_up, until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, nodes=("n0",), broker_options=("--policy", "tuned"))
    yield cluster
    cluster.close()


def as_person(cluster: Cluster, name: str) -> Path:
    """The key directory of a user of this broker."""
    home, theirs = KeyHome(cluster.keys), KeyHome(cluster.directory / name)
    theirs.trust(home.broker_public())
    with home.locked():
        home.put(AccessEntry.new(Peer("user", name, name), theirs.client().public))
    return theirs.directory


def verb(cluster: Cluster, keys: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb, in its own process."""
    return subprocess.run(
        [*RLSCHED, *words, "--broker", cluster.address, "--keys", str(keys)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
def test_quota_holds_for_real_jobs_across_a_crash_of_the_broker(cluster: Cluster) -> None:
    alice = as_person(cluster, "alice")
    said = verb(cluster, cluster.keys, "quota", "set", "user", "alice", "--gpus", "2", "--jobs", "4")
    assert said.returncode == 0, said.stderr
    assert "0 of 2" in said.stdout
    gates = [cluster.directory / f"gate{number}" for number in range(4)]
    with cluster.client() as admin, Client(cluster.address, home=alice, timeout_s=20) as client:
        all_up(admin, 1)
        jobs = [
            client.submit(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done"], num_gpus=1)
            for gate in gates
        ]
        until(lambda: [client.job(job).state for job in jobs[:2]] == ["running"] * 2, "two run")
        assert [client.job(job).state for job in jobs[2:]] == ["queued"] * 2
        assert client.job(jobs[2]).reason == "Quota: alice has 2 of 2 GPUs at once"
        assert client.why(jobs[3]).summary == "Quota: alice has 2 of 2 GPUs at once"
        assert client.stats().ineligible == {"Quota": 2}
        assert "jobs: 2 queued (2 Quota), 2 running, 0 finished" in verb(cluster, alice, "status").stdout
        with pytest.raises(InputError, match="quota: alice has 4 of 4 jobs, waiting and running"):
            client.submit(["true"])

        cluster.kill("broker")
        cluster.start("broker")
        all_up(admin, 1)
        assert client.job(jobs[2]).reason == "Quota: alice has 2 of 2 GPUs at once"
        (row,) = json.loads(verb(cluster, alice, "quota", "list", "--json").stdout)
        assert (row["gpus"], row["gpus_now"], row["jobs"], row["jobs_now"]) == (2, 2.0, 4, 4)

        gates[0].touch()
        until(lambda: client.job(jobs[2]).state == "running", "the third runs in the place of the first")
        assert client.job(jobs[3]).state == "queued"
        admin.set_quota("user", "alice", gpus=None)
        until(lambda: client.job(jobs[3]).state == "running", "no limit is left")
        for gate in gates:
            gate.touch()
        assert [client.wait(job).state for job in jobs] == ["completed"] * 4
    assert not check(cluster.journal).damage
    events, records = journal_events(cluster.journal), records_by_number(cluster.directory / "broker")
    made = redecide(events, load_scheduler("tuned"))
    assert [(record.state_digest, record.action) for record in made] == [
        (records[decided.number].state_digest, decided.action) for decided in events.decisions
    ]


def test_users_see_quotas_and_cannot_change_them(cluster: Cluster) -> None:
    bob = as_person(cluster, "bob")
    assert verb(cluster, bob, "quota", "list").stdout == "no quotas; `rlsched quota set` makes one\n"
    for words in (
        ("quota", "set", "user", "bob", "--gpus", "100"),
        ("quota", "account", "add", "ml", "--user", "bob"),
        ("quota", "account", "remove", "ml", "--user", "bob"),
    ):
        said = verb(cluster, bob, *words)
        assert said.returncode == 2
        (line,) = said.stderr.splitlines()
        assert line.startswith("error: a key of role 'user' may not send 'set_")
        assert line.endswith(": this needs an admin's key")
    with cluster.client() as admin:
        assert admin.quotas() == []
        assert admin.members() == []


@pytest.mark.slow
def test_accounts_are_charged_only_by_their_members(cluster: Cluster) -> None:
    alice, bob = as_person(cluster, "alice"), as_person(cluster, "bob")
    assert verb(cluster, cluster.keys, "quota", "account", "add", "ml", "--user", "alice").returncode == 0
    assert verb(cluster, cluster.keys, "quota", "account", "add", "hep", "--user", "alice").returncode == 0
    said = verb(cluster, cluster.keys, "quota", "set", "account", "ml", "--gpu-hours", "0.5", "--jobs", "1")
    assert "0.0 of 0.5" in said.stdout
    assert verb(cluster, alice, "quota", "account", "list").stdout == "hep: alice\nml: alice (default)\n"
    with Client(cluster.address, home=alice) as client:
        first = client.submit(["true"])
        assert client.job(first).account == "ml"
        assert client.job(client.submit(["true"], account="hep")).account == "hep"
        client.wait(first)
        (ml,) = [row for row in client.quotas() if row.name == "ml"]
        assert 0 < ml.gpu_hours_used < 0.1
    with (
        Client(cluster.address, home=bob) as client,
        pytest.raises(InputError, match="account 'ml': bob is a member of no account; an admin adds"),
    ):
        client.submit(["true"], account="ml")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("quota", "set", "user", "bob", "--gpus", "-1"), "expected a number from 0 on, or `none`, got '-1'"),
        (("quota", "set", "user", "bob", "--gpus", "2.5"), "expected a number from 0 on"),
        (("quota", "set", "user", "bob", "--gpu-hours", "nan"), "expected a number from 0 on"),
        (
            ("quota", "set", "user", "bob", "--gpu-hours", "inf"),
            "--gpu-hours: expected a limit of 0 to",
        ),
        (("quota", "set", "user", "bob"), "expected a limit: --gpus, --jobs or --gpu-hours"),
        (("quota", "set", "gpu", "bob", "--gpus", "1"), "expected user, account or vc, got 'gpu'"),
        (("quota", "set", "vc", "", "--gpus", "1"), "vc '': expected 1 to 64 characters"),
        (("quota", "account", "remove", "ml", "--user", "zoe"), "zoe is not a member of account ml"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], expected: str, shared: Cluster) -> None:
    said = verb(shared, shared.keys, *words)
    assert said.returncode == 2
    assert expected in said.stderr
    assert "Traceback" not in said.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("shared"), nodes=())
    yield cluster
    cluster.close()
