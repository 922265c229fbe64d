"""The integral of the price, and the bills of attempts and jobs, by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from rlsched.broker.base.entries import EnergyPriced, decode_entry, encode_entry
from rlsched.broker.state.bills import NO_BILL, JobBill, PriceSums
from rlsched.broker.state.jobs import Attempt, Job
from tests.support.broker.hand import draft

MWH = 3.6e9


def priced(price: float | None, mean_before: float | None = None, **more: object) -> EnergyPriced:
    fields = {"kind": "cost", "currency": "EUR", **more}
    return EnergyPriced(price=price, ratio=1.0, until_s=math.inf, mean_before=mean_before, **fields)  # type: ignore[arg-type]


def job_from(sums: PriceSums, seated_s: float, **more: object) -> Job:
    """A job whose current attempt has had its GPUs since `seated_s`."""
    attempt = Attempt(1, seated_s, [], 0, "", seated_s=seated_s, price_sum=sums.until(seated_s))
    return Job(1, draft(), 0.0, 0, "running", attempt, **more)  # type: ignore[arg-type]


def test_the_mean_is_weighted_by_time() -> None:
    sums = PriceSums().after(priced(100.0), 1_000.0)
    job = job_from(sums, 1_030.0)
    later = sums.after(priced(40.0, 100.0), 1_060.0)
    # 30 s at 100, then 60 s at 40
    cost = (30.0 * 100.0 + 60.0 * 40.0) / 90.0
    assert later.job_bill(job, MWH, 1_120.0) == (pytest.approx(cost), None, "EUR")
    assert sums.job_bill(job, MWH, 1_050.0) == (pytest.approx(100.0), None, "EUR")
    assert later.job_bill(job, 0.0, 1_120.0) == (0.0, None, "EUR")


def test_an_attempt_without_a_duration_has_the_present_price() -> None:
    sums = PriceSums().after(priced(-8.0, pue=1.5), 1_000.0)
    assert sums.job_bill(job_from(sums, 1_030.0), MWH / 2, 1_030.0) == (pytest.approx(-6.0), None, "EUR")


def test_the_pue_of_each_time_counts() -> None:
    sums = PriceSums().after(priced(100.0, pue=1.2), 0.0)
    job = job_from(sums, 10.0)
    later = sums.after(priced(100.0, 100.0, pue=1.4), 20.0)
    assert later.job_bill(job, MWH, 30.0).cost == pytest.approx(130.0)


def test_carbon_has_no_currency() -> None:
    sums = PriceSums().after(priced(250.0, kind="carbon", currency="", pue=2.0), 0.0)
    assert sums.job_bill(job_from(sums, 10.0), 3.6e6, 20.0) == (None, pytest.approx(0.5), "")


def test_prices_that_changed_while_no_broker_ran_count_by_their_mean() -> None:
    sums = PriceSums().after(priced(100.0), 0.0)
    job = job_from(sums, 0.0)
    assert sums.after(priced(20.0, 70.0), 100.0).job_bill(job, MWH, 200.0).cost == pytest.approx(45.0)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        [priced(None)],
        [priced(None, 100.0), priced(100.0)],
        [priced(100.0)],  # the price was unknown for a part of the time
        [priced(100.0, 100.0, currency="USD")],
        [priced(100.0, 100.0, kind="", currency="")],
        [priced(100.0, 100.0, kind="carbon"), priced(100.0, 100.0)],
    ],
)
def test_unknown_prices_make_the_bill_unknown(facts: list[EnergyPriced]) -> None:
    sums = PriceSums() if not facts else PriceSums().after(priced(100.0), 0.0)
    job = job_from(sums, 5.0)
    for number, fact in enumerate(facts):
        sums = sums.after(fact, 10.0 + number)
    assert sums.job_bill(job, MWH, 30.0) == NO_BILL
    if facts and facts[-1].price is not None and facts[-1].kind:
        assert sums.job_bill(job_from(sums, 20.0), MWH, 30.0).cost == pytest.approx(100.0), "a later job"


@pytest.mark.parametrize(
    ("earlier", "bill"),
    [
        ({"energy_j": None}, JobBill(50.0, None, "EUR")),
        ({"energy_j": 7.0, "cost": 3.0, "currency": "EUR"}, JobBill(53.0, None, "EUR")),
        ({"energy_j": 7.0, "cost": 3.0, "currency": "USD"}, NO_BILL),
        ({"energy_j": 7.0}, NO_BILL),
        ({"energy_j": 7.0, "carbon_kg": 3.0}, NO_BILL),
    ],
)
def test_the_bill_of_several_attempts(earlier: dict[str, object], bill: JobBill) -> None:
    sums = PriceSums().after(priced(100.0), 0.0)
    job = job_from(sums, 10.0, **earlier)
    assert sums.job_bill(job, MWH / 2, 20.0) == bill
    assert sums.job_bill(job, None, 20.0) == (job.cost, job.carbon_kg, job.currency), "not measured"


def test_a_fact_of_an_earlier_version_has_no_bill() -> None:
    old = {"type": "energy_priced", "price": 80.0, "ratio": 1.0, "until_s": 9.0}
    entry = decode_entry(msgspec.msgpack.encode(old))
    assert isinstance(entry, EnergyPriced)
    assert (entry.kind, entry.currency, entry.pue, entry.mean_before) == ("", "", 1.0, None)
    assert PriceSums().after(entry, 5.0) == PriceSums(at_s=5.0)
    now = priced(80.0, 70.0, pue=1.3)
    assert decode_entry(encode_entry(now)) == now
