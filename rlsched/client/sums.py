"""Totals of finished jobs by user, virtual cluster, account, and month, day or hour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec

from rlsched.wire.messages import JobUsage
from rlsched.wire.states import FINISHED

By = Literal["user", "vc", "account", "month", "day", "hour"]
PERIODS: Final = ("month", "day", "hour")
_GPU_S_AN_HOUR = 3_600.0
_J_A_KWH = 3.6e6


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one group of jobs.

    Attributes:
        of: Values of the fields by which jobs are grouped, in order; all jobs of the group have them.
        jobs: Number of jobs.
        gpu_hours: GPU-hours of all attempts of these jobs. Of a shared GPU, only the job's fraction
            counts.
        energy_kwh: Energy of the jobs with known energy; None if there is no such job.
        energy_jobs: Number of jobs with known energy.
        wait_mean_s: Mean queueing delay of the jobs that started, seconds; None if no job started.
        wait_p90_s: 90th percentile of the queueing delay, interpolated linearly, seconds; None if no job
            started.
        outcomes: Final state -> number of jobs.
        cost: Cost of the energy of the jobs with known cost, in `currency`; None if there is no such job, or
            if the currencies of the jobs differ.
        cost_jobs: Number of jobs with known cost.
        currency: Currency of `cost`; "" if `cost` is None.
        carbon_kg: Carbon of the energy of the jobs with known carbon, kg CO2e; None if there is no such job.
        carbon_jobs: Number of jobs with known carbon.
    """

    of: tuple[str, ...]
    jobs: int
    gpu_hours: float
    energy_kwh: float | None
    energy_jobs: int
    wait_mean_s: float | None
    wait_p90_s: float | None
    outcomes: dict[str, int]
    cost: float | None = None
    cost_jobs: int = 0
    currency: str = ""
    carbon_kg: float | None = None
    carbon_jobs: int = 0


class _Group:
    """Running totals of one group."""

    def __init__(self) -> None:
        self.gpu_s: list[float] = []
        self.energy_j: list[float] = []
        self.costs: list[float] = []
        self.currencies: set[str] = set()
        self.carbon_kg: list[float] = []
        self.waits_s: list[float] = []
        self.outcomes: dict[str, int] = dict.fromkeys(FINISHED, 0)

    def add(self, job: JobUsage) -> None:
        self.gpu_s.append(job.gpu_s)
        self.outcomes[job.state] = self.outcomes.get(job.state, 0) + 1
        if job.energy_j is not None:
            self.energy_j.append(job.energy_j)
        if job.cost is not None:
            self.costs.append(job.cost)
            self.currencies.add(job.currency)
        if job.carbon_kg is not None:
            self.carbon_kg.append(job.carbon_kg)
        if job.wait_s is not None:
            self.waits_s.append(job.wait_s)

    def sums(self, of: tuple[str, ...]) -> Sums:
        waits_s = sorted(self.waits_s)
        has_cost = len(self.currencies) == 1
        return Sums(
            of=of,
            jobs=len(self.gpu_s),
            gpu_hours=math.fsum(self.gpu_s) / _GPU_S_AN_HOUR,
            energy_kwh=math.fsum(self.energy_j) / _J_A_KWH if self.energy_j else None,
            energy_jobs=len(self.energy_j),
            wait_mean_s=math.fsum(waits_s) / len(waits_s) if waits_s else None,
            wait_p90_s=percentile(waits_s, 0.9) if waits_s else None,
            outcomes=self.outcomes,
            cost=math.fsum(self.costs) if has_cost else None,
            cost_jobs=len(self.costs),
            currency=next(iter(self.currencies)) if has_cost else "",
            carbon_kg=math.fsum(self.carbon_kg) if self.carbon_kg else None,
            carbon_jobs=len(self.carbon_kg),
        )


def sums(
    jobs: Iterable[JobUsage], by: Sequence[By], period_of: Callable[[By, float], str]
) -> tuple[list[Sums], Sums]:
    """Compute the totals of each group of jobs, and of all jobs.

    Args:
        jobs: Jobs in any order.
        by: Fields by which jobs are grouped; `PERIODS` contain the end of the job.
        period_of: Function that returns the month, day or hour that contains a time in Unix seconds.

    Returns:
        The totals of the groups, sorted by the values of the fields in `by`, and the totals of all jobs.
    """
    groups: dict[tuple[str, ...], _Group] = {}
    total = _Group()
    for job in jobs:
        of = tuple(period_of(name, job.end_s) if name in PERIODS else getattr(job, name) for name in by)
        groups.setdefault(of, _Group()).add(job)
        total.add(job)
    return [groups[of].sums(of) for of in sorted(groups)], total.sums(("all",) * len(by))


def percentile(ascending: Sequence[float], part: float) -> float:
    """Return a quantile, interpolated linearly.

    Args:
        ascending: Values in ascending order, at least one.
        part: Fraction of the values below the quantile, 0 to 1.
    """
    place = part * (len(ascending) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
