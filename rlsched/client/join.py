"""Registers a machine at a broker: creates a key pair, and sends the public key with a join token."""

from __future__ import annotations

from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.transport.connection import Connection
from rlsched.transport.joining import Token
from rlsched.transport.keys import KeyHome, KeyPair
from rlsched.wire.messages import Join, Joined, Refused

_LET_IN_S = 3.0


def join(token: Token, home: KeyHome, timeout_s: float = 10.0) -> Joined | None:
    """Create a key for this machine in `home`, and register it at the broker with a token.

    The call can be repeated on this machine if the answer was lost. It also succeeds if the token has been
    used, provided that this machine's key is registered.

    Args:
        token: Parsed token from `rlsched keys new`.
        home: Key directory of this machine. It must not contain the key of another broker.
        timeout_s: Time-out, seconds.

    Returns:
        Role and name of the key. None: an earlier call has already registered the key.

    Raises:
        InputError: the token has expired, was revoked, or was used for another key; or `home` has another
            broker's key.
        BrokerUnavailableError: no broker answers.
    """
    home.refuse_another(token.broker_public)
    own = {"node": home.node, "engine": home.engine}.get(token.role)
    pair = home.client() if own is None else own(token.name)
    answer: object = None
    try:
        answer = _ask(token, pair, timeout_s)
    except InputError:
        if not _is_let_in(token, pair):
            raise
    if isinstance(answer, Refused):
        raise InputError(answer.message)
    home.trust(token.broker_public)
    assert answer is None or isinstance(answer, Joined)
    return answer


def _ask(token: Token, pair: KeyPair, timeout_s: float) -> object:
    connection = Connection(token.address, token.pair(), token.broker_public, "the token")
    try:
        if connection.is_let_in(timeout_s):
            return connection.ask(Join(public=pair.public.decode()), Joined, timeout_s)
        if not connection.is_refused:
            raise BrokerUnavailableError(
                f"no broker answers at {token.address}, the address in the join token"
            )
        raise InputError(
            f"the broker at {token.address} does not know this join token: it was used, or revoked; "
            "make another with `rlsched keys new` where the broker runs"
        )
    finally:
        connection.close()


def _is_let_in(token: Token, pair: KeyPair) -> bool:
    connection = Connection(token.address, pair, token.broker_public, "this machine")
    try:
        return connection.is_let_in(_LET_IN_S)
    finally:
        connection.close()
