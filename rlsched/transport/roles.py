"""Permissions of roles. A role belongs to a key, and is read for every message. A routing id proves nothing.

user     submits, queries, and controls the jobs of the key's own person
admin    controls all jobs, nodes, quotas and the policy, and may submit in another user's name
node     represents the node of its name
engine   represents many nodes, submits in any user's name, and controls the jobs that it submitted
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
    """Owner of a key."""

    role: Role
    name: str
    """Name of the key; for a node's key the node's own."""
    person: str = ""
    """Person whose jobs it submits; a person may have several keys."""
    nodes: str = ""
    """For an engine's key: patterns of its nodes' names, comma-separated, with `*` as in a shell."""

    def speaks_for(self, node: str) -> bool:
        """Whether this key, an engine's, represents a node of this name."""
        return any(fnmatchcase(node, pattern.strip()) for pattern in self.nodes.split(","))


ANONYMOUS = Peer("user", "")


def may_send(role: Role, message: Message) -> bool:
    """Whether a key of this role may send such a message."""
    return isinstance(message, _sendable()[role])


@cache
def _sendable() -> dict[Role, tuple[type, ...]]:
    """Messages of each role. Clients read keys too, and do not import these messages for that."""
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
    """Return a submission in the name of its key's person, or in the name that an admin gives.

    Raises:
        InputError: the name is another user's.
    """
    if submit.user in ("", by.person):
        return msgspec.structs.replace(submit, user=by.person)
    if by.role in ("admin", "engine"):
        return submit
    raise InputError(f"this key belongs to {by.person}: only an admin may submit as {submit.user!r}")


def rules_over(by: Peer, user: str, token: str) -> bool:
    """Whether this key may read the output of such a job, and change or cancel it.

    Args:
        by: Owner of the key.
        user: User of the job.
        token: Submission token of the job; an engine's tokens begin with its name.
    """
    if by.role == "engine":
        return token.startswith(f"{by.name}-")
    return by.role == "admin" or (by.role == "user" and by.person == user)
