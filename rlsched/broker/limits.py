"""The times that the broker keeps."""

from __future__ import annotations

import msgspec

from rlsched.wire.messages import DEFAULT_GRACE_S


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times that the broker keeps, seconds.

    Attributes:
        heartbeat_s: How often nodes are asked to say that they are alive.
        lease_s: A node not heard of for this long is away: it keeps its jobs and gets no new ones.
        lost_after_s: A node not heard of for this long is down, and its jobs are queued again, but for those
            that wait for it. By then the node has ended them itself (see `HeartbeatAck`). At least `lease_s`.
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
    lost_after_s: float = 600.0
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
