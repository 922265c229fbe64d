"""Encoding of frames: protocol version, request ID and message, in msgpack.

The module `envelope` decodes any message, and must therefore create all message classes. The module `answer`
decodes only the answer that a client expects.
"""

from __future__ import annotations

import msgspec

from rlsched.errors import WireError

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""Errors that msgspec raises on malformed bytes, such as ValueError for text that is not UTF-8, and
RecursionError for deep nesting."""
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct, request: int = 0) -> bytes:
    """Encode a message as a frame. All outgoing frames are encoded here.

    Raises:
        WireError: the frame exceeds `MAX_MESSAGE_BYTES`; the receiver's libzmq would close the connection.
    """
    frame = _encoder.encode((PROTOCOL_VERSION, request, message))
    if len(frame) > MAX_MESSAGE_BYTES:
        kind = message.__struct_config__.tag
        raise WireError(
            f"message {kind!r} of {len(frame):,} bytes: expected at most {MAX_MESSAGE_BYTES:,}; "
            "it was not sent"
        )
    return frame
