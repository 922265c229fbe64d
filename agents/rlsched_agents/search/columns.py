"""What a look-ahead compares: rows of a window with one rule to follow, and rules by themselves.

With a greedy rule alone to follow, a wait is judged by what that makes of it. Rules that keep room show what
comes of it where room is kept again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records
from rlsched.cluster.state import ClusterState
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.rows.candidates import Window
from rlsched_envs.sim.lookahead import (
    BACKFILL,
    KEEP_FREE,
    NOTHING,
    WAIT,
    Follower,
    Futures,
    LookAhead,
    followers,
)

SKIPPING: Final = Follower()
"""Goes on behind a job that does not fit: `qssf-backfill` by its order."""
RULES: Final[tuple[Follower, ...]] = (
    Follower(blocks=True),
    Follower(KEEP_FREE, long_job_s=4 * 3600.0, leave_frac=0.1),
    Follower(KEEP_FREE, long_job_s=12 * 3600.0, leave_frac=0.25),
)
"""Rules that a bound may follow: `qssf`, and `reserve` with two settings."""


@dataclass(frozen=True)
class Columns:
    """K things to do, in copies of a partition that were taken.

    Attributes:
        copies: The copies.
        partition: The partition.
        actions: (K,) as `LookAhead.costs` takes them.
        follow: (K,) FOLLOWER, the rule that goes on after each.
        held: Slots in the copy that a *wait* passes over.
        blocked: Slot in the copy of the job that a *wait* is for, -1 for none.
    """

    copies: LookAhead
    partition: int
    actions: NDArray[np.int32]
    follow: Records
    held: NDArray[np.int32]
    blocked: int

    def costs(self, some: NDArray[np.intp], futures: Futures) -> NDArray[np.float64]:
        """(S, some) queueing ahead of some columns in S futures, job-seconds."""
        return self.copies.costs(
            self.partition, self.actions[some], self.held, self.blocked, futures, self.follow[some]
        )


def rule_to_follow(permissions: Permissions) -> Follower | None:
    """The reference under these permissions, None where futures cannot go on by it: it preempts."""
    if permissions.preemption:
        return None
    after_s = permissions.rule().options.reserve_after_s
    return Follower(BACKFILL, reserve_after_s=after_s) if permissions.reservations else SKIPPING


def columns_of(
    copies: LookAhead,
    state: ClusterState,
    partition: int,
    now_s: float,
    window: Window,
    rows: Sequence[int],
    arrivals: int,
    rules: Sequence[Follower] = (),
    follow: Follower = SKIPPING,
) -> Columns:
    """Copy the partition, and say what is tried there: each row, then each rule.

    Args:
        copies: Where to.
        state: The state; it is left as it is.
        partition: The partition that is decided for.
        now_s: Now.
        window: Its jobs.
        rows: Legal rows; each starts a job that fits on free GPUs, or is *wait*.
        arrivals: Jobs to come that futures will hold.
        rules: Rules that decide from now on, each without an action before it.
        follow: The rule that goes on behind each row; of the order of the state's queue.
    """
    copies.take(state, partition, arrivals, now_s, also=window.arrays.slot)
    copy_of = np.full(len(state.arrays.job), -1, np.int32)
    copy_of[copies.slots] = np.arange(len(copies.slots))
    offered = window.arrays.slot[: len(window.seqs)]
    blocked = int(window.arrays.info[2])
    actions = [int(copy_of[offered[row]]) if row > 0 else WAIT for row in rows]
    return Columns(
        copies,
        partition,
        np.array([*actions, *[NOTHING] * len(rules)], np.int32),
        followers([follow] * len(rows) + list(rules)),
        copy_of[offered[1:][window.legal[1:]]],
        int(copy_of[blocked]) if blocked >= 0 else -1,
    )
