"""The access list: read once, then only new, removed or changed files. Handshakes do not starve messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rlsched.transport.access import AccessList
from rlsched.transport.budgets import SenderLimits
from rlsched.transport.dealer import connect_dealer
from rlsched.transport.keys import KeyHome
from rlsched.transport.roles import Peer
from rlsched.transport.router import ZAP_ADDRESS, Transport
from rlsched.wire.messages import Stats, encode

KEYS = [str(k).encode() * 40 for k in range(4)]


class Elapsed:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def elapsed() -> Elapsed:
    return Elapsed()


@pytest.fixture
def access(tmp_path: Path, elapsed: Elapsed) -> AccessList:
    for number in range(3):
        (tmp_path / f"node-n{number}.public").write_bytes(KEYS[number] + b"\n")
    return AccessList(tmp_path, elapsed)


def test_unchanged_list_is_read_once(access: AccessList, elapsed: Elapsed) -> None:
    for _ in range(50):
        elapsed.now_s += 0.3
        assert len(access.peers()) == 3
    assert access.num_read == 3


def test_only_a_new_file_is_read_and_a_removed_key_is_revoked_at_once(
    access: AccessList, elapsed: Elapsed
) -> None:
    access.peers()
    (access.directory / "node-n3.public").write_bytes(KEYS[3])
    assert access.peers()[KEYS[3]] == Peer("node", "n3")
    assert access.num_read == 4
    (access.directory / "node-n0.public").unlink()
    assert KEYS[0] not in access.peers()
    assert elapsed.now_s == 0.0


def test_key_overwritten_in_place_is_noticed_within_a_second(access: AccessList, elapsed: Elapsed) -> None:
    assert KEYS[0] in access.peers()
    path = access.directory / "node-n0.public"
    before = access.directory.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(KEYS[3])
    assert access.directory.stat().st_mtime_ns == before
    elapsed.now_s += 1.0
    assert KEYS[0] not in access.peers()
    assert access.peers()[KEYS[3]] == Peer("node", "n0")


def test_missing_directory_authorises_no_key(tmp_path: Path) -> None:
    assert AccessList(tmp_path / "none").peers() == {}


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 41, b"\xff\0\x13"])
def test_damaged_file_authorises_no_key(access: AccessList, data: bytes) -> None:
    (access.directory / "node-n0.public").write_bytes(data)
    assert set(access.peers()) == {KEYS[1], KEYS[2]}


# ---- handshakes -------------------------------------------------------------------------------------------


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    transport = Transport("tcp://127.0.0.1:0", KeyHome(tmp_path))
    yield transport
    transport.close()


def test_handshakes_read_no_file_again(tmp_path: Path, transport: Transport) -> None:
    home = KeyHome(tmp_path)
    pairs = [home.node(f"n{number}") for number in range(40)]
    context = zmq.Context()
    sockets = [connect_dealer(context, transport.address, pair, home.broker_public()) for pair in pairs]
    try:
        deadline = time.monotonic() + 60.0
        while transport.counts.get("handshakes", 0) < 40 and time.monotonic() < deadline:
            transport.receive(20, 100)
        assert transport.counts["handshakes"] == 40
        assert transport._access.num_read == 40
    finally:
        for socket in sockets:
            socket.close(linger=0)
        context.term()


def test_flood_of_handshakes_does_not_delay_a_message(tmp_path: Path, transport: Transport) -> None:
    """The ZAP socket receives requests faster than they are answered."""
    home, over = KeyHome(tmp_path), threading.Event()
    context = zmq.Context()
    client = connect_dealer(context, transport.address, home.client(), home.broker_public())

    def send_handshakes() -> None:
        stranger = [b"", b"1.0", b"1", b"rlsched", b"127.0.0.1", b"", b"CURVE", b"k" * 32]
        door = transport._context.socket(zmq.DEALER)
        door.setsockopt(zmq.SNDHWM, 0)
        door.connect(ZAP_ADDRESS)
        while not over.is_set():
            door.send_multipart(stranger)
            while door.poll(0):
                door.recv_multipart()
        door.close(linger=0)

    try:
        while not client.poll(0, zmq.POLLOUT):
            transport.receive(20, 100)
        handshakes = threading.Thread(target=send_handshakes)
        handshakes.start()
        deadline, most, heard = time.monotonic() + 60.0, 0, list[int]()
        while not heard and time.monotonic() < deadline:
            before = transport.counts.get("refused_handshakes", 0)
            heard = [one.envelope.request for one in transport.receive(20, 100)[0]]
            refused = transport.counts.get("refused_handshakes", 0)
            if refused and not most:  # unknown peers connect from here on
                client.send(encode(Stats(), 7))
            most = max(most, refused - before)
        assert heard == [7]
        assert 0 < most <= SenderLimits().handshakes_a_turn
    finally:
        over.set()
        handshakes.join(60.0)
        client.close(linger=0)
        context.term()
