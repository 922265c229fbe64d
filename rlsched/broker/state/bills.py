"""Cost or carbon of the measured energy of jobs.

The bill of an attempt is the product of its measured energy, the mean price during the attempt and the PUE,
in the units of the simulator's bills (`rlsched.energy.bills`). The power of an attempt is assumed to be
constant, because nodes report only its total energy. The attempt lasts from `Attempt.seated_s` until the
broker knows its end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rlsched.broker.base.entries import EnergyPriced
from rlsched.energy.bills import UNITS

if TYPE_CHECKING:
    from rlsched.broker.state.jobs import Attempt, Job


class JobBill(NamedTuple):
    """Cost or carbon of a job's energy; fields as in `rlsched.broker.state.jobs.Job`."""

    cost: float | None = None
    carbon_kg: float | None = None
    currency: str = ""


NO_BILL: Final = JobBill()


class PriceSums(msgspec.Struct, frozen=True, kw_only=True):
    """Integral of the price of electricity over time.

    Attributes:
        kind, currency, pue: As in the last `EnergyPriced`.
        price: Present price, in the unit of its file; 0 if unknown.
        since_s: Time since which the price is known without a gap and in the same unit, Unix seconds;
            infinite: the price is unknown.
        at_s: Time of the last `EnergyPriced`, Unix seconds.
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

    def after(self, entry: EnergyPriced, now_s: float) -> PriceSums:
        """Return the integral after a fact at the time `now_s`, Unix seconds."""
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
        """Return the integral up to a time after `at_s`, Unix seconds."""
        return self.total + self.price * self.pue * (now_s - self.at_s)

    def job_bill(self, job: Job, used_j: float | None, now_s: float) -> JobBill:
        """Return the bill of the measured energy of a job's ended attempts and of its current attempt.

        If the price was unknown at some time of a measured attempt, or if the currency has changed, the job's
        bill is unknown.

        Args:
            job: The job.
            used_j: Energy of the current attempt, joules; None: not measured, or there is no such attempt.
            now_s: Present time, Unix seconds.
        """
        if used_j is None or job.attempt is None:
            return JobBill(job.cost, job.carbon_kg, job.currency)
        bill = self._attempt_bill(job.attempt, used_j, now_s)
        if job.energy_j is None:
            return bill
        cost, carbon_kg = _sum(job.cost, bill.cost), _sum(job.carbon_kg, bill.carbon_kg)
        if cost is None or job.currency != bill.currency:
            return JobBill(None, carbon_kg)
        return JobBill(cost, carbon_kg, bill.currency)

    def _attempt_bill(self, attempt: Attempt, used_j: float, now_s: float) -> JobBill:
        if not self.since_s <= attempt.seated_s <= now_s:
            return NO_BILL
        mean = self.price * self.pue
        if attempt.seated_s < now_s:
            mean = (self.until(now_s) - attempt.price_sum) / (now_s - attempt.seated_s)
        amount = used_j * mean / UNITS[self.kind]
        return JobBill(amount, None, self.currency) if self.kind == "cost" else JobBill(None, amount)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
