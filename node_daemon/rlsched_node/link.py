"""The node's connection to the broker: frames to events and back, and what the handshake says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from rlsched.broker.keys import KeyPair
from rlsched.errors import WireError
from rlsched.wire.dealer import connect_dealer
from rlsched.wire.messages import BrokerToNode, NodeMessage, decode, encode
from rlsched_node.steps import Connected, Disconnected, Event, Received

MAX_DROPS_LOGGED = 20
LINGER_MS = 200
RENEW_S = 10.0
"""A node that has no broker's welcome for so long dials with a new socket."""
_log = logging.getLogger("rlsched.node")
_FOR_NODES = BrokerToNode.__args__
_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class BrokerLink:
    """A DEALER that reconnects by itself, and is replaced by another where it does not (`renew`).

    Args:
        address: tcp://HOST:PORT.
        pair: The node's keys.
        broker_public: The broker's public key, z85.
        elapsed: A clock that never jumps, seconds.

    Attributes:
        num_dropped: How many frames were dropped because they made no sense; the first few are logged.
    """

    def __init__(
        self,
        address: str,
        pair: KeyPair,
        broker_public: bytes,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_dropped = 0
        self._handshake_trouble = ""
        self._address, self._pair, self._broker_public = address, pair, broker_public
        self._elapsed = elapsed
        self._welcome_s = elapsed()
        self._renewed = False
        self._context = zmq.Context()
        self._dial()

    def _dial(self) -> None:
        self.socket = connect_dealer(self._context, self._address, self._pair, self._broker_public)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _FAILED_HANDSHAKES
        )

    def _hang_up(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)

    def renew(self, is_registered: bool) -> bool:
        """Take a new socket if the node was not registered for `RENEW_S`; whether that was done.

        libzmq ends a connection at a frame above the limit, and the side that connects stays away for good.
        """
        now_s = self._elapsed()
        if is_registered:
            self._welcome_s = now_s
        if now_s - self._welcome_s < RENEW_S:
            return False
        self._welcome_s = now_s
        self._hang_up()
        self._dial()
        self._renewed = True
        return True

    def send(self, message: NodeMessage, request: int = 0) -> bool:
        """Send now or not at all; a message that is too long never leaves."""
        try:
            self.socket.send(encode(message, request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except WireError as error:
            _log.warning("%s", error)
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
        self._hang_up(LINGER_MS)
        self._context.term()

    def _watch(self) -> list[Event]:
        events: list[Event] = [Disconnected()] if self._renewed else []
        self._renewed = False
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake_trouble = ""
                events.append(Connected())
            elif event == zmq.EVENT_DISCONNECTED:
                events.append(Disconnected())
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._handshake_failed(
                    f"the broker at {self._address} does not accept this node's key; "
                    "join with a token of `rlsched keys new`"
                )
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
