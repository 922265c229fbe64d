"""From a frame to the answer that a client waits for, without building all messages."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rlsched.wire.messages.basic import Refused, Serving
from rlsched.wire.messages.frame import PROTOCOL_VERSION, UNREADABLE


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
