"""The integral of the price, and the bills of attempts and jobs, by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from rlsched.broker.base.entries import BillPriced, EnergyPriced, decode_entry, encode_entry
from rlsched.broker.state.bills import MAX_SPANS, NO_BILL, JobBill, PriceSums, job_bill, spans_of
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.wire.messages import UsedSpan
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


def test_the_parts_of_an_attempt_add_up_to_its_bill() -> None:
    """100 from 0 s, 40 from 60 s, 40 from 90 s, 70 from 120 s on; carbon 400, then 200 from 100 s on."""
    cost = PriceSums().after(priced(100.0, pue=1.5), 0.0)
    carbon = PriceSums().after(BillPriced(price=400.0, until_s=60.0, kind="carbon", pue=1.5), 0.0)
    job = job_from(cost, 30.0, carbon)
    assert job.attempt is not None
    for at_s, before, price in ((60.0, 100.0, 40.0), (90.0, 40.0, 40.0), (120.0, 40.0, 70.0)):
        cost = cost.after(priced(price, before, pue=1.5), at_s, 30.0)
    carbon = carbon.after(
        BillPriced(price=200.0, until_s=90.0, kind="carbon", pue=1.5, mean_before=400.0), 100.0, 30.0
    )
    spans = spans_of(cost, carbon, job.attempt, 260.0, MWH, 160.0)
    assert [(one.start_s, one.end_s) for one in spans] == [
        (30.0, 60.0), (60.0, 100.0), (100.0, 120.0), (120.0, 160.0),
    ]  # fmt: skip
    at_s = [one.end_s - one.start_s for one in spans]
    assert [one.gpu_s for one in spans] == pytest.approx([2.0 * part_s for part_s in at_s])
    assert [one.energy_j for one in spans] == pytest.approx([MWH * part_s / 130.0 for part_s in at_s])
    prices = [100.0, 40.0, 40.0, 70.0]
    grams = [400.0, 400.0, 200.0, 200.0]
    assert [one.cost for one in spans] == pytest.approx(
        [1.5 * price * part_s / 130.0 for price, part_s in zip(prices, at_s, strict=True)]
    )
    assert [one.carbon_kg for one in spans] == pytest.approx(
        [1.5 * gram * part_s / 130.0 for gram, part_s in zip(grams, at_s, strict=True)]
    )
    whole = job_bill(cost, carbon, job, MWH, 160.0)
    assert math.fsum(one.cost or 0.0 for one in spans) == pytest.approx(whole.cost, rel=1e-12)
    assert math.fsum(one.carbon_kg or 0.0 for one in spans) == pytest.approx(whole.carbon_kg, rel=1e-12)
    # an end that the broker learns late
    early = spans_of(cost, carbon, job.attempt, 60.0, MWH, 75.0)
    assert [(one.end_s, one.cost) for one in early] == [
        (60.0, pytest.approx(1.5 * 100.0 * 2 / 3)), (75.0, pytest.approx(1.5 * 40.0 / 3)),
    ]  # fmt: skip
    assert bill_of(cost, job, MWH, 75.0).cost == pytest.approx(1.5 * 80.0)


def test_an_attempt_without_known_bills_has_one_part() -> None:
    cost = PriceSums().after(priced(100.0), 0.0)
    job = job_from(cost, 0.0)
    assert job.attempt is not None
    later = cost.after(priced(40.0, 100.0), 10.0)
    unmeasured = spans_of(later, PriceSums(), job.attempt, 40.0, None, 20.0)
    assert unmeasured == [UsedSpan(0.0, 20.0, 40.0, None)]
    gap = later.after(priced(None, 40.0), 15.0).after(priced(60.0), 17.0).after(priced(50.0, 60.0), 18.0)
    assert spans_of(gap, PriceSums(), job.attempt, 40.0, 5.0, 20.0) == [UsedSpan(0.0, 20.0, 40.0, 5.0)]
    assert spans_of(later, PriceSums(), job.attempt, 0.0, MWH, 0.0) == [UsedSpan(0.0, 0.0, 0.0, MWH, 40.0)], (
        "an attempt without a duration"
    )


def test_steps_before_all_attempts_are_forgotten_and_equal_ones_are_joined() -> None:
    sums = PriceSums().after(priced(50.0), 0.0)
    for at_s in range(10, 1_000, 10):
        price = float(at_s // 100)
        sums = sums.after(priced(price, float((at_s - 10) // 100)), float(at_s), 650.0)
    assert [(start_s, rate) for start_s, _, rate in sums.steps] == [
        (600.0, 6.0), (700.0, 7.0), (800.0, 8.0), (900.0, 9.0),
    ]  # fmt: skip
    assert sums.until(655.0) == pytest.approx(100.0 * sum(range(6)) + 55.0 * 6.0)
    long = PriceSums().after(priced(0.0), 0.0)
    job = job_from(long, 0.5)
    assert job.attempt is not None
    for at_s in range(1, 3 * MAX_SPANS):
        long = long.after(priced(float(at_s), float(at_s - 1)), float(at_s), 0.5)
    spans = spans_of(long, PriceSums(), job.attempt, 1.0, MWH, 3.0 * MAX_SPANS)
    assert len(spans) <= MAX_SPANS + 1
    whole = bill_of(long, job, MWH, 3.0 * MAX_SPANS).cost
    assert math.fsum(one.cost or 0.0 for one in spans) == pytest.approx(whole, rel=1e-9)


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
