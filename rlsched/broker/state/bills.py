"""Cost or carbon of the measured energy of jobs.

The bill of an attempt is the product of its measured energy, the mean price during the attempt and the PUE,
in the units of the simulator's bills (`rlsched.energy.bills`). The power of an attempt is assumed to be
constant, because nodes report only its total energy. The attempt lasts from `Attempt.seated_s` until the
broker knows its end. There are up to two series: price and carbon intensity. Policies follow one of
them (`EnergyPriced`); only bills use the other (`BillPriced`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rlsched.broker.base.entries import BillPriced, EnergyPriced
from rlsched.energy.bills import UNITS

if TYPE_CHECKING:
    from rlsched.broker.state.jobs import Attempt, Job


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
        total: Integral of price x PUE up to `at_s`, price x seconds. Only differences of two values after
            `since_s` have a meaning.
    """

    kind: str = ""
    currency: str = ""
    pue: float = 1.0
    price: float = 0.0
    since_s: float = math.inf
    at_s: float = 0.0
    total: float = 0.0

    def after(self, entry: EnergyPriced | BillPriced, now_s: float) -> PriceSums:
        """Return the integral as it continues after a new journal entry `entry` of the series.

        `total` then includes the time up to `now_s`, the time of the entry (Unix seconds). From then on, the
        price of the entry applies.
        """
        if entry.price is None or not entry.kind:
            return PriceSums(at_s=now_s, total=self.total)
        goes_on = entry.mean_before is not None and (entry.kind, entry.currency) == (self.kind, self.currency)
        total = self.total
        if goes_on and entry.mean_before is not None:
            total += entry.mean_before * self.pue * (now_s - self.at_s)
        return PriceSums(
            kind=entry.kind,
            currency=entry.currency,
            pue=entry.pue,
            price=entry.price,
            since_s=self.since_s if goes_on else now_s,
            at_s=now_s,
            total=total,
        )

    def until(self, now_s: float) -> float:
        """Return the integral of price x PUE up to `now_s` (Unix seconds, not before `at_s`)."""
        return self.total + self.price * self.pue * (now_s - self.at_s)

    def bill(self, used_j: float, seated_s: float, seated_sum: float, now_s: float) -> JobBill:
        """Return the bill of an attempt; `NO_BILL` if the price was unknown at some time of the attempt.

        Args:
            used_j: Energy of the attempt, joules.
            seated_s: Start of the attempt, Unix seconds.
            seated_sum: Integral up to the start of the attempt (result of `until`).
            now_s: End of the attempt, or present time, Unix seconds.
        """
        if not self.since_s <= seated_s <= now_s:
            return NO_BILL
        mean = self.price * self.pue
        if seated_s < now_s:
            mean = (self.until(now_s) - seated_sum) / (now_s - seated_s)
        amount = used_j * mean / UNITS[self.kind]
        return JobBill(amount, None, self.currency) if self.kind == "cost" else JobBill(None, amount)


def job_bill(followed: PriceSums, other: PriceSums, job: Job, used_j: float | None, now_s: float) -> JobBill:
    """Return the bill of the measured energy of a job's ended attempts and of its current attempt.

    The cost is unknown if the price was unknown at some time of a measured attempt, or if the currency has
    changed. The carbon is unknown if the carbon intensity was unknown at some time of a measured attempt.

    Args:
        followed: Integral of the series that policies follow (price or carbon intensity).
        other: Integral of the series that only bills use (carbon intensity if policies follow the price).
        job: The job.
        used_j: Energy of the current attempt, joules; None: not measured, or there is no such attempt.
        now_s: Present time, Unix seconds.
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
    bills = (
        followed.bill(used_j, attempt.seated_s, attempt.price_sum, now_s),
        other.bill(used_j, attempt.seated_s, attempt.bill_price_sum, now_s),
    )
    of_cost = next((one for one in bills if one.cost is not None), NO_BILL)
    of_carbon = next((one for one in bills if one.carbon_kg is not None), NO_BILL)
    return JobBill(of_cost.cost, of_carbon.carbon_kg, of_cost.currency)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
