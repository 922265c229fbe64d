"""Which of the jobs that are queued for people stand in the ledger's queues: those that nothing keeps out.

As in the simulator (`rlsched_envs/sim/eligibility.py`): a job that is not eligible is no candidate of any
rule, plan or policy, and it comes to the queue at the instant at which the last reason is gone, before that
instant's decisions. Its place there is the one of its submission.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rlsched.cluster.state import ClusterState

Reason = Literal["Quota", "Held", "BeginTime", "Dependency"]
"""Why a job is not eligible: by `quotas`, the others by `gates`."""


class Eligibility:
    """Who is kept out of the queues, and why.

    Args:
        cluster: The ledger; its waiting jobs leave the queues here, and come back.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._barred: dict[Reason, set[int]] = {}

    def bar(self, seqs: Sequence[int], reason: Reason) -> None:
        """These waiting jobs are kept out for this reason, which none of them has yet."""
        leave = self._without_other(seqs, reason)
        self._barred.setdefault(reason, set()).update(seqs)
        if leave:
            self._cluster.make_ineligible(leave)

    def clear(self, seqs: Sequence[int], reason: Reason, now_s: float) -> None:
        """This reason is gone for these jobs, which have it; those that have no other come to the queue."""
        self._barred[reason].difference_update(seqs)
        enter = self._without_other(seqs, reason)
        if enter:
            self._cluster.make_eligible(enter, now_s)

    def barred(self, reason: Reason) -> set[int]:
        """Whom this reason keeps out."""
        return set(self._barred.get(reason, ()))

    def gone(self, seq: int) -> None:
        """A job waits no longer."""
        for barred in self._barred.values():
            barred.discard(seq)

    def of(self, seq: int) -> frozenset[Reason]:
        """Why this job is kept out of the queue; empty where it is a candidate, or does not wait."""
        return frozenset(reason for reason, barred in self._barred.items() if seq in barred)

    def counts(self) -> dict[str, int]:
        """Jobs that are kept out, by reason."""
        return {reason: len(barred) for reason, barred in self._barred.items() if barred}

    def _without_other(self, seqs: Sequence[int], reason: Reason) -> Sequence[int]:
        """Those of these jobs that no other reason keeps out."""
        others = [barred for other, barred in self._barred.items() if other != reason and barred]
        return [seq for seq in seqs if not any(seq in barred for barred in others)] if others else seqs
