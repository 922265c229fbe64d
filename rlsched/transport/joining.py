"""Join tokens: one-time keys with which other machines register their own keys.

`invite` puts the public half of a one-time key on the access list; the token contains the secret half.
`admit` answers a `Join`: it writes the machine's public key to disk before it removes the one-time key.
"""

from __future__ import annotations

import base64
import binascii
import re
import time

import msgspec

from rlsched.errors import InputError
from rlsched.terminal.visible import CONTROL
from rlsched.transport.access import AccessEntry
from rlsched.transport.dealer import broker_address
from rlsched.transport.keys import KeyHome, KeyPair, check_name
from rlsched.transport.names import MAX_PERSON_CHARACTERS, Z85_LENGTH
from rlsched.transport.roles import Peer, Role
from rlsched.wire.messages import Join, Joined, Refused

PREFIX = "rlsched-join-"
FORGET_S = 86400.0
"""Seconds from the expiry of a token until its removal from the access list."""
_ANOTHER = "make another with `rlsched keys new` where the broker runs"
_Z85 = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Content of a join token. Role and name are for display only; the broker uses its access list."""

    address: str
    broker_public: bytes
    secret: bytes
    role: Role
    name: str

    def text(self) -> str:
        """Return the token as one word for a command line."""
        return PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Token:
        """Parse a token.

        Raises:
            InputError: the text is not a token.
        """
        body = text.strip().removeprefix(PREFIX)
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            token = msgspec.msgpack.decode(data, type=cls)
        except (binascii.Error, ValueError, msgspec.DecodeError) as error:
            raise InputError(
                f"this is no join token: expected {PREFIX} and letters, as `rlsched keys new` prints it"
            ) from error
        if not (_Z85.fullmatch(token.broker_public) and _Z85.fullmatch(token.secret)):
            raise InputError("this join token is damaged; copy it again")
        check_name("key", token.name)
        broker_address(token.address)
        return token

    def pair(self) -> KeyPair:
        """Return the key pair of the one-time key."""
        import zmq

        return KeyPair(zmq.curve_public(self.secret), self.secret)


def invite(
    home: KeyHome,
    name: str,
    role: Role,
    address: str,
    *,
    valid_s: float,
    person: str = "",
    nodes: str = "",
) -> Token:
    """Put a one-time key on the access list of a broker's key directory. Return the join token.

    Args:
        home: Key directory of the broker.
        name: Name of the new key; for a node's key, the node's name.
        role: Role of the new key.
        address: Address at which the other machine reaches the broker.
        valid_s: Validity of the token, seconds.
        person: Owner of the new key; "": the person with the key's name.
        nodes: For an engine's key: name patterns of its nodes, as in `Peer.nodes`.

    Raises:
        InputError: the name or the person is invalid, the key exists, or this is not a broker's key
            directory.
    """
    import zmq

    check_name("key", name)
    person = "" if role in ("node", "engine") else person or name
    if len(person) > MAX_PERSON_CHARACTERS or CONTROL.search(person):
        raise InputError(
            f"--person {person!r}: expected at most {MAX_PERSON_CHARACTERS} characters, no control characters"
        )
    if not (home.directory / "broker.key").exists():
        raise InputError(f"{home.directory} is not a broker's key directory; run this where the broker runs")
    public, secret = zmq.curve_keypair()
    now_s = time.time()
    with home.locked():
        for member in home.access.members().values():
            if member.expires_s is not None and now_s - member.expires_s > FORGET_S:
                home.take(member)
            elif member.peer.name == name and member.peer.role != "joining":
                raise InputError(
                    f"there is already a key {name!r} with role {member.peer.role}; "
                    f"give another name, or run `rlsched keys revoke {name}` first"
                )
        home.put(
            AccessEntry.new(
                Peer("joining", name, person, nodes), public, joins_as=role, expires_s=now_s + valid_s
            )
        )
    return Token(address, home.broker_public(), secret, role, name)


def admit(home: KeyHome, one_time: bytes, join: Join, now_s: float) -> Joined | Refused:
    """Answer a `Join` that was sent with the key `one_time` (z85). `now_s`: present time, Unix seconds."""
    public = join.public.encode()
    with home.locked():
        members = home.access.members()
        token, taken = members.get(one_time), members.get(public)
        if token is None or token.joins_as is None or token.expires_s is None:
            return Refused(message=f"this join token was used or revoked; {_ANOTHER}")
        if now_s >= token.expires_s:
            return Refused(message=f"this join token for {token.peer.name!r} has expired; {_ANOTHER}")
        if not _Z85.fullmatch(public):
            return Refused(message=f"expected a z85 key of {Z85_LENGTH} characters, got {len(public)}")
        joined = Peer(token.joins_as, token.peer.name, token.peer.person, token.peer.nodes)
        if taken is not None and taken.peer != joined:
            return Refused(
                message="the broker already knows this machine's key, as "
                f"{taken.peer.role} {taken.peer.name!r}; use that key, or first run `rlsched keys revoke`"
            )
        home.put(AccessEntry.new(joined, public))
        home.take(token)
    return Joined(role=joined.role, name=joined.name, person=joined.person)


def revoke(home: KeyHome, name: str, role: Role | None = None) -> list[AccessEntry]:
    """Remove all keys with this name from the access list, including tokens, with immediate effect.

    Raises:
        InputError: there is no such key, or keys of several roles have this name and `role` is not given.
    """
    with home.locked():
        found = [
            member
            for member in home.access.members().values()
            if member.peer.name == name and role in (None, member.peer.role, member.joins_as)
        ]
        if not found:
            which = f"no {role}'s key" if role else "no key"
            raise InputError(f"there is {which} {name!r}; `rlsched keys list` shows all")
        roles = sorted({member.joins_as or member.peer.role for member in found})
        if len(roles) > 1:
            raise InputError(f"there are several keys {name!r}; give --role {' or '.join(roles)}")
        for member in found:
            home.take(member)
    return found
