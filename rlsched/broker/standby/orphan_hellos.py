"""The standby's listener, which counts the nodes that have lost the primary.

A node sends a `Hello` to a standby only if the primary does not answer the node. A standby takes over only if
most nodes have done so, and therefore not if only the standby has lost the primary.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rlsched.broker.state.broker_state import BrokerState
from rlsched.transport.keys import KeyHome
from rlsched.transport.router import Heard, Transport
from rlsched.wire.messages import Hello, ReadJournal, Refused, Serving, WhoServes

RECENT_S = 15.0
"""Time after a node's last `Hello` to the standby for which the node counts as having lost the primary,
seconds. A node needs less time to try the addresses of all brokers.
"""
MAX_HEARD = 1_000


class Knocks:
    """The standby's sockets, which receive the `Hello` of each node that has lost the primary.

    Args:
        address: Address at which to listen. After a take-over, the broker listens there.
        home: Key directory.
        of: Address of the primary.
        elapsed: A monotonic clock, seconds.

    Raises:
        InputError: the address cannot be used.
    """

    def __init__(
        self, address: str, home: KeyHome, of: str, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport, self._of, self._elapsed = Transport(address, home), of, elapsed
        self._at_s: dict[str, float] = {}

    def listen(self, cluster: str) -> None:
        """Process all received messages. Refuse clients' requests that only the primary can answer."""
        heard, emptied = self._transport.receive(0, MAX_HEARD)
        while heard or not emptied:
            for one in heard:
                self._hear(one, cluster)
            heard, emptied = self._transport.receive(0, MAX_HEARD)

    def _hear(self, heard: Heard, cluster: str) -> None:
        message = heard.envelope.message
        if isinstance(message, Hello):
            if message.cluster == cluster:
                self._at_s[heard.peer.name] = self._elapsed()
        elif heard.peer.role != "node":
            answer: Serving | Refused = Serving(cluster=cluster, epoch=0)
            if not isinstance(message, WhoServes | ReadJournal):
                answer = Refused(
                    message=f"this broker is a standby of the broker at {self._of}; use that broker's address"
                )
            self._transport.reply(heard.route, heard.envelope.request, answer)

    def count_orphans(self, state: BrokerState) -> tuple[int, int]:
        """Return (number of up nodes that have lost the primary, number of all up nodes)."""
        up = [name for name, node in state.nodes.items() if node.up and not node.away and not node.sleep]
        since_s = self._elapsed() - RECENT_S
        return sum(self._at_s.get(name, -1e9) >= since_s for name in up), len(up)

    def close(self) -> None:
        """Release the address, so that the broker can use it."""
        self._transport.close()
