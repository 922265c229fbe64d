"""The closed union of all messages, and its decoder."""

import msgspec

from rlsched.errors import WireError
from rlsched.wire.messages.client import ClientRequest
from rlsched.wire.messages.frame import PROTOCOL_VERSION, UNREADABLE
from rlsched.wire.messages.join import Join, Joined
from rlsched.wire.messages.node import NodeMessage, OfNode
from rlsched.wire.messages.orders import BrokerToNode, ForNode
from rlsched.wire.messages.replies import ClientReply

Message = ClientRequest | ClientReply | NodeMessage | OfNode | BrokerToNode | ForNode | Join | Joined


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A decoded frame: protocol version, request ID and message."""

    version: int
    request: int
    message: Message


_decoder = msgspec.msgpack.Decoder(Envelope)
_MAX_ERROR = 300


def decode(frame: bytes) -> Envelope:
    """Decode a frame.

    Raises:
        WireError: the frame is not msgpack, contains no known message, or has another protocol version.
    """
    try:
        envelope = _decoder.decode(frame)
    except UNREADABLE as error:
        _check_version(frame)
        raise WireError(f"malformed message: {' '.join(str(error).split())[:_MAX_ERROR]}") from error
    if envelope.version != PROTOCOL_VERSION:
        _check_version(frame)
    return envelope


def _check_version(frame: bytes) -> None:
    """Check that a frame is an envelope of this protocol version.

    Raises:
        WireError: the frame is not an envelope, or has another protocol version.
    """
    try:
        version = msgspec.msgpack.decode(frame)[0]
    except (*UNREADABLE, TypeError, LookupError) as error:
        raise WireError(
            f"malformed message of {len(frame)} bytes: expected [version, request, message]"
        ) from error
    if not isinstance(version, int):
        raise WireError(f"malformed message of {len(frame)} bytes: expected a protocol version as first item")
    if version != PROTOCOL_VERSION:
        raise WireError(
            f"protocol version {version}, expected {PROTOCOL_VERSION}: install the same rlsched on both sides"
        )
