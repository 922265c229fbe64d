"""Eligible waiting jobs: jobs that no reason (such as a quota) keeps out of the ledger's queues.

As in the simulator (`rlsched_envs/eligibility.py`): a job that is not eligible is no candidate of any rule,
plan or policy. The job enters the queue at the instant at which the last reason that kept it out ends, before
the decisions at that instant. Its place in the queue follows its submission time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rlsched.cluster.state import ClusterState

Reason = Literal["Quota", "Held", "BeginTime", "Dependency"]
"""Reason why a job is not eligible: `quotas` sets the reason of that name, `gates` the others."""


class Eligibility:
    """Jobs that are kept out of the queues, and the reasons.

    Args:
        cluster: The ledger. Jobs leave and enter its queues here.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._barred: dict[Reason, set[int]] = {}

    def bar(self, seqs: Sequence[int], reason: Reason) -> None:
        """Keep these waiting jobs out for this reason, which none of them has yet."""
        leave = self._without_other(seqs, reason)
        self._barred.setdefault(reason, set()).update(seqs)
        if leave:
            self._cluster.make_ineligible(leave)

    def clear(self, seqs: Sequence[int], reason: Reason, now_s: float) -> None:
        """Clear this reason for these jobs, which have it; jobs without another reason enter the queue."""
        self._barred[reason].difference_update(seqs)
        enter = self._without_other(seqs, reason)
        if enter:
            self._cluster.make_eligible(enter, now_s)

    def barred_by(self, reason: Reason) -> set[int]:
        """Jobs that this reason keeps out of the queues."""
        return set(self._barred.get(reason, ()))

    def forget_waiting(self, seq: int) -> None:
        """Forget a job that no longer waits."""
        for barred in self._barred.values():
            barred.discard(seq)

    def barring_reasons(self, seq: int) -> frozenset[Reason]:
        """Reasons that keep this job out of the queue; empty for a candidate and for a job that does not
        wait."""
        return frozenset(reason for reason, barred in self._barred.items() if seq in barred)

    def counts(self) -> dict[str, int]:
        """Number of jobs that are kept out, by reason."""
        return {reason: len(barred) for reason, barred in self._barred.items() if barred}

    def _without_other(self, seqs: Sequence[int], reason: Reason) -> Sequence[int]:
        """The given jobs that no other reason keeps out of the queues."""
        others = [barred for other, barred in self._barred.items() if other != reason and barred]
        return [seq for seq in seqs if not any(seq in barred for barred in others)] if others else seqs
