"""State of each node in the broker (`Node`), and changes of nodes in the ledger (`ClusterState`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rlsched.broker.base.entries import (
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeEntry,
    NodeHealth,
    NodeRemoved,
    NodeResumed,
    NodeSlept,
    NodeUp,
    NodeWoken,
)
from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.cluster.arrays import NODE_ASLEEP, NODE_BOOTING, NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.wire.messages import Hello


def _instances(uuids: list[str]) -> dict[int, str]:
    """Return the UUIDs of a node's MIG instances, by GPU index on the node."""
    return {gpu: uuid for gpu, uuid in enumerate(uuids) if uuid.startswith("MIG-")}


@dataclass(slots=True)
class Node:
    """A node that has registered.

    Attributes:
        number: Index of the node in the `ClusterState`.
        spec: The last registration.
        up: False if the node is down: an operator declared it down, or it did not wake up when ordered.
        away: Whether the node is unreachable: it has missed its heartbeats, or its daemon was stopped.
        removed: Whether an operator has removed the node from the cluster; it can register again.
        gone_reason: Reason why the node is unreachable or down.
        live_jobs: Jobs with an unfinished rank on the node.
        drained_until_s: End of the drain, Unix seconds; infinite: until an operator resumes the node; 0: the
            node is not drained.
        drained_reason: Reason for the drain.
        unhealthy: Failure found by the node's own health checks; "" if they pass.
        sleep: `asleep` or `waking`; "" if the node neither sleeps nor wakes up.
        off_s: For a sleeping node: time by which it is powered off, Unix seconds.
        resume_s: For a waking node: earliest time at which the resume command runs, Unix seconds.
        wakes_by_s: For a waking node: time at which it is marked down if it has not registered, Unix seconds.
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
    sleep: str = ""
    off_s: float = 0.0
    resume_s: float = 0.0
    wakes_by_s: float = 0.0

    @property
    def drained(self) -> bool:
        """Whether the node is drained, by an operator or because it refused to start a rank."""
        return self.drained_until_s > 0

    def is_other(self, hello: Hello | NodeUp) -> bool:
        """Return whether a new registration has another number of GPUs, other MIG instances or another VC.

        The ledger treats such a node as a new node. The GPU indexes of MIG instances are compared too,
        because an instance can get another index when admins remove or create instances.
        """
        return self.has_other_instances(hello) or (self.spec.gpus, self.spec.vc) != (hello.gpus, hello.vc)

    def has_other_instances(self, hello: Hello | NodeUp) -> bool:
        """Return whether the MIG instances or their GPU indexes differ from the last registration."""
        return _instances(self.spec.gpu_uuids) != _instances(hello.gpu_uuids)

    @property
    def may_run_jobs(self) -> bool:
        """Whether, as far as the broker knows, jobs may be running on the node."""
        return bool(self.live_jobs) or (self.up and not self.sleep)

    @property
    def state(self) -> str:
        """State of the node: down | asleep | waking | unreachable | drained | up."""
        if not self.up:
            return "down"
        if self.sleep:
            return self.sleep
        return "unreachable" if self.away else "drained" if self.drained or self.unhealthy else "up"

    @property
    def reason(self) -> str:
        """Reason for the node's state; "" if the node is up."""
        told = [self.drained_reason] if self.drained else []
        drained = "; ".join([*told, *([self.unhealthy] if self.unhealthy else [])])
        if self.sleep and self.up:
            return "; ".join([one for one in (drained, self.gone_reason) if one])
        return {"up": "", "drained": drained}.get(self.state, self.gone_reason)


def change_node(
    nodes: dict[str, Node], cluster: ClusterState, models: LedgerModels, change: NodeEntry
) -> None:
    """Apply a journal entry about a node to the broker's nodes (by name) and to the ledger."""
    known = nodes.get(change.name)
    if isinstance(change, NodeUp) and known is not None and known.is_other(change):
        cluster.retire_node(known.number)
        drained_until_s, drained_reason = known.drained_until_s, known.drained_reason
        del nodes[change.name]
        change_node(nodes, cluster, models, change)
        if drained_until_s == math.inf:
            drained = NodeDrained(name=change.name, until_s=math.inf, reason=drained_reason)
            change_node(nodes, cluster, models, drained)
        return
    if isinstance(change, NodeUp) and known is None:
        number = cluster.add_node(
            NodeSpec(
                name=change.name,
                gpus=change.gpus,
                gpu_type=change.gpu_type,
                cpus=change.cpus,
                memory_mib=change.memory_mib,
                gpu_memory_mib=change.capabilities.gpu_memory_mib,
                vc=change.vc or None,
            )
        )
        nodes[change.name] = Node(number, change)
    node = nodes[change.name]
    match change:
        case NodeUp():
            cluster.refit_node(
                node.number,
                cpus=change.cpus,
                memory_mib=change.memory_mib,
                gpu_memory_mib=change.capabilities.gpu_memory_mib,
                gpu_type=change.gpu_type,
            )
            node.spec, node.up, node.away, node.removed = change, True, False, False
            node.gone_reason = node.sleep = ""
            can = change.capabilities
            models.node(node.number, change.sm_clocks_mhz, shares=can.shares, lends=can.lends)
            if not can.tells_memory:
                cluster.limit_gpu_memory(node.number, {})
        case NodeAway():
            node.away, node.gone_reason = True, change.reason
        case NodeDown():
            node.up, node.away, node.gone_reason, node.sleep = False, False, change.reason, ""
            if node.drained_until_s < math.inf:
                node.drained_until_s = 0.0
        case NodeDrained():
            node.drained_until_s, node.drained_reason = change.until_s, change.reason
        case NodeResumed():
            node.drained_until_s = 0.0
        case NodeSlept():
            node.sleep, node.off_s, node.gone_reason = "asleep", change.off_s, change.reason
        case NodeWoken():
            node.up, node.away, node.sleep, node.gone_reason = True, False, "waking", change.reason
            node.resume_s, node.wakes_by_s = change.resume_s, change.until_s
        case NodeHealth():
            node.unhealthy = change.unhealthy
        case NodeRemoved():
            node.up, node.away, node.removed, node.gone_reason = False, False, True, change.reason
            node.drained_until_s, node.unhealthy, node.sleep = 0.0, "", ""
    status = _STATUS[node.state]
    if status == NODE_UP and not node.spec.capabilities.places:
        status = NODE_DRAINED  # the broker starts no jobs on this node
    if cluster.arrays.node.status[node.number] != status:
        _SHOW[status](cluster, node.number)


_STATUS = {
    "up": NODE_UP,
    "unreachable": NODE_DRAINED,
    "drained": NODE_DRAINED,
    "down": NODE_DOWN,
    "asleep": NODE_ASLEEP,
    "waking": NODE_BOOTING,
}
_SHOW = {
    NODE_UP: ClusterState.resume_node,
    NODE_DRAINED: ClusterState.drain_node,
    NODE_DOWN: ClusterState.fail_node,
    NODE_ASLEEP: ClusterState.sleep_node,
    NODE_BOOTING: ClusterState.boot_node,
}
