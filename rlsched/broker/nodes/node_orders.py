"""Operators' orders about nodes: drain, resume, mark down, remove."""

from __future__ import annotations

import math
from collections.abc import Callable

from rlsched.broker.base.entries import NodeDown, NodeDrained, NodeRemoved, NodeResumed
from rlsched.broker.base.limits import Limits
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.nodes.leases import Leases
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.wire.messages import DownNode, DrainNode, NodeOrder, RemoveNode, ResumeNode
from rlsched.wire.states import QUEUED


class NodeOrders:
    """Carries out operators' orders about nodes.

    Args:
        wake: Function that powers up a sleeping or down node, and returns the reason for a refusal, else "".
    """

    def __init__(
        self,
        state: BrokerState,
        attempts: Launches,
        leases: Leases,
        limits: Limits,
        out: Outbox,
        wake: Callable[[str], str],
    ) -> None:
        self._state, self._attempts, self._leases, self._limits = state, attempts, leases, limits
        self._out, self._wake = out, wake

    def obey(self, order: NodeOrder) -> str:
        """Carry out an order. Return the reason for a refusal, else ""."""
        name = order.node
        node = self._state.nodes.get(name)
        if node is None or node.removed:
            return f"there is no node {name!r}; `rlsched nodes` lists them"
        jobs = [self._state.jobs[number] for number in sorted(node.live_jobs)]
        match order:
            case DrainNode(reason=reason, requeue=requeue):
                reason = reason or "drained by an operator"
                self._out.record(NodeDrained(name=name, until_s=math.inf, reason=reason))
                for job in jobs if requeue else []:
                    self._attempts.end(job, QUEUED, f"node {name} is drained: {reason}", charged=False)
            case ResumeNode():
                if not node.drained and (node.sleep or not node.up):
                    return self._wake(name)
                if not node.drained and node.unhealthy:
                    return (
                        f"node {name} is not drained; it gets jobs again when its own health checks pass: "
                        f"{node.unhealthy}"
                    )
                if not node.drained:
                    return f"node {name} is not drained: it is {node.state}"
                self._out.record(NodeResumed(name=name))
            case DownNode(reason=reason):
                heard = self._leases.silence_s(name, self._state.now_s) < self._limits.lease_s
                if node.state not in ("unreachable", "down") or (node.state == "down" and jobs and heard):
                    drain = f"`rlsched node drain {name} --requeue`"
                    return (
                        f"node {name} is {node.state}: only an unreachable node can be declared down; to "
                        f"requeue its jobs, use {drain}"
                    )
                reason = reason or "declared down by an operator"
                self._out.record(NodeDown(name=name, reason=reason))
                for job in jobs:
                    self._attempts.record_loss(name, job, f"node {name} is down: {reason}")
            case RemoveNode(reason=reason):
                if node.up and not node.away and not node.sleep:
                    drain = f"`rlsched node drain {name}`"
                    return f"node {name} is {node.state}: drain it ({drain}), and stop its daemon"
                reason = reason or "removed by an operator"
                self._out.record(NodeRemoved(name=name, reason=reason))
                for job in jobs:
                    self._attempts.record_loss(name, job, f"node {name} was removed: {reason}")
        return ""
