"""Clients and nodes with several addresses: they use one that answers and refuse an earlier epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from rlsched.client.client import Client
from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.transport.dealer import broker_address, broker_addresses
from rlsched.transport.epochs import EPOCHS_FILE, Epochs
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import (
    AttemptKey,
    ClientReply,
    ClientRequest,
    EndedAck,
    Heartbeat,
    Hello,
    LaterBroker,
    Refused,
    SayHello,
    Serving,
    Submit,
    Submitted,
    Welcome,
    WhoServes,
    decode,
    encode,
)
from rlsched_node.link.link import LOOK_AROUND_S, NEXT_S, BrokerLink
from rlsched_node.link.machine import REMEMBER_S, NodeMachine
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.steps import Acknowledge, Connected, Note, Quit, Received, Send, TryNext
from tests.support.broker.listener import Listener
from tests.support.broker.stub import Stub
from tests.support.node_events import CLUSTER, HELLO
from tests.support.ports import free_addresses

DEADLINE_S = 60.0


def unused_address() -> str:
    """An address on which no process listens."""
    return free_addresses(1)[0]


def serving(epoch: int, answer: ClientReply | None) -> Callable[[ClientRequest], ClientReply | None]:
    return lambda asked: Serving(cluster="c1", epoch=epoch) if isinstance(asked, WhoServes) else answer


@pytest.fixture
def stubs(tmp_path: Path) -> Iterator[tuple[Stub, Stub]]:
    first, second = Stub(tmp_path), Stub(tmp_path)
    yield first, second
    first.close()
    second.close()


def client(home: Path, *addresses: str, timeout_s: float = DEADLINE_S) -> Client:
    return Client(",".join(addresses), home=home, timeout_s=timeout_s)


def test_addresses_are_separated_by_commas() -> None:
    assert broker_addresses("tcp://a:1, tcp://b:2,tcp://a:1") == ("tcp://a:1", "tcp://b:2")
    with pytest.raises(InputError, match="expected tcp://HOST:PORT"):
        broker_addresses("tcp://a:1,b")
    with pytest.raises(InputError, match="expected one address"):
        broker_address("tcp://a:1,tcp://b:2")


def test_refused_connection_tries_the_next_address_at_once(
    stubs: tuple[Stub, Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched.transport.connection.RESEND_S", 100 * DEADLINE_S)  # without a wait
    _, second = stubs
    second.script = serving(1, Submitted(job=7))
    with client(tmp_path, unused_address(), unused_address(), second.address) as asking:
        assert asking.submit(["true"]) == 7


def test_submission_without_an_answer_is_sent_to_the_next_address(
    stubs: tuple[Stub, Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched.transport.connection.RESEND_S", 0.2)
    first, second = stubs
    first.script, second.script = serving(1, None), serving(2, Submitted(job=8))
    with client(tmp_path, first.address, second.address) as asking:
        assert asking.submit(["true"]) == 8
    heard = [[one for _, one in stub.heard if isinstance(one, Submit)] for stub in stubs]
    assert heard[0] == heard[1]
    assert len(heard[1]) == 1


def test_broker_of_an_earlier_epoch_is_not_used(stubs: tuple[Stub, Stub], tmp_path: Path) -> None:
    first, second = stubs
    first.script, second.script = serving(3, Submitted(job=3)), serving(1003, Submitted(job=4))
    with client(tmp_path, second.address, first.address) as asking:
        assert asking.submit(["true"]) == 4
    with client(tmp_path, first.address, second.address) as asking:
        assert asking.submit(["true"]) == 4
    assert not any(isinstance(one, Submit) for _, one in first.heard)
    with (
        client(tmp_path, first.address, unused_address(), timeout_s=1.0) as asking,
        pytest.raises(BrokerUnavailableError, match=r"is at epoch 3, but a later broker .* at 1003"),
    ):
        asking.submit(["true"])
    assert not any(isinstance(one, Submit) for _, one in first.heard)


def test_epochs_are_kept_per_cluster_and_damaged_files_count_as_none(tmp_path: Path) -> None:
    assert Epochs(tmp_path).highest("a", 5) == 5
    assert Epochs(tmp_path).highest("a", 4) == 5
    assert Epochs(tmp_path).highest("b", 1) == 1
    (tmp_path / EPOCHS_FILE).write_text("{")
    known = Epochs(tmp_path)
    assert known.highest("a", 2) == 2
    assert known.highest("a", 1) == 2


# ---- nodes ------------------------------------------------------------------------------------------------


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[list[Listener]]:
    """Two brokers that send their epochs to every unknown node."""
    home = KeyHome(tmp_path)
    epochs = (3, 1003)
    listeners = [
        Listener(home, lambda *_, epoch=epoch: encode(SayHello(cluster="c1", epoch=epoch)))
        for epoch in epochs
    ]
    yield listeners
    for listener in listeners:
        listener.close()


def connects(link: BrokerLink, *, is_registered: bool = False, epoch: int = 0) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, link.address
        if any(isinstance(event, Connected) for event in link.receive()):
            return
        link.look_around("c1", epoch)
        link.renew(is_registered)
        link.socket.poll(10)


def test_node_keeps_an_address_that_welcomes_it(listeners: list[Listener], tmp_path: Path) -> None:
    home, now_s = KeyHome(tmp_path), [0.0]
    addresses = [unused_address(), listeners[0].address, listeners[1].address]
    link = BrokerLink(addresses, home.node("n0"), home.broker_public(), elapsed=lambda: now_s[0])
    try:
        deadline = time.monotonic() + DEADLINE_S
        while link.address == addresses[0]:
            assert time.monotonic() < deadline
            link.receive()
            now_s[0] += 0.01  # far from NEXT_S
            assert now_s[0] < NEXT_S
            link.renew(is_registered=False)
            link.monitor.poll(50)
        connects(link)
        assert link.address == addresses[1]
        now_s[0] += NEXT_S
        assert link.renew(is_registered=False)
        assert link.address == addresses[2]
    finally:
        link.close()


def test_node_notices_a_handshake_completed_before_its_first_poll(
    listeners: list[Listener], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = zmq.Socket.connect

    def connect_and_lose_the_core(socket: zmq.Socket[bytes], address: str) -> None:
        connect(socket, address)
        if address == listeners[0].address:
            socket.send(encode(Heartbeat(name="")))
            assert socket.poll(int(DEADLINE_S * 1000), zmq.POLLIN)  # answered, long after the handshake

    monkeypatch.setattr(zmq.Socket, "connect", connect_and_lose_the_core)
    home = KeyHome(tmp_path)
    link = BrokerLink([listeners[0].address], home.node("n0"), home.broker_public(), elapsed=lambda: 0.0)
    try:
        connects(link)
    finally:
        link.close()


def test_node_moves_only_to_a_later_broker_of_its_cluster(listeners: list[Listener], tmp_path: Path) -> None:
    home, now_s = KeyHome(tmp_path), [0.0]
    link = BrokerLink(
        [one.address for one in listeners], home.node("n0"), home.broker_public(), elapsed=lambda: now_s[0]
    )
    try:
        connects(link)

        def looks(cluster: str, epoch: int) -> bool:
            now_s[0] += LOOK_AROUND_S
            link.look_around(cluster, epoch)
            while link.is_looking:
                link.look_around(cluster, epoch)
                time.monotonic()
            return link.renew(is_registered=True)

        for cluster, epoch in (("c2", 3), ("c1", 1003)):
            assert not any(looks(cluster, epoch) for _ in listeners)
        assert any(looks("c1", 3) for _ in listeners)
        assert link.address == listeners[1].address
    finally:
        link.close()


def test_node_reports_the_later_broker_to_an_earlier_one(tmp_path: Path) -> None:
    home, now_s, said = KeyHome(tmp_path), [0.0], [object()]

    def receives(_: int, frame: bytes) -> bytes:
        said.append(decode(frame).message)
        return encode(SayHello(cluster="c1", epoch=3))

    earlier = Listener(home, receives)
    addresses = [unused_address(), earlier.address]
    link = BrokerLink(addresses, home.node("n0"), home.broker_public(), elapsed=lambda: now_s[0])
    try:
        deadline = time.monotonic() + DEADLINE_S
        now_s[0] = LOOK_AROUND_S
        while said[-1] != LaterBroker(cluster="c1", epoch=1003):
            assert time.monotonic() < deadline, said
            link.look_around("c1", 1003)
    finally:
        link.close()
        earlier.close()


def test_node_with_several_brokers_survives_a_refusal_by_one() -> None:
    machine = NodeMachine(HELLO, has_standby=True)
    first = machine.handle(Received(Refused(message="its journal is older")), 0.0)
    assert isinstance(first[0], Note)
    assert first[1:] == [TryNext()]
    assert machine.handle(Received(Refused(message="its journal is older")), 1.0) == [TryNext()]
    alone = NodeMachine(HELLO)
    assert alone.handle(Received(Refused(message="no")), 0.0) == [Quit("no")]


def test_earlier_broker_registers_no_node_and_acknowledges_no_end() -> None:
    key = AttemptKey(1, 1, 0, CLUSTER)
    machine = NodeMachine(HELLO, [LocalRank(key, phase=Phase.ENDED, exit_code=0)], has_standby=True)
    machine.handle(Received(Welcome(epoch=9, cluster=CLUSTER, heartbeat_s=1.0)), 0.0)
    machine.handle(Connected(), 1.0)
    out = machine.handle(Received(Welcome(epoch=8, cluster=CLUSTER, heartbeat_s=1.0)), 1.1)
    assert out[-1] == TryNext()
    assert not machine.is_registered
    assert machine.handle(Received(EndedAck(job=1, attempt=1, rank=0)), 1.2) == []
    machine.handle(Received(Welcome(epoch=10, cluster=CLUSTER, heartbeat_s=1.0)), 2.0)
    assert machine.handle(Received(EndedAck(job=1, attempt=1, rank=0)), 2.1) == [Acknowledge(key)]


def test_node_reports_recent_ends_to_the_next_broker_unless_killed_by_an_order() -> None:
    keys = [AttemptKey(job, 1, 0, CLUSTER) for job in (1, 2)]
    reasons = ("", "killed")
    attempts = [
        LocalRank(key, phase=Phase.ENDED, exit_code=3, reason=reason, ended_s=5.0, ran_s=2.0)
        for key, reason in zip(keys, reasons, strict=True)
    ]
    machine = NodeMachine(HELLO, attempts, has_standby=True)
    machine.handle(Received(Welcome(epoch=9, cluster=CLUSTER, heartbeat_s=1.0)), 0.0)
    for key in keys:
        machine.handle(Received(EndedAck(job=key.job, attempt=1, rank=0)), 1.0)
    assert machine.attempts.is_drained
    for now_s, told in ((2.0, [1]), (1.0 + REMEMBER_S + 1.0, [])):
        [send] = machine.handle(Connected(), now_s)
        assert isinstance(send, Send)
        assert isinstance(send.message, Hello)
        assert [(one.job, one.state, one.exit_code, one.ran_s) for one in send.message.attempts] == [
            (job, "ended", 3, 2.0) for job in told
        ]
