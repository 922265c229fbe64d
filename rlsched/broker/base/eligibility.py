"""Eligibility of waiting jobs: a job is eligible if no reason (such as a quota) keeps it out of the queues.

As in the simulator (`rlsched_envs/sim/eligibility.py`), no policy considers a job that is not eligible. A job
enters the queue when its last reason ends, before the decisions at that instant. Its place in the queue
depends on its submission time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rlsched.cluster.state import ClusterState

Reason = Literal["Quota", "Held", "BeginTime", "Dependency"]
"""Reason why a job is not eligible. The module `quotas` sets `Quota`, and `gates` sets the other reasons."""


class Eligibility:
    """Waiting jobs that are kept out of the queues, and the reasons.

    Args:
        cluster: The ledger (cluster state), from whose queues jobs are removed. A `seq` is the sequence
            number of a job in the ledger.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._barred: dict[Reason, set[int]] = {}

    def bar(self, seqs: Sequence[int], reason: Reason) -> None:
        """Keep waiting jobs out of the queues for `reason`. None of the jobs may have this reason already."""
        leave = self._without_other(seqs, reason)
        self._barred.setdefault(reason, set()).update(seqs)
        if leave:
            self._cluster.make_ineligible(leave)

    def clear(self, seqs: Sequence[int], reason: Reason, now_s: float) -> None:
        """Remove `reason` from the jobs `seqs`. Jobs that have no other reason enter the queues."""
        self._barred[reason].difference_update(seqs)
        enter = self._without_other(seqs, reason)
        if enter:
            self._cluster.make_eligible(enter, now_s)

    def barred_by(self, reason: Reason) -> set[int]:
        """Return the sequence numbers of the jobs that `reason` keeps out of the queues."""
        return set(self._barred.get(reason, ()))

    def forget_waiting(self, seq: int) -> None:
        """Remove all reasons of a job that no longer waits."""
        for barred in self._barred.values():
            barred.discard(seq)

    def barring_reasons(self, seq: int) -> frozenset[Reason]:
        """Return the reasons that keep this job out of the queue; empty if it is eligible or not waiting."""
        return frozenset(reason for reason, barred in self._barred.items() if seq in barred)

    def counts(self) -> dict[str, int]:
        """Return the number of jobs that each reason keeps out of the queues, by reason."""
        return {reason: len(barred) for reason, barred in self._barred.items() if barred}

    def _without_other(self, seqs: Sequence[int], reason: Reason) -> Sequence[int]:
        """Return the jobs in `seqs` that have no other reason than `reason` to be kept out of the queues."""
        others = [barred for other, barred in self._barred.items() if other != reason and barred]
        return [seq for seq in seqs if not any(seq in barred for barred in others)] if others else seqs
