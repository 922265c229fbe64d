"""Handles messages that arrive while a batch waits for disk space.

Heartbeats of nodes are answered, so that no lease expires. Clients' requests that change something are
refused with the reason. Other messages wait for the next batch; of equal messages, only one is stored. A
`Hello`, which the node repeats, and messages beyond `MAX_HELD` are dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rlsched.broker.events import Event
from rlsched.broker.machine.requests import CHANGES
from rlsched.transport.router import Heard, Transport
from rlsched.wire.messages import Heartbeat, HeartbeatAck, Hello, Message, Refused, Submit, SubmitMany

MAX_HELD = 20_000


class DeferredMessages:
    """Messages that wait for the next batch.

    Args:
        knows: Function that returns whether a submission with this token was accepted: earlier, or in the
            batch that waits for disk space.
        event_of: Function that converts a message to an event for the state machine.
    """

    def __init__(self, knows: Callable[[str], bool], event_of: Callable[[Heard], Event]) -> None:
        self._knows, self._event_of = knows, event_of
        self._events: dict[tuple[bytes, str, bytes], Event] = {}

    def take(self) -> list[Event]:
        """Return the deferred messages in order, and remove them."""
        events = list(self._events.values())
        self._events.clear()
        return events

    def hear(self, heard: Heard, transport: Transport, why: str) -> None:
        """Answer a heartbeat, drop a `Hello`, refuse a client's change, and defer any other message.

        A message that only repeats accepted submissions is deferred, because it changes nothing.
        """
        message, request = heard.envelope.message, heard.envelope.request
        if isinstance(message, Heartbeat):
            if request:
                transport.send_node(heard.peer.name, HeartbeatAck(), request)
        elif isinstance(message, Hello):
            pass  # dropped: a node repeats its `Hello` until a `Welcome` arrives
        elif heard.peer.role == "node" or not isinstance(message, CHANGES) or self._repeats(message):
            if len(self._events) < MAX_HELD:
                self._events[heard.route, heard.peer.name, msgspec.msgpack.encode(message)] = self._event_of(
                    heard
                )
        else:
            transport.reply(heard.route, request, Refused(message=f"nothing was done: {why}"))

    def _repeats(self, message: Message) -> bool:
        """Return whether a message only submits jobs that were accepted before."""
        if isinstance(message, SubmitMany):
            return bool(message.jobs) and all(self._knows(one.token) for one in message.jobs)
        return isinstance(message, Submit) and self._knows(message.token)
