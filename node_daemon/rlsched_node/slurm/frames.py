"""Messages between the processes of a job: frames over TCP, authenticated by a key of the job.

Each side sends a random number of 16 bytes (nonce), then frames:

    4 bytes     length of the body
    16 bytes    authentication code: keyed BLAKE2b of the frame's sequence number and its body
    body        a JSON object, a newline, and bytes

The key of the authentication codes is derived from the job's key and both nonces, for each direction
separately. A wrong code closes the connection. The frames are not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from rlsched_node.slurm.loop import READ, WRITE, Loop

NONCE_BYTES: Final = 16
CODE_BYTES: Final = 16
HEADER_BYTES: Final = 4 + CODE_BYTES
MAX_BODY_BYTES: Final = 16 << 20
MAX_FIRST_BODY_BYTES: Final = 4096
"""Maximum length of the body of a client's first frame, which proves that the client has the key."""
READ_BYTES: Final = 1 << 18
BACKLOG_BYTES: Final = 1 << 22
"""Number of unsent bytes at which a sender must wait."""

Head = dict[str, Any]


class LinkError(Exception):
    """The connection has ended, or the peer has sent a wrong frame."""


class Link:
    """One end of a connection.

    Args:
        loop: Calls this link when the socket is ready.
        sock: A connected socket.
        key: The job's key.
        is_server: This end has accepted the connection.
        receive: Function that is called with the JSON object and the bytes of each received message. The
            owner of the link can replace this attribute later.
        closed: Function that is called once when the connection ends, with the reason; "": the peer has
            closed it. The owner of the link can replace this attribute later.

    Attributes:
        is_proven: The peer has sent a valid frame, so it has the job's key.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        key: bytes,
        *,
        is_server: bool,
        receive: Callable[[Head, bytes], object] = lambda *_: None,
        closed: Callable[[str], object] = lambda _: None,
    ) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receive, self.closed = receive, closed
        self.is_proven = False
        self._loop, self._sock, self._key, self._is_server = loop, sock, key, is_server
        self._nonce = os.urandom(NONCE_BYTES)
        self._in, self._out, self._early = bytearray(), bytearray(self._nonce), list[bytes]()
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = self._received = 0
        self._is_paused = self._is_closed = False
        self._flush()

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._out)

    def pause(self, is_paused: bool) -> None:
        """Stop or continue reading."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._watch()

    def send(self, head: Head, data: bytes = b"") -> None:
        """Send a message. It is dropped if the connection has ended."""
        body = json.dumps(head, separators=(",", ":")).encode() + b"\n" + data
        if self._is_closed:
            return
        if self._keys is None:
            self._early.append(body)
            return
        self._out += self._sealed(body)
        self._flush()

    def close(self, reason: str = "") -> None:
        """Close the connection, and call `closed`."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.watch(self._sock, 0, self._ready)
            self._sock.close()
            self.closed(reason)

    def _sealed(self, body: bytes) -> bytes:
        assert self._keys is not None
        self._sent += 1
        length = len(body).to_bytes(4, "big")
        return length + _code(self._keys[0], self._sent, body) + body

    def _watch(self) -> None:
        if not self._is_closed:
            events = (0 if self._is_paused else READ) | (WRITE if self._out else 0)
            self._loop.watch(self._sock, events, self._ready)

    def _ready(self) -> None:
        if self._out:
            self._flush()
        if not self._is_paused and not self._is_closed:
            self._read()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out[:READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error.strerror))
        self._watch()

    def _read(self) -> None:
        try:
            piece = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error.strerror))
            return
        if not piece:
            self.close()
            return
        self._in += piece
        try:
            self._parse()
        except LinkError as error:
            self.close(str(error))

    def _parse(self) -> None:
        if self._keys is None:
            if len(self._in) < NONCE_BYTES:
                return
            self._agree(bytes(self._in[:NONCE_BYTES]))
            del self._in[:NONCE_BYTES]
        while not self._is_closed and len(self._in) >= HEADER_BYTES:
            length = int.from_bytes(self._in[:4], "big")
            is_stranger = self._is_server and not self.is_proven
            if length > (MAX_FIRST_BODY_BYTES if is_stranger else MAX_BODY_BYTES):
                raise LinkError(f"a frame of {length} bytes")
            if len(self._in) < HEADER_BYTES + length:
                return
            code, body = (
                bytes(self._in[4:HEADER_BYTES]),
                bytes(self._in[HEADER_BYTES : HEADER_BYTES + length]),
            )
            del self._in[: HEADER_BYTES + length]
            self._received += 1
            assert self._keys is not None
            if not hmac.compare_digest(code, _code(self._keys[1], self._received, body)):
                raise LinkError("a frame whose authentication code was not made with the key of this job")
            self.is_proven = True
            head, _, data = body.partition(b"\n")
            self.receive(json.loads(head), data)

    def _agree(self, nonce: bytes) -> None:
        """Derive the keys of both directions from the job's key and both nonces."""
        both = (self._nonce, nonce) if self._is_server else (nonce, self._nonce)
        of_server, of_client = (
            hashlib.blake2b(b"".join(both), key=self._key, person=who, digest_size=32).digest()
            for who in (b"server", b"client")
        )
        self._keys = (of_server, of_client) if self._is_server else (of_client, of_server)
        for body in self._early:
            self._out += self._sealed(body)
        self._early.clear()
        self._flush()


def _code(key: bytes, number: int, body: bytes) -> bytes:
    """Return the authentication code of a frame; `number` counts the frames of one direction from 1."""
    return hashlib.blake2b(number.to_bytes(8, "big") + body, key=key, digest_size=CODE_BYTES).digest()
