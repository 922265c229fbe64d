"""The times that the broker keeps."""

from __future__ import annotations

from typing import Final

import msgspec

from rlsched.wire.messages import DEFAULT_GRACE_S, Submit, Update

MAX_LOST_AFTER_S: Final = 1e9


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times that the broker keeps, seconds.

    Attributes:
        heartbeat_s: How often nodes are asked to say that they are alive.
        lease_s: A node without a heartbeat for this long is unreachable: it keeps its jobs and gets no new
            ones.
        lost_after_s: `Submit.lost_after_s` of jobs that do not say. 0: never; else at least `lease_s`.
        launch_timeout_s: Ranks must have acknowledged by then.
        drain_s: A node that refused to start a rank gets no new jobs for so long.
        kill_again_s: How often an order to end a rank is repeated until it is over.
        log_timeout_s: How long a node may take to read a log; less than clients wait for an answer.
        grace_s: Between SIGTERM and SIGKILL of a job that asks for no grace of its own: at its time limit,
            when it is cancelled, preempted or queued again.
        max_grace_s: The longest grace that a job may ask for. At least `grace_s`.
        ended_s: A job that is over stays in memory for so long at least ...
        ended_jobs: ... unless more than so many do.
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
        """The grace of a job that asked for `asked_s`, seconds; None: for none of its own.

        A job that was submitted under a higher bound than today's gets today's.
        """
        return self.grace_s if asked_s is None else min(asked_s, self.max_grace_s)

    def wrong_time(self, message: Submit | Update) -> str:
        """Error text about the times in a submission or a change, in one line; "" if there is no error."""
        grace_s = message.grace_s
        if grace_s is not None and not 0.0 <= grace_s <= self.max_grace_s:
            return (
                f"grace_s must be 0 to {self.max_grace_s:g} s (the broker's --max-grace-s), got {grace_s:g} s"
            )
        return self.wrong_lost_after(message.lost_after_s)

    def wrong_lost_after(self, lost_after_s: float | None) -> str:
        """What is wrong with a job's `lost_after_s`, in one line; "" if nothing."""
        if not lost_after_s or self.lease_s <= lost_after_s <= MAX_LOST_AFTER_S:
            return ""
        return (
            f"lost_after_s must be 0 (never) or at least {self.lease_s:g}, the seconds after which a node is "
            f"unreachable (rlsched broker --lease-s); got {lost_after_s:g}"
        )
