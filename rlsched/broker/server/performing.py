"""Carries out the effects of the state machine: the commit first, then the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rlsched.broker.events import Commit, DropNode, Effect, PowerNode, Records, Reply, SendNode
from rlsched.broker.queries.loop_metrics import CommitsEntries
from rlsched.wire.messages import BrokerToNode, ClientReply


class SendsMessages(Protocol):
    """The methods of a transport that `perform` uses."""

    def reply(self, route: bytes, request: int, message: ClientReply) -> None:
        """Answer a client."""

    def send_node(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Send a message to a node."""

    def drop_node(self, node: str) -> None:
        """Close a node's connection."""


def _nobody(order: PowerNode) -> None:
    """Do nothing. Default of the argument `power` of `perform`, for a broker whose nodes never sleep."""


def perform(
    effects: Sequence[Effect],
    now_s: float,
    journal: CommitsEntries,
    transport: SendsMessages,
    power: Callable[[PowerNode], object] = _nobody,
) -> list[Records]:
    """Carry out effects in order; a commit is always first. Return the `Records`, for the caller to store.

    `power`: function that starts the command of a `PowerNode`, without waiting for it.

    Raises:
        JournalError: the commit failed. Nothing was sent.
    """
    later: list[Records] = []
    for effect in effects:
        match effect:
            case Commit(entries=entries, over=over):
                journal.commit(entries, now_s, over)
            case Reply(peer=peer, request=request, message=answer):
                transport.reply(peer, request, answer)
            case SendNode(node=node, message=order, request=request):
                transport.send_node(node, order, request)
            case DropNode(node=node):
                transport.drop_node(node)
            case PowerNode():
                power(effect)
            case Records():
                later.append(effect)
    return later
