"""The bills of jobs under a broker that knows the price of electricity."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import BillPriced, Decided, EnergyPriced, Entry
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.events import PricesRead
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import keep_snapshot, recover_state
from rlsched.broker.journal.snapshots import book_of, picture_of
from rlsched.broker.state import base
from rlsched.broker.state.base import BasePart, read_base
from rlsched.broker.state.bills import PriceSums
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import ended_job
from rlsched.broker.state.finished_table import EndedTable, put_finished
from rlsched.broker.state.predictions import Predictions
from rlsched.client.sums import sums
from rlsched.cluster.state import ClusterState
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.energy.bills import PriceUnit
from rlsched.energy.limits import BillPrices, EnergyTable
from rlsched.energy.relative import PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.wire.messages import (
    Cancel,
    Capabilities,
    DrainNode,
    Ended,
    Explanation,
    History,
    Jobs,
    JobUsage,
    ListHistory,
    ListJobs,
    ListUsage,
    Metered,
    RankMetered,
    RankUsage,
    Requeue,
    Usage,
    Why,
)
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import decided_alike, hello, launched, pass_until, submit
from tests.support.broker.hand_broker import HandBroker
from tests.unit.broker.machine.test_broker_price import BEGINS_S, NOON

LIMITS = Limits(lease_s=1e6, heartbeat_s=10.0, launch_timeout_s=1e6)
KWH_MJ = 3_600_000_000
EUR = PriceUnit("cost", "EUR", 1.5)
CARBON = PriceUnit("carbon", "", 1.5)


def prices(values: list[float], unit: PriceUnit | None = EUR) -> EnergyTable:
    """Prices of the hours from noon on."""
    table = PriceTable(Series("price.csv", NOON, HOUR_S, np.array(values)), 0.0)
    return EnergyTable(table, None, unit)


STEPS = [100.0, 40.0, 0.0, -20.0, 60.0, 60.0, 60.0, 60.0]
GRAMS = [400.0, 100.0, 100.0, 300.0, 50.0, 350.0, 200.0, 100.0]


def both(
    values: list[float] = STEPS, grams: list[float] = GRAMS, *, follow: str = "cost", begins: datetime = NOON
) -> EnergyTable:
    """Prices and carbon intensities of the hours from noon on; policies follow one of them."""
    price = PriceTable(Series("price.csv", NOON, HOUR_S, np.array(values)), 0.0)
    carbon = PriceTable(Series("carbon.csv", begins, HOUR_S, np.array(grams)), 0.0)
    if follow == "carbon":
        return EnergyTable(carbon, None, CARBON, BillPrices(price, EUR))
    return EnergyTable(price, None, EUR, BillPrices(carbon, CARBON))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def make(
    journal: Journal,
    known: EnergyTable | None,
    at_s: float = BEGINS_S,
    policy: str = "fifo-backfill",
    *,
    shares: bool = False,
) -> HandBroker:
    broker = HandBroker(
        load_scheduler(policy), journal, limits=LIMITS, now_s=at_s, prices=known, shares=shares
    )
    can = Capabilities(fences=True, shares=shares, gpu_memory_mib=16_160)
    broker.says("n0", msgspec.structs.replace(hello("n0", 4), gpu_type="V100", capabilities=can))
    return broker


def restarted(journal: Journal, known: EnergyTable, hours: float) -> HandBroker:
    """A broker that continues a journal, this long after noon; its node has not connected yet."""
    at_s = BEGINS_S + hours * HOUR_S
    return HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, now_s=at_s, prices=known)


def through(broker: HandBroker, hours: float) -> None:
    """Let time pass until this long after noon, with a turn of the broker in each hour."""
    for hour in range(1, math.ceil(hours)):
        pass_until(broker, BEGINS_S + hour * HOUR_S)


def start(broker: HandBroker, hours: float = 0.0, **more: object) -> int:
    """Start a job, this long after noon."""
    pass_until(broker, BEGINS_S + hours * HOUR_S)
    broker.ask(submit(4, **more))
    number = len(broker.state.jobs)
    broker.says("n0", launched(number))
    return number


def end(
    broker: HandBroker, job: int, hours: float, kwh: float | None, attempt: int = 1, exit_code: int = 0
) -> None:
    """End an attempt, this long after noon, with its energy."""
    pass_until(broker, BEGINS_S + hours * HOUR_S)
    usage = None if kwh is None else RankUsage(measured_s=60, energy_mj=round(kwh * KWH_MJ))
    reason = "killed" if exit_code else ""
    broker.says(
        "n0", Ended(job=job, attempt=attempt, rank=0, exit_code=exit_code, reason=reason, usage=usage)
    )


def bill(broker: HandBroker, job: int) -> tuple[float | None, float | None, str]:
    found = broker.state.jobs[job]
    return found.cost, found.carbon_kg, found.currency


def by_hand(kwh: float, values_h: list[tuple[float, float]]) -> float:
    """Cost of an energy, from (price per MWh, hours)."""
    return 1.5 * kwh / 1e3 * sum(value * hours for value, hours in values_h) / sum(h for _, h in values_h)


def test_the_bill_of_a_job_follows_the_price(journal: Journal) -> None:
    broker = make(journal, prices(STEPS))
    job = start(broker, 0.5)
    end(broker, job, 3.25, kwh=6.0)
    cost = by_hand(6.0, [(100.0, 0.5), (40.0, 1.0), (0.0, 1.0), (-20.0, 0.25)])
    assert bill(broker, job) == (pytest.approx(cost, rel=1e-4), None, "EUR")


def test_the_carbon_of_a_job(journal: Journal) -> None:
    broker = make(journal, prices(STEPS, CARBON))
    job = start(broker, 0.5)
    end(broker, job, 1.5, kwh=6.0)
    assert bill(broker, job) == (None, pytest.approx(by_hand(6.0, [(100.0, 0.5), (40.0, 0.5)]), rel=1e-4), "")


@pytest.mark.parametrize("follow", ["cost", "carbon"])
def test_both_the_cost_and_the_carbon_of_a_job(journal: Journal, follow: str) -> None:
    broker = make(journal, both(follow=follow))
    job = start(broker, 0.5)
    requeued(broker, job, 2.0, 2.0)
    end(broker, job, 3.25, kwh=6.0, attempt=2)
    cost = by_hand(2.0, [(100.0, 0.5), (40.0, 1.0)]) + by_hand(6.0, [(0.0, 1.0), (-20.0, 0.25)])
    carbon_kg = by_hand(2.0, [(400.0, 0.5), (100.0, 1.0)]) + by_hand(6.0, [(100.0, 1.0), (300.0, 0.25)])
    assert bill(broker, job) == (pytest.approx(cost, abs=1e-4), pytest.approx(carbon_kg, rel=1e-4), "EUR")


def test_the_other_series_changes_no_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other series changes each hour, the followed one once; a job waits for its lower price."""
    calls: list[float] = []

    def counted(cluster: ClusterState, scheduler: Scheduler, now_s: float, **more: object) -> object:
        calls.append(now_s)
        return decide_all(cluster, scheduler, now_s, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("rlsched.broker.machine.machine.decide_all", counted)
    steps = [100.0] * 3 + [20.0] * 45
    asked: list[list[float]] = []
    entries: list[list[tuple[float, Entry]]] = []
    for known in (prices(steps), both(steps, GRAMS * 6)):
        with closing(Journal(tmp_path / f"{len(entries)}.sqlite")) as journal:
            broker = make(journal, known, policy="priced")
            start(broker, 0.5)
            broker.ask(submit(2, slack_s=12 * HOUR_S))
            for hour in range(1, 6):
                pass_until(broker, BEGINS_S + hour * HOUR_S + 60.0)
            asked.append(list(calls))
            calls.clear()
            entries.append([(row.now_s, row.entry) for row in journal.rows()])
            decided_alike(journal, Policy("priced"))
    assert asked[0] == asked[1]
    of_bills = [(at_s, entry.price) for at_s, entry in entries[1] if isinstance(entry, BillPriced)]
    changed = [(at_s, entry.price) for at_s, entry in entries[1] if isinstance(entry, EnergyPriced)]
    assert [price for _, price in of_bills] == GRAMS[:6]
    assert len(of_bills) > len({price for _, price in changed}) == 2
    kept = [one for one in entries[1] if not isinstance(one[1], BillPriced)]
    decisions = [
        [one for one in of if isinstance(one[1], Decided | EnergyPriced)] for of in (entries[0], kept)
    ]
    assert decisions[0] == decisions[1]
    assert [type(entry) for _, entry in entries[0]] == [type(entry) for _, entry in kept]


def test_a_gap_of_the_other_series_leaves_the_cost(journal: Journal) -> None:
    broker = make(journal, both(begins=NOON.replace(hour=13)))
    job = start(broker, 0.5)
    end(broker, job, 1.5, kwh=6.0)
    later = start(broker, 1.5)
    end(broker, later, 2.5, kwh=6.0)
    cost = by_hand(6.0, [(100.0, 0.5), (40.0, 0.5)])
    assert bill(broker, job) == (pytest.approx(cost, rel=1e-4), None, "EUR")
    assert bill(broker, later)[1] == pytest.approx(by_hand(6.0, [(400.0, 0.5), (100.0, 0.5)]), rel=1e-4)


def test_a_file_without_the_other_series_ends_its_bills(journal: Journal) -> None:
    broker = make(journal, both())
    job = start(broker, 0.5)
    pass_until(broker, BEGINS_S + HOUR_S)
    broker.batch([PricesRead(prices(STEPS))])
    end(broker, job, 1.5, kwh=6.0)
    assert bill(broker, job) == (
        pytest.approx(by_hand(6.0, [(100.0, 0.5), (40.0, 0.5)]), rel=1e-4), None, "EUR",
    )  # fmt: skip
    found = broker.state.bill_price
    assert found is not None
    assert (found.price, found.mean_before) == (None, 100.0)


@pytest.mark.parametrize("known", [None, prices(STEPS, None), prices([100.0])])
def test_the_bill_is_unknown_without_prices_for_the_whole_attempt(
    journal: Journal, known: EnergyTable | None
) -> None:
    broker = make(journal, known)
    job = start(broker, 0.5)
    end(broker, job, 2.0, kwh=6.0)
    assert bill(broker, job) == (None, None, "")
    assert broker.state.jobs[job].energy_j == pytest.approx(6.0 * 3.6e6)


def test_prices_that_come_late_do_not_bill_the_running_attempt(journal: Journal) -> None:
    broker = make(journal, None)
    job = start(broker, 0.5)
    pass_until(broker, BEGINS_S + HOUR_S)
    broker.batch([PricesRead(prices(STEPS))])
    end(broker, job, 2.0, kwh=6.0)
    later = start(broker, 2.0)
    end(broker, later, 3.5, kwh=6.0)
    assert bill(broker, job) == (None, None, "")
    assert bill(broker, later)[0] == pytest.approx(by_hand(6.0, [(0.0, 1.0), (-20.0, 0.5)]), rel=1e-4)


def test_energy_that_was_not_measured_has_no_bill(journal: Journal) -> None:
    broker = make(journal, prices(STEPS))
    job = start(broker, 0.5)
    end(broker, job, 2.0, kwh=None)
    assert (bill(broker, job), broker.state.jobs[job].energy_j) == ((None, None, ""), None)


def requeued(broker: HandBroker, job: int, hours: float, kwh: float | None, attempt: int = 1) -> None:
    pass_until(broker, BEGINS_S + hours * HOUR_S)
    broker.ask(Requeue(job=job))
    end(broker, job, hours, kwh, attempt, exit_code=143)
    broker.says("n0", launched(job, attempt + 1))
    assert broker.state.jobs[job].attempts == attempt + 1


@pytest.mark.parametrize(("kwh", "billed"), [(2.0, True), (None, False)])
def test_attempts_are_billed_at_their_own_prices(
    journal: Journal, kwh: float | None, *, billed: bool
) -> None:
    """An attempt that was not measured is in neither the energy nor the bill."""
    broker = make(journal, prices(STEPS))
    job = start(broker, 0.0)
    requeued(broker, job, 1.0, kwh)
    end(broker, job, 2.0, kwh=3.0, attempt=2)
    cost = by_hand(2.0, [(100.0, 1.0)]) * billed + by_hand(3.0, [(40.0, 1.0)])
    assert bill(broker, job) == (pytest.approx(cost, rel=1e-4), None, "EUR")


def test_a_job_with_an_attempt_at_unknown_prices_has_no_bill(journal: Journal) -> None:
    broker = make(journal, None)
    job = start(broker, 0.0)
    requeued(broker, job, 1.0, 2.0)
    broker.batch([PricesRead(prices(STEPS))])
    requeued(broker, job, 2.0, 2.0, attempt=2)
    end(broker, job, 3.0, kwh=3.0, attempt=3)
    assert bill(broker, job) == (None, None, "")
    assert broker.state.jobs[job].energy_j == pytest.approx(7.0 * 3.6e6)


def test_a_preempted_job_is_billed_while_it_had_gpus(journal: Journal) -> None:
    broker = make(journal, prices([40.0, 100.0, 20.0, 20.0, 20.0, 20.0]), policy="priced")
    job = start(broker, 0.0, slack_s=24 * HOUR_S, preemptible=True, time_limit_s=40 * HOUR_S)
    slot = broker.state.cluster.slot_of(broker.state.jobs[job].seq)
    broker.state.cluster.arrays.job.predicted_s[slot] = 1e5
    pass_until(broker, BEGINS_S + HOUR_S)
    broker.says("n0", Ended(job=job, attempt=1, rank=0, exit_code=143, reason="killed",
                            usage=RankUsage(measured_s=60, energy_mj=2 * KWH_MJ)))  # fmt: skip
    found = broker.state.jobs[job]
    assert (found.state, found.preemptions) == ("queued", 1)
    pass_until(broker, BEGINS_S + 2 * HOUR_S + 1.0)
    broker.says("n0", launched(job, 2))
    end(broker, job, 3.0, kwh=1.0, attempt=2)
    cost = by_hand(2.0, [(40.0, 1.0)]) + by_hand(1.0, [(20.0, 1.0)])
    assert bill(broker, job) == (pytest.approx(cost, rel=1e-4), None, "EUR")


def test_jobs_that_share_gpus_pay_for_their_own_energy(journal: Journal) -> None:
    broker = make(journal, prices(STEPS), policy="pack", shares=True)
    one, other = (start(broker, 0.0, workload="a2c-b64") for _ in range(2))
    assert broker.state.cluster.beside(broker.state.jobs[one].seq)
    end(broker, one, 1.0, kwh=2.0)
    end(broker, other, 2.0, kwh=3.0)
    assert bill(broker, one)[0] == pytest.approx(by_hand(2.0, [(100.0, 1.0)]), rel=1e-4)
    assert bill(broker, other)[0] == pytest.approx(by_hand(3.0, [(100.0, 1.0), (40.0, 1.0)]), rel=1e-4)


def test_a_stop_of_the_broker_with_both_series(journal: Journal) -> None:
    broker = make(journal, both())
    job = start(broker, 0.5)
    again = restarted(journal, both(), 2.5)
    end(again, job, 3.5, kwh=6.0)
    carbon_kg = by_hand(6.0, [(400.0, 0.5), (100.0, 2.0), (300.0, 0.5)])
    assert bill(again, job)[1] == pytest.approx(carbon_kg, rel=1e-4)


@pytest.mark.parametrize("file", ["covers the stop", "begins later", "of another currency"])
def test_a_stop_of_the_broker(journal: Journal, file: str) -> None:
    """The job runs on; the broker starts again 2 hours later and bills the prices of that time."""
    broker = make(journal, prices(STEPS))
    job = start(broker, 0.5)
    table = prices(STEPS, PriceUnit("cost", "USD", 1.5) if file == "of another currency" else EUR)
    if file == "begins later":
        late = Series("price.csv", NOON.replace(hour=14), HOUR_S, np.array(STEPS[2:]))
        table = EnergyTable(PriceTable(late, 0.0), None, EUR)
    again = restarted(journal, table, 2.5)
    end(again, job, 3.0, kwh=6.0)
    cost = by_hand(6.0, [(100.0, 0.5), (40.0, 1.0), (0.0, 1.0)])
    known = file == "covers the stop"
    assert bill(again, job) == ((pytest.approx(cost, rel=1e-4), None, "EUR") if known else (None, None, ""))


def test_an_end_that_is_reported_first_after_a_stop(journal: Journal) -> None:
    """The first batch of the broker has the end of the job: prices count before reports."""
    broker = make(journal, prices(STEPS))
    job = start(broker, 0.5)
    usage = RankUsage(measured_s=60, energy_mj=6 * KWH_MJ)
    broker.now_s = BEGINS_S + 2.5 * HOUR_S
    broker.says("n0", Ended(job=job, attempt=1, rank=0, exit_code=0, usage=usage))
    cost = by_hand(6.0, [(100.0, 0.5), (40.0, 1.0), (0.0, 0.5)])
    assert bill(broker, job)[0] == pytest.approx(cost, rel=1e-4)


def lived(journal: Journal, known: EnergyTable) -> HandBroker:
    """Job 1 has ended, job 2 was requeued and has run for a while."""
    broker = make(journal, known)
    job = start(broker, 0.25)
    through(broker, 1.5)
    end(broker, job, 1.5, kwh=6.0)
    job = start(broker, 1.5)
    through(broker, 2.5)
    requeued(broker, job, 2.5, 2.0)
    through(broker, 3.5)
    pass_until(broker, BEGINS_S + 3.5 * HOUR_S)
    return broker


def finish(broker: HandBroker) -> tuple[float | None, float | None, str]:
    """The last attempt ends at the same time in each rebuilt broker."""
    through(broker, 5.0)
    end(broker, 2, 5.0, kwh=3.0, attempt=2)
    return bill(broker, 2)


def sums_of(state: BrokerState) -> object:
    return state.price_sums, state.bill_price, state.bill_price_sums


@pytest.mark.parametrize("known", [prices(STEPS), both()], ids=["one", "both"])
@pytest.mark.parametrize("way", ["replay", "snapshot", "base"])
def test_a_rebuilt_broker_bills_the_same(
    journal: Journal, tmp_path: Path, way: str, known: EnergyTable
) -> None:
    broker = lived(journal, known)
    sums, first = sums_of(broker.state), bill(broker, 1)
    if way == "snapshot":
        assert sums_of(book_of(picture_of(broker.state))) == sums
        keep_snapshot(journal, broker.state, broker.machine.scheduler)
    path = journal.path
    whole = tmp_path / "whole.sqlite"
    journal._db.execute("VACUUM INTO ?", (str(whole),))
    expected = finish(broker)
    assert expected[0] == pytest.approx(
        by_hand(2.0, [(40.0, 0.5), (0.0, 0.5)]) + by_hand(3.0, [(0.0, 0.5), (-20.0, 1.0), (60.0, 1.0)]),
        rel=1e-4,
    )
    assert (expected[1] is None) == (known.bill_prices is None)
    assert check(path).damage == [], "the table of ended jobs follows from the facts"
    if way == "base":
        with compacted(whole, broker.now_s) as cut:
            state = recover_state(cut, Predictions(RUNNING_MEAN), broker.machine.scheduler)
            assert (sums_of(state), state.jobs.get(1)) == (sums, None)
            again = restarted(cut, known, 3.75)
            cost, carbon_kg, currency = expected
            if carbon_kg is not None:
                carbon_kg = pytest.approx(carbon_kg, rel=1e-9)
            assert finish(again) == (pytest.approx(cost, rel=1e-9), carbon_kg, currency)
        return
    with closing(Journal(whole)) as copy:
        state = recover_state(copy, Predictions(RUNNING_MEAN), broker.machine.scheduler)
        assert sums_of(state) == sums
        one = state.job(1)
        assert one is not None
        assert (one.cost, one.carbon_kg, one.currency) == first
        assert state.jobs[2].attempt == recover_attempt(copy)


def recover_attempt(journal: Journal) -> object:
    """The last attempt of job 2, from all entries."""
    state = BrokerState(Predictions(RUNNING_MEAN), Order())
    state.replay(journal.rows())
    return state.jobs[2].attempt


def used(broker: HandBroker, *states: str) -> list[JobUsage]:
    found = broker.ask(ListUsage(states=list(states)))
    assert isinstance(found, Usage)
    return found.jobs


def by_hour(jobs: list[JobUsage]) -> list[tuple[float, float | None, float | None]]:
    """(kWh, cost, kg) in each hour from noon on, added up as `rlsched account --by hour` does."""
    rows, _ = sums(
        jobs,
        ["hour"],
        lambda _, when_s: f"{when_s // HOUR_S:012.0f}",
        lambda _, when_s: (when_s // HOUR_S + 1.0) * HOUR_S,
    )
    return [(row.energy_kwh or 0.0, row.cost, row.carbon_kg) for row in rows]


@pytest.mark.parametrize("follow", ["cost", "carbon"])
def test_each_hour_has_its_own_energy_at_its_own_price(journal: Journal, follow: str) -> None:
    broker = make(journal, both(follow=follow))
    job = start(broker, 0.5)
    through(broker, 2.0)
    requeued(broker, job, 2.0, 2.0)
    through(broker, 3.25)
    end(broker, job, 3.25, kwh=6.0, attempt=2)
    (row,) = used(broker)
    kwh = [2.0 / 3.0, 4.0 / 3.0, 4.8, 1.2]
    expected = [
        (energy, by_hand(energy, [(price, 1.0)]), by_hand(energy, [(gram, 1.0)]))
        for energy, price, gram in zip(kwh, STEPS, GRAMS, strict=False)
    ]
    found = by_hour([row])
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    whole = broker.state.jobs[job]
    assert math.fsum(hour[0] for hour in found) == pytest.approx(8.0, rel=1e-9)
    assert math.fsum(hour[1] or 0.0 for hour in found) == pytest.approx(whole.cost, rel=1e-9)
    assert math.fsum(hour[2] or 0.0 for hour in found) == pytest.approx(whole.carbon_kg, rel=1e-9)
    assert math.fsum(one.gpu_s for one in row.spans) == pytest.approx(whole.gpu_s, rel=1e-9)
    assert whole.gpu_s == pytest.approx(4 * 2.75 * HOUR_S, rel=1e-3)


def test_jobs_that_have_not_finished_count_up_to_now(journal: Journal) -> None:
    """Job 2 runs, after an attempt in the hours 1 and 2; job 3 waits, and has never had GPUs."""
    broker = lived(journal, both())
    told = RankMetered(job=2, attempt=2, rank=0, usage=RankUsage(measured_s=10), energy_mj=KWH_MJ)
    broker.says("n0", Metered(ranks=[told]))
    broker.ask(submit(4))
    assert [one.job for one in used(broker)] == [one.job for one in used(broker, "completed")] == [1]
    running, ended = used(broker, "completed", "failed", "running")
    assert (running.job, running.state, running.end_s, ended.job) == (2, "running", math.inf, 1)
    found = by_hour([running])
    kwh = [1.0, 1.0 + 0.5, 0.5]
    assert found == [
        pytest.approx((energy, by_hand(energy, [(price, 1.0)]), by_hand(energy, [(gram, 1.0)])), abs=2e-3)
        for energy, price, gram in zip(kwh, STEPS[1:], GRAMS[1:], strict=False)
    ]
    assert math.fsum(hour[1] or 0.0 for hour in found) == pytest.approx(running.cost, rel=1e-9)
    assert math.fsum(one.gpu_s for one in running.spans) == pytest.approx(running.gpu_s, rel=1e-9)
    broker.ask(Cancel(job=3))
    broker.ask(DrainNode(node="n0", requeue=True))
    end(broker, 2, 3.5, 1.0, attempt=2, exit_code=143)
    waiting, *_ = used(broker, "completed", "running")
    assert (waiting.job, waiting.state, waiting.end_s, len(waiting.spans)) == (2, "queued", math.inf, 4)


def test_use_ends_when_the_node_says_not_when_the_broker_learns_it(journal: Journal) -> None:
    """The job ended 45 minutes after its start; the broker, which had stopped, learns it two hours later."""
    broker = make(journal, prices(STEPS))
    job = start(broker, 0.5)
    again = restarted(journal, prices(STEPS), 2.5)
    usage = RankUsage(measured_s=60, energy_mj=6 * KWH_MJ)
    again.says("n0", Ended(job=job, attempt=1, rank=0, exit_code=0, ran_s=0.75 * HOUR_S, usage=usage))
    # from 13:00 on, only the mean price up to the start of the broker is known
    cost = by_hand(6.0, [(100.0, 0.5), ((40.0 + 0.5 * 0.0) / 1.5, 0.25)])
    assert again.state.jobs[job].end_s == pytest.approx(BEGINS_S + 1.25 * HOUR_S, abs=5.0)
    assert bill(again, job)[0] == pytest.approx(cost, rel=1e-3)
    found = by_hour(used(again))
    assert [hour[0] for hour in found] == pytest.approx([4.0, 2.0], rel=1e-2)
    assert math.fsum(hour[1] or 0.0 for hour in found) == pytest.approx(bill(again, job)[0], rel=1e-9)


@pytest.mark.parametrize("way", ["replay", "snapshot", "base"])
def test_a_rebuilt_broker_has_the_same_hours(journal: Journal, tmp_path: Path, way: str) -> None:
    broker = lived(journal, both())
    if way == "snapshot":
        keep_snapshot(journal, broker.state, broker.machine.scheduler)
    whole = tmp_path / "whole.sqlite"
    journal._db.execute("VACUUM INTO ?", (str(whole),))
    finish(broker)
    expected = used(broker)
    with closing(Journal(whole)) if way != "base" else compacted(whole, broker.now_s) as copy:
        again = restarted(copy, both(), 3.5)
        finish(again)
        assert by_hour(used(again)) == [pytest.approx(hour, rel=1e-9) for hour in by_hour(expected)]
        assert len(used(again)[0].spans) == len(expected[0].spans) == 6
        found = check(copy.path)
    assert (found.damage, found.derived) == ([], [])


def test_rows_and_bases_of_an_earlier_version_have_no_hours(journal: Journal) -> None:
    """A job without parts counts when it ended. Its bill may differ, so a check ignores it."""
    broker = lived(journal, both())
    (row,) = used(broker)
    table = EndedTable(journal.path, journal._db)
    old = table.row(1)
    assert old is not None
    rest = msgspec.msgpack.decode(old.rest)
    assert rest.pop("spans")
    rest["cost"] += 1.0
    with journal._db as db:
        put_finished(db, [old._replace(rest=msgspec.msgpack.encode(rest))])
    (again,) = used(broker)
    assert (again.spans, again.cost) == ([], pytest.approx((row.cost or 0.0) + 1.0))
    rest["exit_code_of_more"] = 1
    assert check(journal.path).derived == []
    with journal._db as db:
        put_finished(db, [old._replace(rest=msgspec.msgpack.encode(rest))])
    assert "its row differs from the entries: rest" in check(journal.path).derived[0]


def test_a_base_of_an_earlier_version_has_unknown_prices(journal: Journal) -> None:
    broker = lived(journal, both())
    journal.close()
    with compacted(journal.path, broker.now_s + 1.0) as cut:
        parts = [row.entry for row in cut.rows() if isinstance(row.entry, BasePart)]
    fields = msgspec.msgpack.decode(zlib.decompress(b"".join(part.data for part in parts)))
    del fields["price_sums"], fields["bill_price"], fields["bill_price_sums"]
    for name in ("kind", "currency", "pue", "mean_before"):
        del fields["energy_price"][name]
    for one in fields["jobs"]:
        one["job"].pop("cost"), one["job"].pop("currency"), one["job"].pop("carbon_kg")
        one["job"]["attempt"].pop("price_sum"), one["job"]["attempt"].pop("bill_price_sum")
    data = zlib.compress(base._ENCODER.encode(fields))
    old = msgspec.structs.replace(parts[0], part=1, parts=1, data=data)
    assert (read_base([old]).price_sums, read_base([old]).bill_price_sums) == (PriceSums(), PriceSums())
    state = BrokerState(Predictions(RUNNING_MEAN), Order())
    state.replay([JournalRow(1, broker.now_s, old)])
    assert (state.price_sums.kind, state.jobs[2].cost, state.jobs[2].energy_j) == ("", None, 7.2e6)


def test_journals_without_prices_store_no_new_fields(journal: Journal) -> None:
    broker = make(journal, None)
    job = start(broker)
    end(broker, job, 1.0, kwh=1.0)
    rest = msgspec.msgpack.decode(ended_job(broker.state.jobs[job], broker.state.nodes).rest)
    assert not {"cost", "carbon_kg", "currency"} & set(rest)
    assert not {"price_sum", "bill_price_sum"} & set(rest["attempt"])
    assert broker.state.price_sums == broker.state.bill_price_sums == PriceSums()


def test_lists_and_why_have_the_bill(journal: Journal) -> None:
    broker = lived(journal, both())
    told = RankMetered(job=2, attempt=2, rank=0, usage=RankUsage(measured_s=10), energy_mj=KWH_MJ)
    broker.says("n0", Metered(ranks=[told]))
    past, used = broker.ask(ListHistory()), broker.ask(ListUsage())
    assert isinstance(past, History)
    assert isinstance(used, Usage)
    first = by_hand(6.0, [(100.0, 0.75), (40.0, 0.5)])
    second = by_hand(2.0, [(40.0, 0.5), (0.0, 0.5)]) + by_hand(1.0, [(0.0, 0.5), (-20.0, 0.5)])
    first_kg = by_hand(6.0, [(400.0, 0.75), (100.0, 0.5)])
    second_kg = by_hand(2.0, [(100.0, 1.0)]) + by_hand(1.0, [(100.0, 0.5), (300.0, 0.5)])
    assert [(one.job, one.cost, one.carbon_kg, one.currency) for one in past.jobs] == [
        (2, pytest.approx(second, rel=1e-3), pytest.approx(second_kg, rel=1e-3), "EUR"),
        (1, pytest.approx(first, rel=1e-4), pytest.approx(first_kg, rel=1e-4), "EUR"),
    ]
    assert [(one.cost, one.carbon_kg, one.currency) for one in used.jobs] == [
        (past.jobs[1].cost, past.jobs[1].carbon_kg, "EUR")
    ]
    now = broker.ask(ListJobs(finished=True))
    assert isinstance(now, Jobs)
    assert [(one.job, one.energy_j, one.cost, one.carbon_kg, one.currency) for one in now.jobs] == [
        (
            one.job,
            one.energy_j,
            pytest.approx(one.cost, rel=1e-6),
            pytest.approx(one.carbon_kg, rel=1e-6),
            "EUR",
        )
        for one in reversed(past.jobs)
    ]
    said = broker.ask(Why(job=1))
    assert isinstance(said, Explanation)
    at = said.details.index("its GPUs have drawn 6.00 kWh for it")
    assert said.details[at + 1] == f"this energy costs {first:.2f} EUR at the prices during its attempts"
    assert said.details[at + 2].startswith(f"this energy causes {first_kg:.2f} kg CO2e")
