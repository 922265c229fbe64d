"""Who may say what. A role belongs to a key, and is read with every message. A routing id proves nothing.

user     submits, asks, and rules over the jobs of the key's own person
admin    rules over all jobs, nodes and the policy, and may submit in another's name
node     speaks for the node of its name
joining  a one-time key, which may send one `Join`
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rlsched.errors import InputError
from rlsched.wire.messages import (
    ClientRequest,
    Join,
    LaterBroker,
    Message,
    NodeMessage,
    NodeOrder,
    ReadJournal,
    SetPolicy,
    Submit,
)

Role = Literal["user", "admin", "node", "joining"]
MAX_PERSON_CHARACTERS = 64
_ADMINS = (*NodeOrder.__args__, SetPolicy, ReadJournal, LaterBroker)
_MAY_SEND: dict[Role, tuple[type, ...]] = {
    "user": tuple(kind for kind in ClientRequest.__args__ if kind not in _ADMINS),
    "admin": ClientRequest.__args__,
    "node": NodeMessage.__args__,
    "joining": (Join,),
}


class Peer(msgspec.Struct, frozen=True):
    """Who a key belongs to."""

    role: Role
    name: str
    """Of the key; a node's is the node's own."""
    person: str = ""
    """Whose jobs it submits; one person may have several keys."""


NOBODY = Peer("user", "")


def may_send(role: Role, message: Message) -> bool:
    """Whether a key of this role may send such a message."""
    return isinstance(message, _MAY_SEND[role])


def signed(by: Peer, submit: Submit) -> Submit:
    """A submission in the name of its key's person, or in the name that an admin gives.

    Raises:
        InputError: somebody else's name.
    """
    if submit.user in ("", by.person):
        return msgspec.structs.replace(submit, user=by.person)
    if by.role == "admin":
        return submit
    raise InputError(f"this key belongs to {by.person}: only an admin may submit as {submit.user!r}")


def rules_over(by: Peer, user: str) -> bool:
    """Whether this key may see the output of this user's jobs, and change or cancel them."""
    return by.role == "admin" or (by.role == "user" and by.person == user)
