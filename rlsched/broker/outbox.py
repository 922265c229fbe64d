"""Output of a batch: the facts (journal entries) to commit, and the messages to send after the commit."""

from __future__ import annotations

from collections.abc import Callable

from rlsched.broker.base.entries import Entry
from rlsched.broker.events import Commit, DropNode, Effect, PowerNode, Reply, SendNode
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import EndedJob, ended_job
from rlsched.wire.messages import BrokerToNode, ClientReply


class Outbox:
    """Collects the journal entries (facts) and messages of a batch. All parts of the state machine share it.

    Args:
        state: The state to which facts are applied.
        recorded: Function that is called with each fact after the fact has been applied.

    Attributes:
        now_s: Time of the batch, Unix seconds.
    """

    def __init__(self, state: BrokerState, recorded: Callable[[Entry], None]) -> None:
        self._state, self._recorded, self.now_s = state, recorded, state.now_s
        self._facts: list[Entry] = []
        self._effects: list[Effect] = []
        self._ended: list[EndedJob] = []
        state.on_finished = lambda job: self._ended.append(ended_job(job, state.nodes))

    def begin(self, now_s: float) -> None:
        """Start a batch."""
        self.now_s = now_s
        self._facts, self._effects, self._ended = [], [], []

    def record(self, fact: Entry, *, already_decided: bool = False) -> None:
        """Apply a fact to the state, and add it to the facts that will be journalled.

        Args:
            fact: The fact. If the state raises an error, the fact is not journalled.
            already_decided: Whether `fact` is a `Decided` whose action was already applied to the cluster.
        """
        self._state.apply(fact, self.now_s, already_decided=already_decided)
        self._facts.append(fact)
        self._recorded(fact)

    def send(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Send a message to a node. `request`: ID of the request that the message answers; 0 for none."""
        self._effects.append(SendNode(node, message, request))

    def reply(self, peer: bytes, request: int, message: ClientReply) -> None:
        """Reply to a client's request."""
        self._effects.append(Reply(peer, request, message))

    def drop(self, node: str) -> None:
        """Forget the connection of a node, so that the node must register again."""
        self._effects.append(DropNode(node))

    def power(self, order: PowerNode) -> None:
        """Add an effect that runs the suspend or resume command of a node."""
        self._effects.append(order)

    def take(self) -> list[Effect]:
        """Return the output of the batch, in order. If there are facts, their `Commit` is first."""
        journal: list[Effect] = [Commit(self._facts, self._ended)] if self._facts else []
        return journal + self._effects
