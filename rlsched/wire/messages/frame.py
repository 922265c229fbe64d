"""One frame on the wire: protocol version, request number and message, in msgpack.

`envelope` decodes any message, and builds all of them for that; `answer` decodes one kind.
"""

from __future__ import annotations

import msgspec

from rlsched.errors import WireError

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""Errors of msgspec on hostile bytes: ValueError if text is not UTF-8, RecursionError if too deep."""
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct, request: int = 0) -> bytes:
    """Encode one frame. Every outgoing frame is made here.

    Raises:
        WireError: it would exceed the limit of the other side: libzmq closes the connection for that, and the
            connecting side would not reconnect.
    """
    frame = _encoder.encode((PROTOCOL_VERSION, request, message))
    if len(frame) > MAX_MESSAGE_BYTES:
        kind = message.__struct_config__.tag
        raise WireError(
            f"message {kind!r} of {len(frame):,} bytes: expected at most {MAX_MESSAGE_BYTES:,}; "
            "it was not sent"
        )
    return frame
