"""Alternatives that a look-ahead compares: rows of a window followed by one rule, and rules from the start.

If only a greedy rule follows, the value of a wait depends on that rule. Rules with reservations show the
outcome of repeated reservations.
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
from rlsched.decide.rows.candidates import CandidateRows
from rlsched_envs.sim.lookahead import (
    BACKFILL,
    KEEP_FREE,
    NOTHING,
    WAIT,
    FollowedRule,
    Futures,
    LookAhead,
    followers,
)

SKIPPING: Final = FollowedRule()
"""Rule that continues past a job that does not fit: `qssf-backfill` in its own order."""
RULES: Final[tuple[FollowedRule, ...]] = (
    FollowedRule(blocks=True),
    FollowedRule(KEEP_FREE, long_job_s=4 * 3600.0, leave_frac=0.1),
    FollowedRule(KEEP_FREE, long_job_s=12 * 3600.0, leave_frac=0.25),
)
"""Rules that follow in the computation of a bound: `qssf`, and `reserve` with two settings."""


@dataclass(frozen=True)
class Columns:
    """K alternatives, evaluated in copies of a partition.

    Attributes:
        copies: Copies of the partition.
        partition: The partition.
        actions: (K,) as in `LookAhead.costs`.
        follow: (K,) FOLLOWER, the rule that continues after each action.
        held: Slots in the copy of the jobs that a *wait* holds back.
        blocked: Slot in the copy of the blocked job that a *wait* makes room for, -1 for none.
    """

    copies: LookAhead
    partition: int
    actions: NDArray[np.int32]
    follow: Records
    held: NDArray[np.int32]
    blocked: int

    def costs(self, some: NDArray[np.intp], futures: Futures) -> NDArray[np.float64]:
        """Return (S, some) future queueing of some columns in S futures, job-seconds."""
        return self.copies.costs(
            self.partition, self.actions[some], self.held, self.blocked, futures, self.follow[some]
        )


def rule_to_follow(permissions: Permissions) -> FollowedRule | None:
    """Return the reference rule under these permissions; None if it preempts: futures do not support that."""
    if permissions.preemption:
        return None
    after_s = permissions.rule().options.reserve_after_s
    return FollowedRule(BACKFILL, reserve_after_s=after_s) if permissions.reservations else SKIPPING


def columns_of(
    copies: LookAhead,
    state: ClusterState,
    partition: int,
    now_s: float,
    window: CandidateRows,
    rows: Sequence[int],
    arrivals: int,
    rules: Sequence[FollowedRule] = (),
    follow: FollowedRule = SKIPPING,
) -> Columns:
    """Copy the partition and list the alternatives: each row, then each rule.

    Args:
        copies: Target of the copy.
        state: The state; unchanged.
        partition: Partition of the decision.
        now_s: Current time, seconds.
        window: Jobs of the partition.
        rows: Legal rows; each starts a job that fits on free GPUs, or is *wait*.
        arrivals: Number of future jobs in the futures.
        rules: Rules that decide from now on, without a first action.
        follow: Rule that continues after each row, in the order of the state's queue.
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
