"""The predictor: one implementation for replay and online, no future data, calibrated where the truth is
known.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.workload.predict import RunningMean
from rlsched.workload.predict.at_submission import (
    AtSubmission,
    _events,
    facts_of,
    predict_at_submission,
    with_predictions,
)
from rlsched.workload.predict.distribution import Floats, bin_of, lognormal
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.hedge import SIZES
from rlsched.workload.predict.predictor import EXPERTS, MODELS, Predictor
from rlsched.workload.predict.quality import area_under_curve, quality
from rlsched.workload.predict.reference import recorded_end_s
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from tests.quick import quick

NAMES = {"probe": (90.0, 1.2), "sweep": (1200.0, 1.3), "train": (9000.0, 1.2), "huge": (90_000.0, 1.0)}


def drawn(jobs: int, seed: int = 0) -> Trace:
    """Jobs with a known distribution: lognormal, by name."""
    rng = np.random.default_rng(seed)
    name = rng.choice(list(NAMES), size=jobs, p=[0.4, 0.3, 0.2, 0.1])
    median, spread = np.array([NAMES[one] for one in name]).T
    return Trace.from_columns(
        name="drawn",
        submit_s=np.cumsum(rng.exponential(400.0, size=jobs)).round(),
        duration_s=np.exp(np.log(median) + spread * rng.standard_normal(jobs)).round(),
        num_gpus=rng.choice([1, 4, 8], size=jobs),
        user=np.array(["u1", "u2"])[rng.integers(2, size=jobs)],
        job_name=[f"{one}-{k}" for k, one in enumerate(name)],
    )


@pytest.fixture(scope="module")
def known() -> tuple[Trace, AtSubmission]:
    trace = drawn(3000)
    return trace, predict_at_submission(trace, recorded_end_s(trace))


@pytest.mark.slow
def test_calibrated_where_the_truth_is_known(known: tuple[Trace, AtSubmission]) -> None:
    trace, predictions = known
    late = np.arange(len(trace)) >= 1500
    got = quality(predictions.probabilities[late], trace.duration_s[late], trace.num_gpus[late])
    assert got["ks"] < 0.07
    assert 0.75 < got["covered_frac"] < 0.88
    for row in got["longer"]:
        assert row["predicted_frac"] == pytest.approx(row["true_frac"], abs=0.03)


@pytest.mark.slow
def test_as_sharp_as_the_truth_allows(known: tuple[Trace, AtSubmission]) -> None:
    """P(longer) separates nearly as well as the true distributions of the names would."""
    trace, predictions = known
    late = np.arange(len(trace)) >= 1500
    truth = np.stack([lognormal(*NAMES[name.partition("-")[0]]) for name in trace.job_name[late].tolist()])
    best = quality(truth, trace.duration_s[late], trace.num_gpus[late])
    got = quality(predictions.probabilities[late], trace.duration_s[late], trace.num_gpus[late])
    bins = [bin_of(duration_s) for duration_s in trace.duration_s[late].tolist()]
    mine, ideal = (
        -np.log(p[np.arange(len(bins)), bins]).mean() for p in (predictions.probabilities[late], truth)
    )
    assert mine < ideal + 0.15
    for row, best_row in zip(got["longer"], best["longer"], strict=True):
        assert row["auc"] > best_row["auc"] - 0.02


@pytest.mark.slow
def test_bins_of_p_longer_are_right_one_by_one(known: tuple[Trace, AtSubmission]) -> None:
    """Reliability: among jobs with a probability of about p, a share of about p were longer."""
    trace, predictions = known
    late = np.arange(len(trace)) >= 1500
    said, longer = predictions.p_longer[late, 2], trace.duration_s[late] >= 14_400
    for low, high in ((0.0, 0.1), (0.1, 0.6), (0.6, 1.01)):
        mine = (said >= low) & (said < high)
        assert mine.sum() > 100
        assert longer[mine].mean() == pytest.approx(said[mine].mean(), abs=0.07)


def replayed(trace: Trace, end_s: Floats, model: str = "hedge") -> Floats:
    """Predictions that a broker would have made, one event after another."""
    predictor, facts, out = Predictor(model), facts_of(trace), []
    events = sorted(
        [(float(end), 0, row) for row, end in enumerate(end_s) if math.isfinite(end)]
        + [(float(at), 1, row) for row, at in enumerate(trace.submit_s)]
        + [
            (float(end - trace.duration_s[row]), 2, row)
            for row, end in enumerate(end_s)
            if math.isfinite(end)
        ]
    )
    for now_s, kind, row in events:
        if predictor.fit_due():
            predictor.install(predictor.training(now_s).fit())
        job = facts[row]
        if kind == 0:
            predictor.observe_end(job.job_id, float(trace.duration_s[row]), now_s)
        elif kind == 1:
            out.append(predictor.predict(job, now_s).probabilities)
        else:
            predictor.observe_start(job.job_id, now_s)
    return np.array(out)


def test_online_equals_replay() -> None:
    """Job by job, and in batches: the same numbers, with two fits in between."""
    trace = drawn(420, seed=1)
    end_s = recorded_end_s(trace) + np.random.default_rng(1).exponential(3000.0, size=len(trace)).round()
    end_s[7] = math.nan
    predictions = predict_at_submission(trace, end_s)
    assert predictions.fits >= 1
    np.testing.assert_allclose(replayed(trace, end_s), predictions.probabilities, rtol=1e-12)


@pytest.mark.parametrize("cut_s", quick([3e4, 1e5], lambda cut_s: cut_s == 3e4))
def test_no_stamp_uses_unfinished_jobs(cut_s: float) -> None:
    trace = drawn(500, seed=2)
    end_s = recorded_end_s(trace)
    later = end_s > cut_s
    changed = np.where(later, np.maximum(cut_s + 1 - trace.submit_s, 0) + 12_345, trace.duration_s)
    other = dataclasses.replace(trace, duration_s=changed)
    before = trace.submit_s <= cut_s
    one, two = predict_at_submission(trace, end_s), predict_at_submission(other, recorded_end_s(other))
    assert before.sum() > 50
    assert later[before].any()
    np.testing.assert_array_equal(one.probabilities[before], two.probabilities[before])
    assert not np.array_equal(one.probabilities, two.probabilities)


def test_running_mean_among_the_experts_is_the_running_mean() -> None:
    trace = drawn(60)
    predictions = predict_at_submission(trace, np.full(len(trace), math.nan), model="running-mean")
    expected = lognormal(*RunningMean().predict("", 1))
    for row in predictions.probabilities:
        np.testing.assert_allclose(row, expected)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_gives_distributions(model: str) -> None:
    trace, _ = synthesize("philly", 400, 0.9, 32, seed=5)
    predictions = predict_at_submission(trace, recorded_end_s(trace), model=model)
    np.testing.assert_allclose(predictions.probabilities.sum(axis=1), 1.0)
    assert (predictions.probabilities >= 0).all()
    assert predictions.fits == 0 or model in ("hedge", "boosting")
    assert predictions.weights.sum(axis=1) == pytest.approx(np.ones(len(trace)))
    if model in EXPERTS and model != "boosting":
        own = predictions.experts[:, EXPERTS.index(model)]
        np.testing.assert_allclose(predictions.probabilities, own, atol=1e-6)


def test_the_same_seed_gives_the_same_stamps() -> None:
    trace = drawn(300, seed=9)
    one, two = (predict_at_submission(trace, recorded_end_s(trace)).probabilities for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_remaining_time_grows_with_age_for_heavy_tails() -> None:
    predictor = Predictor("survival")
    for k in range(40):
        predictor.predict(JobFacts(str(k), 1), float(k))
        predictor.observe_start(str(k), float(k))
    for k in sorted(range(40), key=lambda k: k % 4 == 0):
        predictor.observe_end(str(k), 60.0 if k % 4 else 80_000.0, (60.0 if k % 4 else 80_000.0) + k)
    predictor.predict(JobFacts("x", 1), 2e5)
    assert predictor.remaining_s("x", 2e5) is None
    predictor.observe_start("x", 2e5)
    young, old = predictor.remaining_s("x", 2e5 + 1), predictor.remaining_s("x", 2e5 + 5000)
    assert young is not None
    assert old is not None
    assert old > 1.5 * young


def test_job_that_ended_without_a_start_and_removed_job() -> None:
    predictor = Predictor("survival")
    for job_id in ("a", "b"):
        predictor.predict(JobFacts(job_id, 1), 0.0)
    predictor.observe_end("a", 50.0, 60.0)
    predictor.observe_gone("b")
    assert predictor.remaining_s("b", 70.0) is None
    predictor.predict(JobFacts("b", 1), 80.0)
    with pytest.raises(ValueError, match="b was submitted before"):
        predictor.predict(JobFacts("b", 1), 90.0)


def test_written_columns_are_read_back(tmp_path: Path) -> None:
    trace = dataclasses.replace(drawn(50), time_limit_s=np.full(50, 1000.0))
    predictions = predict_at_submission(trace, recorded_end_s(trace), model="nearest")
    for point, column in (("mean", predictions.mean_s), ("median", predictions.median_s)):
        with_predictions(trace, predictions, point).write(tmp_path / "t.csv.gz")
        back = Trace.read(tmp_path / "t.csv.gz")
        np.testing.assert_allclose(back.predicted_s, column, atol=0.06)
        assert (back.predicted_s <= 1000).all()
        longer = back.extra["x_p_longer_4h"].astype(np.float64)
        np.testing.assert_allclose(longer, predictions.p_longer[:, 2], atol=1e-4)


def test_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown model 'magic'; known: hedge, running-mean"):
        Predictor("magic")


def test_missing_scikit_learn_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    for model in ("hedge", "boosting"):
        with pytest.raises(InputError, match=r"install .*\[predict\]', or take --model"):
            Predictor(model)
    Predictor("nearest")


def test_area_under_the_curve_by_hand() -> None:
    longer = np.array([True, True, False, False])
    assert area_under_curve(longer, np.array([4.0, 3.0, 2.0, 1.0])) == 1.0
    assert area_under_curve(longer, np.array([4.0, 1.0, 2.0, 3.0])) == 0.5
    assert area_under_curve(longer, np.ones(4)) == 0.5
    assert area_under_curve(np.ones(4, dtype=bool), np.ones(4)) is None


@pytest.mark.slow
def test_calibrated_on_a_real_trace(shared_data: Path) -> None:
    trace = Trace.read(shared_data / "traces" / "helios_venus.csv.gz").select(slice(0, 4000))
    predictions = predict_at_submission(trace, recorded_end_s(trace))
    late = np.arange(len(trace)) >= 2000
    arguments = trace.duration_s[late], trace.num_gpus[late]
    got = quality(predictions.probabilities[late], *arguments)
    mean = quality(predictions.experts[late, 0].astype(np.float64), *arguments)
    assert got["ks"] < min(0.1, mean["ks"])
    for row, its in zip(got["longer"], mean["longer"], strict=True):
        assert row["predicted_frac"] == pytest.approx(row["true_frac"], abs=0.06)
        assert row["auc"] > its["auc"]


def test_recorded_predictions_rebuild_the_same_hedge() -> None:
    """A later life that reads the recorded predictions has the same weights, though it fits no model."""
    trace = drawn(320, seed=4)
    end_s, facts = recorded_end_s(trace), facts_of(trace)
    live, again = Predictor(), Predictor()
    for now_s, kind, row in _events(trace, end_s):
        if live.fit_due():
            live.install(live.training(now_s).fit())
        if kind == 1:
            said = live.foresee([facts[row]], now_s)[0]
            same = again.recall(facts[row], said.experts, said.features, now_s)
            np.testing.assert_array_equal(same, said.probabilities)
        for one in (live, again):
            if kind == 2:
                one.observe_start(facts[row].job_id, now_s)
            elif kind != 1:
                one.observe_end(facts[row].job_id, float(trace.duration_s[row]), now_s)
    assert live.boosted
    assert not again.boosted
    for gpus in SIZES.values():
        np.testing.assert_array_equal(live.hedge.weights(gpus), again.hedge.weights(gpus))
    one, two = live.training(1e9), again.training(1e9)
    np.testing.assert_array_equal(one.features, two.features)
    np.testing.assert_array_equal(one.lasted_s, two.lasted_s)


def test_jobs_of_one_instant_are_predicted_together_as_one_by_one() -> None:
    trace = drawn(260, seed=6)
    together, apart = Predictor(), Predictor()
    for one in (together, apart):
        for row, facts in enumerate(facts_of(trace)):
            one.predict(facts, float(row))
            one.observe_end(facts.job_id, float(trace.duration_s[row]), float(row) + 0.5)
        one.install(one.training(500.0).fit())
    new = [JobFacts(f"n{k}", 1 + k % 2, user="u1", name=f"probe-{k}") for k in range(5)]
    joint = [one.probabilities for one in together.foresee(new, 600.0)]
    single = [apart.predict(job, 600.0).probabilities for job in new]
    np.testing.assert_allclose(joint, single, rtol=1e-12)
    assert together.foresee([], 600.0) == []


def test_requeued_job_has_no_age_and_counts_as_one_start() -> None:
    predictor = Predictor("survival")
    predictor.predict(JobFacts("a", 1), 0.0)
    predictor.observe_start("a", 10.0)
    predictor.observe_stop("a", 5000.0)
    assert predictor.remaining_s("a", 5000.0) is None
    assert predictor.history.survival.ages_s(("vc_gpus", "", "1"), 5000.0) == []
    predictor.observe_start("a", 6000.0)
    assert predictor.history.age_s("a", 6050.0) == 50.0
    assert predictor.history.survival.ages_s(("vc_gpus", "", "1"), 6050.0) == [50.0]
    predictor.observe_end("a", 100.0, 6100.0)
    assert predictor.history.survival.ages_s(("vc_gpus", "", "1"), 6200.0) == []


def test_failed_fit_is_due_again() -> None:
    predictor = Predictor()
    for k in range(200):
        predictor.predict(JobFacts(str(k), 1), float(k))
        predictor.observe_end(str(k), 50.0 + k, float(k) + 0.5)
    assert (predictor.num_ended, predictor.next_fit_jobs, predictor.fit_due()) == (200, 200, True)
    predictor.training(300.0)
    assert (predictor.next_fit_jobs, predictor.fit_due()) == (300, False)
    predictor.withdraw()
    assert (predictor.next_fit_jobs, predictor.fit_due()) == (200, True)
