"""Nodes that answer to this broker's address and belong to another cluster: seen, and given no orders.

A node that runs jobs of another cluster keeps them, whatever broker it meets: that broker's journal may be
new only because the right one is lost. It says `Hello` again and again, under the cluster that it belongs to.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rlsched.broker.base.shortened import MAX_REASON_CHARS, shortened
from rlsched.terminal.visible import visible
from rlsched.wire.messages import Hello, NodeInfo

_log = logging.getLogger("rlsched.broker")
MOST = 10_000
"""Nodes that are kept in mind; names are those of keys that an admin has made."""


class _Seen(NamedTuple):
    hello: Hello
    running: int
    seen_s: float


class ForeignNodes:
    """Which nodes of other clusters were heard of lately.

    Args:
        lease_s: One that is silent for so long is forgotten.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, _Seen] = {}

    def hello(self, name: str, hello: Hello, now_s: float) -> None:
        """A node has said which cluster it belongs to."""
        running = sum(report.state == "running" for report in hello.attempts)
        known = self._seen.get(name)
        if running and (known is None or known.hello.cluster != hello.cluster):
            _log.warning(
                "node %s belongs to cluster %s and runs %d ranks of it, which go on; it gets no jobs here",
                name,
                visible(hello.cluster),
                running,
                extra={"node": name},
            )
        if known is not None or len(self._seen) < MOST:
            self._seen[name] = _Seen(hello, running, now_s)

    def forget(self, name: str) -> None:
        """It is a node of this cluster now."""
        self._seen.pop(name, None)

    def is_known(self, name: str) -> bool:
        """Whether a node spoke as one of another cluster last."""
        return name in self._seen

    def infos(self, now_s: float) -> dict[str, NodeInfo]:
        """Those that run jobs and were heard of lately, as people see them."""
        return {
            name: _info(name, seen)
            for name, seen in self._seen.items()
            if seen.running and now_s - seen.seen_s < self._lease_s
        }


def _info(name: str, seen: _Seen) -> NodeInfo:
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
