"""Cost or carbon of the measured energy of jobs.

The bill of an attempt is the product of its measured energy, the mean price during the attempt and the PUE,
in the units of the simulator's bills (`rlsched.energy.bills`). The power of an attempt is assumed to be
constant, because nodes report only its total energy. The attempt lasts from `Attempt.seated_s` until the
end of its last rank (`Attempt.until_s`). There are up to two series: price and carbon intensity. Policies
follow one of them (`EnergyPriced`); only bills use the other (`BillPriced`).

`spans_of` divides an attempt at the times at which a price has changed, so that its use can be counted in the
hours in which it was used. The bills of these parts add up to the bill of the attempt.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rlsched.broker.base.entries import BillPriced, EnergyPriced
from rlsched.energy.bills import UNITS
from rlsched.wire.messages import UsedSpan

if TYPE_CHECKING:
    from rlsched.broker.state.jobs import Attempt, Job


MAX_SPANS: Final = 2_000
"""Number of changes of prices above which `spans_of` takes only every second (or third, ...) change."""
Steps = tuple[tuple[float, float, float], ...]
"""Times with a constant price: start in Unix seconds, integral of price x PUE up to it, price x PUE."""
_start: Final = itemgetter(0)
_SAME_PRICE: Final = 1e-6
"""Relative difference up to which two successive prices are equal, apart from rounding errors."""


class JobBill(NamedTuple):
    """Cost and carbon of a job's energy; fields as in `rlsched.broker.state.jobs.Job`."""

    cost: float | None = None
    carbon_kg: float | None = None
    currency: str = ""


NO_BILL: Final = JobBill()


class PriceSums(msgspec.Struct, frozen=True, kw_only=True):
    """Integral of a price of electricity, or of its carbon intensity, over time.

    Attributes:
        kind, currency, pue: Fields of the last journal entry of the series.
        price: Present price, in the unit of its file; 0 if unknown.
        since_s: Time since which the price is known without a gap and in the same unit, Unix seconds;
            infinite: the price is unknown.
        at_s: Time of the last journal entry of the series, Unix seconds.
        until_s: Time until which the price of this entry applies, Unix seconds; infinite: not known.
        total: Integral of price x PUE up to `at_s`, price x seconds. Only differences of two values after
            `since_s` have a meaning.
        steps: Times up to `at_s` with a constant price, in order. Times before the start of all present
            attempts are left out.
    """

    kind: str = ""
    currency: str = ""
    pue: float = 1.0
    price: float = 0.0
    since_s: float = math.inf
    at_s: float = 0.0
    total: float = 0.0
    until_s: float = math.inf
    steps: Steps = ()

    def after(self, entry: EnergyPriced | BillPriced, now_s: float, oldest_s: float = -math.inf) -> PriceSums:
        """Return the integral as it continues after a new journal entry `entry` of the series.

        `total` then includes the time up to `now_s`, the time of the entry (Unix seconds). From then on, the
        price of the entry applies. `oldest_s`: start of the oldest present attempt, Unix seconds.
        """
        if entry.price is None or not entry.kind:
            return PriceSums(at_s=now_s, total=self.total)
        goes_on = entry.mean_before is not None and (entry.kind, entry.currency) == (self.kind, self.currency)
        total = self.total
        steps: Steps = ()
        if goes_on and entry.mean_before is not None:
            total += entry.mean_before * self.pue * (now_s - self.at_s)
            steps, at_s, at_sum = self.steps, self.at_s, self.total
            if at_s < self.until_s < now_s:
                steps = _joined(steps, at_s, at_sum, self.price * self.pue)
                at_s, at_sum = self.until_s, self.until(self.until_s)
            if at_s < now_s:
                steps = _joined(steps, at_s, at_sum, (total - at_sum) / (now_s - at_s))
            steps = steps[max(bisect_right(steps, oldest_s, key=_start) - 1, 0) :]
        return PriceSums(
            kind=entry.kind,
            currency=entry.currency,
            pue=entry.pue,
            price=entry.price,
            since_s=self.since_s if goes_on else now_s,
            at_s=now_s,
            until_s=entry.until_s,
            total=total,
            steps=steps,
        )

    def until(self, now_s: float, since_s: float = -math.inf, since_sum: float = 0.0) -> float:
        """Return the integral of price x PUE up to `now_s`, Unix seconds.

        `since_sum` is its known value at `since_s`, Unix seconds. Only needed if `now_s` is before `at_s`:
        between two known values, the price is then assumed to be constant.
        """
        if now_s >= self.at_s:
            return self.total + self.price * self.pue * (now_s - self.at_s)
        after = bisect_right(self.steps, now_s, key=_start)
        to_s, to_sum, _ = self.steps[after] if after < len(self.steps) else (self.at_s, self.total, 0.0)
        if after > 0 and self.steps[after - 1][0] > since_s:
            since_s, since_sum, _ = self.steps[after - 1]
        return since_sum + (to_sum - since_sum) * (now_s - since_s) / (to_s - since_s)

    def changes(self, since_s: float, until_s: float) -> list[float]:
        """Return the times of new prices, Unix seconds, after `since_s` and before `until_s`."""
        steps = _joined(self.steps, self.at_s, self.total, self.price * self.pue)
        return [start_s for start_s, _, _ in steps if since_s < start_s < until_s]

    def bill(self, used_j: float, seated_s: float, seated_sum: float, now_s: float) -> JobBill:
        """Return the bill of an attempt; `NO_BILL` if the price was unknown at some time of the attempt.

        Args:
            used_j: Energy of the attempt, joules.
            seated_s: Start of the attempt, Unix seconds.
            seated_sum: Integral up to the start of the attempt (result of `until`).
            now_s: End of the attempt, or present time, Unix seconds. It can be before `at_s`.
        """
        if not self.since_s <= seated_s <= now_s:
            return NO_BILL
        mean = self.price * self.pue
        if seated_s < now_s:
            mean = (self.until(now_s, seated_s, seated_sum) - seated_sum) / (now_s - seated_s)
        amount = used_j * mean / UNITS[self.kind]
        return JobBill(amount, None, self.currency) if self.kind == "cost" else JobBill(None, amount)


def _joined(steps: Steps, start_s: float, total: float, rate: float) -> Steps:
    """Return `steps` with one more step, unless it continues the last one."""
    if steps and math.isclose(steps[-1][2], rate, rel_tol=_SAME_PRICE):
        return steps
    return (*steps, (start_s, total, rate))


def job_bill(followed: PriceSums, other: PriceSums, job: Job, used_j: float | None, now_s: float) -> JobBill:
    """Return the bill of the measured energy of a job's ended attempts and of its current attempt.

    The cost is unknown if the price was unknown at some time of a measured attempt, or if the currency has
    changed. The carbon is unknown if the carbon intensity was unknown at some time of a measured attempt.

    Args:
        followed: Integral of the series that policies follow (price or carbon intensity).
        other: Integral of the series that only bills use (carbon intensity if policies follow the price).
        job: The job.
        used_j: Energy of the current attempt, joules; None: not measured, or there is no such attempt.
        now_s: End of the current attempt, or present time, Unix seconds.
    """
    if used_j is None or job.attempt is None:
        return JobBill(job.cost, job.carbon_kg, job.currency)
    bill = _attempt_bill(followed, other, job.attempt, used_j, now_s)
    if job.energy_j is None:
        return bill
    cost, carbon_kg = _sum(job.cost, bill.cost), _sum(job.carbon_kg, bill.carbon_kg)
    if cost is None or job.currency != bill.currency:
        return JobBill(None, carbon_kg)
    return JobBill(cost, carbon_kg, bill.currency)


def _attempt_bill(
    followed: PriceSums, other: PriceSums, attempt: Attempt, used_j: float, now_s: float
) -> JobBill:
    sums = attempt.price_sum, attempt.bill_price_sum
    return _bill((followed, other), sums, used_j, attempt.seated_s, now_s)


def _bill(
    series: tuple[PriceSums, PriceSums],
    sums: tuple[float, float],
    used_j: float,
    since_s: float,
    until_s: float,
) -> JobBill:
    """Return the bill of an energy that was used between two times, Unix seconds.

    Args:
        series: The two series.
        sums: Their integrals up to `since_s`.
        used_j: The energy, joules.
    """
    bills = [one.bill(used_j, since_s, total, until_s) for one, total in zip(series, sums, strict=True)]
    of_cost = next((one for one in bills if one.cost is not None), NO_BILL)
    of_carbon = next((one for one in bills if one.carbon_kg is not None), NO_BILL)
    return JobBill(of_cost.cost, of_carbon.carbon_kg, of_cost.currency)


def spans_of(
    followed: PriceSums, other: PriceSums, attempt: Attempt, gpu_s: float, used_j: float | None, end_s: float
) -> list[UsedSpan]:
    """Divide the use of an attempt at the times at which a price has changed.

    There are at most about `MAX_SPANS` parts.
    Cost and carbon of the parts add up to the bill of the attempt. They are None if this bill is unknown.

    Args:
        followed, other: Integrals as in `job_bill`.
        attempt: An attempt that has got its GPUs.
        gpu_s: Its GPU-seconds, which are divided in proportion to time, also if the attempt shared GPUs only
            for a part of its time.
        used_j: Its energy, joules; None: not measured.
        end_s: Its end, or the present time, Unix seconds.
    """
    start_s, end_s = attempt.seated_s, max(end_s, attempt.seated_s)
    bill = NO_BILL if used_j is None else _attempt_bill(followed, other, attempt, used_j, end_s)
    if used_j is None or bill == NO_BILL or start_s == end_s:
        return [UsedSpan(start_s, end_s, gpu_s, used_j, bill.cost, bill.carbon_kg)]
    found = list[UsedSpan]()
    sums = attempt.price_sum, attempt.bill_price_sum
    changes = sorted({*followed.changes(start_s, end_s), *other.changes(start_s, end_s)})
    for since_s, until_s in pairwise((start_s, *changes[:: 1 + len(changes) // MAX_SPANS], end_s)):
        part = (until_s - since_s) / (end_s - start_s)
        of_part = _bill((followed, other), sums, used_j * part, since_s, until_s)
        cost = None if bill.cost is None else of_part.cost
        carbon_kg = None if bill.carbon_kg is None else of_part.carbon_kg
        found.append(UsedSpan(since_s, until_s, gpu_s * part, used_j * part, cost, carbon_kg))
        sums = followed.until(until_s, since_s, sums[0]), other.until(until_s, since_s, sums[1])
    return found


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
