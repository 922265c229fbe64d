"""A full disk: new jobs are refused below the floor, a batch is held, nothing is sent before its commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from rlsched.broker.base.entries import JobSubmitted, NodeAway
from rlsched.broker.base.limits import Limits
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.client.client import Client
from rlsched.errors import InputError, JournalFullError
from rlsched.transport.dealer import connect_dealer
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import (
    Ended,
    EndedAck,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Launch,
    Launched,
    Message,
    NodeMessage,
    SayHello,
    Welcome,
    decode,
    encode,
)
from tests.support.broker.hand_broker import FailingJournal

DEADLINE_S = 60.0
LEASE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.01)


class Running:
    """A broker in a thread, on a journal whose disk the test fills up."""

    def __init__(self, home: Path, min_free_mib: int = 0) -> None:
        KeyHome(home).broker()
        self.home, self.lines = home, list[str]()
        self.failed: BaseException | None = None
        self.journal: FailingJournal | None = None
        self.broker = Broker(
            BrokerSettings(
                address="tcp://127.0.0.1:0",
                directory=home / "broker",
                keys=home,
                policy="fifo",
                limits=Limits(lease_s=LEASE_S),
                min_free_mib=min_free_mib,
            ),
            self.open,
            self.lines.append,
        )
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def open(self, path: Path) -> FailingJournal:
        self.journal = FailingJournal(path)
        return self.journal

    def serve(self) -> None:
        try:
            self.broker.serve()
        except JournalFullError as error:
            self.failed = error

    def disk_is(self, *, full: bool) -> None:
        assert self.journal is not None
        self.journal.fail_from = 0 if full else float("inf")

    def time_passes(self, seconds: float) -> None:
        """Advance the broker's clock."""
        self.broker._clock._offset_s += seconds

    @property
    def is_held(self) -> bool:
        return any("nothing is acknowledged" in line for line in self.lines)

    def client(self) -> Client:
        return Client(self.broker.address, home=self.home, timeout_s=DEADLINE_S)

    def submitted(self) -> list[str]:
        rows = read_journal(self.home / "broker" / "journal.sqlite")
        return [row.entry.token for row in rows if isinstance(row.entry, JobSubmitted)]

    def close(self) -> None:
        self.broker.stop()
        self.thread.join()
        self.broker.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.close()


class Node:
    """A node's side of the connection."""

    def __init__(self, running: Running, name: str) -> None:
        home = KeyHome(running.home)
        self.name, self.context = name, zmq.Context[zmq.Socket[bytes]]()
        pair = home.node(name)
        self.socket = connect_dealer(self.context, running.broker.address, pair, home.broker_public())

    def send_message(self, message: NodeMessage, request: int = 0) -> None:
        assert self.socket.poll(int(1000 * DEADLINE_S), zmq.POLLOUT)
        self.socket.send(encode(message, request))

    def receive(self, kind: type[Message], request: int = 0) -> None:
        """Read up to a message of this kind, and with this request number if one is given."""
        give_up_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < give_up_s:
            if self.socket.poll(100, zmq.POLLIN):
                envelope = decode(self.socket.recv())
                if isinstance(envelope.message, SayHello):
                    self.send_message(Hello(name=self.name, gpus=4))
                if isinstance(envelope.message, kind) and request in (0, envelope.request):
                    return
        raise AssertionError(f"no {kind.__name__} came")

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def test_batch_is_held_until_the_disk_has_space(running: Running) -> None:
    job: list[int] = []

    def submit() -> None:
        with running.client() as client:
            job.append(client.submit(["true"], token="held"))

    running.disk_is(full=True)
    thread = threading.Thread(target=submit)
    thread.start()
    until(lambda: running.is_held)
    with running.client() as other:
        with pytest.raises(InputError, match=r"nothing was done: .* full"):
            other.submit(["true"], token="new")
        with pytest.raises(InputError, match=r"nothing was done: .* full"):
            other.cancel(1)
    assert (job, running.submitted()) == ([], [])
    running.disk_is(full=False)
    thread.join()
    assert (job, running.submitted()) == ([1], ["held"])
    with running.client() as client:
        assert client.submit(["true"], token="later") == 2
    assert [line for line in running.lines if "there is space again" in line]
    assert running.failed is None


def test_full_disk_expires_no_lease_and_loses_no_end(running: Running) -> None:
    node = Node(running, "n0")
    node.send_message(Hello(name="n0", gpus=4))
    node.receive(Welcome)
    with running.client() as client:
        job = client.submit(["true"])
        node.receive(Launch)
        node.send_message(Launched(job=job, attempt=1, rank=0, pid=1))
        until(lambda: client.job(job).state == "running")
        running.disk_is(full=True)
        end = Ended(job=job, attempt=1, rank=0, exit_code=0)
        node.send_message(end)
        until(lambda: running.is_held)
        for beat in range(1, 16):
            running.time_passes(LEASE_S / 8)
            node.send_message(end)  # as a node does that receives no `EndedAck`
            node.send_message(Heartbeat(name="n0"), beat)
            node.receive(HeartbeatAck, beat)
        running.disk_is(full=False)
        node.receive(EndedAck)
        node.send_message(Heartbeat(name="n0"), 16)
        node.receive(HeartbeatAck, 16)
        assert client.job(job).state == "completed"
        assert [one.state for one in client.nodes()] == ["up"]
    rows = read_journal(running.home / "broker" / "journal.sqlite")
    assert not any(isinstance(row.entry, NodeAway) for row in rows)
    node.close()


def test_stopping_on_a_full_disk_logs_the_reason(tmp_path: Path) -> None:
    running = Running(tmp_path)
    with running.client() as client:
        client.submit(["true"], token="kept")
    running.disk_is(full=True)
    thread = threading.Thread(target=lambda: Submitter(running).submit("lost"))
    thread.start()
    until(lambda: running.is_held)
    running.close()
    thread.join()
    assert "full; free space" in str(running.failed)
    assert running.submitted() == ["kept"]


class Submitter:
    """A client that receives no more answers."""

    def __init__(self, running: Running) -> None:
        self.client = Client(running.broker.address, home=running.home, timeout_s=1.0)

    def submit(self, token: str) -> None:
        with self.client, pytest.raises(Exception, match="broker"):
            self.client.submit(["true"], token=token)


def test_below_the_floor_new_jobs_are_refused_and_repeated_ones_acknowledged(tmp_path: Path) -> None:
    running = Running(tmp_path)
    with running.client() as client:
        assert client.submit(["true"], token="known") == 1
    running.close()
    running = Running(tmp_path, min_free_mib=1 << 40)
    with running.client() as client:
        until(lambda: running.lines)
        assert client.submit(["true"], token="known") == 1
        with pytest.raises(
            InputError, match=r"disk is nearly full: \d+ MiB free at .*, expected \d+ \(--min"
        ):
            client.submit(["true"], token="new")
        client.cancel(1)
        assert client.job(1).state == "cancelled"
    running.close()
    assert running.submitted() == ["known"]
