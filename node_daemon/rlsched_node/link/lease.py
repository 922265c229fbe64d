"""Time of the broker's last answer, for ranks that must end if the broker does not answer for too long.

If a job was submitted with `--lost-after T`, the broker starts the job elsewhere after T without a message
from a node of the job. The node ends the job before that time, so that the job never runs twice at the same
time. The broker counts T from its receipt of the node's last message. The node counts from an earlier time:
when it sent the last heartbeat that the broker has answered. The lease file contains this send time. The
shims read the file, and end their ranks even if no daemon runs.
"""

from __future__ import annotations

import math

from rlsched_node.lease_file import fence_times
from rlsched_node.processes.steps import RenewLease

_KEPT = 64


class Lease:
    """When the node sent each unanswered heartbeat, and the latest heartbeat that the broker has answered."""

    def __init__(self) -> None:
        self._renewed_s = -math.inf
        self._sent_s: dict[int, float] = {}
        self._last = 0

    def ask(self, now_s: float) -> int:
        """Record the send time of a message that the broker will answer. Return its request ID."""
        self._last += 1
        self._sent_s[self._last] = now_s
        self._sent_s.pop(self._last - _KEPT, None)
        return self._last

    def record_answer(self, request: int) -> RenewLease | None:
        """Record the answer to a heartbeat or a `Hello`. Return the effect that renews the lease.

        None: an answer to a later message was recorded before, or the request ID is unknown.
        """
        sent_s = self._sent_s.pop(request, -math.inf)
        if sent_s <= self._renewed_s:
            return None
        self._renewed_s = sent_s
        return RenewLease(sent_s)

    def has_run_out(self, lost_after_s: float, grace_s: float, now_s: float) -> bool:
        """Return whether a job must end, because the broker has not answered for too long (`fence_times`).

        After `lost_after_s` without contact, the broker may start the job elsewhere. False if `lost_after_s`
        is 0.
        """
        return lost_after_s > 0 and now_s >= self._renewed_s + fence_times(lost_after_s, grace_s)[0]
