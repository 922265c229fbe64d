"""Totals of jobs by user, virtual cluster, account, and month, day or hour.

GPU time, energy and bills count when they were used: an attempt is divided over the months, days or hours in
which it ran. Numbers of jobs, waiting times and outcomes count when the job ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from rlsched.wire.messages import JobUsage, UsedSpan
from rlsched.wire.states import FINISHED

By = Literal["user", "vc", "account", "month", "day", "hour"]
PERIODS: Final[tuple[By, ...]] = ("month", "day", "hour")
_GPU_S_AN_HOUR = 3_600.0
_J_A_KWH = 3.6e6
_NO_REST = 1e-9
"""Fraction of a job's GPU time up to which the time outside its spans is a rounding error."""


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one group of jobs.

    Attributes:
        of: Values of the fields by which jobs are grouped, in order. In a month, day or hour, the group has
            the jobs that ended then, and the use of all jobs then.
        jobs: Number of jobs that ended.
        gpu_hours: GPU-hours. Of a shared GPU, only the job's fraction counts.
        energy_kwh: Energy of the jobs with known energy; None if there is no such job.
        energy_jobs: Number of jobs with known energy, among the jobs that ended.
        wait_mean_s: Mean queueing delay of the jobs that started, seconds; None if no job started.
        wait_p90_s: 90th percentile of the queueing delay, interpolated linearly, seconds; None if no job
            started.
        outcomes: Final state -> number of jobs.
        cost: Cost of the energy of the jobs with known cost, in `currency`; None if there is no such job, or
            if the currencies of the jobs differ.
        cost_jobs: Number of jobs with known cost, among the jobs that ended.
        currency: Currency of `cost`; "" if `cost` is None.
        carbon_kg: Carbon of the energy of the jobs with known carbon, kg CO2e; None if there is no such job.
        carbon_jobs: Number of jobs with known carbon, among the jobs that ended.
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
        self.jobs = self.energy_jobs = self.cost_jobs = self.carbon_jobs = 0
        self.gpu_s = 0.0
        self.energy_j: float | None = None
        self.cost: float | None = None
        self.carbon_kg: float | None = None
        self.currencies: set[str] = set()
        self.waits_s: list[float] = []
        self.outcomes: dict[str, int] = dict.fromkeys(FINISHED, 0)

    def add_ended(self, job: JobUsage) -> None:
        self.jobs += 1
        self.outcomes[job.state] = self.outcomes.get(job.state, 0) + 1
        self.energy_jobs += job.energy_j is not None
        self.cost_jobs += job.cost is not None
        self.carbon_jobs += job.carbon_kg is not None
        if job.wait_s is not None:
            self.waits_s.append(job.wait_s)

    def add_use(self, used: UsedSpan, part: float, currency: str) -> None:
        """Add the fraction `part` of a span. `currency`: currency of its cost."""
        self.gpu_s += part * used.gpu_s
        self.energy_j = _plus(self.energy_j, used.energy_j, part)
        self.cost = _plus(self.cost, used.cost, part)
        self.carbon_kg = _plus(self.carbon_kg, used.carbon_kg, part)
        if used.cost is not None:
            self.currencies.add(currency)

    def sums(self, of: tuple[str, ...]) -> Sums:
        waits_s = sorted(self.waits_s)
        has_cost = len(self.currencies) == 1
        return Sums(
            of=of,
            jobs=self.jobs,
            gpu_hours=self.gpu_s / _GPU_S_AN_HOUR,
            energy_kwh=None if self.energy_j is None else self.energy_j / _J_A_KWH,
            energy_jobs=self.energy_jobs,
            wait_mean_s=math.fsum(waits_s) / len(waits_s) if waits_s else None,
            wait_p90_s=percentile(waits_s, 0.9) if waits_s else None,
            outcomes=self.outcomes,
            cost=self.cost if has_cost else None,
            cost_jobs=self.cost_jobs,
            currency=next(iter(self.currencies)) if has_cost else "",
            carbon_kg=self.carbon_kg,
            carbon_jobs=self.carbon_jobs,
        )


def sums(
    jobs: Iterable[JobUsage],
    by: Sequence[By],
    period_of: Callable[[By, float], str],
    period_end_s: Callable[[By, float], float],
    since_s: float = -math.inf,
    until_s: float = math.inf,
) -> tuple[list[Sums], Sums]:
    """Compute the totals of each group of jobs, and of all jobs.

    Args:
        jobs: Jobs in any order.
        by: Fields by which jobs are grouped.
        period_of: Function that returns the month, day or hour that contains a time in Unix seconds.
        period_end_s: Function that returns the end of this month, day or hour, Unix seconds.
        since_s, until_s: Only the use in this interval, and the jobs that ended in it, count. Unix seconds.

    Returns:
        The totals of the groups, sorted by the values of the fields in `by`, and the totals of all jobs.
    """
    groups: dict[tuple[str, ...], _Group] = {}
    total = _Group()
    finest = next((name for name in reversed(PERIODS) if name in by), None)

    def groups_at(job: JobUsage, when_s: float) -> tuple[_Group, _Group]:
        of = tuple(period_of(name, when_s) if name in PERIODS else getattr(job, name) for name in by)
        return groups.setdefault(of, _Group()), total

    for job in jobs:
        if since_s <= job.end_s < until_s:
            for group in groups_at(job, job.end_s):
                group.add_ended(job)
        is_inside = job.end_s < until_s and all(since_s <= span.start_s for span in job.spans)
        for used in [_whole(job)] if is_inside and finest is None else _uses(job):
            for from_s, part in _parts(used, finest, period_end_s, since_s, until_s):
                for group in groups_at(job, from_s):
                    group.add_use(used, part, job.currency)
    return [groups[of].sums(of) for of in sorted(groups)], total.sums(("all",) * len(by))


def _whole(job: JobUsage) -> UsedSpan:
    """Return the whole use of a job, at its end."""
    return UsedSpan(job.end_s, job.end_s, job.gpu_s, job.energy_j, job.cost, job.carbon_kg)


def _uses(job: JobUsage) -> Iterator[UsedSpan]:
    """Yield the use of a job, with only those bills that are known for the whole job.

    Attempts without spans, which ended under an earlier version, count at the end of the job.
    """
    if not job.spans:
        yield _whole(job)
        return
    for span in job.spans:
        cost = None if job.cost is None else span.cost
        carbon_kg = None if job.carbon_kg is None else span.carbon_kg
        yield UsedSpan(span.start_s, span.end_s, span.gpu_s, span.energy_j, cost, carbon_kg)
    gpu_s = job.gpu_s - math.fsum(span.gpu_s for span in job.spans)
    if gpu_s > _NO_REST * job.gpu_s:
        rest = [
            None if whole is None else whole - math.fsum(getattr(span, name) or 0.0 for span in job.spans)
            for name, whole in (("energy_j", job.energy_j), ("cost", job.cost), ("carbon_kg", job.carbon_kg))
        ]
        yield UsedSpan(job.end_s, job.end_s, gpu_s, *rest)


def _parts(
    used: UsedSpan,
    period: By | None,
    period_end_s: Callable[[By, float], float],
    since_s: float,
    until_s: float,
) -> Iterator[tuple[float, float]]:
    """Yield (start in Unix seconds, fraction) of the parts of a span in each month, day or hour.

    `period` is `month`, `day` or `hour`; None: do not divide the span. Only parts between `since_s` and
    `until_s` are returned.
    """
    whole_s = used.end_s - used.start_s
    if whole_s <= 0.0 or math.isinf(used.end_s):
        if since_s <= used.start_s < until_s:
            yield used.start_s, 1.0
        return
    at_s, end_s = max(used.start_s, since_s), min(used.end_s, until_s)
    while at_s < end_s:
        next_s = end_s if period is None else min(period_end_s(period, at_s), end_s)
        yield at_s, (next_s - at_s) / whole_s
        at_s = next_s


def _plus(total: float | None, amount: float | None, part: float) -> float | None:
    return total if amount is None else (total or 0.0) + part * amount


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
