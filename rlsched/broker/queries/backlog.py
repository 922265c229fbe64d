"""Questions that wait for an answer: in order for each asker, in turn among askers."""

from __future__ import annotations

from collections import OrderedDict

from rlsched.broker.events import ClientAsked

MAX_WAITING = 64
"""Questions of one connection that may wait."""
TOO_MANY = (
    f"{MAX_WAITING} questions of this connection wait for an answer; read the answers before asking more"
)


class Backlog:
    """Questions that have not been answered yet. Nobody waits for more than one question of each other asker.

    Attributes:
        refused: Questions for which there was no place.
    """

    def __init__(self) -> None:
        self._askers: OrderedDict[bytes, OrderedDict[int, ClientAsked]] = OrderedDict()
        self._waiting = 0
        self.refused = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def askers(self) -> int:
        """Connections whose questions wait."""
        return len(self._askers)

    def add(self, asked: ClientAsked) -> bool:
        """Let a question wait; one that is repeated waits once. False: too many of this asker wait."""
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
        """The next question; its asker goes to the end of the line.

        Raises:
            KeyError: none waits.
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
