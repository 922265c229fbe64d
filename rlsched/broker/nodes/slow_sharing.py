"""Reactions to observed speeds of jobs that share GPUs: learns from the speeds, and reports slow jobs."""

from __future__ import annotations

import logging
from typing import Final, Literal

import msgspec

from rlsched.broker.base.entries import JobUnshared, PairSeen
from rlsched.broker.base.ledger_models import workload_name, workload_number
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.nodes.seen_speed import SLOW_AFTER_S, SeenSpeed, SeenSpeeds
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Job
from rlsched.wire.states import QUEUED

WATCH_S: Final = 300.0
"""Time for which a job must be measured with the same co-tenant before its speed is learnt, seconds; as in
the simulator (`rlsched_envs.sim.lessons.WATCH_S`).
"""
OnSlow = Literal["warn", "unshare", "move"]
_log = logging.getLogger("rlsched.broker")


class SharingRules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the reactions to observed speeds of jobs that share GPUs.

    Attributes:
        learns: Whether the models of speed learn from observed speeds, as with `learning` in a models file.
        watch_s: Time for which a job must be measured with the same co-tenant before its speed is learnt,
            seconds. The speed of a job that is requeued because it is slow is learnt at once.
        on_slow: Reaction to a slow job. `warn` logs a line. `unshare` also excludes the job from sharing from
            its next start on. `move` also requeues the job at once if it is preemptible.
    """

    learns: bool = True
    watch_s: float = WATCH_S
    on_slow: OnSlow = "warn"


class SlowSharing:
    """Learns from observed speeds of jobs on shared GPUs, and reacts to jobs that are too slow."""

    def __init__(
        self, state: BrokerState, speeds: SeenSpeeds, attempts: Launches, rules: SharingRules, out: Outbox
    ) -> None:
        self._state, self._speeds, self._attempts = state, speeds, attempts
        self._rules, self._out = rules, out
        self._reported: dict[int, tuple[int, tuple[int, ...]]] = {}  # job -> attempt, co-tenants

    def step(self, now_s: float) -> None:
        """Learn from the observed speeds of all jobs, and react to slow jobs. `now_s`: Unix seconds."""
        self._speeds.forget(now_s)
        for number in self._speeds.jobs:
            job = self._state.jobs[number]
            seen = self._speeds.of(job, now_s)
            if seen is None:
                continue
            if seen.seen_s >= self._rules.watch_s:
                self._learn(job, seen, now_s)
            if seen.slow_s >= SLOW_AFTER_S:
                self._slow(job, seen, now_s)
        watched = set(self._speeds.jobs)
        self._reported = {job: pair for job, pair in self._reported.items() if job in watched}

    def _learn(self, job: Job, seen: SeenSpeed, now_s: float) -> None:
        """Journal the speed of a job that has exactly one co-tenant, once for each pair of jobs.

        The speed is not learnt if a CPU limit has slowed the job down.
        """
        if not (self._rules.learns and seen.is_fed):
            return
        attempt, cluster = job.active, self._state.cluster
        speed = self._speeds.mean_frac(job, now_s)
        if attempt is None or attempt.tenants != 2 or attempt.is_learnt or speed is None or speed <= 0.0:
            return
        (other,) = cluster.beside(job.seq)
        node = self._state.nodes[attempt.ranks[0].node].number
        kind = int(cluster.arrays.node.kind[node])
        mine, theirs = (int(cluster.arrays.job.workload[cluster.slot_of(seq)]) for seq in (job.seq, other))
        beside = self._state.job_of_seq[other]
        if self._can_learn(kind, (job, mine), (beside, theirs)):
            self._out.record(
                PairSeen(
                    job=job.number,
                    attempt=attempt.number,
                    gpu_type=cluster.kind_names[kind],
                    workload=workload_name(mine),
                    partner=workload_name(theirs),
                    speed=round(speed, 6),
                    beside=beside.number,
                )
            )

    def _can_learn(self, kind: int, *pair: tuple[Job, int]) -> bool:
        """Return whether the observed speed of a job with its co-tenant can improve the broker's predictions.

        The models of speed improve if the catalogue has no measurement of this pair of workloads. Otherwise,
        the profile of a job improves if the user did not name the job's workload: the broker has chosen the
        most similar workload of the catalogue, from which the job may differ.

        Args:
            kind: Index of the GPU type in the ledger.
            pair: Both jobs, each with the catalogue index of its workload.
        """
        (_, mine), (_, theirs) = pair
        if self._state.models.can_learn(kind, mine, theirs):
            return True
        return min(mine, theirs) > 0 and any(workload_number(job.spec.workload) <= 0 for job, _ in pair)

    def _slow(self, job: Job, seen: SeenSpeed, now_s: float) -> None:
        """Report a slow job, once for each set of co-tenants.

        If `on_slow` is not `warn`, the job shares no GPUs from its next start on.
        """
        attempt = job.active
        assert attempt is not None
        others = tuple(self._state.cluster.beside(job.seq))
        if self._reported.get(job.number) == (attempt.number, others):
            return
        self._reported[job.number] = attempt.number, others
        names = ", ".join(f"job {self._state.job_of_seq[seq].called}" for seq in others)
        why = (
            f"next to {names} it ran at {seen.speed_frac:.2f} of its unshared speed for {seen.slow_s:.0f} s; "
            f"{seen.predicted_frac:.2f} was predicted"
        )
        acts = self._rules.on_slow != "warn" and not job.alone and not attempt.ending
        then = "; it will share no GPUs from its next start on" if acts else ""
        _log.warning("job %s: %s%s", job.called, why, then)
        if not acts:
            return
        self._out.record(JobUnshared(job=job.number, reason=why))
        if self._rules.on_slow == "move" and job.spec.preemptible:
            self._learn(job, seen, now_s)  # so that the same pair is not formed again
            self._attempts.end(job, QUEUED, f"{why}: it will not share again", charged=False)
