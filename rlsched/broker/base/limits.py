"""Time-outs and intervals of the broker."""

from __future__ import annotations

from typing import Final

import msgspec

from rlsched.wire.messages import DEFAULT_GRACE_S, Submit, Update

MAX_LOST_AFTER_S: Final = 1e9


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Time-outs and intervals of the broker, seconds.

    Attributes:
        heartbeat_s: Interval of the nodes' heartbeats.
        lease_s: Time without a heartbeat after which a node is unreachable: it keeps its jobs and gets no new
            jobs.
        lost_after_s: Default of `Submit.lost_after_s`: time on an unreachable node after which a job is lost.
            0: never. Other values are at least `lease_s`.
        launch_timeout_s: Time within which nodes must acknowledge the launch of ranks.
        drain_s: Time for which a node that refused to start a rank gets no new jobs.
        kill_again_s: Interval at which an order to end a rank is repeated until the rank has ended.
        log_timeout_s: Time within which a node must answer a request for a job's output; shorter than the
            clients' time-out.
        grace_s: Default grace (time between SIGTERM and SIGKILL) of a job.
        max_grace_s: Longest grace that a job can request; at least `grace_s`.
        ended_s: Time for which a finished job stays in memory, unless `ended_jobs` is exceeded.
        ended_jobs: Maximum number of finished jobs in memory.
    """

    heartbeat_s: float = 2.0
    lease_s: float = 20.0
    lost_after_s: float = 0.0
    launch_timeout_s: float = 30.0
    drain_s: float = 30.0
    kill_again_s: float = 10.0
    log_timeout_s: float = 4.0
    grace_s: float = DEFAULT_GRACE_S
    max_grace_s: float = 300.0
    ended_s: float = 3_600.0
    ended_jobs: int = 10_000

    def grace_of(self, asked_s: float | None) -> float:
        """Return the grace of a job, seconds, at most `max_grace_s`.

        `asked_s`: requested grace; None: the default.
        """
        return self.grace_s if asked_s is None else min(asked_s, self.max_grace_s)

    def wrong_time(self, message: Submit | Update) -> str:
        """Return an error message (one line) if a submission or an update has invalid times, else ""."""
        grace_s = message.grace_s
        if grace_s is not None and not 0.0 <= grace_s <= self.max_grace_s:
            return (
                f"grace_s must be 0 to {self.max_grace_s:g} s (the broker's --max-grace-s), got {grace_s:g} s"
            )
        return self.wrong_lost_after(message.lost_after_s)

    def wrong_lost_after(self, lost_after_s: float | None) -> str:
        """Return an error message (one line) if a job's `lost_after_s` is invalid, else ""."""
        if not lost_after_s or self.lease_s <= lost_after_s <= MAX_LOST_AFTER_S:
            return ""
        return (
            f"lost_after_s must be 0 (never) or at least {self.lease_s:g}, the seconds after which a node is "
            f"unreachable (rlsched broker --lease-s); got {lost_after_s:g}"
        )
