"""Decodes the answer that a client expects, without building all messages."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rlsched.wire.messages.basic import Refused, Serving
from rlsched.wire.messages.frame import PROTOCOL_VERSION, UNREADABLE


def decode_answer(frame: bytes, kind: type[msgspec.Struct]) -> tuple[int, object]:
    """The request number and the message of a frame, as `decode` returns them.

    Args:
        frame: The bytes.
        kind: The expected message. This message, `Refused` and `Serving` are decoded fast; any other message
            loads the whole protocol.

    Raises:
        WireError: as for `decode`.
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
    """A decoder of frames with one of three messages."""
    return msgspec.msgpack.Decoder(tuple[int, int, kind | Refused | Serving])  # type: ignore[valid-type]
