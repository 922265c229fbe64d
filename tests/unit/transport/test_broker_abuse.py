"""Abuse of the broker's socket by peers: each test is a property that the broker relies on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rlsched.broker.queries.pages import MAX_PAGE_BYTES
from rlsched.transport.dealer import HANDSHAKE_IVL_MS, HIGH_WATER_MARK
from rlsched.transport.joining import revoke
from rlsched.transport.keys import KeyHome
from rlsched.transport.router import MAX_UNREAD, Transport
from rlsched.wire.messages import (
    MAX_MESSAGE_BYTES,
    Heartbeat,
    Hello,
    ListJobs,
    LogChunk,
    Ok,
    SayHello,
    Stats,
    Welcome,
    encode,
)
from tests.support.broker.peers import PATIENCE_S, Peers, answer, receive_messages, send_frames

WELCOME = Welcome(epoch=1, cluster="c", heartbeat_s=1.0)


@pytest.fixture
def home(tmp_path: Path) -> KeyHome:
    return KeyHome(tmp_path / "home")


@pytest.fixture
def transport(home: KeyHome) -> Iterator[Transport]:
    transport = Transport("tcp://127.0.0.1:0", home)
    yield transport
    transport.close()


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.close()


@pytest.fixture
def client(home: KeyHome, transport: Transport, peers: Peers) -> zmq.Socket[bytes]:
    return peers.connect(transport, home, home.client())


def still_served(transport: Transport, client: zmq.Socket[bytes]) -> bool:
    """Whether a client's request arrives and is answered."""
    send_frames(transport, client, encode(ListJobs(), 99))
    (heard,) = receive_messages(transport)
    transport.reply(heard.route, 99, Ok())
    return answer(transport, client).request == 99


def test_revoked_node_gets_no_more_orders(home: KeyHome, transport: Transport, peers: Peers) -> None:
    node = peers.connect(transport, home, home.node("n0"))
    send_frames(transport, node, encode(Hello(name="n0", gpus=1)))
    assert len(receive_messages(transport)) == 1
    transport.send_node("n0", WELCOME)
    assert answer(transport, node).message == WELCOME
    revoke(home, "n0")
    transport.send_node("n0", WELCOME)
    assert transport.counts["undeliverable"] == 1
    assert not node.poll(100)


def test_new_key_of_a_node_must_send_its_own_hello(home: KeyHome, transport: Transport, peers: Peers) -> None:
    first = peers.connect(transport, home, home.node("n0"))
    send_frames(transport, first, encode(Hello(name="n0", gpus=1)))
    assert len(receive_messages(transport)) == 1
    revoke(home, "n0")
    (home.directory / "node-n0.key").unlink()
    second = peers.connect(transport, home, home.node("n0"))
    send_frames(transport, second, encode(Heartbeat(name="n0")))
    assert answer(transport, second).message == SayHello()


def test_stolen_routing_id_gets_no_foreign_messages(
    home: KeyHome, transport: Transport, peers: Peers, client: zmq.Socket[bytes]
) -> None:
    """The thief needs an authorised key, and the first connection of a routing id keeps its messages."""
    sockets = []
    for name in ("default", "thief"):
        pair = home.client(name)
        mine = peers.context.socket(zmq.DEALER)
        peers.sockets.append(mine)
        mine.curve_publickey, mine.curve_secretkey = pair
        mine.curve_serverkey = home.broker_public()
        mine.setsockopt(zmq.ROUTING_ID, b"taken")
        mine.connect(transport.address)
        sockets.append(mine)
        if name == "default":
            send_frames(transport, mine, encode(Stats(), 1))
            (heard,) = receive_messages(transport)
            assert heard.route == b"taken"
    sockets[1].send(encode(Stats(), 2))
    until_s = time.monotonic() + PATIENCE_S
    while transport.counts.get("handshakes", 0) < 3:
        assert time.monotonic() < until_s
        assert transport.receive(20, 100)[0] == []
    assert still_served(transport, client), "nothing else was received"
    transport.reply(b"taken", 1, Ok())
    assert answer(transport, sockets[0]).request == 1
    assert not sockets[1].poll(0)


def test_frame_above_the_limit_closes_only_its_connection(
    home: KeyHome, transport: Transport, peers: Peers, client: zmq.Socket[bytes]
) -> None:
    rude = peers.connect(transport, home, home.client())
    send_frames(transport, rude, b"x" * (MAX_MESSAGE_BYTES + 1))
    send_frames(transport, client, encode(Stats(), 1))
    assert [heard.envelope.request for heard in receive_messages(transport)] == [1]
    deadline, heard = time.monotonic() + PATIENCE_S, []
    while not heard and time.monotonic() < deadline:
        send_frames(transport, rude, encode(Stats(), 2))
        heard = receive_messages(transport, deadline_s=0.2)
    assert heard[0].envelope.request == 2, "it reconnects by itself"


def test_incomplete_message_is_ignored(
    home: KeyHome, transport: Transport, peers: Peers, client: zmq.Socket[bytes]
) -> None:
    rude = peers.connect(transport, home, home.client())
    while not rude.poll(0, zmq.POLLOUT):
        transport.receive(20, 100)
    rude.send(encode(Stats(), 1), zmq.SNDMORE)
    assert still_served(transport, client), "nothing else was received"


def test_answer_above_the_limit_is_not_sent(transport: Transport, client: zmq.Socket[bytes]) -> None:
    send_frames(transport, client, encode(Stats(), 1))
    (heard,) = receive_messages(transport)
    transport.reply(heard.route, 1, LogChunk(data=b"x" * MAX_MESSAGE_BYTES, offset=0, eof=True))
    assert "too long to send" in answer(transport, client).message.message  # type: ignore[union-attr]
    assert transport.counts["too_long"] == 1
    assert still_served(transport, client)


def test_peer_that_does_not_read_fills_only_its_own_queue(
    home: KeyHome, transport: Transport, peers: Peers, client: zmq.Socket[bytes]
) -> None:
    deaf = peers.connect(transport, home, home.client())
    send_frames(transport, deaf, encode(Stats(), 1))
    (heard,) = receive_messages(transport)
    chunk = LogChunk(data=b"x" * 4096, offset=0, eof=False)
    for _ in range(6 * HIGH_WATER_MARK):
        transport.reply(heard.route, 1, chunk)
        if transport.counts.get("undeliverable", 0):
            break
    assert transport.counts["undeliverable"] == 1
    assert still_served(transport, client)


def test_replies_to_a_client_that_never_reads_are_bounded(
    home: KeyHome, transport: Transport, peers: Peers, client: zmq.Socket[bytes]
) -> None:
    deaf = peers.context.socket(zmq.DEALER)
    peers.sockets.append(deaf)
    deaf.curve_publickey, deaf.curve_secretkey = home.client()
    deaf.curve_serverkey = home.broker_public()
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.connect(transport.address)
    send_frames(transport, deaf, encode(Stats(), 1))
    (heard,) = receive_messages(transport)
    page = LogChunk(data=bytes(MAX_PAGE_BYTES), offset=0, eof=False)
    for request in range(2 * MAX_UNREAD):
        transport.reply(heard.route, request, page)
    assert transport.counts["undeliverable"] > MAX_UNREAD // 2, "the kernel buffers some too"
    assert still_served(transport, client)


def test_silent_connection_is_closed(transport: Transport, client: zmq.Socket[bytes]) -> None:
    host, port = transport.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as idle:
        idle.settimeout(0.05)
        deadline, cut = time.monotonic() + HANDSHAKE_IVL_MS / 1e3 + PATIENCE_S, False
        while not cut:
            assert time.monotonic() < deadline
            transport.receive(0, 100)
            try:
                cut = idle.recv(4096) == b""
            except TimeoutError:
                continue
    assert still_served(transport, client)


FREEZES = """
import os, signal, sys, zmq
from rlsched.transport.keys import KeyHome
from rlsched.transport.dealer import connect_dealer
from rlsched.wire.messages import Hello, encode
home = KeyHome(sys.argv[2])
node = connect_dealer(zmq.Context(), sys.argv[1], home.node("n0"), home.broker_public())
node.poll(60000, zmq.POLLOUT)
node.send(encode(Hello(name="n0", gpus=1)))
node.poll(60000)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.slow
def test_frozen_peer_misses_heartbeats(home: KeyHome, transport: Transport) -> None:
    frozen = subprocess.Popen([sys.executable, "-c", FREEZES, transport.address, str(home.directory)])
    try:
        assert len(receive_messages(transport)) == 1
        transport.send_node("n0", WELCOME)
        deadline = time.monotonic() + PATIENCE_S
        while not transport.counts.get("undeliverable", 0):
            assert time.monotonic() < deadline
            transport.receive(200, 100)
            transport.send_node("n0", WELCOME)
    finally:
        os.kill(frozen.pid, signal.SIGKILL)
        frozen.wait()
