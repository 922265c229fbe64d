"""One frame on the wire: protocol version, request number and message, in msgpack.

`envelope` reads any message, and builds all of them for that; `answer` reads one kind of them.
"""

from __future__ import annotations

import msgspec

from rlsched.errors import WireError

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises on hostile bytes: ValueError where text is not UTF-8, RecursionError if too deep."""
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct, request: int = 0) -> bytes:
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
