"""`rlsched node` as a process of its own, against a hand-written broker on a real CURVE socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from rlsched.broker.keys import KeyHome
from rlsched.wire.messages import (
    BrokerToNode,
    Ended,
    EndedAck,
    FetchLog,
    Heartbeat,
    Hello,
    Kill,
    Launch,
    Launched,
    LaunchRefused,
    LogData,
    NodeMessage,
    Refused,
    SayHello,
    Welcome,
    decode,
    encode,
)
from rlsched_node import shim
from rlsched_node.ranks import attempt_directory_of

DEADLINE_S = 20.0
M = TypeVar("M", bound=NodeMessage)


class FakeBroker:
    """A ROUTER under CURVE that does what the test says."""

    def __init__(self, home: Path, cluster: str = "c1", port: int = 0) -> None:
        self.cluster, self.epoch = cluster, 1
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_publickey, self._socket.curve_secretkey = KeyHome(home).broker()
        self._socket.curve_server = True
        self._socket.setsockopt(zmq.LINGER, 0)
        give_up_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
                break
            except zmq.ZMQError:
                assert time.monotonic() < give_up_s, "the port did not become free"
                time.sleep(0.02)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.address.rpartition(":")[2])
        self._peer = b""
        self._unread: list[tuple[int, NodeMessage]] = []

    def send(self, message: BrokerToNode, request: int = 0) -> None:
        self._socket.send_multipart([self._peer, encode(message, request)])

    def send_raw(self, frame: bytes) -> None:
        self._socket.send_multipart([self._peer, frame])

    def receive(self, kind: type[M], accept: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of this kind that is accepted; earlier ones of other kinds are kept for later."""
        give_up_s = time.monotonic() + DEADLINE_S
        while True:
            for position, (_, message) in enumerate(self._unread):
                if isinstance(message, kind) and accept(message):
                    del self._unread[position]
                    return message
            left_ms = int((give_up_s - time.monotonic()) * 1e3)
            assert left_ms > 0, f"no {kind.__name__} came; got {self._unread}"
            if self._socket.poll(left_ms):
                self._peer, frame = self._socket.recv_multipart()
                envelope = decode(frame)
                assert isinstance(envelope.message, NodeMessage)
                self._unread.append((envelope.request, envelope.message))

    def greet(self, forget: list[tuple[int, int]] | None = None) -> Hello:
        """Wait for a `Hello` and answer it."""
        hello = self.receive(Hello)
        self._unread.clear()
        self.send(Welcome(epoch=self.epoch, cluster=self.cluster, heartbeat_s=0.05, forget=forget or []))
        return hello

    def launch(
        self,
        *command: str,
        job: int = 1,
        gpus: list[int] | None = None,
        cwd: str = "/",
        limit_s: float | None = None,
    ) -> Launch:
        order = Launch(
            epoch=self.epoch,
            job=job,
            attempt=1,
            rank=0,
            num_ranks=1,
            nodes=["n0"],
            gpus=[1] if gpus is None else gpus,
            command=list(command),
            env={},
            cwd=cwd,
            time_limit_s=limit_s,
        )
        self.send(order)
        return order

    def end_of(self, job: int, *, acknowledge: bool = True) -> Ended:
        end = self.receive(Ended, lambda ended: ended.job == job)
        if acknowledge:
            self.send(EndedAck(job=job, attempt=1, rank=0))
        return end

    def log(self, job: int, offset: int = 0) -> LogData:
        self.send(FetchLog(job=job, attempt=1, rank=0, offset=offset, max_bytes=1 << 16), 17)
        return self.receive(LogData)

    def nothing_comes(self, kind: type[NodeMessage]) -> bool:
        """Whether no message of this kind arrives before two more heartbeats have."""
        self._unread = [(r, m) for r, m in self._unread if not isinstance(m, Heartbeat)]
        self.receive(Heartbeat)
        self.receive(Heartbeat)
        return not any(isinstance(message, kind) for _, message in self._unread)

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


class Node:
    """`rlsched node` in a directory."""

    def __init__(self, home: Path, address: str, *options: str, libraries: Path | None = None) -> None:
        self.directory = home / "nodes" / "n0"
        self._log = home / "node.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from rlsched.cli.main import main; main()",
                    "node",
                    "--name",
                    "n0",
                    "--broker",
                    address,
                    "--keys",
                    str(home),
                    *(options or ("--gpus", "4", "--simulated")),
                ],
                stdout=log,
                stderr=log,
                env=os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {}),
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def output_of(self, job: int, cluster: str = "c1") -> str:
        return (self.directory / "attempts" / cluster / f"{job}.1.0" / "output.log").read_text()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def broker(home: Path) -> Iterator[FakeBroker]:
    broker = FakeBroker(home)
    yield broker
    broker.close()


@pytest.fixture
def start_node(home: Path, broker: FakeBroker) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(*options: str, libraries: Path | None = None) -> Node:
        nodes.append(Node(home, broker.address, *options, libraries=libraries))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait(DEADLINE_S)
    for name in filter(str.isdigit, os.listdir("/proc")):
        if (attempt_directory_of(int(name)) or "").startswith(str(home)):
            os.kill(int(name), signal.SIGKILL)


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.01)


def gated(tmp_path: Path, *, then: str = "exit 0") -> list[str]:
    """A command that writes `up` and its run to a file, and goes on when `gate` is written to."""
    gate = tmp_path / "gate"
    if not gate.exists():
        os.mkfifo(gate)
    return ["sh", "-c", f"echo ran >> {tmp_path}/runs; echo up; read line < {gate}; {then}"]


def test_a_node_registers_beats_and_runs_jobs_to_their_exit_codes(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    start_node("--gpus", "4", "--simulated", "--gpu-type", "h200", "--vc", "research")
    hello = broker.greet()
    assert (hello.name, hello.gpus, hello.gpu_type, hello.vc) == ("n0", 4, "h200", "research")
    assert hello.gpu_uuids == [f"SIMULATED-n0-{gpu}" for gpu in range(4)]
    assert hello.attempts == []
    assert hello.cpus >= 1
    assert hello.memory_mib > 100
    broker.receive(Heartbeat)
    broker.receive(Heartbeat)
    broker.launch("sh", "-c", "echo GPUs $CUDA_VISIBLE_DEVICES", job=1, gpus=[1, 2])
    broker.launch("sh", "-c", "exit 3", job=2, gpus=[0])
    broker.launch("sh", "-c", "kill -SEGV $$", job=3, gpus=[3])
    assert {broker.receive(Launched).job for _ in range(3)} == {1, 2, 3}
    assert [broker.end_of(job).exit_code for job in (1, 2, 3)] == [0, 3, 139]
    assert broker.log(1).data == b"GPUs 1,2\n"
    broker.launch("sleep", "300", job=4, limit_s=0.1)
    assert (broker.end_of(4).exit_code, broker.log(4).eof) == (124, True)


def test_output_is_followed_while_the_job_runs(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="echo down"))
    broker.receive(Launched)
    until(lambda: broker.log(1).data)
    assert broker.log(1) == LogData(data=b"up\n", offset=0, eof=False)
    assert broker.log(1, offset=3) == LogData(data=b"", offset=3, eof=False)
    (tmp_path / "gate").write_text("go\n")
    broker.end_of(1)
    assert broker.log(1, offset=3) == LogData(data=b"down\n", offset=3, eof=True)
    assert broker.log(99) == LogData(data=b"", offset=0, eof=True)


def test_a_repeated_launch_and_a_taken_gpu_start_nothing(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    order = broker.launch(*gated(tmp_path), gpus=[0, 1])
    pid = broker.receive(Launched).pid
    broker.send(order)
    assert broker.receive(Launched).pid == pid
    broker.launch("true", job=2, gpus=[1])
    assert "GPUs [1] are held by attempt 1.1.0" in broker.receive(LaunchRefused).message
    broker.launch("true", job=3, gpus=[7])
    assert "from 0 to 3" in broker.receive(LaunchRefused).message
    (tmp_path / "gate").write_text("go\n")
    broker.end_of(1)
    broker.send(order)
    assert broker.end_of(1).exit_code == 0
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_killed_daemon_loses_no_job_and_the_next_one_reports_its_end_once(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 5"))
    pid = broker.receive(Launched).pid
    broker.launch("sh", "-c", "exit 4", job=2, gpus=[0])
    broker.end_of(2, acknowledge=False)
    node.signal(signal.SIGKILL)
    assert shim.start_ticks(pid) is not None

    node = start_node()
    hello = broker.greet()
    assert [(a.job, a.state, a.exit_code) for a in hello.attempts] == [(1, "running", None), (2, "ended", 4)]
    assert broker.end_of(2).exit_code == 4
    broker.launch("true", job=3, gpus=[1])
    assert "held by attempt 1.1.0" in broker.receive(LaunchRefused).message
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).exit_code == 5
    assert broker.nothing_comes(Ended)
    node.signal(signal.SIGKILL)

    start_node()
    assert broker.greet().attempts == []
    assert broker.nothing_comes(Ended)
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_job_that_ends_while_no_daemon_watches_is_reported(
    broker: FakeBroker, tmp_path: Path, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 6"))
    pid = broker.receive(Launched).pid
    node.signal(signal.SIGKILL)
    (tmp_path / "gate").write_text("go\n")
    until(lambda: shim.start_ticks(pid) is None)
    start_node()
    [report] = broker.greet().attempts
    assert (report.state, report.exit_code) == ("ended", 6)


def test_losing_the_broker_ends_no_job(
    broker: FakeBroker, start_node: Callable[..., Node], home: Path, tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 8"))
    pid = broker.receive(Launched).pid
    broker.close()
    second = FakeBroker(home, port=broker.port)
    try:
        second.epoch = 2
        [report] = second.greet().attempts
        assert (report.job, report.state) == (1, "running")
        assert second.receive(Launched).pid == pid
        second.send(SayHello())
        assert second.greet().epoch == 2
        second.receive(Launched)
        second.epoch = 1
        second.launch("true", job=2, gpus=[0])
        second.send(Kill(epoch=1, job=1, attempt=1, rank=0))
        assert second.nothing_comes(Launched), "orders of an older epoch are ignored"
        (tmp_path / "gate").write_text("go\n")
        assert second.end_of(1).exit_code == 8
    finally:
        second.close()


def test_kill_ends_a_job_and_answers_for_unknown_ones(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    start_node()
    broker.greet()
    broker.launch("sh", "-c", "trap '' TERM; echo up; while :; do sleep 300; done")
    until(lambda: broker.log(1).data)
    broker.send(Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=0.1))
    end = broker.end_of(1)
    assert (end.exit_code, end.reason) == (137, "killed")
    broker.send(Kill(epoch=1, job=2, attempt=1, rank=0))
    assert (broker.end_of(2).exit_code, broker.log(2).eof) == (143, True)
    broker.launch("true", job=2)
    assert broker.end_of(2).reason == "killed"


def test_disowned_jobs_are_ended_without_a_word(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    node = start_node()
    broker.greet()
    broker.launch("sleep", "300")
    pid = broker.receive(Launched).pid
    broker.send(SayHello())
    broker.greet(forget=[(1, 1)])
    until(lambda: shim.start_ticks(pid) is None)
    until(lambda: (node.directory / "attempts" / "c1" / "1.1.0" / "acknowledged").exists())
    assert broker.nothing_comes(Ended)


def test_a_broker_with_another_journal_gets_a_clean_node(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.epoch = 9
    broker.greet()
    broker.launch("sh", "-c", "echo old; sleep 300")
    pid = broker.receive(Launched).pid
    until(lambda: broker.log(1).data)
    broker.send(SayHello())
    broker.cluster, broker.epoch = "c2", 1
    broker.greet()
    broker.launch("echo", "new")
    assert broker.end_of(1).exit_code == 0
    assert shim.start_ticks(pid) is None, "its GPU was needed"
    assert (node.output_of(1, "c1"), node.output_of(1, "c2")) == ("old\n", "new\n")


def test_a_stopped_daemon_leaves_its_jobs_and_one_with_end_jobs_does_not(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.greet()
    broker.launch("sleep", "300")
    pid = broker.receive(Launched).pid
    assert node.signal(signal.SIGTERM) == 0
    assert shim.start_ticks(pid) is not None
    node = start_node("--gpus", "4", "--simulated", "--end-jobs-on-exit")
    assert [a.state for a in broker.greet().attempts] == ["running"]
    broker.receive(Launched)
    node.process.send_signal(signal.SIGTERM)
    end = broker.end_of(1)
    assert (end.exit_code, end.reason) == (143, "node_stopped")
    assert node.process.wait(DEADLINE_S) == 0
    assert shim.start_ticks(pid) is None


def test_nonsense_on_the_socket_is_dropped(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    node = start_node()
    broker.greet()
    broker.receive(Heartbeat)
    for frame in (b"", b"garbage", b"\xff" * 100, encode(Heartbeat(name="n0"))):
        broker.send_raw(frame)
    until(lambda: node.log.count("dropped a frame") == 4)
    broker.launch("true")
    assert broker.end_of(1).exit_code == 0


def test_what_a_node_cannot_do_is_one_line_and_exit_code_2(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    start_node()
    broker.greet()
    second = start_node()
    assert second.process.wait(DEADLINE_S) == 2
    assert "in use by another rlsched node" in second.log
    for options, line in (
        (("--simulated",), "--simulated --gpus 4"),
        (("--gpus", "0", "--simulated"), "1 to 64"),
        (("--gpus", "2", "--simulated", "--broker", "localhost"), "expected tcp://HOST:PORT"),
    ):
        node = start_node(*options)
        assert node.process.wait(DEADLINE_S) == 2
        assert line in node.log
    broker.send(SayHello())
    broker.receive(Hello)
    broker.send(Refused(message="this key belongs to node 'n7'"))
    until(lambda: "refuses this node: this key belongs to node 'n7'" in second.log)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
def test_real_gpus_are_named_by_uuid_and_refused_while_somebody_else_uses_them(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    source = Path(__file__).parents[1] / "unit" / "fake_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    start_node("--gpu-type", "h200", libraries=tmp_path)
    assert broker.greet().gpu_uuids == ["GPU-fake-0", "GPU-fake-1"]
    broker.launch("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", job=1, gpus=[0])
    assert broker.end_of(1).exit_code == 0
    assert broker.log(1).data == b"GPU-fake-0\n"
    broker.launch("true", job=2, gpus=[1])
    assert "GPU 1 is in use by process 4711" in broker.receive(LaunchRefused).message


@pytest.mark.parametrize(("module", "heavy"), [("rlsched_node.cli", []), ("rlsched_node.daemon", ["zmq"])])
def test_a_node_loads_neither_numba_nor_torch(module: str, heavy: list[str]) -> None:
    code = (
        f"import sys, {module}; "
        "print(*sorted({'zmq', 'pynvml', 'numba', 'torch', 'numpy', 'gymnasium'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == heavy
