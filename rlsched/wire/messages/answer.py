"""Decoder of the answer that a client expects. The decoder avoids the creation of all message classes."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rlsched.wire.messages.basic import Refused, Serving
from rlsched.wire.messages.frame import PROTOCOL_VERSION, UNREADABLE


def decode_answer(frame: bytes, kind: type[msgspec.Struct]) -> tuple[int, object]:
    """Return the request ID and the message of a frame.

    Args:
        frame: The bytes of the frame.
        kind: Class of the expected message. A message of another class, except `Refused` and `Serving`, is
            slow to decode, because all message classes must be created.

    Raises:
        WireError: see `envelope.decode`.
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
    """Return a decoder for frames that contain a message of class `kind`, a `Refused` or a `Serving`."""
    return msgspec.msgpack.Decoder(tuple[int, int, kind | Refused | Serving])  # type: ignore[valid-type]
