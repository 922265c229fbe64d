"""Connections between the processes of a job with steps, and the names of its nodes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlsched_node.slurm.frames import BACKLOG_BYTES, HEADER_BYTES, NONCE_BYTES, Link
from rlsched_node.slurm.loop import Loop
from rlsched_node.slurm.names import reachable_names

KEY = b"key of the job"


class Ends:
    """Ends of connections; all are closed at the end of the test."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.sockets: list[socket.socket] = []
        self.received: list[tuple[Any, bytes]] = []
        self.answers: list[tuple[Any, bytes]] = []
        self.ended: list[str] = []

    def sockets_pair(self) -> tuple[socket.socket, socket.socket]:
        self.sockets += socket.socketpair()
        return self.sockets[-2], self.sockets[-1]

    def pair(self, other_key: bytes = KEY) -> tuple[Link, Link]:
        """A connected server and client."""
        first, second = self.sockets_pair()
        client = Link(
            self.loop, second, other_key, is_server=False, receive=lambda *one: self.answers.append(one)
        )
        return self.server(first), client

    def server(self, sock: socket.socket) -> Link:
        return Link(
            self.loop,
            sock,
            KEY,
            is_server=True,
            receive=lambda *one: self.received.append(one),
            closed=self.ended.append,
        )

    def run(self, seconds: float = 0.1) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.loop.turn(0.01)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    for sock in ends.sockets:
        sock.close()


def test_first_message_of_a_server_names_many_nodes(ends: Ends) -> None:
    server, client = ends.pair()
    client.send({"role": "agent"})
    names = [f"node-{number}.cluster.example.org" for number in range(2000)]
    server.send({"names": names})
    while not ends.answers:
        ends.loop.turn(1.0)
    assert ends.answers == [({"names": names}, b"")]


def test_messages_arrive_in_order_with_their_bytes(ends: Ends) -> None:
    server, client = ends.pair()
    sent = [({"number": number, "text": "\udcffä"}, bytes([number]) * number * 9000) for number in range(40)]
    for head, data in sent:
        client.send(head, data)
    server.send({"do": "welcome"})
    while len(ends.received) < len(sent) or not ends.answers:
        ends.loop.turn(1.0)
    assert ends.received == sent
    assert ends.answers == [({"do": "welcome"}, b"")]
    assert server.is_proven
    client.close()
    ends.run()
    assert ends.ended == [""]


def test_peer_with_another_key_is_refused(ends: Ends) -> None:
    server, client = ends.pair(other_key=b"another key")
    client.send({"role": "srun"})
    ends.run()
    assert not ends.received
    assert not server.is_proven
    assert ends.ended == ["a frame whose authentication code was not made with the key of this job"]


@pytest.mark.parametrize("fault", ["another connection", "changed", "repeated", "left out"])
def test_forged_frames_are_refused(ends: Ends, fault: str) -> None:
    """The attacker sees a connection, but does not have the key."""
    sock, attacker = ends.sockets_pair()
    server = ends.server(sock)
    attacker.settimeout(5.0)
    number = attacker.recv(NONCE_BYTES)
    if fault == "another connection":
        number = bytes(NONCE_BYTES)
    own_number, first, second, third = recorded(ends, number)
    sent = {
        "another connection": [first],
        "changed": [first, second[:-1] + b"?"],
        "repeated": [first, first],
        "left out": [first, third],
    }[fault]
    attacker.sendall(own_number + b"".join(sent))
    ends.run()
    assert ends.received == ([] if fault == "another connection" else [({"number": 0}, b"")])
    assert ends.ended == ["a frame whose authentication code was not made with the key of this job"]
    assert server.is_proven == bool(ends.received)


def recorded(ends: Ends, number: bytes) -> list[bytes]:
    """The random number and three frames of a client, to a server with this random number."""
    sock, peer = ends.sockets_pair()
    client = Link(ends.loop, sock, KEY, is_server=False)
    peer.sendall(number)
    for place in range(3):
        client.send({"number": place})
    data = b""
    while data.count(b"number") < 3:
        ends.loop.turn(0.01)
        data += peer.recv(1 << 16)
    found, data = [data[:NONCE_BYTES]], data[NONCE_BYTES:]
    while data:
        size = HEADER_BYTES + int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def test_stranger_cannot_make_the_server_wait_for_a_large_frame(ends: Ends) -> None:
    sock, stranger = ends.sockets_pair()
    ends.server(sock)
    stranger.sendall(bytes(NONCE_BYTES) + (1 << 20).to_bytes(4, "big") + bytes(16))
    ends.run()
    assert ends.ended == ["a frame of 1048576 bytes"]


def test_paused_link_does_not_read(ends: Ends) -> None:
    server, client = ends.pair()
    client.send({})
    ends.run()
    server.pause(True)
    for _ in range(8):
        client.send({}, bytes(1 << 20))
    ends.run()
    assert len(ends.received) == 1
    assert client.backlog_bytes > BACKLOG_BYTES
    server.pause(False)
    while len(ends.received) < 9:
        ends.loop.turn(1.0)
    assert client.backlog_bytes == 0


ADDRESSES = {"n0": "10.0.0.1", "n1": "10.0.0.2", "n2": "127.0.1.1"}


def look_up(name: str) -> frozenset[str]:
    found = ADDRESSES.get(name, name if name[0].isdigit() else "")
    return frozenset({found} - {""})


@pytest.mark.parametrize(
    ("nodes", "hosts", "names"),
    [
        (["n0", "n1"], ["10.0.0.1", "10.0.0.2"], ["n0", "n1"]),
        (["n0", "n1"], ["n0", "n1"], ["n0", "n1"]),
        (["x", "y"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"]),
        (
            ["n2", "n1"],
            ["10.0.0.3", "10.0.0.2"],
            ["10.0.0.3", "n1"],
        ),  # its own name is a loopback address there
        (["x", "y", "z"], ["127.0.0.1"] * 3, ["127.0.0.1", "y", "z"]),
        (["n0", "n1"], ["10.0.0.1", ""], ["n0", "n1"]),
        (["x"], ["127.0.0.1"], ["127.0.0.1"]),
    ],
)
def test_nodes_have_names_that_other_nodes_reach(
    nodes: list[str], hosts: list[str], names: list[str]
) -> None:
    assert reachable_names(nodes, hosts, look_up) == names


def test_slow_look_up_is_not_waited_for() -> None:
    began_s = time.monotonic()

    def slow(name: str) -> frozenset[str]:
        time.sleep(3600.0 if name == "n1" else 0.0)
        return look_up(name)

    names = reachable_names(["n0", "n1"], ["10.0.0.1", "10.0.0.2"], slow, within_s=0.5)
    assert names == ["n0", "10.0.0.2"]
    assert time.monotonic() - began_s < 3000.0
