"""The broker's socket: a ROUTER with CURVE encryption. The access list is checked for every message.

At each handshake, libzmq asks a handler whether to accept the peer's key (ZAP, RFC 27). The handler is a REP
socket in the same poll loop. `ZAP_ENFORCE_DOMAIN` refuses every handshake that the handler does not answer.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import zmq
from zmq.utils import z85

from rlsched.errors import InputError, WireError
from rlsched.transport.budgets import Budgets, SenderLimits, Turns
from rlsched.transport.dealer import set_limits
from rlsched.transport.joining import admit
from rlsched.transport.keys import KeyHome, KeyPair
from rlsched.transport.roles import Peer, may_send
from rlsched.wire.messages import (
    BrokerToNode,
    ClientReply,
    Envelope,
    ForNode,
    Hello,
    Join,
    Joined,
    LaterBroker,
    OfNode,
    Refused,
    SayHello,
    SubmitMany,
    decode,
    encode,
)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"rlsched"
MAX_UNREAD = 1_000
"""Maximum number of messages queued for a peer that does not read; further messages are dropped.

Pages of lists and pieces of logs are 64 KiB, so a peer that does not read costs the broker 64 MB at most.
"""
MAX_DROPPED = 32
"""Maximum number of messages that one turn drops because of the limits of their senders.

The turn then receives no more messages. The sender's connection fills, so that the sender must wait.
"""
REST_S = 0.002
_NOW = int(zmq.NOBLOCK)
_BEGINS = int(zmq.NOBLOCK | zmq.SNDMORE)
NO_KEY = b""
"""Common sender of all messages with keys that are not on the access list: they share one budget."""
MAX_ROUTES = 10_000
"""Maximum number of connections whose sender is remembered."""


class _Route(NamedTuple):
    """A node's connection, the key (z85) that authenticated it, and whether this is an engine's key."""

    connection: bytes
    key: bytes
    is_engine: bool = False


class Heard(NamedTuple):
    """A received message that the sender's key may send.

    Attributes:
        peer: Owner of the key.
        route: Routing id of the connection, for replies.
        envelope: The message.
    """

    peer: Peer
    route: bytes
    envelope: Envelope


def check_address(address: str) -> None:
    """Check that this process can listen at an address, before a slow start fails because of the address.

    Raises:
        InputError: the address is in use, or is not an address of this machine.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with context.socket(zmq.ROUTER) as socket:
            socket.bind(address)
    except zmq.ZMQError as error:
        raise _cannot_listen(address, error) from error
    finally:
        context.destroy(linger=0)


def _cannot_listen(address: str, error: zmq.ZMQError) -> InputError:
    taken = error.errno == zmq.EADDRINUSE
    return InputError(
        f"{address}: cannot listen here: {zmq.strerror(error.errno or 0)}; "
        + (
            "is another broker running? Give another --address"
            if taken
            else "give an address of this machine, or tcp://0.0.0.0:PORT for all of them"
        )
    )


class Transport:
    """The sockets of a broker.

    Args:
        address: `tcp://HOST:PORT`; with port 0, any free port; with `0.0.0.0`, every interface.
        home: Keys and access list.
        senders: Limits for one key.

    Attributes:
        address: Address at which the broker listens, including the real port.
        says_hello: Message that asks a node for its `Hello`; sent to nodes with unknown connections.
        counts: Count, by kind, of malformed, unauthorised, undeliverable, too long, deferred and dropped
            messages, and of refused and accepted handshakes.

    Raises:
        InputError: the broker cannot listen at the address, for example because it is in use.
    """

    def __init__(self, address: str, home: KeyHome, senders: SenderLimits | None = None) -> None:
        self._home, self._access = home, home.access
        self._senders = senders or SenderLimits()
        self._budgets, self._turns = Budgets(self._senders), Turns[list[zmq.Frame]](self._senders)
        self._key_of: dict[bytes, bytes] = {}
        self._peers: dict[bytes, Peer] = {}  # access list at the beginning of this turn
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
            raise _cannot_listen(address, error) from error
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._zap, zmq.POLLIN)
        self._poller.register(self._router, zmq.POLLIN)

    def close(self) -> None:
        """Close the sockets. Queued messages are dropped if they cannot be sent within half a second."""
        self._router.close(linger=500)
        self._zap.close(linger=0)
        self._context.term()

    # ---- receiving --------------------------------------------------------------------------------

    def receive(self, timeout_ms: int, limit: int) -> tuple[list[Heard], bool]:
        """Wait up to `timeout_ms` for messages, and receive up to `limit` messages.

        One call is one turn of the broker's loop, with at most `SenderLimits.a_turn` messages of each key.
        Messages that earlier turns have left waiting come first.

        Returns:
            The messages, and whether no more messages wait.
        """
        ready = dict(self._poller.poll(0 if self._turns else timeout_ms))
        if self._zap in ready:
            self._answer_handshakes()
        self._peers = self._access.peers()
        heard = [self._understand(frames, _user_id(frames[-1])) for frames in self._turns.begin()]
        dropped, emptied = 0, False
        for _ in range(limit):
            if dropped == MAX_DROPPED:
                break
            frames = self._frames()
            emptied = not frames
            if emptied:
                break
            key = _user_id(frames[-1])
            sender = self._sender(key)
            if self._budgets.has_budget(sender) and self._turns.is_due(sender):
                heard.append(self._understand(frames, key))
            elif self._budgets.has_budget(sender) and self._turns.wait(sender, frames):
                self._count("deferred")
            else:
                self._count("dropped")
                dropped += 1
        found = [one for one in heard if one is not None]
        if dropped and not found:
            time.sleep(REST_S)
        return found, emptied and not self._turns

    def _frames(self) -> list[zmq.Frame]:
        """Receive the frames of one message; empty if no message waits.

        `recv_multipart` is not used, because it queries the socket after each frame.
        """
        try:
            frame = self._router.recv(_NOW, copy=False)
        except zmq.Again:
            return []
        frames = [frame]
        while frame.more:
            frame = self._router.recv(_NOW, copy=False)
            frames.append(frame)
        return frames

    def _sender(self, key: bytes) -> bytes:
        """Return the key to whose budget a message is charged. All unauthorised keys share `NO_KEY`."""
        return key if key in self._peers else NO_KEY

    def _understand(self, frames: list[zmq.Frame], key: bytes) -> Heard | None:
        """Decode a message, and return it if its sender may send it.

        Otherwise, or if the message is a `Join`, answer the message and return None.
        """
        route = frames[0].bytes
        peer = self._peers.get(key)
        if peer is None or peer.role != "node":
            self._budgets.spend(self._sender(key))
            self._remember(route, self._sender(key))
        if peer is None:
            self._count("unauthorised")
            self._refuse(
                route, 0, "this key is not, or no longer, authorised by the broker; ask an admin for a key"
            )
            return None
        try:
            if len(frames) != 2:
                raise WireError(f"malformed message of {len(frames) - 1} frames: expected one frame")
            envelope = decode(frames[1].bytes)
        except WireError as error:
            self._count("malformed")
            self._remember(route, key)
            self._refuse(route, 0, str(error))
            return None
        message = envelope.message
        if not may_send(peer.role, message):
            self._count("unauthorised")
            kind = message.__struct_config__.tag
            more = ": this needs an admin's key" if peer.role == "user" and may_send("admin", message) else ""
            self._refuse(route, envelope.request, f"a key of role {peer.role!r} may not send {kind!r}{more}")
            return None
        if isinstance(message, SubmitMany) and len(message.jobs) > 1:
            self._budgets.spend(self._sender(key), len(message.jobs) - 1)
            self._turns.add(self._sender(key), len(message.jobs) - 1)
        if isinstance(message, Join):
            self._send(route, encode(self._admit(key, message), envelope.request))
            return None
        if peer.role == "node":
            return self._of_node(peer, _Route(route, key), envelope)
        if isinstance(message, OfNode):
            if not peer.speaks_for(message.node):
                refused = Refused(message=f"the key of engine {peer.name!r} may not report this node")
                self._send(route, encode(ForNode(node=message.node, message=refused), envelope.request))
                return None
            inner = Envelope(envelope.version, envelope.request, message.message)
            return self._of_node(Peer("node", message.node), _Route(route, key, is_engine=True), inner)
        return Heard(peer, route, envelope)

    def _remember(self, route: bytes, sender: bytes) -> None:
        """Store the key of a connection. Refusals of the connection's messages are charged to this key."""
        if len(self._key_of) >= MAX_ROUTES:
            self._key_of.clear()
        self._key_of[route] = sender

    def _of_node(self, peer: Peer, route: _Route, envelope: Envelope) -> Heard | None:
        """Return a message that a node, or its engine, has sent; None: the message is not accepted.

        A connection must begin with a `Hello`. If no `Hello` has arrived on it, the node is asked for one.
        """
        message = envelope.message
        if isinstance(message, Hello):
            if (taken := self._routes.get(peer.name)) is not None and taken.is_engine != route.is_engine:
                self._say(
                    route,
                    peer.name,
                    Refused(
                        message=f"node {peer.name!r} is already connected with another key; stop that node "
                        "or engine"
                    ),
                )
                return None
            self._routes[peer.name] = route
        elif isinstance(message, LaterBroker):
            pass  # from a node that has another broker
        elif self._routes.get(peer.name) != route:
            self._say(route, peer.name, self.says_hello)
            return None
        return Heard(peer, route.connection, envelope)

    def _admit(self, key: bytes, join: Join) -> Joined | Refused:
        try:
            return admit(self._home, key, join, time.time())
        except InputError as error:
            return Refused(message=str(error))

    def _answer_handshakes(self) -> None:
        """Answer ZAP requests (RFC 27): accept CURVE keys on the access list, refuse all others.

        At most `handshakes_a_turn` per call, so that a flood of handshakes does not delay messages.
        """
        for _ in range(self._senders.handshakes_a_turn):
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
        """Send an answer to a client. If the client has disconnected, drop and count the answer."""
        if isinstance(message, Refused) and route in self._key_of:
            self._budgets.charge_refusal(self._key_of[route])
        try:
            frame = encode(message, request)
        except WireError:
            self._count("too_long")
            frame = encode(Refused(message="the answer is too long to send; ask for one job"), request)
        self._send(route, frame)

    def send_node(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Send a message to a node.

        The message is dropped and counted if the node is disconnected or revoked, or if the message is too
        long.
        """
        route = self._routes.get(node)
        if route is None or route.key not in self._access.peers():
            self._count("undeliverable")
            return
        self._say(route, node, message, request)

    def _say(self, route: _Route, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Send a message on a node's connection. On an engine's connection, add the name of the node."""
        try:
            frame = encode(ForNode(node=node, message=message) if route.is_engine else message, request)
        except WireError:
            self._count("too_long")
            return
        self._send(route.connection, frame)

    def drop_node(self, node: str) -> None:
        """Remove a node's connection, so that the node must send its `Hello` again."""
        self._routes.pop(node, None)

    def drop_nodes(self) -> None:
        """Remove the connections of all nodes, so that every node must send its `Hello` again."""
        self._routes.clear()

    def _refuse(self, route: bytes, request: int, message: str) -> None:
        self.reply(route, request, Refused(message=message))

    def _send(self, route: bytes, frame: bytes) -> None:
        try:
            self._router.send(route, _BEGINS)
            self._router.send(frame, _NOW)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._count("undeliverable")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _user_id(frame: zmq.Frame) -> bytes:
    """Return the key (z85) with which the sender's connection was authenticated; b"" without a key."""
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
        raise InputError(
            "this libzmq cannot refuse unknown keys (ZAP_ENFORCE_DOMAIN); install pyzmq 26 or later"
        )
    return router
