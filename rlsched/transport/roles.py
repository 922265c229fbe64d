"""Who may say what. A role belongs to a key, and is read with every message. A routing id proves nothing.

user     submits, asks, and rules over the jobs of the key's own person
admin    rules over all jobs, nodes, quotas and the policy, and may submit in another's name
node     speaks for the node of its name
engine   speaks for many nodes, submits in anybody's name, and rules over the jobs that it submitted
joining  a one-time key, which may send one `Join`
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Literal

import msgspec

from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.wire.messages import Message, Submit

Role = Literal["user", "admin", "node", "engine", "joining"]


class Peer(msgspec.Struct, frozen=True):
    """Who a key belongs to."""

    role: Role
    name: str
    """Of the key; a node's is the node's own."""
    person: str = ""
    """Whose jobs it submits; one person may have several keys."""
    nodes: str = ""
    """Of an engine's key: names of its nodes, with commas between and `*` as in a shell."""

    def speaks_for(self, node: str) -> bool:
        """Whether this key, an engine's, speaks for a node of this name."""
        return any(fnmatchcase(node, pattern.strip()) for pattern in self.nodes.split(","))


NOBODY = Peer("user", "")


def may_send(role: Role, message: Message) -> bool:
    """Whether a key of this role may send such a message."""
    return isinstance(message, _sendable()[role])


@cache
def _sendable() -> dict[Role, tuple[type, ...]]:
    """The messages of each role. Clients read keys too, and import none of them for that."""
    from rlsched.wire.messages import (
        AdminOrder,
        Begin,
        Cancel,
        ClientRequest,
        Join,
        ListJobs,
        NodeMessage,
        OfNode,
        Submit,
    )

    return {
        "user": tuple(kind for kind in ClientRequest.__args__ if kind not in (*AdminOrder.__args__, Begin)),
        "admin": tuple(kind for kind in ClientRequest.__args__ if kind is not Begin),
        "node": NodeMessage.__args__,
        "engine": (OfNode, Submit, Cancel, Begin, ListJobs),
        "joining": (Join,),
    }


def signed(by: Peer, submit: Submit) -> Submit:
    """A submission in the name of its key's person, or in the name that an admin gives.

    Raises:
        InputError: somebody else's name.
    """
    if submit.user in ("", by.person):
        return msgspec.structs.replace(submit, user=by.person)
    if by.role in ("admin", "engine"):
        return submit
    raise InputError(f"this key belongs to {by.person}: only an admin may submit as {submit.user!r}")


def rules_over(by: Peer, user: str, token: str) -> bool:
    """Whether this key may see the output of such a job, and change or cancel it.

    Args:
        by: Whose key it is.
        user: The job's.
        token: The job's; an engine's begin with its name.
    """
    if by.role == "engine":
        return token.startswith(f"{by.name}-")
    return by.role == "admin" or (by.role == "user" and by.person == user)
