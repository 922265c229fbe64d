"""The node's connection to the broker: sends messages, and turns frames and handshakes into events."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from rlsched.errors import WireError
from rlsched.transport.dealer import connect_dealer, connect_watched_dealer
from rlsched.transport.keys import KeyPair
from rlsched.wire.messages import BrokerToNode, Heartbeat, LaterBroker, NodeMessage, SayHello, decode, encode
from rlsched_node.processes.steps import Connected, Disconnected, Event, Received

MAX_DROPS_LOGGED = 20
LINGER_MS = 200
RENEW_S = 10.0
"""Time without a broker's `Welcome`, seconds, after which a node connects with a new socket."""
NEXT_S = 3.0
"""Time without a `Welcome`, seconds, after which a node with several addresses connects to the next one."""
APART_S = 0.1
"""Pause before the next address if no process listens at the present address, seconds."""
LOOK_AROUND_S = 5.0
"""Interval between probes of the other addresses, seconds."""
_log = logging.getLogger("rlsched.node")
_FOR_NODES = BrokerToNode.__args__
_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class BrokerLink:
    """A DEALER socket that reconnects by itself; `renew` replaces the socket if it does not.

    Args:
        addresses: tcp://HOST:PORT of the broker and its standbys.
        pair: The node's keys.
        broker_public: The broker's public key, z85.
        elapsed: Monotonic clock, seconds.

    Attributes:
        num_dropped: Number of invalid frames that were dropped; the first few are logged.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        pair: KeyPair,
        broker_public: bytes,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_dropped = 0
        self._handshake_trouble = ""
        self._addresses, self._at = tuple(addresses), 0
        self._pair, self._broker_public = pair, broker_public
        self._elapsed = elapsed
        self._welcome_s = elapsed()
        self._renewed = False
        self._moves_to: int | None = None
        self._probe: zmq.Socket[bytes] | None = None
        self._probed_at, self._probe_s, self._has_asked = 0, self._welcome_s, False
        self._context = zmq.Context()
        self._dial()

    @property
    def address(self) -> str:
        """Address of the broker to which this link connects now."""
        return self._addresses[self._at]

    @property
    def is_looking(self) -> bool:
        """Whether another address is being probed."""
        return self._probe is not None

    def _dial(self) -> None:
        self._dialled_s = self._elapsed()
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _FAILED_HANDSHAKES
        if len(self._addresses) > 1:
            events |= zmq.EVENT_CONNECT_RETRIED
        self.socket, self.monitor = connect_watched_dealer(
            self._context, self.address, self._pair, self._broker_public, events
        )

    def _hang_up(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)

    def renew(self, is_registered: bool) -> bool:
        """Open a new socket after `RENEW_S` without a registration. Return whether a socket was opened.

        With several addresses, the new socket is opened after `NEXT_S`, and uses the next address. A new
        socket is needed because libzmq does not reconnect after it has received a frame that is too large.
        """
        now_s = self._elapsed()
        if is_registered:
            self._welcome_s = now_s
        if self._moves_to is not None and now_s - self._dialled_s >= APART_S:
            self._at, self._moves_to = self._moves_to, None
        elif now_s - self._welcome_s < (RENEW_S if len(self._addresses) == 1 else NEXT_S):
            return False
        else:
            self._at = (self._at + 1) % len(self._addresses)
        self._welcome_s = now_s
        self._hang_up()
        self._dial()
        self._renewed = True
        return True

    def try_next(self) -> None:
        """Make `renew` use the next address soon. Does nothing with a single address."""
        if len(self._addresses) > 1 and self._moves_to is None:
            self._moves_to = (self._at + 1) % len(self._addresses)

    def look_around(self, cluster: str, epoch: int) -> None:
        """Probe the other addresses, one every `LOOK_AROUND_S`, for a later broker of this cluster.

        A later broker has a higher epoch; `renew` then connects to it. A broker answers a probe with its
        epoch (`SayHello`); a standby does not answer. A broker with a lower epoch gets a `LaterBroker`.
        """
        if len(self._addresses) == 1:
            return
        if self._probe is not None and self._is_later(self._probe, cluster, epoch):
            _log.info(
                "a broker with a higher epoch serves at %s; disconnecting from %s",
                self._addresses[self._probed_at],
                self.address,
            )
            self._moves_to = self._probed_at
        if self._elapsed() - self._probe_s < LOOK_AROUND_S:
            return
        self._probe_s = self._elapsed()
        self._end_probe()
        self._probed_at = (self._probed_at + 1) % len(self._addresses)
        if self._probed_at != self._at:
            address = self._addresses[self._probed_at]
            self._has_asked = False
            self._probe = connect_dealer(self._context, address, self._pair, self._broker_public)

    def _is_later(self, probe: zmq.Socket[bytes], cluster: str, epoch: int) -> bool:
        with contextlib.suppress(zmq.Again, WireError):
            if probe.poll(0, zmq.POLLIN):
                said = decode(probe.recv(zmq.NOBLOCK)).message
                theirs = said.epoch if isinstance(said, SayHello) and said.cluster == cluster else epoch
                if 0 < theirs < epoch:
                    probe.send(encode(LaterBroker(cluster=cluster, epoch=epoch)), zmq.NOBLOCK)
                self._end_probe()
                return theirs > epoch
            if not self._has_asked and probe.poll(0, zmq.POLLOUT):
                probe.send(encode(Heartbeat(name="")), zmq.NOBLOCK)
                self._has_asked = True
        return False

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close(LINGER_MS)
            self._probe = None

    def send(self, message: NodeMessage, request: int = 0) -> bool:
        """Send a message now. Return False if it is dropped: it is too large, or there is no connection."""
        try:
            self.socket.send(encode(message, request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except WireError as error:
            _log.warning("%s", error)
            return False
        return True

    def receive(self, limit: int = 1000) -> list[Event]:
        """Return the events since the last call, from at most `limit` frames.

        Events about the connection precede messages.
        """
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
        """Close the connection. Unsent messages are dropped after `LINGER_MS`."""
        self._end_probe()
        self._hang_up(LINGER_MS)
        self._context.term()

    def _watch(self) -> list[Event]:
        events: list[Event] = [Disconnected()] if self._renewed else []
        self._renewed = False
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake_trouble, self._moves_to = "", None
                events.append(Connected())
            elif event == zmq.EVENT_DISCONNECTED:
                events.append(Disconnected())
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self.try_next()
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._handshake_failed(
                    f"the broker at {self.address} does not accept this node's key; "
                    "join with a token of `rlsched keys new`"
                )
            else:
                self._handshake_failed(
                    f"no CURVE handshake with {self.address}: is that the broker of these keys?"
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
