"""Leases of nodes: the time of each node's last message, and the nodes that have missed their heartbeats."""

from __future__ import annotations

from rlsched.broker.base.limits import Limits
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Job


class Leases:
    """Time of the last message from each node.

    Args:
        now_s: Start of the broker, Unix seconds. The leases of all nodes in the journal begin at this time.
    """

    def __init__(self, state: BrokerState, limits: Limits, now_s: float) -> None:
        self._state, self._limits = state, limits
        self._started_s = self._listened_s = now_s
        self._seen_s: dict[str, float] = {}
        self._left: set[str] = set()

    def renew(self, node: str, now_s: float) -> None:
        """Renew the lease of a node from which a message has arrived."""
        self._seen_s[node] = now_s

    def mark_daemon_started(self, node: str) -> None:
        """Record that the daemon of a node runs, for the first time or again."""
        self._left.discard(node)

    def mark_daemon_stopped(self, node: str) -> None:
        """Record that the daemon of a node is being stopped."""
        self._left.add(node)

    def seen_s(self, node: str) -> float:
        """Return the time of a node's last message (the broker's start if none arrived), Unix seconds."""
        return self._seen_s.get(node, self._started_s)

    def alive_s(self, node: str) -> float:
        """Return the time of a node's last message, Unix seconds; 0 if none arrived or its daemon stopped."""
        return 0.0 if node in self._left else self._seen_s.get(node, 0.0)

    def extend(self, now_s: float) -> None:
        """Restart all leases at `now_s` (Unix seconds), after a time in which the loop read no messages."""
        self._listened_s = now_s

    def silence_s(self, node: str, now_s: float) -> float:
        """Return the seconds since a node's last message, or since its lease restarted if that was later."""
        return now_s - max(self.seen_s(node), self._listened_s)

    def expired_nodes(self, now_s: float) -> list[str]:
        """Return the nodes with an expired lease; the caller marks these nodes `unreachable`."""
        nodes = self._state.nodes
        quiet = self._quiet(now_s)
        return [name for name in quiet if nodes[name].up and not nodes[name].away and not nodes[name].sleep]

    def lost_jobs(self, now_s: float) -> list[tuple[str, Job]]:
        """Return (node, job) for each job whose node has been silent for the job's `lost_after_s`.

        Each of these nodes has ended the job itself by now.
        """
        return [
            (name, job)
            for name in self._quiet(now_s)  # no `lost_after_s` is shorter than a lease
            for job in self._state.fenced_jobs(self._state.nodes[name])
            if self.silence_s(name, now_s) >= job.spec.lost_after_s
        ]

    def expired_drains(self, now_s: float) -> list[str]:
        """Return the nodes whose drain has expired."""
        nodes = self._state.nodes.items()
        return [name for name, node in nodes if 0.0 < node.drained_until_s <= now_s]

    def _quiet(self, now_s: float) -> list[str]:
        """Return the nodes that sent no message for `Limits.lease_s` or longer; usually none."""
        least_s = self._limits.lease_s
        if now_s - self._listened_s < least_s:
            return []
        seen_s, started_s = self._seen_s, self._started_s
        return [name for name in self._state.nodes if now_s - seen_s.get(name, started_s) >= least_s]
