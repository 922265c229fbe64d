"""Submit, queue, why, logs, cancel and nodes through a real broker and real node daemons."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.journal.replay import journal_events, records_by_number, redecide
from rlsched.cli.main import run
from rlsched.client.client import Client
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.transport.keys import KeyHome
from tests.support.online.cluster import DEADLINE_S, RLSCHED, until
from tests.support.online.up import Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("cluster"))
    yield up
    up.stop()


@pytest.fixture
def client(up: Up, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the cluster; the command line finds it too."""
    address = up.wait_ready()
    monkeypatch.setenv("RLSCHED_BROKER", address)
    monkeypatch.setenv("RLSCHED_HOME", str(up.keys))
    with Client(address, home=up.keys) as client:
        yield client
        for job in client.jobs():
            client.cancel(job.job)
        until(lambda: not client.jobs(), "the cluster is empty")


@pytest.mark.usefixtures("client")
def test_files_of_a_cluster_are_private(up: Up) -> None:
    for directory in (up.keys, up.directory, up.directory / "broker", up.directory / "n0"):
        assert directory.stat().st_mode & 0o777 == 0o700, directory
    private = [*up.directory.glob("*.log"), *(up.directory / "broker").glob("journal.sqlite*")]
    assert len(private) >= 5
    for path in private:
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_output_and_exit_code_of_a_job(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    code = run(
        [
            "submit",
            "--wait",
            "--gpus",
            "2",
            "--env",
            "GREETING=hello",
            "--",
            "sh",
            "-c",
            "echo $GREETING on $CUDA_VISIBLE_DEVICES; exit 7",
        ]
    )
    assert code == 7
    told = capfd.readouterr().err.splitlines()
    job = client.jobs(finished=True)[-1]
    assert [line for line in told if "failed" in line] == [f"job {job.job} failed: ended with exit code 7"]
    assert (job.state, job.exit_code, job.num_gpus) == ("failed", 7, 2)
    assert run(["logs", str(job.job)]) == 0
    assert capfd.readouterr().out == "hello on 0,1\n"
    assert run(["why", str(job.job)]) == 0
    assert f"  its output ends with (all of it: rlsched logs {job.job}):\n    hello on 0,1\n" in (
        capfd.readouterr().out
    )


def test_empty_log_shows_the_reason(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    job = client.submit(["true"], num_gpus=8)
    client.wait(job)
    assert run(["logs", "-f", str(job)]) == 0
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", f"job {job} has no output: it is completed\n")


def test_gang_on_both_nodes_has_a_log_per_rank(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    job = client.submit(["sh", "-c", "echo GPUs $CUDA_VISIBLE_DEVICES"], num_gpus=8)
    info = client.wait(job)
    assert (info.state, info.exit_code, sorted(info.nodes)) == ("completed", 0, ["n0", "n1"])
    for rank in ("0", "1"):
        assert run(["logs", "-f", "--rank", rank, str(job)]) == 0
        assert capfd.readouterr().out == "GPUs 0,1,2,3\n"
    with pytest.raises(InputError, match="ranks 0 to 1"):
        client.read_log(job, rank=2)
    assert run(["logs", str(job)]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["0: GPUs 0,1,2,3", "1: GPUs 0,1,2,3"]


def test_log_is_followed_while_the_job_writes_it(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = client.submit(["sh", "-c", f"echo one; until [ -e {gate} ]; do sleep 0.05; done; echo two"])
    pieces = client.log(job, follow=True)
    assert next(pieces) == b"one\n"
    gate.touch()
    assert b"".join(pieces) == b"two\n"


def test_logs_show_python_output_while_the_job_runs(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    script = f"print('step 0'); open({str(tmp_path / 'gate')!r}).read(); print('step 1')"
    job = client.submit([sys.executable, "-c", script])
    with subprocess.Popen([*RLSCHED, "logs", "-f", str(job)], stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "step 0\n"
        until(lambda: client.job(job).state == "running", "it is running")
        (tmp_path / "gate").write_text("go on\n")
        assert follower.stdout.read() == "step 1\n"
        assert follower.wait(DEADLINE_S) == 0


def test_queue_why_nodes_and_cancel(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    long = [client.submit(["sleep", "600"], num_gpus=3, name="long") for _ in range(2)]
    waiting = client.submit(["true"], num_gpus=4, name="waiting")
    until(lambda: [client.job(job).state for job in long] == ["running", "running"], "both run")
    assert run(["queue", "--json"]) == 0
    listed = {job["job"]: job for job in json.loads(capfd.readouterr().out)}
    assert [listed[job]["state"] for job in (*long, waiting)] == ["running", "running", "queued"]
    assert listed[waiting]["reason"] == "Resources: needs 4 GPUs, 2 free"
    assert run(["queue"]) == 0
    assert "waiting" in capfd.readouterr().out
    assert run(["why", str(waiting)]) == 0
    assert "not enough free GPUs: it needs 4, 2 of 8 are free" in capfd.readouterr().out
    assert run(["why", str(long[0]), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["record"]["action"]["type"] == "start"
    assert run(["nodes", "--json"]) == 0
    assert [(node["name"], node["free_gpus"]) for node in json.loads(capfd.readouterr().out)] == [
        ("n0", 1),
        ("n1", 1),
    ]
    assert run(["nodes"]) == 0
    assert run(["cancel", str(waiting), str(long[0])]) == 0
    assert client.job(waiting).state == "cancelled"
    assert client.wait(long[0]).state == "cancelled"
    capfd.readouterr()
    assert run(["cancel", "4711"]) == 2
    assert capfd.readouterr().err == "error: there is no job 4711; `rlsched queue --all` lists all jobs\n"


def test_time_limit_ends_a_job(client: Client) -> None:
    job = client.submit(["sleep", "600"], time_limit_s=0.3)
    info = client.wait(job)
    assert (info.state, info.reason) == ("failed", "reached its time limit of 0.3 s")


def test_missing_command_fails_with_a_reason(client: Client) -> None:
    info = client.wait(client.submit(["/no/such/program"]))
    assert info.state == "failed"
    assert info.exit_code in (126, 127)


def test_gang_that_never_fits_is_rejected(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--gpus", "9", "--", "true"]) == 2
    assert "9 GPUs can never be given together" in capfd.readouterr().err
    assert client.jobs(finished=True)[-1].state == "rejected"


def test_records_of_a_live_broker_are_complete(client: Client, up: Up) -> None:
    jobs = [client.submit(["true"], num_gpus=gpus) for gpus in (4, 4, 2, 8, 1, 3, 4, 2)]
    for job in jobs:
        assert client.wait(job).state == "completed"
    events = journal_events(up.directory / "broker")
    numbers = [decision.number for decision in events.decisions]
    until(lambda: len(records_by_number(up.directory / "broker")) == len(numbers), "the records are written")
    assert numbers == list(range(len(numbers)))
    records = records_by_number(up.directory / "broker")
    assert [records[decision.number].action for decision in events.decisions] == [
        decision.action for decision in events.decisions
    ]
    assert [records[decision.number].now_s for decision in events.decisions] == [
        instant.now_s for instant in events.instants for _ in instant.decisions
    ]


def test_state_rebuilt_from_the_journal_decides_alike_bit_for_bit(client: Client, up: Up) -> None:
    jobs = [
        client.submit(["sleep", str(0.05 * (n % 4))], num_gpus=1 + 3 * n % 8, token=f"b{n}")
        for n in range(20)
    ]
    client.cancel(jobs[-1])
    for job in jobs:
        client.wait(job)
    events = journal_events(up.directory / "broker")
    until(lambda: len(records_by_number(up.directory / "broker")) == len(events.decisions), "all is written")
    made = redecide(events, load_scheduler("qssf-backfill"))
    kept = records_by_number(up.directory / "broker")
    assert len(made) == len(kept) > 20
    for record in made:
        live = kept[record.number]
        assert msgspec.structs.replace(record, took_us=live.took_us) == live


@pytest.mark.usefixtures("client")
def test_bad_usage_is_exit_code_2(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))  # which would be read from a script
    for args in (
        ["submit"],
        ["submit", "--gpus", "0", "--", "x"],
        ["submit", "--env", "novalue", "--", "x"],
        ["why", "abc"],
        ["logs", "12345"],
        ["queue", "--broker", "nonsense"],
    ):
        assert run(args) == 2, args
        assert capfd.readouterr().err.count("\n") == 1


# ---- up, and a missing broker ------------------------------------------------------------------------------


def test_up_stops_all_processes_and_restarts_with_its_jobs(tmp_path: Path) -> None:
    up = Up(tmp_path)
    with Client(up.wait_ready(), home=up.keys) as client:
        assert [node.state for node in client.nodes()] == ["up", "up"], "it was ready too early"
        pid_file, gate = tmp_path / "pid", tmp_path / "gate"
        job = client.submit(["sh", "-c", f"echo $$ > {pid_file}; until [ -e {gate} ]; do sleep 0.05; done"])
        until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the job runs")
        pid = int(pid_file.read_text())
        client.drain_node("n1", reason="new driver")
    assert up.stop(signal.SIGINT) == 0
    assert "stopping the cluster" in up.output.read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    gate.touch()
    again = Up(tmp_path)
    try:
        with Client(again.wait_ready(), home=again.keys) as client:
            assert [node.state for node in client.nodes()] == ["up", "drained"]
            info = client.wait(job)
            assert (info.state, info.attempt) == ("completed", 2)
        until(lambda: "node n1 starts no jobs: new driver" in again.output.read_text(), "the drain is named")
    finally:
        assert again.stop() == 0


@pytest.mark.slow
def test_node_stopped_with_a_job_is_up_after_its_restart(tmp_path: Path) -> None:
    """The end of the job is reported at registration and does not drain the node."""
    one = ("--nodes", "1")
    up = Up(tmp_path, *one)
    with Client(up.wait_ready(), home=up.keys) as client:
        ran, gate = tmp_path / "ran", tmp_path / "gate"
        job = client.submit(["sh", "-c", f"echo x >> {ran}; until [ -e {gate} ]; do sleep 0.05; done"])
        until(ran.exists, "the job runs")
    assert up.stop() == 0
    again = Up(tmp_path, *one)
    try:
        with Client(again.wait_ready(), home=again.keys) as client:
            until(lambda: ran.read_text() == "x\nx\n", "the job runs again")
            assert [node.state for node in client.nodes()] == ["up"]
            gate.touch()
            info = client.wait(job)
            assert (info.state, info.attempt) == ("completed", 2)
    finally:
        assert again.stop() == 0


def test_kill_9_of_up_stops_all_processes_too(tmp_path: Path) -> None:
    up = Up(tmp_path)
    with Client(up.wait_ready(), home=up.keys) as client:
        pid_file = tmp_path / "pid"
        client.submit(["sh", "-c", f"echo $$ > {pid_file}; sleep 600"])
        until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the job runs")
        up.stop(signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid_file.read_text().strip()}").exists(), "the job is ended")
        until(lambda: not _runs_broker(up.directory), "the broker has exited")


def _runs_broker(directory: Path) -> bool:
    """Whether a process holds the journal's lock."""
    with (directory / "broker" / "journal.sqlite.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_up_prints_its_brokers_error_and_has_its_exit_code(tmp_path: Path) -> None:
    up = Up(tmp_path, "--policy", "fifo", "--fallback", "qssf-backfill")
    assert up.process.wait(DEADLINE_S) == 2
    text = up.output.read_text()
    assert "broker ended with exit code 2" in text
    assert "choose a fallback of the same order" in text


@pytest.mark.slow
def test_killed_node_is_restarted_and_accepts_jobs(tmp_path: Path) -> None:
    up = Up(tmp_path)
    try:
        address = up.wait_ready()
        children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
        (n0,) = [one for one in children if b"--name\0n0\0" in Path(f"/proc/{one}/cmdline").read_bytes()]
        os.kill(int(n0), signal.SIGKILL)
        until(lambda: "n0 is started again, 1 of 5 in a row" in up.output.read_text(), "it is started again")
        assert "n0 was killed by signal 9; its log " in up.output.read_text()
        with Client(address, home=up.keys) as client:
            until(lambda: all(one.state == "up" for one in client.nodes()), "n0 is up again")
            job = client.wait(client.submit(["true"], num_gpus=8))
            assert (job.state, sorted(job.nodes)) == ("completed", ["n0", "n1"])
    finally:
        assert up.stop() == 0


def test_up_starts_nothing_with_an_unknown_policy(tmp_path: Path) -> None:
    up = Up(tmp_path, "--policy", "no-such-policy")
    assert up.process.wait(DEADLINE_S) == 2
    assert "unknown policy 'no-such-policy'" in up.output.read_text()
    assert not up.directory.exists()


@pytest.mark.parametrize(
    "args", [["queue"], ["nodes"], ["why", "1"], ["logs", "1"], ["cancel", "1"], ["submit", "--", "true"]]
)
def test_missing_broker_is_exit_code_2(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLSCHED_BROKER", "tcp://127.0.0.1:9")
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    KeyHome(tmp_path).broker()
    assert run([args[0], "--timeout-s", "0.1", *args[1:]]) == 2
    assert capfd.readouterr().err.startswith("error: no broker answers at tcp://127.0.0.1:9; start one with")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "nonsense"], "unknown policy 'nonsense'"),
        (
            ["--policy", "qssf-backfill", "--address", "tcp://203.0.113.1:7461"],
            "cannot listen here",
        ),
        (["--policy", "qssf-backfill", "--address", "nonsense"], "expected tcp://HOST:PORT"),
        (
            ["--policy", "fifo", "--fallback", "qssf-backfill", "--address", "tcp://127.0.0.1:0"],
            "choose a fallback of the same order",
        ),
    ],
)
def test_broker_that_cannot_start_is_one_line_and_exit_code_2(
    options: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "--keys", str(tmp_path), "--dir", str(tmp_path / "b"), *options]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert error.count("\n") == 1
