"""After a restart of the broker: nodes come back one by one, and new work waits for all of them.

Nodes that were unreachable when the broker started register within seconds of each other. A broker that
decided with the first of them would start a small job where a gang that is ahead needs all of them. So a node
that comes back gets no new jobs before the others are back too, or the time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlsched.broker.base.entries import Entry, NodeDrained, NodeResumed
from rlsched.broker.state.book import Book

REASON: Final = "no new jobs before the other nodes are back after the restart of the broker"


class Settling:
    """Which nodes are awaited; none where none was unreachable.

    Args:
        book: What is known, as the journal made it.
        note: Makes a fact true and journals it.
        until_s: How long they are awaited, Unix seconds.
    """

    def __init__(self, book: Book, note: Callable[[Entry], None], until_s: float) -> None:
        self._book, self._note, self._until_s = book, note, until_s
        self._awaited = {name for name, node in book.nodes.items() if node.state == "unreachable"}
        self._back: list[str] = []

    def registered(self, name: str, now_s: float) -> None:
        """A node has registered: it waits for the others, or was the last one."""
        if name not in self._awaited:
            return
        self._awaited.discard(name)
        if self._awaited and now_s < self._until_s:
            if self._book.nodes[name].state == "up":
                self._back.append(name)
                self._note(NodeDrained(name=name, until_s=self._until_s, reason=REASON))
            return
        for other in self._back:
            if self._book.nodes[other].drained_reason == REASON:
                self._note(NodeResumed(name=other))
        self._back.clear()
