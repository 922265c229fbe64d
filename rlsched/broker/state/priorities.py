"""Priorities of jobs: submitted priority, increase by waiting time, and fair share.

A level and a weight of each job determine the order of the queue (`decide.order.keys`). The level is the
priority as an integer, with the increase by waiting time. The weight is the user's fair share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple, get_args

import msgspec

from rlsched.broker.base.entries import JobsRanked, JobSubmitted
from rlsched.broker.state.fair_share import FairShareUsage, fair_ln_weights
from rlsched.broker.state.jobs import Job
from rlsched.cluster.state import ClusterState
from rlsched.errors import InputError
from rlsched.wire.messages import Priority
from rlsched.wire.states import QUEUED

LEVELS: Final[dict[Priority, int]] = {"low": -1, "normal": 0, "high": 1, "urgent": 2}
WORTH_TELLING: Final = 0.01
"""Minimum change of a user's ln(weight) that is journalled."""
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)


class PriorityRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the priorities of jobs.

    Attributes:
        half_life_s: Half-life of a user's usage, seconds; infinite: no fair share.
        age_s: Waiting time after which a job rises by one priority, up to `high`, seconds; infinite: never.
        highest: Highest priority that users who are not admins can request.
        preemptible: Jobs with this or a lower priority are always preemptible; None: only jobs that
            are submitted as preemptible.
        every_s: Interval at which weights and levels are updated, seconds.
    """

    half_life_s: float = math.inf
    age_s: float = math.inf
    highest: Priority = "normal"
    preemptible: Priority | None = None
    every_s: float = 60.0

    def check(self, priority: Priority) -> None:
        """Check that a user who is not an admin can request this priority.

        Raises:
            InputError: only admins can request this priority.
        """
        if LEVELS[priority] > LEVELS[self.highest]:
            raise InputError(
                f"priority {priority} is reserved for admins: use {self.highest} or a lower priority, from "
                f"lowest to highest: {', '.join(PRIORITIES)}"
            )

    def may_be_preempted(self, priority: Priority) -> bool:
        """Return whether all jobs of this priority are preemptible, however they are submitted."""
        return self.preemptible is not None and LEVELS[priority] <= LEVELS[self.preemptible]


class _RankedJob(NamedTuple):
    seq: int
    user: str


class Priorities:
    """Priority levels of live jobs and weights of users, as set by the entries of the journal.

    A job has the weight of its user.

    Args:
        cluster: The ledger (cluster state), which contains the order of the queue.

    Attributes:
        ln_weights: ln(weight) by user, for weights other than 1.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.ln_weights: dict[str, float] = {}
        self._live: dict[int, _RankedJob] = {}
        self._levels: dict[int, int] = {}

    def level_and_weight(self, entry: JobSubmitted) -> tuple[int, float]:
        """Return the level and ln(weight) of a newly submitted job."""
        return LEVELS[entry.priority], self.ln_weights.get(entry.user, 0.0)

    def add_ranked(self, entry: JobSubmitted, seq: int) -> None:
        """Add a live job, which has sequence number `seq` in the ledger."""
        self._live[entry.job] = _RankedJob(seq, entry.user)
        self._levels[entry.job] = LEVELS[entry.priority]

    def restore_priorities(self, ln_weights: dict[str, float], levels: dict[int, int]) -> None:
        """Restore ln(weight) by user and levels by job. The ledger must already have the live jobs."""
        self.ln_weights.update(ln_weights)
        self._levels.update(levels)

    def set(self, job: int, priority: Priority, now_s: float) -> None:
        """Set the priority of a live job. The next review adds the increase by waiting time again."""
        seq, user = self._live[job]
        self._levels[job] = LEVELS[priority]
        self._cluster.rank_job(seq, LEVELS[priority], self.ln_weights.get(user, 0.0), now_s)

    def remove_ranked(self, job: int) -> None:
        """Remove the level of a finished job."""
        self._live.pop(job, None)
        self._levels.pop(job, None)

    def level(self, job: int) -> int:
        """Return the level of a live job, including the increase by waiting time."""
        return self._levels[job]

    def rank(self, entry: JobsRanked, now_s: float) -> None:
        """Apply a journal entry with new weights and levels."""
        self.ln_weights.update(entry.ln_weights)
        self._levels.update((job, level) for job, level in entry.levels.items() if job in self._live)
        for job, (seq, user) in self._live.items():
            if user in entry.ln_weights or job in entry.levels:
                weight = self.ln_weights.get(user, 0.0)
                self._cluster.rank_job(seq, self._levels[job], weight, now_s)
        for user in [user for user, weight in self.ln_weights.items() if weight == 0.0]:
            del self.ln_weights[user]


def due_ranks(
    ranks: PriorityRules,
    priorities: Priorities,
    usage: FairShareUsage,
    live: Iterable[Job],
    now_s: float,
) -> JobsRanked | None:
    """Return the journal entry with the changed weights of users and levels of jobs; None: no change."""
    jobs = list(live)
    fair: dict[str, float] = {}
    if math.isfinite(ranks.half_life_s):
        used = usage.usage_by_user(now_s, jobs)
        fair = fair_ln_weights(used | {job.spec.user: used.get(job.spec.user, 0.0) for job in jobs})
    weights = {
        user: fair.get(user, 0.0)
        for user in sorted(fair.keys() | priorities.ln_weights.keys())
        if abs(fair.get(user, 0.0) - priorities.ln_weights.get(user, 0.0)) > WORTH_TELLING
    }
    levels = {
        job.number: level
        for job in jobs
        if job.state == QUEUED and (level := level_of(ranks, job, now_s)) != priorities.level(job.number)
    }
    if not weights and not levels:
        return None
    return JobsRanked(ln_weights=weights, levels=levels)


def level_of(ranks: PriorityRules, job: Job, now_s: float) -> int:
    """Return the level of a waiting job: its priority, raised for long waiting and after a stop of its node.

    The job rises by one priority, up to `high`, if its last attempt ended because a node was stopped together
    with its jobs, declared down, or removed. Thus the job starts before later jobs after a restart of the
    cluster. A job does not rise if its node was lost for another reason, because the job may have
    crashed the node.
    """
    level = LEVELS[job.spec.priority]
    more = 0 if math.isinf(ranks.age_s) else int((now_s - job.submit_s) / ranks.age_s)
    if job.stopped is not None and job.stopped.with_node:
        more += 1
    return max(level, min(level + more, LEVELS["high"]))
