"""The node's connection to the broker: frames to events and back, and what the handshake says."""

from __future__ import annotations

import logging

import zmq
from zmq.utils.monitor import recv_monitor_message

from rlsched.broker.keys import KeyPair
from rlsched.errors import WireError
from rlsched.wire.dealer import connect_dealer
from rlsched.wire.messages import BrokerToNode, NodeMessage, decode, encode
from rlsched_node.steps import Connected, Disconnected, Event, Received

MAX_DROPS_LOGGED = 20
LINGER_MS = 200
_log = logging.getLogger("rlsched.node")
_FOR_NODES = BrokerToNode.__args__
_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class BrokerLink:
    """A DEALER that reconnects by itself.

    Attributes:
        num_dropped: How many frames were dropped because they made no sense; the first few are logged.
    """

    def __init__(self, address: str, pair: KeyPair, broker_public: bytes) -> None:
        self.num_dropped = 0
        self._handshake_trouble = ""
        self._address = address
        self._context = zmq.Context()
        self.socket = connect_dealer(self._context, address, pair, broker_public)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _FAILED_HANDSHAKES
        )

    def send(self, message: NodeMessage, request: int = 0) -> bool:
        """Send now or not at all."""
        try:
            self.socket.send(encode(message, request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, limit: int = 1000) -> list[Event]:
        """What has come since, at most `limit` frames: first the connection's fate, then messages."""
        events = self._watch()
        for _ in range(limit):
            try:
                envelope = decode(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            except WireError as error:
                self._drop(str(error))
                continue
            if isinstance(envelope.message, _FOR_NODES):
                events.append(Received(envelope.message, envelope.request))
            else:
                self._drop(f"a {type(envelope.message).__name__} is not for nodes")
        return events

    def close(self) -> None:
        """Say what is still to be said, and drop the connection."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(LINGER_MS)
        self._context.term()

    def _watch(self) -> list[Event]:
        events: list[Event] = []
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake_trouble = ""
                events.append(Connected())
            elif event == zmq.EVENT_DISCONNECTED:
                events.append(Disconnected())
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._handshake_failed(f"the broker at {self._address} does not accept this node's key")
            else:
                self._handshake_failed(
                    f"no CURVE handshake with {self._address}: is that the broker of these keys?"
                )
        return events

    def _handshake_failed(self, line: str) -> None:
        if line != self._handshake_trouble:
            _log.warning("%s", line)
        self._handshake_trouble = line

    def _drop(self, line: str) -> None:
        self.num_dropped += 1
        if self.num_dropped <= MAX_DROPS_LOGGED:
            _log.warning("dropped a frame from the broker: %s", line)
