"""Permissions of roles. A role belongs to a key, not to a connection, and is looked up for every message.

user     submits, queries, and controls the jobs of the key's own person
admin    controls all jobs, nodes, quotas and the policy, and may submit in another user's name
node     represents the node with the key's name
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
    """Name of the key; for a node's key, the name of the node."""
    person: str = ""
    """Person in whose name the key submits jobs; a person may have several keys."""
    nodes: str = ""
    """For an engine's key: patterns of its nodes' names, separated by commas, with `*` as in a shell."""

    def speaks_for(self, node: str) -> bool:
        """Return whether this engine's key represents the node with this name."""
        return any(fnmatchcase(node, pattern.strip()) for pattern in self.nodes.split(","))


ANONYMOUS = Peer("user", "")


def may_send(role: Role, message: Message) -> bool:
    """Return whether a key of this role may send this message."""
    return isinstance(message, _sendable()[role])


@cache
def _sendable() -> dict[Role, tuple[type, ...]]:
    """Return the classes of messages that each role may send.

    The classes are imported here, because clients do not need all of them.
    """
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
    """Return a submission with its user: the key's person, or the user that an admin or engine names.

    Raises:
        InputError: the submission names another user, and the key has no permission for that.
    """
    if submit.user in ("", by.person):
        return msgspec.structs.replace(submit, user=by.person)
    if by.role in ("admin", "engine"):
        return submit
    raise InputError(f"this key belongs to {by.person}: only an admin may submit as {submit.user!r}")


def rules_over(by: Peer, user: str, token: str) -> bool:
    """Return whether a key may control a job: read its output, change it, and cancel it.

    Args:
        by: Owner of the key.
        user: User of the job.
        token: Submission token of the job; an engine's tokens begin with the engine's name.
    """
    if by.role == "engine":
        return token.startswith(f"{by.name}-")
    return by.role == "admin" or (by.role == "user" and by.person == user)
