"""Record of past forecasts: corrections, scores, and comparison with simple rules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.decisions.schema import ForecastSeen
from rlsched.forecast.keeping import Keeping, LiveJob
from rlsched.forecast.record import (
    FEWEST,
    OF_ONE,
    UNCORRECTED,
    Correction,
    Record,
    pinball_s,
    score,
    size_class,
    size_words,
    teaching,
)
from rlsched.forecast.run_time_draws import run_times, strata
from rlsched.forecast.world import Ahead
from rlsched.workload.predict.distribution import lognormal, quantile_s


def past_forecast(
    at_s: float,
    raw: tuple[float, float, float],
    truth_s: float,
    gpus: float = 1.0,
    list_s: float | None = None,
    said: tuple[float, ...] | None = None,
) -> ForecastSeen:
    """A forecast with its outcome. `said`: the corrected quantiles; default: the truth."""
    low_s, median_s, high_s = said or (truth_s,) * 3
    return ForecastSeen(
        time_s=at_s,
        job="1",
        num_gpus=gpus,
        what="start",
        said_s=at_s - truth_s,
        low_s=low_s,
        median_s=median_s,
        high_s=high_s,
        seen_s=truth_s,
        raw=list(raw),
        last_s=truth_s,
        week=[truth_s] * 3,
        list_s=raw[1] if list_s is None else list_s,
    )


def corrected(record: Record, raw: tuple[float, ...], gpus: float = 1.0) -> tuple[float, ...]:
    """Unchanged where list scheduling gives the median."""
    return record.corrected(raw, raw[1], record.correction("start", gpus))


def test_forecasts_of_half_the_truth_are_doubled() -> None:
    record, draws, raw = Record(), np.random.default_rng(0), (1_000.0, 4_000.0, 9_000.0)
    for k in range(200):
        truth = float(draws.lognormal(9.0, 0.5))
        record.add(past_forecast(float(k), raw, truth, said=corrected(record, raw)))
    made = corrected(record, raw)
    wanted = np.quantile(np.exp(9.0 + 0.5 * np.random.default_rng(0).standard_normal(200)), (0.1, 0.5, 0.9))
    assert np.array(made) == pytest.approx(wanted, rel=0.05)


def test_class_with_few_forecasts_uses_all_and_an_empty_record_corrects_nothing() -> None:
    record = Record()
    assert record.correction("start", 8.0) == UNCORRECTED
    for k in range(FEWEST):
        record.add(past_forecast(float(k), (600.0, 600.0, 600.0), 6_000.0))
    assert corrected(record, (600.0,) * 3, 8.0) == pytest.approx((6_000.0,) * 3)
    assert record.correction("end", 1.0) == UNCORRECTED


def test_beyond_the_horizon_stays_so_and_quantiles_keep_their_order() -> None:
    made = Record.corrected((60.0, 50.0, math.inf), 1.0, Correction(1.0, 0.0, np.array([3.0, 0.0, 0.5])))
    assert made[0] <= made[1]
    assert made[2] == math.inf
    assert Record.corrected((math.inf,) * 3, 1.0, UNCORRECTED) == (math.inf,) * 3


def test_beyond_the_horizon_is_corrected_where_such_jobs_started_after_a_day() -> None:
    record = Record()
    for k in range(FEWEST):
        record.add(past_forecast(float(k), (6_000.0, math.inf, math.inf), 86_400.0))
    made = corrected(record, (6_000.0, math.inf, math.inf))
    assert made == pytest.approx((86_400.0,) * 3)


def test_class_with_some_forecasts_is_filled_up_with_others() -> None:
    """20 of one GPU took twice as long as forecast, 400 of eight GPUs nine times: 10 of these count."""
    record = Record()
    for k in range(20):
        record.add(past_forecast(float(k), (60_000.0,) * 3, 120_000.0))
    for k in range(400):
        record.add(past_forecast(float(k), (60_000.0,) * 3, 540_000.0, gpus=8.0))
    low, median, high = corrected(record, (60_000.0,) * 3)
    assert (low, median) == pytest.approx((120_000.0, 120_000.0), rel=1e-3)
    assert high == pytest.approx(540_000.0, rel=1e-3)


@pytest.mark.parametrize("futures_know", [True, False])
def test_blend_follows_the_better_forecast(futures_know: bool) -> None:
    """One of the two gives the truth within a factor of 1.2, the other always an hour."""
    record, draws = Record(), np.random.default_rng(0)
    losses: dict[str, list[float]] = {"blend": [], "knows": [], "not": []}
    for k in range(300):
        truth_s = float(draws.lognormal(9.0, 1.5))
        near_s, blind_s = truth_s * float(draws.lognormal(0.0, 0.2)), 3_600.0
        raw_s, list_s = (near_s, blind_s) if futures_know else (blind_s, near_s)
        made = record.corrected((raw_s,) * 3, list_s, record.correction("start", 1.0))
        if k >= 100:
            for name, said in (("blend", made), ("knows", (near_s,) * 3), ("not", (blind_s,) * 3)):
                losses[name].append(pinball_s(np.array([said]), np.array([truth_s])))
        record.add(past_forecast(float(k), (raw_s,) * 3, truth_s, list_s=list_s, said=made))
    of_futures, of_list, _ = record.correction("start", 1.0)
    assert (of_futures if futures_know else of_list) > 0.7
    mean = {name: np.mean(some) for name, some in losses.items()}
    assert mean["blend"] < 1.1 * mean["knows"] < 0.3 * mean["not"]


def test_corrected_intervals_of_a_stream_have_their_coverage() -> None:
    """Both give half of the truth, and their intervals have no width."""
    record, draws, inside = Record(), np.random.default_rng(1), []
    for k in range(600):
        truth_s = float(draws.lognormal(9.0, 1.0))
        raw_s, list_s = truth_s * np.exp(draws.standard_normal(2) - 0.7)
        made = record.corrected((raw_s,) * 3, list_s, record.correction("start", 1.0))
        if k >= 100:
            inside.append(made[0] <= truth_s <= made[2])
        record.add(past_forecast(float(k), (raw_s,) * 3, truth_s, list_s=list_s, said=made))
    assert np.mean(inside) == pytest.approx(0.8, abs=0.05)


def test_forecasts_without_information_give_the_outcomes_of_the_size_class() -> None:
    """Neither the futures nor list scheduling know the truth."""
    record, draws = Record(), np.random.default_rng(2)
    for k in range(300):
        raw_s, list_s, truth_s = draws.lognormal(9.0, 1.0, 3).tolist()
        record.add(past_forecast(float(k), (raw_s,) * 3, truth_s, list_s=list_s))
    of_futures, of_list, _ = record.correction("start", 1.0)
    assert of_futures + of_list < 0.3
    short, long = (record.corrected((t,) * 3, t, record.correction("start", 1.0))[1] for t in (2_000.0, 3e4))
    assert 4_000.0 < short < np.exp(9.0) < long < 16_000.0


@pytest.mark.parametrize(("beyond", "outward"), [("low", True), ("high", True), ("", False)])
def test_levels_follow_the_coverage(beyond: str, outward: bool) -> None:
    """Too many outcomes beyond a quantile widen the interval up to all past outcomes; too few narrow it."""
    record, truths = Record(), np.exp(np.linspace(8.0, 10.0, 100))
    said = {"low": (1e9,) * 3, "high": (1.0,) * 3, "": (1.0, 2.0, 1e9)}[beyond]
    widths = []
    for k in range(2_000):
        one = past_forecast(float(k), (3_600.0,) * 3, float(truths[(37 * k) % 100]), said=said)
        record.add(one)
        if k in (39, 1_999):
            low, median, high = corrected(record, (3_600.0,) * 3)
            widths.append(math.log(median / low if beyond == "low" else high / median))
    assert widths[1] > widths[0] if outward else widths[1] < widths[0]
    assert widths[1] <= 1.05


def test_one_refresh_contributes_only_a_few_forecasts() -> None:
    """A burst of 1,000 jobs that started ten times too late moves the 90 % quantile only."""
    record = Record()
    for k in range(40):
        record.recall([past_forecast(10_000.0 * k + 600.0, (600.0,) * 3, 600.0) for _ in range(OF_ONE)])
    record.recall([past_forecast(450_000.0 + 6_000.0, (600.0,) * 3, 6_000.0) for _ in range(1_000)])
    assert len(record.seen) == 40 * OF_ONE + 1_000
    low, median, high = corrected(record, (600.0,) * 3)
    assert (low, median, high) == pytest.approx((600.0, 600.0, 6_000.0))
    assert teaching(3) == {0: 1.0, 1: 1.0, 2: 1.0}
    picked = teaching(1_000)
    assert len(picked) == OF_ONE
    assert (min(picked), max(picked)) == (0, 999)
    assert set(picked.values()) == {math.sqrt(125.0)}


def test_contributing_forecasts_of_a_burst_are_chosen_when_made() -> None:
    """The first ones to come true are no choice: those jobs started early."""
    keeping, jobs = Keeping(), 100
    live = {seq: LiveJob(str(seq), 1.0) for seq in range(jobs)}
    times = np.tile(np.linspace(1_000.0, 5_000.0, jobs)[:, None], 10)
    ahead = Ahead(np.arange(jobs), np.zeros(jobs, bool), times, times + 60.0)
    keeping.correct(ahead, ahead, live, 0.0)
    for seq in range(jobs):
        keeping.saw(str(seq), times[seq, 0], math.nan)
        keeping.take_outcomes()
    known = keeping.record.correction("start", 1.0)
    assert known == UNCORRECTED, "eight are fewer than the limit"
    assert len(keeping.record.seen) == jobs


def test_overdue_forecasts_count_as_late_by_their_current_delay() -> None:
    record = Record()
    for k in range(FEWEST):
        record.add(past_forecast(float(k), (600.0,) * 3, 600.0))
    assert corrected(record, (600.0,) * 3) == pytest.approx((600.0,) * 3)
    late = np.log1p(np.tile([600.0, 600.0, 600.0, 600.0, 6_000.0, 0.0], (FEWEST, 1)) / 60.0)
    young = np.log1p(np.tile([600.0, 600.0, 600.0, 600.0, 60.0, 0.0], (FEWEST, 1)) / 60.0)
    late[:, 5] = young[:, 5] = 1.0
    made = record.corrected((600.0,) * 3, 600.0, record.correction("start", 1.0, late))
    assert made == pytest.approx((600.0, 600.0, 6_000.0), rel=0.01)
    made = record.corrected((600.0,) * 3, 600.0, record.correction("start", 1.0, young))
    assert made == pytest.approx((600.0,) * 3)


def test_coverage_and_loss_by_hand() -> None:
    said = (10.0, 20.0, 30.0)
    seen = [past_forecast(at_s, said, 20.0 * at_s, list_s=40.0 * at_s, said=said) for at_s in (1.0, 2.0)]
    found = score(seen)
    assert found is not None
    assert found.covered_frac == 0.5
    assert found.loss_s == pytest.approx((0.1 * 10 + 0 + 0.1 * 10 + 0.1 * 30 + 0.5 * 20 + 0.9 * 10) / 6)
    assert found.rules["last"] == 0.0
    assert found.rules["list"] == pytest.approx(
        pinball_s(np.array([[40.0] * 3, [80.0] * 3]), np.array([20.0, 40.0]))
    )


def test_size_classes() -> None:
    assert [size_words(size_class(gpus)) for gpus in (0.5, 1, 2, 3, 4, 8, 512)] == [
        "1", "1", "2-3", "2-3", "4-7", "8+", "8+",
    ]  # fmt: skip


def test_only_the_first_forecast_of_a_job_is_measured() -> None:
    keeping, live = Keeping(), {0: LiveJob("7", 2.0)}
    for now_s, start_s in ((100.0, 160.0), (130.0, 190.0)):
        ahead = Ahead(
            np.array([0]), np.array([False]), np.full((1, 10), start_s), np.full((1, 10), start_s + 60.0)
        )
        said = keeping.correct(ahead, ahead, live, now_s)
        assert said["7"].start_s == (start_s,) * 3
    assert keeping.open_jobs() == ["7"]
    keeping.saw("7", 150.0, math.nan)
    (found,) = keeping.take_outcomes()
    assert (found.what, found.said_s, found.seen_s, found.median_s) == ("start", 100.0, 50.0, 60.0)
    keeping.saw("7", 150.0, 400.0)
    (found,) = keeping.take_outcomes()
    assert (found.what, found.seen_s) == ("end", 300.0)
    assert keeping.open_jobs() == []


def test_run_times_follow_the_distribution_given_the_age() -> None:
    at = strata(np.array([3]), 2_000)
    chances, none = lognormal(3_600.0, 1.0)[None, :], np.array([math.nan])
    args = (np.array([3_600.0]), np.array([1.0]), none)
    for age_s in (0.0, 7_200.0):
        binned = run_times(chances, *args, np.array([age_s]), at)[0]
        exact = run_times(np.full_like(chances, math.nan), *args, np.array([age_s]), at)[0]
        assert binned.min() >= age_s
        assert np.median(binned) == pytest.approx(np.median(exact), rel=0.1)
    assert np.median(run_times(chances, *args, np.zeros(1), at)) == pytest.approx(
        quantile_s(chances, 0.5)[0], rel=0.01
    )
    assert run_times(chances, *args[:2], np.array([60.0]), np.zeros(1), at).max() == 60.0


def test_luck_belongs_to_a_job_and_fills_every_part() -> None:
    one, other = strata(np.array([1, 2]), 64), strata(np.array([2, 5]), 64)
    assert (one[1] == other[0]).all()
    assert (np.floor(np.sort(one, axis=1) * 64) == np.arange(64)).all()
