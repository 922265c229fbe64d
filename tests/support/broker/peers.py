"""Sockets that connect to a `Transport` like clients, nodes and unknown peers."""

from __future__ import annotations

import time

import zmq

from rlsched.transport.dealer import connect_dealer
from rlsched.transport.keys import KeyHome, KeyPair
from rlsched.transport.router import Heard, Transport
from rlsched.wire.messages import Envelope, decode

PATIENCE_S = 60.0


class Peers:
    """Creates sockets and closes them at the end."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []

    def connect(self, transport: Transport, home: KeyHome, pair: KeyPair) -> zmq.Socket[bytes]:
        """Connect as clients and nodes do."""
        self.sockets.append(connect_dealer(self.context, transport.address, pair, home.broker_public()))
        return self.sockets[-1]

    def is_refused(self, transport: Transport, pair: KeyPair | None, server: bytes) -> bool:
        """Whether the handshake with these keys is refused. No message from the peer may arrive."""
        socket = self.context.socket(zmq.DEALER)
        self.sockets.append(socket)
        if pair is not None:
            socket.curve_publickey, socket.curve_secretkey = pair
            socket.curve_serverkey = server
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self.sockets.append(monitor)
        socket.connect(transport.address)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert transport.receive(20, 100)[0] == []
            if monitor.poll(0):
                event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
                socket.disable_monitor()
                return event != zmq.EVENT_HANDSHAKE_SUCCEEDED
        raise AssertionError("neither accepted nor refused")

    def close(self) -> None:
        """Close all of them."""
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()


def receive_messages(transport: Transport, count: int = 1, deadline_s: float = PATIENCE_S) -> list[Heard]:
    """Serve the sockets until `count` messages have been decoded."""
    messages: list[Heard] = []
    deadline = time.monotonic() + deadline_s
    while len(messages) < count and time.monotonic() < deadline:
        messages += transport.receive(20, 100)[0]
    return messages


def send_frames(transport: Transport, socket: zmq.Socket[bytes], *frames: bytes) -> None:
    """Send as soon as the socket is connected."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
            return
        except zmq.Again:
            transport.receive(20, 0)
    raise AssertionError("no connection")


def answer(transport: Transport, socket: zmq.Socket[bytes]) -> Envelope:
    """The next message that a peer receives."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        transport.receive(0, 100)
        if socket.poll(20):
            return decode(socket.recv(zmq.NOBLOCK))
    raise AssertionError("no answer")
