"""Bad input of each kind, through the real command: one clear line, exit code 2, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.client.client import Client
from rlsched.transport.dealer import connect_dealer
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import Stats, encode

zmq = pytest.importorskip("zmq")

DEADLINE_S = 120.0
HEADER = "job_id,submit_time,duration,num_gpus"
CLUSTER = 'name = "c"\n\n[[nodes]]\ncount = 2\ngpus = {gpus}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid and invalid files, in one folder."""
    folder = tmp_path_factory.mktemp("bad_input")
    (folder / "good.csv").write_text(f"{HEADER}\na,0,60,1\nb,1,60,4\n")
    (folder / "negative.csv").write_text(f"{HEADER}\na,0,60,1\nb,1,-5,4\n")
    (folder / "column.csv").write_text(f"{HEADER},colour\na,0,60,1,red\n")
    (folder / "cluster.toml").write_text(CLUSTER.format(gpus=4))
    (folder / "no_gpus.toml").write_text(CLUSTER.format(gpus=0))
    limit = '[energy]\npower_limit = "l.csv"\npower_limit_known_ahead_h = 25\n'
    (folder / "ahead.toml").write_text(f"{CLUSTER.format(gpus=4)}\n{limit}")
    write_checkpoint_of_an_earlier_version(folder / "other.zip")
    return folder


def write_checkpoint_of_an_earlier_version(path: Path) -> None:
    """A zip as `rlsched train-rows` wrote it."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("card.json", "schema.json", "weights.npz"):
            archive.writestr(name, b"{}")


def rlsched(*args: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "rlsched", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, **env},
    )


STARTING = "rlsched broker is starting: "


def the_error(done: subprocess.CompletedProcess[str]) -> str:
    """The error: exactly one line on standard error, nothing on standard output.

    A broker first logs there that it is starting, before the slow steps.
    """
    assert done.returncode == 2, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith(STARTING)] == []
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def evaluate(trace: str, cluster: str, policy: str) -> list[str]:
    return ["evaluate", "--trace", trace, "--cluster", cluster, "--policy", policy, "--json", "out.json"]


def train(trace: str, cluster: str) -> list[str]:
    return [
        "train",
        "--trace",
        trace,
        "--cluster",
        cluster,
        "--logdir",
        "runs",
        "--out",
        "out.toml",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["trace", "describe", "negative.csv"], "negative.csv: row 3, column 'duration': expected seconds"),
        (evaluate("negative.csv", "cluster.toml", "fifo"), "row 3, column 'duration'"),
        (["trace", "convert", "column.csv", "out.csv"], "unknown column 'colour'"),
        (evaluate("column.csv", "cluster.toml", "fifo"), "unknown column 'colour'"),
        (evaluate("good.csv", "no_gpus.toml", "fifo"), "no_gpus.toml: this cluster has no GPUs"),
        (train("good.csv", "no_gpus.toml"), "no_gpus.toml: this cluster has no GPUs"),
        (
            evaluate("good.csv", "ahead.toml", "fifo"),
            "power_limit_known_ahead_h: expected hours from 0 to 24",
        ),
        (
            evaluate("good.csv", "cluster.toml", "ppo:other.zip"),
            "other.zip: expected the folder of a policy that",
        ),
        (
            ["broker", "--keys", "keys", "--address", "tcp://127.0.0.1:0", "--policy", "ppo:other.zip"],
            "got a network of an earlier version, which scored the waiting jobs one by one; train again",
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_invalid_files_are_refused(args: list[str], said: str, folder: Path) -> None:
    assert said in the_error(rlsched(*args, folder=folder))
    assert not list(folder.glob("out.*")), "a file was written"


@pytest.mark.parametrize("asked", [("queue",), ("submit", "--gpus", "1", "--dry-run")])
def test_absent_broker_is_one_line(asked: tuple[str, ...], tmp_path: Path) -> None:
    KeyHome(tmp_path).broker()
    nowhere = ("--broker", "tcp://127.0.0.1:9", "--timeout-s", "0.2")
    began_s = time.monotonic()
    done = rlsched(*asked, *nowhere, folder=tmp_path, RLSCHED_HOME=str(tmp_path))
    assert time.monotonic() - began_s < 60.0, "a forecast may take longer, an absent broker may not"
    assert "no broker answers at tcp://127.0.0.1:9; start one with" in the_error(done)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["history", "--since", "lately"], "--since 'lately': expected an age (30min, 12h, 7d, 2w), a day"),
        (["history", "--until", "2026-02-30"], "--until '2026-02-30': expected an age"),
        (["history", "--since", "1d", "--until", "1w"], "--since 1d: expected a time before --until 1w"),
        (["history", "--csv", "--json"], "--csv and --json exclude each other; leave out one"),
        (["history", "--state", "lost"], "--state 'lost': expected some of completed, failed"),
        (["history", "--sort", "-gpus_s"], "column 'gpus_s': did you mean gpu_s? expected one of job"),
        (["nodes", "--state", "up,slept"], "--state 'slept': expected some of up, drained, unreachable"),
        (["queue", "-o", "job,pace"], "column 'pace': expected one of job, name"),
        (["history", "--limit", "0"], "--limit: expected a whole number from 1, got 0"),
        (
            ["account", "--by", "user,colour"],
            "--by 'user,colour': expected some of user, vc, account, month, day, hour",
        ),
        (
            ["account", "--by", "day,day"],
            "--by 'day,day': expected some of user, vc, account, month, day, hour, each once",
        ),
        (["account", "--by", ""], "--by '': expected some of"),
        (["account", "--since", "2099-01-01"], "--since 2099-01-01: expected a time before now"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_invalid_times_and_groups_are_refused(args: list[str], said: str, tmp_path: Path) -> None:
    KeyHome(tmp_path).broker()
    assert said in the_error(rlsched(*args, folder=tmp_path, RLSCHED_HOME=str(tmp_path)))


# ---- malformed messages -----------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A listening broker process, and its address."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rlsched",
            "broker",
            "--address",
            "tcp://127.0.0.1:0",
            "--policy",
            "qssf-backfill",
            "--keys",
            "keys",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    # on a busy machine it first logs that it is starting
    ready = next(line for line in process.stdout if line.startswith("rlsched broker ready at tcp://"))
    yield process, ready.split()[4]
    process.terminate()
    process.communicate(timeout=DEADLINE_S)


def test_malformed_messages_do_not_affect_a_broker_and_its_jobs(
    broker: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, address = broker
    home = KeyHome(tmp_path / "keys")
    with Client(address, home=home.directory) as client:
        job = client.submit(["true"])
    context = zmq.Context()
    socket = connect_dealer(context, address, home.client(), home.broker_public())
    for frames in ([b""], [b"\xc1\xff"], [b"\x91" * 3000], [encode(Stats(), 1), b"more"]):
        assert socket.poll(int(1000 * DEADLINE_S), zmq.POLLOUT)
        socket.send_multipart(frames)
        assert socket.poll(int(1000 * DEADLINE_S), zmq.POLLIN)
        answer = socket.recv()
        assert b"malformed message" in answer
        assert b"\n" not in answer
    context.destroy(linger=0)

    done = rlsched("queue", "--json", "--broker", address, "--keys", "keys", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [one["job"] for one in msgspec.json.decode(done.stdout)] == [job]
    assert process.poll() is None


def test_malformed_answer_is_one_line_at_the_client(tmp_path: Path) -> None:
    home = KeyHome(tmp_path)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = home.broker()
    address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"

    def answer_nonsense() -> None:
        if router.poll(int(1000 * DEADLINE_S)):
            router.send_multipart([router.recv_multipart()[0], b"\xc1 nonsense"])

    server = threading.Thread(target=answer_nonsense)
    server.start()
    done = rlsched("queue", "--broker", address, "--keys", str(tmp_path), folder=tmp_path)
    server.join(DEADLINE_S)
    context.destroy(linger=0)
    assert "malformed message of 10 bytes" in the_error(done)
