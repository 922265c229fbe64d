"""What the broker knows of each node, and how the scheduler sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rlsched.broker.clocks import Clocks
from rlsched.broker.entries import (
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeHealth,
    NodeRemoved,
    NodeResumed,
    NodeUp,
)
from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.wire.messages import Hello

NodeChange = NodeUp | NodeAway | NodeDown | NodeDrained | NodeResumed | NodeHealth | NodeRemoved


@dataclass(slots=True)
class Node:
    """A node that has registered.

    Attributes:
        number: Its number in the `ClusterState`.
        spec: As it registered last.
        up: Whether it has not been given up.
        away: Whether it is silent, or being stopped, and not given up yet.
        removed: Whether an operator has taken it out of the cluster; it may register again.
        gone_reason: Why it is away or down.
        live_jobs: Jobs that have a rank there which is not over.
        drained_until_s: When it gets new jobs again, Unix seconds; infinite: when somebody says so; 0: it
            gets them now.
        drained_reason: Why it gets none.
        unhealthy: Why it gets none by its own checks; "" where they pass.
    """

    number: int
    spec: NodeUp
    up: bool = True
    away: bool = False
    removed: bool = False
    gone_reason: str = ""
    live_jobs: set[int] = field(default_factory=set)
    drained_until_s: float = 0.0
    drained_reason: str = ""
    unhealthy: str = ""

    @property
    def drained(self) -> bool:
        """Whether it is told to get no new jobs, by an operator or after a refusal."""
        return self.drained_until_s > 0

    def is_other(self, hello: Hello | NodeUp) -> bool:
        """Whether what registers under its name has other GPUs or another owner: for a ledger, another."""
        return (self.spec.gpus, self.spec.vc) != (hello.gpus, hello.vc)

    @property
    def state(self) -> str:
        """down | away | drained | up."""
        if not self.up:
            return "down"
        return "away" if self.away else "drained" if self.drained or self.unhealthy else "up"

    @property
    def reason(self) -> str:
        """Why it is in this state; "" where it is up."""
        told = [self.drained_reason] if self.drained else []
        drained = "; ".join([*told, *([self.unhealthy] if self.unhealthy else [])])
        return {"up": "", "drained": drained}.get(self.state, self.gone_reason)


def change_node(nodes: dict[str, Node], cluster: ClusterState, clocks: Clocks, change: NodeChange) -> None:
    """Let a fact about a node be true: in `nodes`, by name, and in the state that the scheduler sees."""
    known = nodes.get(change.name)
    if isinstance(change, NodeUp) and known is not None and known.is_other(change):
        cluster.retire_node(known.number)
        drained_until_s, drained_reason = known.drained_until_s, known.drained_reason
        del nodes[change.name]
        change_node(nodes, cluster, clocks, change)
        if drained_until_s == math.inf:
            drained = NodeDrained(name=change.name, until_s=math.inf, reason=drained_reason)
            change_node(nodes, cluster, clocks, drained)
        return
    if isinstance(change, NodeUp) and known is None:
        number = cluster.add_node(
            NodeSpec(
                name=change.name,
                gpus=change.gpus,
                gpu_type=change.gpu_type,
                cpus=change.cpus,
                memory_mib=change.memory_mib,
                vc=change.vc or None,
            )
        )
        nodes[change.name] = Node(number, change)
        clocks.node(number, change.sm_clocks_mhz)
        return
    node = nodes[change.name]
    match change:
        case NodeUp():
            node.spec, node.up, node.away, node.removed = change, True, False, False
            node.gone_reason = ""
            clocks.node(node.number, change.sm_clocks_mhz)
        case NodeAway():
            node.away, node.gone_reason = True, change.reason
        case NodeDown():
            node.up, node.away, node.gone_reason = False, False, change.reason
            if node.drained_until_s < math.inf:
                node.drained_until_s = 0.0
        case NodeDrained():
            node.drained_until_s, node.drained_reason = change.until_s, change.reason
        case NodeResumed():
            node.drained_until_s = 0.0
        case NodeHealth():
            node.unhealthy = change.unhealthy
        case NodeRemoved():
            node.up, node.away, node.removed, node.gone_reason = False, False, True, change.reason
            node.drained_until_s, node.unhealthy = 0.0, ""
    status = _STATUS[node.state]
    if cluster.arrays.node.status[node.number] != status:
        _SHOW[status](cluster, node.number)


_STATUS = {"up": NODE_UP, "away": NODE_DRAINED, "drained": NODE_DRAINED, "down": NODE_DOWN}
_SHOW = {
    NODE_UP: ClusterState.resume_node,
    NODE_DRAINED: ClusterState.drain_node,
    NODE_DOWN: ClusterState.fail_node,
}
