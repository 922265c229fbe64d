"""How long the ranks of a node may go on without a word from the broker.

A broker that hears nothing of a node for `lost_after_s` starts its jobs elsewhere. So that no job runs twice,
the node ends them before: it knows when it sent each heartbeat, and the broker's answer proves that silence
counts from no earlier. The deadline is in a file that the shims read, so that it holds without a daemon too.
"""

from __future__ import annotations

import math

from rlsched.wire.messages import DEFAULT_GRACE_S
from rlsched_node.steps import RenewLease

MAX_MARGIN_S = 5.0
"""For clocks that run apart, and a kernel that takes its time to kill."""
_KEPT = 64


class Lease:
    """Which heartbeats have been answered.

    Args:
        lost_after_s: What an earlier daemon of this node went by; 0 where there was none.

    Attributes:
        lost_after_s: The broker's; 0: it starts nothing elsewhere that may still run here.
    """

    def __init__(self, lost_after_s: float = 0.0) -> None:
        self.lost_after_s = lost_after_s
        self._max_grace_s = DEFAULT_GRACE_S
        self._until_s = -math.inf
        self._sent_s: dict[int, float] = {}
        self._last = 0

    def ask(self, now_s: float) -> int:
        """The request number of a message that is sent now, and that the broker will answer."""
        self._last += 1
        self._sent_s[self._last] = now_s
        self._sent_s.pop(self._last - _KEPT, None)
        return self._last

    def welcome(self, request: int, lost_after_s: float, max_grace_s: float = DEFAULT_GRACE_S) -> RenewLease:
        """The broker has registered the node, and says its own time and the longest grace of a job."""
        self.lost_after_s, self._max_grace_s = lost_after_s, max_grace_s
        renewed = self._renewed(request)
        self._until_s = renewed.until_s
        return renewed

    def is_over(self, now_s: float) -> bool:
        """Whether the broker may have given this node up by now: what it ordered before holds no more."""
        return self.lost_after_s > 0 and now_s >= self._until_s

    def answered(self, request: int) -> RenewLease | None:
        """The broker has answered a heartbeat; None where that is old news."""
        renewed = self._renewed(request)
        if renewed.until_s <= self._until_s:
            return None
        self._until_s = renewed.until_s
        return renewed

    def _renewed(self, request: int) -> RenewLease:
        if self.lost_after_s <= 0:
            return RenewLease(math.inf, self._max_grace_s, 0.0)
        grace_s = min(self._max_grace_s, self.lost_after_s / 8)
        margin_s = min(MAX_MARGIN_S, self.lost_after_s / 8)
        sent_s = self._sent_s.pop(request, -math.inf)
        return RenewLease(sent_s + self.lost_after_s - grace_s - margin_s, grace_s, self.lost_after_s)
