"""Foreign nodes: nodes that connect to this broker but belong to another cluster. They get no orders.

They are listed for operators, and their jobs continue. For example, a broker that has lost its journal
creates a new cluster, while its nodes still run jobs of the earlier cluster and name it in each `Hello`.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rlsched.broker.base.shortened import MAX_REASON_CHARS, shortened
from rlsched.terminal.visible import visible
from rlsched.wire.messages import Hello, NodeInfo
from rlsched.wire.states import RUNNING

_log = logging.getLogger("rlsched.broker")
MOST = 10_000
"""Maximum number of foreign nodes in memory. Further nodes are not listed."""


class _LastHello(NamedTuple):
    hello: Hello
    running: int
    seen_s: float


class ForeignNodes:
    """Nodes of other clusters that have connected recently.

    Args:
        lease_s: Time without a `Hello` after which a node is no longer listed, seconds.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, _LastHello] = {}

    def hello(self, name: str, hello: Hello, now_s: float) -> None:
        """Record a node's `Hello` that names another cluster."""
        running = sum(report.state == RUNNING for report in hello.attempts)
        known = self._seen.get(name)
        if running and (known is None or known.hello.cluster != hello.cluster):
            _log.warning(
                "node %s belongs to cluster %s and runs %d ranks of that cluster, which continue; this "
                "broker starts no jobs on the node",
                name,
                visible(hello.cluster),
                running,
                extra={"node": name},
            )
        if known is not None or len(self._seen) < MOST:
            self._seen[name] = _LastHello(hello, running, now_s)

    def forget(self, name: str) -> None:
        """Remove a node from the foreign nodes, because the node has joined this cluster."""
        self._seen.pop(name, None)

    def is_known(self, name: str) -> bool:
        """Return whether the last `Hello` of a node named another cluster."""
        return name in self._seen

    def infos(self, now_s: float) -> dict[str, NodeInfo]:
        """Return the rows, by name, of foreign nodes that run jobs and have sent a `Hello` within a lease."""
        return {
            name: _info(name, seen)
            for name, seen in self._seen.items()
            if seen.running and now_s - seen.seen_s < self._lease_s
        }


def _info(name: str, seen: _LastHello) -> NodeInfo:
    hello = seen.hello
    reason = (
        f"belongs to cluster {visible(hello.cluster)}, {seen.running} ranks of which run there; it joins "
        "this one once they have ended, or with `rlsched node --forget-cluster`"
    )
    return NodeInfo(
        name=name,
        state="foreign",
        reason=shortened(reason, MAX_REASON_CHARS),
        gpus=hello.gpus,
        free_gpus=0,
        gpu_type=shortened(hello.gpu_type),
        vc=shortened(hello.vc),
        jobs=[],
        last_seen_s=seen.seen_s,
    )
