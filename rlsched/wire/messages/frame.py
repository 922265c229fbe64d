"""One frame on the wire: protocol version, request number and message, in msgpack.

`envelope` reads any message, and builds all of them for that. A client that waits for one kind of answer
reads it here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from rlsched.errors import WireError
from rlsched.wire.messages.basic import Refused, Serving

if TYPE_CHECKING:
    from rlsched.wire.messages.envelope import Message

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises on hostile bytes: ValueError where text is not UTF-8, RecursionError if too deep."""
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message, request: int = 0) -> bytes:
    """One frame. Every frame that leaves is made here.

    Raises:
        WireError: it would be longer than the other side takes: libzmq ends a connection for that, and the
            side that connects would not come back.
    """
    frame = _encoder.encode((PROTOCOL_VERSION, request, message))
    if len(frame) > MAX_MESSAGE_BYTES:
        kind = message.__struct_config__.tag
        raise WireError(
            f"message {kind!r} of {len(frame):,} bytes: expected at most {MAX_MESSAGE_BYTES:,}; "
            "it was not sent"
        )
    return frame


def decode_answer(frame: bytes, kind: type[msgspec.Struct]) -> tuple[int, object]:
    """The request number and the message of a frame, as `decode` reads them.

    Args:
        frame: The bytes.
        kind: The message that is expected. With it, `Refused` and `Serving` are read quickly; for any other
            message the whole protocol is loaded.

    Raises:
        WireError: as of `decode`.
    """
    try:
        version, request, message = _answers(kind).decode(frame)
    except UNREADABLE:
        version = None
    if version == PROTOCOL_VERSION:
        return request, message
    from rlsched.wire.messages.envelope import decode

    envelope = decode(frame)
    return envelope.request, envelope.message


@cache
def _answers(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[tuple[int, int, Any]]:
    """Reads frames with one of three messages."""
    return msgspec.msgpack.Decoder(tuple[int, int, kind | Refused | Serving])  # type: ignore[valid-type]
