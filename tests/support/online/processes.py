"""`rlsched node` as a separate process, and a hand-written broker on a real CURVE socket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import zmq

from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import (
    BrokerToNode,
    Ended,
    EndedAck,
    FetchLog,
    Heartbeat,
    Hello,
    Launch,
    LogData,
    NodeMessage,
    Welcome,
    decode,
    encode,
)

DEADLINE_S = 60.0
M = TypeVar("M", bound=NodeMessage)


class FakeBroker:
    """A ROUTER under CURVE, controlled by the test."""

    def __init__(self, home: Path, cluster: str = "c1", port: int = 0) -> None:
        self.cluster, self.epoch, self.hears_limits = cluster, 1, False
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

    def greet(self, forget: list[tuple[int, int]] | None = None, *, hears_usage: bool = False) -> Hello:
        """Wait for a `Hello` and answer it."""
        hello = self.receive(Hello)
        self._unread.clear()
        self.send(
            Welcome(
                epoch=self.epoch,
                cluster=self.cluster,
                heartbeat_s=0.05,
                forget=forget or [],
                hears_limits=self.hears_limits,
                hears_usage=hears_usage,
            )
        )
        return hello

    def launch(
        self,
        *command: str,
        job: int = 1,
        gpus: list[int] | None = None,
        cwd: str = "/",
        limit_s: float | None = None,
        person: str = "",
        cores: int = 0,
        memory_mib: int = 0,
        grace_s: float | None = None,
        shares: bool = False,
        beside: tuple[int, ...] = (),
        output: str = "",
        gpu_need_mib: int = 0,
        sm_clock_mhz: int = 0,
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
            person=person,
            time_limit_s=limit_s,
            cores=cores,
            memory_mib=memory_mib,
            grace_s=grace_s,
            shares=shares,
            beside=list(beside),
            output=output,
            gpu_need_mib=gpu_need_mib,
            sm_clock_mhz=sm_clock_mhz,
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
    """`rlsched node` in a directory.

    `dies_at`: arguments of `die_at` for the daemon; (): it does not kill itself.
    """

    def __init__(
        self,
        home: Path,
        address: str,
        *options: str,
        libraries: Path | None = None,
        dies_at: tuple[object, ...] = (),
    ) -> None:
        self.directory = home / "nodes" / "n0"
        self._log = home / "node.log"
        dies = f"from tests.support.killed import die_at; die_at(*{dies_at!r}); " if dies_at else ""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"{dies}from rlsched.cli.main import main; main()",
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


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.01)


def gated(tmp_path: Path, *, then: str = "exit 0") -> list[str]:
    """A command that writes `up` and its run to a file, and continues when `gate` is written to."""
    gate = tmp_path / "gate"
    if not gate.exists():
        os.mkfifo(gate)
    return ["sh", "-c", f"echo ran >> {tmp_path}/runs; echo up; read line < {gate}; {then}"]
