"""A second implementation of quotas: computed only from the journal's facts, from scratch each time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

import msgspec

from rlsched.broker.base.entries import (
    AttemptOver,
    BrokerStarted,
    Decided,
    Entry,
    JobCancelled,
    JobSubmitted,
    QuotaSet,
)
from rlsched.broker.state.broker_state import BrokerState
from rlsched.cluster.arrays import WAITING
from rlsched.decide.actions import Preempt, Start

Party = tuple[str, str]


class Held(msgspec.Struct):
    """A job's GPUs, from its start to the end of its processes; times in ms."""

    gpus: int
    parties: list[Party]
    since_ms: int
    charged_until_ms: int | None = None
    until_ms: int | None = None


class QuotaOracle:
    """Follows a journal and checks all quotas at each start."""

    def __init__(self) -> None:
        self.limits: dict[Party, QuotaSet] = {}
        self.jobs: dict[int, JobSubmitted] = {}
        self.seqs: list[int] = []
        self.live: set[int] = set()
        self.held: list[tuple[int, Held]] = []
        self.starts_under_quota = 0

    def follow(self, entries: Iterable[Entry], now_s: float) -> None:
        """Facts of a batch."""
        now_ms = round(now_s * 1000)
        for entry in entries:
            match entry:
                case QuotaSet():
                    self.limits[entry.kind, entry.name] = entry
                case JobSubmitted(rejected=""):
                    assert not self.refuses(parties_of(entry), entry.num_gpus), (
                        f"job {entry.job} exceeds the number of jobs"
                    )
                    self.jobs[entry.job] = entry
                    self.seqs.append(entry.job)
                    self.live.add(entry.job)
                case JobCancelled(job=job):
                    self.live.discard(job)
                case Decided(action=Start(seq=seq)):
                    self.start(self.seqs[seq], now_ms)
                case Decided(action=Preempt(seq=seq)):
                    self.of(self.seqs[seq]).charged_until_ms = now_ms
                case AttemptOver(job=job, outcome=outcome):
                    held = self.of(job)
                    held.until_ms = now_ms
                    if held.charged_until_ms is None:
                        held.charged_until_ms = now_ms
                    if outcome != "queued":
                        self.live.discard(job)
                case BrokerStarted():
                    pass

    def of(self, job: int) -> Held:
        return next(held for number, held in self.held if number == job and held.until_ms is None)

    def start(self, job: int, now_ms: int) -> None:
        spec = self.jobs[job]
        assert not self.blocked(spec, now_ms), f"job {job} of {parties_of(spec)} exceeds a quota"
        self.starts_under_quota += any(self.limit(party, "gpus") is not None for party in parties_of(spec))
        self.held.append((job, Held(spec.num_gpus, parties_of(spec), now_ms)))

    def limit(self, party: Party, what: str) -> float | None:
        for name in (party, (party[0], "default")):
            quota = self.limits.get(name)
            if quota is not None and getattr(quota, what) is not None:
                return float(getattr(quota, what))
        return None

    def num_live(self, party: Party) -> int:
        return sum(party in parties_of(self.jobs[job]) for job in self.live)

    def gpus(self, party: Party) -> int:
        """GPUs of the party's processes."""
        return sum(held.gpus for _, held in self.held if held.until_ms is None and party in held.parties)

    def used(self, party: Party, now_ms: int) -> Fraction:
        """GPU-hours of this month."""
        month = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        month_ms = round(month.timestamp() * 1000)
        gpu_ms = 0
        for _, held in self.held:
            if party in held.parties:
                until_ms = now_ms if held.charged_until_ms is None else held.charged_until_ms
                gpu_ms += held.gpus * max(until_ms - max(held.since_ms, month_ms), 0)
        return Fraction(gpu_ms, 3_600_000)

    def refuses(self, parties: list[Party], gpus: int) -> bool:
        """Whether a job is refused at submission."""
        for party in parties:
            jobs, most = self.limit(party, "jobs"), self.limit(party, "gpus")
            if (jobs is not None and self.num_live(party) >= jobs) or (most is not None and gpus > most):
                return True
        return any(self.limit(party, "gpu_hours") == 0 for party in parties)

    def blocked(self, spec: JobSubmitted, now_ms: int) -> bool:
        for party in parties_of(spec):
            most = self.limit(party, "gpus")
            if most is not None and self.gpus(party) + spec.num_gpus > most:
                return True
            hours = self.limit(party, "gpu_hours")
            if hours is not None and self.used(party, now_ms) >= Fraction(hours):
                return True
        return False

    def agrees_with(self, state: BrokerState, now_s: float) -> int:
        """Assert that only the jobs that a quota blocks are outside the queue; returns their number."""
        now_ms, found = round(now_s * 1000), 0
        for job in state.job_of_seq.values():
            if job.state == "queued":
                barred = bool(state.eligibility.barring_reasons(job.seq))
                assert barred == self.blocked(self.jobs[job.number], now_ms), f"job {job.number}"
                assert (job.seq in waiting(state)) == (not barred)
                found += barred
        return found


def waiting(state: BrokerState) -> set[int]:
    """Jobs that wait in the ledger, in its queues or without a partition for them."""
    job = state.cluster.arrays.job
    queued = {seq for p in range(state.cluster.num_partitions) for seq in state.cluster.waiting(p)}
    waits = {int(seq) for seq in job.seq[job.status == WAITING]}
    assert queued <= waits
    return waits


def parties_of(job: JobSubmitted) -> list[Party]:
    named = [("user", job.user), ("account", job.account), ("vc", job.vc)]
    return [(kind, name) for kind, name in named if name or kind == "user"]
