"""Clients' questions that wait for an answer. They are answered round-robin among clients."""

from __future__ import annotations

from collections import OrderedDict

from rlsched.broker.events import ClientAsked

MAX_WAITING = 64
"""Maximum number of waiting questions per connection."""
TOO_MANY = (
    f"{MAX_WAITING} questions of this connection wait for an answer; read the answers before asking more"
)


class Backlog:
    """Questions that wait for an answer. In each round, one question of each client connection is answered.

    Attributes:
        refused: Number of questions refused because too many questions of the same connection waited.
    """

    def __init__(self) -> None:
        self._askers: OrderedDict[bytes, OrderedDict[int, ClientAsked]] = OrderedDict()
        self._waiting = 0
        self.refused = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def askers(self) -> int:
        """Number of client connections with waiting questions."""
        return len(self._askers)

    def add(self, asked: ClientAsked) -> bool:
        """Add a question, unless the same question waits already.

        Return False if the question is refused, because the connection has `MAX_WAITING` waiting questions.
        """
        own = self._askers.setdefault(asked.peer, OrderedDict())
        if asked.request in own:
            return True
        if len(own) >= MAX_WAITING:
            self.refused += 1
            return False
        own[asked.request] = asked
        self._waiting += 1
        return True

    def pop(self) -> ClientAsked:
        """Remove and return the next question; its client moves to the end of the round.

        Raises:
            KeyError: no question waits.
        """
        peer, own = next(iter(self._askers.items()), (b"", None))
        if own is None:
            raise KeyError("no question waits")
        _, asked = own.popitem(last=False)
        self._waiting -= 1
        if own:
            self._askers.move_to_end(peer)
        else:
            del self._askers[peer]
        return asked
