"""When the broker last answered this node, for ranks that end without an answer for too long.

The broker starts a job that was submitted with `--lost-after T` elsewhere once it has not heard from a node
of the job for T. So that the job never runs twice at a time, the node ends it before. The node knows when it
sent each heartbeat, and an answer proves that the broker counts from no earlier. The time is in a file that
the shims read, so that it holds without a daemon too. All other jobs go on for as long as the broker is away.
"""

from __future__ import annotations

import math

from rlsched_node.lease_file import fence_times
from rlsched_node.processes.steps import RenewLease

_KEPT = 64


class Lease:
    """Which heartbeats have been answered."""

    def __init__(self) -> None:
        self._renewed_s = -math.inf
        self._sent_s: dict[int, float] = {}
        self._last = 0

    def ask(self, now_s: float) -> int:
        """The request number of a message that is sent now, and that the broker will answer."""
        self._last += 1
        self._sent_s[self._last] = now_s
        self._sent_s.pop(self._last - _KEPT, None)
        return self._last

    def answered(self, request: int) -> RenewLease | None:
        """The broker has answered a heartbeat or a hello; None where a later one was answered before."""
        sent_s = self._sent_s.pop(request, -math.inf)
        if sent_s <= self._renewed_s:
            return None
        self._renewed_s = sent_s
        return RenewLease(sent_s)

    def has_run_out(self, lost_after_s: float, grace_s: float, now_s: float) -> bool:
        """Whether the broker may have started a job with this `lost_after_s` elsewhere by now; 0: never."""
        return lost_after_s > 0 and now_s >= self._renewed_s + fence_times(lost_after_s, grace_s)[0]
