"""Sums over jobs that are over: by user, virtual cluster, account and day."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from rlsched.wire.messages import JobUsage

By = Literal["user", "vc", "account", "day"]
OUTCOMES = ("completed", "failed", "cancelled", "rejected")
_GPU_S_AN_HOUR = 3_600.0
_J_A_KWH = 3.6e6


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one group.

    Attributes:
        of: What they have in common, in the order that was asked for.
        jobs: How many.
        gpu_hours: Of all their attempts, shares counted.
        energy_kwh: Of those whose energy is known; None where it is of none.
        energy_jobs: How many those are.
        wait_mean_s: Mean queueing delay of those that started, seconds; None where none did.
        wait_p90_s: Its 90th percentile, between the two nearest in proportion.
        outcomes: How many ended how, by state.
    """

    of: tuple[str, ...]
    jobs: int
    gpu_hours: float
    energy_kwh: float | None
    energy_jobs: int
    wait_mean_s: float | None
    wait_p90_s: float | None
    outcomes: dict[str, int]


class _Group:
    """One group as it is added up."""

    def __init__(self) -> None:
        self.gpu_s: list[float] = []
        self.energy_j: list[float] = []
        self.waits_s: list[float] = []
        self.outcomes = dict.fromkeys(OUTCOMES, 0)

    def add(self, job: JobUsage) -> None:
        self.gpu_s.append(job.gpu_s)
        self.outcomes[job.state] = self.outcomes.get(job.state, 0) + 1
        if job.energy_j is not None:
            self.energy_j.append(job.energy_j)
        if job.wait_s is not None:
            self.waits_s.append(job.wait_s)

    def sums(self, of: tuple[str, ...]) -> Sums:
        waits_s = sorted(self.waits_s)
        return Sums(
            of=of,
            jobs=len(self.gpu_s),
            gpu_hours=math.fsum(self.gpu_s) / _GPU_S_AN_HOUR,
            energy_kwh=math.fsum(self.energy_j) / _J_A_KWH if self.energy_j else None,
            energy_jobs=len(self.energy_j),
            wait_mean_s=math.fsum(waits_s) / len(waits_s) if waits_s else None,
            wait_p90_s=percentile(waits_s, 0.9) if waits_s else None,
            outcomes=self.outcomes,
        )


def sums(
    jobs: Iterable[JobUsage], by: Sequence[By], day_of: Callable[[float], str]
) -> tuple[list[Sums], Sums]:
    """Add up jobs.

    Args:
        jobs: In any order.
        by: What groups them.
        day_of: The day of a time, Unix seconds.

    Returns:
        The groups, sorted, and all of them together.
    """
    groups: dict[tuple[str, ...], _Group] = {}
    total = _Group()
    for job in jobs:
        of = tuple(day_of(job.end_s) if name == "day" else getattr(job, name) for name in by)
        groups.setdefault(of, _Group()).add(job)
        total.add(job)
    return [groups[of].sums(of) for of in sorted(groups)], total.sums(("all",) * len(by))


def percentile(ascending: Sequence[float], part: float) -> float:
    """The value below which this part of the values lies, between the two nearest in proportion."""
    place = part * (len(ascending) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
