"""The broker's socket: a ROUTER under CURVE whose access list is asked for every message, failing closed.

The ZAP handler is a REP socket served in the same poll loop. `ZAP_ENFORCE_DOMAIN` makes libzmq refuse every
handshake when nobody answers there, so no thread can die and leave the door open.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import zmq
from zmq.utils import z85

from rlsched.broker.joining import admit
from rlsched.broker.keys import KeyHome, KeyPair
from rlsched.broker.roles import Peer, may_send
from rlsched.errors import InputError, WireError
from rlsched.wire.dealer import set_limits
from rlsched.wire.messages import (
    ClientReply,
    Envelope,
    Hello,
    Join,
    Joined,
    LaterBroker,
    Message,
    Refused,
    SayHello,
    decode,
    encode,
)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"rlsched"
MAX_UNREAD = 1_000
"""Messages that wait for a peer that does not read; more are dropped, and said again when it asks again.

Pages of lists and pieces of logs are 64 KiB, so such a client costs the broker 64 MB at most.
"""
MAX_HANDSHAKES = 100
"""Handshakes answered between two looks at the messages; one takes about 20 us."""


class _Route(NamedTuple):
    """A node's connection, and the key (z85) that it was proved with."""

    connection: bytes
    key: bytes


class Heard(NamedTuple):
    """A message whose sender's key may send it.

    Attributes:
        peer: Who the key belongs to.
        route: Routing id of the connection, for replies.
        envelope: The message.
    """

    peer: Peer
    route: bytes
    envelope: Envelope


class Transport:
    """The sockets of a broker.

    Args:
        address: `tcp://HOST:PORT`; port 0 takes any free one, `0.0.0.0` every interface.
        home: Keys and access list.

    Attributes:
        address: Where it listens, with the real port.
        says_hello: What a node is told whose connection is not known.
        counts: Malformed, unauthorised, undeliverable and too long messages, refused and accepted handshakes.

    Raises:
        InputError: the address cannot be listened on, or is taken.
    """

    def __init__(self, address: str, home: KeyHome) -> None:
        self._home, self._access = home, home.access
        self._routes: dict[str, _Route] = {}
        self.says_hello = SayHello()
        self.counts: dict[str, int] = {}
        pair = home.broker()
        home.own_clients_are_admins()
        self._context = zmq.Context()
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(ZAP_ADDRESS)
            self._router = _router(self._context, pair, address)
            self._router.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            taken = error.errno == zmq.EADDRINUSE
            raise InputError(
                f"{address}: cannot listen here: {zmq.strerror(error.errno or 0)}; "
                + (
                    "is another broker running? Give another --address"
                    if taken
                    else "give an address of this machine, or tcp://0.0.0.0:PORT for all of them"
                )
            ) from error
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._zap, zmq.POLLIN)
        self._poller.register(self._router, zmq.POLLIN)

    def close(self) -> None:
        """Let go of the address. What has not been sent yet is given half a second."""
        self._router.close(linger=500)
        self._zap.close(linger=0)
        self._context.term()

    # ---- receiving --------------------------------------------------------------------------------

    def receive(self, timeout_ms: int, limit: int) -> tuple[list[Heard], bool]:
        """Wait for messages, and take up to `limit`. Returns them, and whether none was left behind."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._zap in ready:
            self._answer_handshakes()
        heard: list[Heard] = []
        for _ in range(limit):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return heard, True
            message = self._understand(frames)
            if message is not None:
                heard.append(message)
        return heard, False

    def _understand(self, frames: list[zmq.Frame]) -> Heard | None:
        """A message that may be said by who said it; anything else is answered here, in one line."""
        route = frames[0].bytes
        key = _user_id(frames[-1])
        peer = self._access.peers().get(key)
        if peer is None:
            self._count("unauthorised")
            self._refuse(route, 0, "this key is not, or no longer, authorised by the broker")
            return None
        try:
            if len(frames) != 2:
                raise WireError(f"malformed message of {len(frames) - 1} frames: expected one")
            envelope = decode(frames[1].bytes)
        except WireError as error:
            self._count("malformed")
            self._refuse(route, 0, str(error))
            return None
        message = envelope.message
        if not may_send(peer.role, message):
            self._count("unauthorised")
            kind = message.__struct_config__.tag
            more = ": that takes an admin's key" if peer.role == "user" and may_send("admin", message) else ""
            self._refuse(route, envelope.request, f"a key of role {peer.role!r} may not send {kind!r}{more}")
            return None
        if isinstance(message, Join):
            self._send(route, encode(self._admit(key, message), envelope.request))
            return None
        if peer.role == "node":
            if isinstance(message, Hello):
                self._routes[peer.name] = _Route(route, key)
            elif isinstance(message, LaterBroker):
                pass  # from a node that has another broker
            elif self._routes.get(peer.name) != _Route(route, key):
                self._send(route, encode(self.says_hello))
                return None
        return Heard(peer, route, envelope)

    def _admit(self, key: bytes, join: Join) -> Joined | Refused:
        try:
            return admit(self._home, key, join, time.time())
        except InputError as error:
            return Refused(message=str(error))

    def _answer_handshakes(self) -> None:
        """ZAP (RFC 27): a CURVE key of the access list is let in under its own name, all else is refused.

        Up to `MAX_HANDSHAKES`: those who knock without end do not keep messages waiting.
        """
        for _ in range(MAX_HANDSHAKES):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, sequence, domain, _, _, mechanism, *credentials = [*frames, *[b""] * (6 - len(frames))]
            key = z85.encode(credentials[0]) if credentials and len(credentials[0]) == 32 else b""
            known = (
                version == b"1.0"
                and domain == ZAP_DOMAIN
                and mechanism == b"CURVE"
                and key in self._access.peers()
            )
            self._count("handshakes" if known else "refused_handshakes")
            status = [b"200", b"OK", key] if known else [b"400", b"not authorised", b""]
            self._zap.send_multipart([b"1.0", sequence, *status, b""])

    # ---- sending ----------------------------------------------------------------------------------

    def reply(self, route: bytes, request: int, message: ClientReply) -> None:
        """Answer a client; dropped and counted if it has left."""
        try:
            frame = encode(message, request)
        except WireError:
            self._count("too_long")
            frame = encode(Refused(message="the answer is too long to send; ask for one job"), request)
        self._send(route, frame)

    def send_node(self, node: str, message: Message, request: int = 0) -> None:
        """Tell a node; dropped and counted if it is not connected or revoked, or the message too long."""
        route = self._routes.get(node)
        if route is None or route.key not in self._access.peers():
            self._count("undeliverable")
            return
        try:
            frame = encode(message, request)
        except WireError:
            self._count("too_long")
            return
        self._send(route.connection, frame)

    def drop_node(self, node: str) -> None:
        """The node's connection is to say hello again."""
        self._routes.pop(node, None)

    def drop_nodes(self) -> None:
        """All nodes are to say hello again."""
        self._routes.clear()

    def _refuse(self, route: bytes, request: int, message: str) -> None:
        self._send(route, encode(Refused(message=message), request))

    def _send(self, route: bytes, frame: bytes) -> None:
        try:
            self._router.send_multipart([route, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._count("undeliverable")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _user_id(frame: zmq.Frame) -> bytes:
    """The z85 key that the handshake proved, b"" if none did."""
    try:
        proved = frame.get("User-Id")
    except zmq.ZMQError:
        return b""
    return proved.encode() if isinstance(proved, str) else bytes(proved)


def _router(context: zmq.Context[zmq.Socket[bytes]], pair: KeyPair, address: str) -> zmq.Socket[bytes]:
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = pair
    router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 0)
    set_limits(router)
    router.setsockopt(zmq.SNDHWM, MAX_UNREAD)
    router.setsockopt(zmq.BACKLOG, 1024)
    router.setsockopt(zmq.IPV6, 1 if "[" in address else 0)
    promises = (zmq.ZAP_ENFORCE_DOMAIN, zmq.ZAP_DOMAIN, zmq.CURVE_SERVER)
    if [router.getsockopt(option) for option in promises] != [1, ZAP_DOMAIN, 1]:
        router.close(linger=0)
        raise InputError("this libzmq cannot refuse unknown keys (ZAP_ENFORCE_DOMAIN); install pyzmq 26")
    return router
