"""The standby's listener. Counts nodes that have lost the primary; a majority is needed to take over.

A node sends a hello to a standby only if the primary does not answer the node. So a standby that is itself
cut off receives no hellos, and does not take over from a primary that has its nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rlsched.broker.state.broker_state import BrokerState
from rlsched.transport.keys import KeyHome
from rlsched.transport.router import Heard, Transport
from rlsched.wire.messages import Hello, ReadJournal, Refused, Serving, WhoServes

RECENT_S = 15.0
"""Time for which a hello counts, seconds; longer than a node needs to try all its addresses."""
MAX_HEARD = 1_000


class Knocks:
    """The standby's sockets, which receive hellos of nodes without a broker.

    Args:
        address: Address at which to listen; the broker will use it too.
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
        """Receive messages. Clients get the answer that this broker is only a standby."""
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
                answer = Refused(message=f"this broker stands by for the one at {self._of}; use that one")
            self._transport.reply(heard.route, heard.envelope.request, answer)

    def count_orphans(self, state: BrokerState) -> tuple[int, int]:
        """Return (number of up nodes that have lost the primary, number of up nodes), by the copy."""
        up = [name for name, node in state.nodes.items() if node.up and not node.away and not node.sleep]
        since_s = self._elapsed() - RECENT_S
        return sum(self._at_s.get(name, -1e9) >= since_s for name in up), len(up)

    def close(self) -> None:
        """Release the address for the broker."""
        self._transport.close()
