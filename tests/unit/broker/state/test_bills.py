"""The integral of the price, and the bills of attempts and jobs, by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from rlsched.broker.base.entries import BillPriced, EnergyPriced, decode_entry, encode_entry
from rlsched.broker.state.bills import NO_BILL, JobBill, PriceSums, job_bill
from rlsched.broker.state.jobs import Attempt, Job
from tests.support.broker.hand import draft

MWH = 3.6e9


def priced(price: float | None, mean_before: float | None = None, **more: object) -> EnergyPriced:
    fields = {"kind": "cost", "currency": "EUR", **more}
    return EnergyPriced(price=price, ratio=1.0, until_s=math.inf, mean_before=mean_before, **fields)  # type: ignore[arg-type]


def job_from(sums: PriceSums, seated_s: float, other: PriceSums = PriceSums(), **more: object) -> Job:  # noqa: B008
    """A job whose current attempt has had its GPUs since `seated_s`."""
    attempt = Attempt(1, seated_s, [], 0, "", seated_s=seated_s)
    attempt.price_sum, attempt.bill_price_sum = sums.until(seated_s), other.until(seated_s)
    return Job(1, draft(), 0.0, 0, "running", attempt, **more)  # type: ignore[arg-type]


def bill_of(sums: PriceSums, job: Job, used_j: float | None, now_s: float) -> JobBill:
    """The bill with one series."""
    return job_bill(sums, PriceSums(), job, used_j, now_s)


def test_the_mean_is_weighted_by_time() -> None:
    sums = PriceSums().after(priced(100.0), 1_000.0)
    job = job_from(sums, 1_030.0)
    later = sums.after(priced(40.0, 100.0), 1_060.0)
    # 30 s at 100, then 60 s at 40
    cost = (30.0 * 100.0 + 60.0 * 40.0) / 90.0
    assert bill_of(later, job, MWH, 1_120.0) == (pytest.approx(cost), None, "EUR")
    assert bill_of(sums, job, MWH, 1_050.0) == (pytest.approx(100.0), None, "EUR")
    assert bill_of(later, job, 0.0, 1_120.0) == (0.0, None, "EUR")


def test_an_attempt_without_a_duration_has_the_present_price() -> None:
    sums = PriceSums().after(priced(-8.0, pue=1.5), 1_000.0)
    assert bill_of(sums, job_from(sums, 1_030.0), MWH / 2, 1_030.0) == (pytest.approx(-6.0), None, "EUR")


def test_the_pue_of_each_time_counts() -> None:
    sums = PriceSums().after(priced(100.0, pue=1.2), 0.0)
    job = job_from(sums, 10.0)
    later = sums.after(priced(100.0, 100.0, pue=1.4), 20.0)
    assert bill_of(later, job, MWH, 30.0).cost == pytest.approx(130.0)


def test_carbon_has_no_currency() -> None:
    sums = PriceSums().after(priced(250.0, kind="carbon", currency="", pue=2.0), 0.0)
    assert bill_of(sums, job_from(sums, 10.0), 3.6e6, 20.0) == (None, pytest.approx(0.5), "")


def test_prices_that_changed_while_no_broker_ran_count_by_their_mean() -> None:
    sums = PriceSums().after(priced(100.0), 0.0)
    job = job_from(sums, 0.0)
    assert bill_of(sums.after(priced(20.0, 70.0), 100.0), job, MWH, 200.0).cost == pytest.approx(45.0)


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
    assert bill_of(sums, job, MWH, 30.0) == NO_BILL
    if facts and facts[-1].price is not None and facts[-1].kind:
        assert bill_of(sums, job_from(sums, 20.0), MWH, 30.0).cost == pytest.approx(100.0), "a later job"


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
    assert bill_of(sums, job, MWH / 2, 20.0) == bill
    assert bill_of(sums, job, None, 20.0) == (job.cost, job.carbon_kg, job.currency), "not measured"


@pytest.mark.parametrize("follows", ["cost", "carbon"])
def test_both_series_are_billed(follows: str) -> None:
    cost = PriceSums().after(priced(100.0, pue=1.5), 0.0)
    carbon = PriceSums().after(BillPriced(price=400.0, until_s=60.0, kind="carbon", pue=1.5), 0.0)
    later = carbon.after(
        BillPriced(price=200.0, until_s=90.0, kind="carbon", pue=1.5, mean_before=400.0), 60.0
    )
    first, other, other_now = (cost, carbon, later) if follows == "cost" else (carbon, cost, cost)
    first_now = cost if follows == "cost" else later
    job = job_from(first, 30.0, other, energy_j=1.0, cost=2.0, carbon_kg=3.0, currency="EUR")
    # 1 MWh: 30 s at 400 g per kWh, then 90 s at 200
    assert job_bill(first_now, other_now, job, MWH, 150.0) == (
        pytest.approx(152.0), pytest.approx(3.0 + 1.5 * 250.0), "EUR",
    )  # fmt: skip
    unknown = job_bill(first_now, PriceSums(), job, MWH, 150.0)
    assert (unknown.cost is None, unknown.carbon_kg is None) == (follows == "carbon", follows == "cost")


def test_a_gap_in_one_series_leaves_the_other() -> None:
    cost = PriceSums().after(priced(100.0), 0.0)
    carbon = PriceSums().after(BillPriced(price=400.0, until_s=60.0, kind="carbon"), 0.0)
    job = job_from(cost, 0.0, carbon)
    gap = carbon.after(BillPriced(price=None, until_s=math.inf, mean_before=400.0), 10.0)
    back = gap.after(BillPriced(price=400.0, until_s=60.0, kind="carbon"), 20.0)
    assert job_bill(cost, back, job, MWH, 30.0) == (pytest.approx(100.0), None, "EUR")
    assert job_bill(cost, back, job_from(cost, 20.0, back), MWH, 30.0).carbon_kg == pytest.approx(400.0)


def test_a_fact_of_an_earlier_version_has_no_bill() -> None:
    old = {"type": "energy_priced", "price": 80.0, "ratio": 1.0, "until_s": 9.0}
    entry = decode_entry(msgspec.msgpack.encode(old))
    assert isinstance(entry, EnergyPriced)
    assert (entry.kind, entry.currency, entry.pue, entry.mean_before) == ("", "", 1.0, None)
    assert PriceSums().after(entry, 5.0) == PriceSums(at_s=5.0)
    now = priced(80.0, 70.0, pue=1.3)
    assert decode_entry(encode_entry(now)) == now
