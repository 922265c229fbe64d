"""Output of a batch: the facts to commit, and the messages and orders to send once they are committed."""

from __future__ import annotations

from collections.abc import Callable

from rlsched.broker.base.entries import Entry
from rlsched.broker.events import DropNode, Effect, Journal, PowerNode, Reply, SendNode
from rlsched.broker.state.book import Book
from rlsched.broker.state.ended import EndedJob, ended_job
from rlsched.wire.messages import BrokerToNode, ClientReply


class Outbox:
    """Collects the output of a batch. All parts of the machine share one.

    Args:
        book: The state that facts are applied to.
        recorded: Called with each fact after it has been applied.

    Attributes:
        now_s: Time of the batch, Unix seconds.
    """

    def __init__(self, book: Book, recorded: Callable[[Entry], None]) -> None:
        self._book, self._recorded, self.now_s = book, recorded, book.now_s
        self._facts: list[Entry] = []
        self._effects: list[Effect] = []
        self._ended: list[EndedJob] = []
        book.over = lambda job: self._ended.append(ended_job(job, book.nodes))

    def begin(self, now_s: float) -> None:
        """Start a batch."""
        self.now_s = now_s
        self._facts, self._effects, self._ended = [], [], []

    def record(self, fact: Entry, *, already_decided: bool = False) -> None:
        """Apply a fact and put it into the journal.

        Args:
            fact: The fact. If applying it raises, it is not journalled.
            already_decided: `fact` is a `Decided` that the decision loop has applied to the cluster.
        """
        self._book.apply(fact, self.now_s, already_decided=already_decided)
        self._facts.append(fact)
        self._recorded(fact)

    def send(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Send a message to a node. `request`: number of the request that it answers, 0 for none."""
        self._effects.append(SendNode(node, message, request))

    def reply(self, peer: bytes, request: int, message: ClientReply) -> None:
        """Answer a client's request."""
        self._effects.append(Reply(peer, request, message))

    def drop(self, node: str) -> None:
        """Close the connection of a node, which then has to register again."""
        self._effects.append(DropNode(node))

    def power(self, order: PowerNode) -> None:
        """Run the operator's command that powers a node up or down."""
        self._effects.append(order)

    def take(self) -> list[Effect]:
        """Return the output of the batch, in order: the `Journal` first, if there are facts."""
        journal: list[Effect] = [Journal(self._facts, self._ended)] if self._facts else []
        return journal + self._effects
