"""Settling after a restart of the broker: new jobs wait until all nodes have registered again.

Nodes register within seconds of each other. A decision after the first registration could start a small job
on a node that a larger job at the head of the queue needs. A registered node therefore gets no new jobs until
the other nodes have registered, but at most for one lease.
"""

from __future__ import annotations

from typing import Final

from rlsched.broker.base.entries import NodeDrained, NodeResumed
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState

REASON: Final = "no new jobs before the other nodes are back after the restart of the broker"


class Settling:
    """Nodes for which a restarted broker waits: the nodes that are unreachable according to its journal.

    Args:
        state: The state as recovered from the journal.
        until_s: Time after which registered nodes get jobs even if other nodes are missing, Unix seconds.
    """

    def __init__(self, state: BrokerState, out: Outbox, until_s: float) -> None:
        self._state, self._out, self._until_s = state, out, until_s
        self._awaited = {name for name, node in state.nodes.items() if node.state == "unreachable"}
        self._back: list[str] = []

    def drain_until_settled(self, name: str, now_s: float) -> None:
        """Drain an awaited node that registers while the broker still waits for other nodes.

        If this node is the last awaited node, or registers after `until_s`, resume the nodes that earlier
        calls have drained.
        """
        if name not in self._awaited:
            return
        self._awaited.discard(name)
        if self._awaited and now_s < self._until_s:
            if self._state.nodes[name].state == "up":
                self._back.append(name)
                self._out.record(NodeDrained(name=name, until_s=self._until_s, reason=REASON))
            return
        for other in self._back:
            if self._state.nodes[other].drained_reason == REASON:
                self._out.record(NodeResumed(name=other))
        self._back.clear()
