"""The broker's address, the sockets that connect to it, and the socket limits of both sides."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from rlsched.errors import InputError
from rlsched.wire.messages import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import zmq

    from rlsched.transport.keys import KeyPair

DEFAULT_ADDRESS = "tcp://127.0.0.1:7461"
HEARTBEAT_IVL_MS = 2000
HEARTBEAT_TIMEOUT_MS = 6000
HANDSHAKE_IVL_MS = 3000
HIGH_WATER_MARK = 5000
_ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/]+):(?P<port>\d{1,5})")
_EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "[::]": "[::1]"}
_LOOPBACK = r"127\.\d{1,3}\.\d{1,3}\.\d{1,3}|localhost|\[::1\]"


def broker_address(option: str | None = None) -> str:
    """Return the broker's address: `option` if it is given, else `RLSCHED_BROKER`, else `DEFAULT_ADDRESS`.

    Raises:
        InputError: the address is not `tcp://HOST:PORT`.
    """
    address = option or os.environ.get("RLSCHED_BROKER") or DEFAULT_ADDRESS
    match = _ADDRESS.fullmatch(address)
    if match is None and "," in address:
        raise InputError(f"broker addresses {address!r}: expected one address, such as {DEFAULT_ADDRESS}")
    if match is None or int(match["port"]) > 65535:
        raise InputError(f"broker address {address!r}: expected tcp://HOST:PORT, such as {DEFAULT_ADDRESS}")
    return address


def broker_addresses(option: str | None = None) -> tuple[str, ...]:
    """Return the addresses of a broker and its standbys, in the order in which clients try them.

    `option` and `RLSCHED_BROKER` contain addresses separated by commas; see `broker_address`.

    Raises:
        InputError: one of the addresses is not `tcp://HOST:PORT`.
    """
    addresses = option or os.environ.get("RLSCHED_BROKER") or DEFAULT_ADDRESS
    return tuple(
        dict.fromkeys(broker_address(one.strip()) for one in addresses.split(",") if one.strip())
    ) or (broker_address(addresses),)


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    match = _ADDRESS.fullmatch(address)
    return match is not None and re.fullmatch(_LOOPBACK, match["host"]) is not None


def own_host(address: str) -> str:
    """Return this machine's IP address on the route to another address; "" if there is no route."""
    match = _ADDRESS.fullmatch(address)
    if match is None or is_loopback(address):
        return "127.0.0.1"
    import socket as sockets  # nodes need it, clients do not

    try:
        host, port = match["host"].strip("[]"), int(match["port"])
        kind, _, _, _, there = sockets.getaddrinfo(host, port, type=sockets.SOCK_DGRAM)[0]
        with sockets.socket(kind, sockets.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect(there)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def dial_address(address: str) -> str:
    """Return the address at which this machine reaches a broker that listens at `address`.

    If the broker listens on all interfaces, this is the loopback address; else it is `address`.
    """
    match = _ADDRESS.fullmatch(address)
    loopback = _EVERY_INTERFACE.get(match["host"]) if match is not None else None
    return f"tcp://{loopback}:{match['port']}" if match is not None and loopback else address


def set_limits(socket: zmq.Socket[bytes]) -> None:
    """Set the limits of a socket: bounded queues and messages, and detection of a dead peer within seconds.

    Both sides of a connection set these limits. `HEARTBEAT_TTL` is not set: the other side would cancel a
    timer at each heartbeat, for which libzmq searches the timers of all connections.
    """
    import zmq

    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_IVL_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_IVL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)


def connect_dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, pair: KeyPair, broker_public: bytes
) -> zmq.Socket[bytes]:
    """Return a DEALER socket that is connected under CURVE. Send with NOBLOCK, and handle `zmq.Again`.

    Args:
        context: The caller's context; it outlives the socket.
        address: Address of the broker, `tcp://HOST:PORT`.
        pair: Key pair of this side.
        broker_public: Public key of the broker, z85.
    """
    socket = _dealer(context, address, pair, broker_public)
    socket.connect(address)
    return socket


def connect_watched_dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, pair: KeyPair, broker_public: bytes, events: int
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Return a connected DEALER, and a monitor socket that reports the DEALER's `events`.

    The monitor starts before the socket connects, so that no event is lost.
    """
    socket = _dealer(context, address, pair, broker_public)
    monitor = socket.get_monitor_socket(events)
    socket.connect(address)
    return socket, monitor


def _dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, pair: KeyPair, broker_public: bytes
) -> zmq.Socket[bytes]:
    import zmq

    socket = context.socket(zmq.DEALER)
    socket.curve_publickey, socket.curve_secretkey = pair
    socket.curve_serverkey = broker_public
    set_limits(socket)
    socket.setsockopt(zmq.IPV6, 1 if "[" in address else 0)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    return socket
