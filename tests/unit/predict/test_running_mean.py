"""Predicted run times: the running mean by hand, without knowledge of the future."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.predict import PRIOR_S, PRIOR_SPREAD, RunningMean, causal_predictions, own_spread
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import predict_trace


def pulled(logs: list[float], mean: float, variance: float, weight: float) -> tuple[float, float]:
    """Mean and variance of k values and `weight` values that have this mean and variance."""
    k = len(logs)
    new_mean = (sum(logs) + weight * mean) / (k + weight)
    second = (sum(x * x for x in logs) + weight * (variance + mean * mean)) / (k + weight)
    return new_mean, second - new_mean**2


class TestRunningMean:
    def test_prior_before_any_job_has_ended(self) -> None:
        assert RunningMean().predict("a", 8) == pytest.approx((PRIOR_S, PRIOR_SPREAD))

    def test_one_job_moves_every_level(self) -> None:
        model, x = RunningMean(), math.log(600.0)
        model.observe("a", 2, 600.0)
        everything = pulled([x], math.log(PRIOR_S), PRIOR_SPREAD**2, 3.0)
        same_gpus = pulled([x], *everything, 5.0)
        same_vc = pulled([x], *same_gpus, 5.0)
        for (vc, gpus), (mean, variance) in {
            ("a", 2): same_vc,
            ("b", 2): same_gpus,
            ("a", 1): everything,
        }.items():
            assert model.predict(vc, gpus) == pytest.approx((math.exp(mean), math.sqrt(variance)))

    def test_one_job_by_hand(self) -> None:
        """A job as long as e times the prior: everything 1/4 of the way, then 1/6 of the rest, twice."""
        model = RunningMean()
        model.observe("a", 1, PRIOR_S * math.e)
        assert model.predict("b", 4)[0] == pytest.approx(PRIOR_S * math.exp(1 / 4))
        assert model.predict("b", 1)[0] == pytest.approx(PRIOR_S * math.exp(1 / 4 + 3 / 4 / 6))
        assert model.predict("a", 1)[0] == pytest.approx(PRIOR_S * math.exp(1 - 3 / 4 * 5 / 6 * 5 / 6))

    def test_many_jobs_determine_their_key(self) -> None:
        model = RunningMean()
        for _ in range(2000):
            model.observe("a", 1, 100.0)
            model.observe("a", 8, 10_000.0)
        assert model.predict("a", 1)[0] == pytest.approx(100.0, rel=0.02)
        assert model.predict("a", 8)[0] == pytest.approx(10_000.0, rel=0.02)
        assert model.predict("a", 1)[1] < 0.3

    def test_median_is_not_dominated_by_one_long_job(self) -> None:
        model = RunningMean()
        for duration in [60.0] * 20 + [30 * 86_400.0]:
            model.observe("a", 1, duration)
        assert model.predict("a", 1)[0] < 300

    def test_spread_is_of_the_logarithm(self) -> None:
        model = RunningMean()
        for _ in range(5000):
            model.observe("a", 1, 100.0)
            model.observe("a", 1, 100.0 * math.exp(2))
        mean, spread = model.predict("a", 1)
        assert mean == pytest.approx(100.0 * math.e, rel=0.01)
        assert spread == pytest.approx(1.0, rel=0.01)

    def test_less_than_a_second_counts_as_one(self) -> None:
        one, none = RunningMean(), RunningMean()
        one.observe("a", 1, 1.0)
        none.observe("a", 1, 0.0)
        assert one.predict("a", 1) == none.predict("a", 1)


def trace_of(submit: list[float], duration: list[float], **optional: list[float]) -> Trace:
    return Trace.from_columns(
        name="t", submit_s=submit, duration_s=duration, num_gpus=[1] * len(submit), **optional
    )


class TestStamps:
    def test_only_ended_jobs_count(self) -> None:
        trace = trace_of([0, 5, 10, 11], [10, 1000, 1, 1])
        predicted, spread = causal_predictions(trace, np.array([10.0, 1005.0, 12.0, 13.0]))
        after_one = RunningMean()
        after_one.observe("", 1, 10.0)
        assert (
            (predicted[0], spread[0]) == (predicted[1], spread[1]) == pytest.approx((PRIOR_S, PRIOR_SPREAD))
        )
        assert (predicted[2], spread[2]) == after_one.predict("", 1), (
            "an end counts for an arrival of its second"
        )
        assert predicted[3] == predicted[2]

    def test_job_that_never_ends_never_counts(self) -> None:
        trace = trace_of([0, 50], [10, 10])
        predicted, _ = causal_predictions(trace, np.array([math.nan, 60.0]))
        assert predicted.tolist() == pytest.approx([PRIOR_S, PRIOR_S])

    def test_no_longer_than_the_limit(self) -> None:
        trace = trace_of([0, 1, 2], [10, 10, 10], time_limit_s=[60, math.nan, 1e9])
        predicted, spread = causal_predictions(trace, np.full(3, 1e6))
        assert predicted.tolist() == pytest.approx([60, PRIOR_S, PRIOR_S])
        assert spread.tolist() == [PRIOR_SPREAD] * 3

    def test_trace_may_have_predictions(self) -> None:
        spec = ClusterSpec.uniform(1, 1)
        trace = trace_of(
            [0, 1], [10, 10], predicted_s=[7, 70], predicted_spread=[0.5, 0.25], time_limit_s=[60, 60]
        )
        predictions = predict_trace(trace, spec)
        assert predictions.predicted_s.tolist() == [7, 60]
        assert predictions.spread.tolist() == [0.5, 0.25]

    def test_gaps_in_its_predictions_are_filled(self) -> None:
        trace = trace_of([0, 1, 19], [10, 10, 10], predicted_s=[7, math.nan, math.nan])
        predictions = predict_trace(trace, ClusterSpec.uniform(1, 1))
        seen = RunningMean()
        seen.observe("", 1, 10.0)
        assert predictions.predicted_s.tolist() == [7, pytest.approx(PRIOR_S), seen.predict("", 1)[0]]

    def test_prediction_without_a_spread_gets_the_spread_of_the_trace_s(self) -> None:
        """Regardless of jobs without a prediction: those count only for the running mean."""
        e2 = math.e**2
        trace = trace_of([0, 1, 2, 80], [10 * e2, 10, 10, 10], predicted_s=[10, math.nan, 10, 10])
        predictions = predict_trace(trace, ClusterSpec.uniform(3, 1))
        assert predictions.spread.tolist() == pytest.approx([2, 2, 2, math.sqrt((5 * 4 + 4) / 7)])
        seen = predict_trace(trace_of([0], [1]), ClusterSpec.uniform(1, 1))
        assert predictions.spread[1] == seen.spread[0] == PRIOR_SPREAD

    def test_spread_without_a_prediction_is_ignored(self) -> None:
        trace = trace_of([0], [10], predicted_spread=[0.25])
        assert predict_trace(trace, ClusterSpec.uniform(1, 1)).spread[0] == pytest.approx(PRIOR_SPREAD)

    def test_before_a_window_jobs_ended_as_recorded(self) -> None:
        """One GPU, jobs of 10 s at 0, 0, 15: run, the second ends at 20; as recorded (no queueing), at 10."""
        trace = trace_of([0, 0, 15, 16], [10, 10, 10, 10])
        spec = ClusterSpec.uniform(1, 1)
        after = {k: RunningMean() for k in (1, 2)}
        for k, model in after.items():
            for _ in range(k):
                model.observe("", 1, 10.0)
        run, recorded = predict_trace(trace, spec), predict_trace(trace, spec, recorded_until_s=15.0)
        assert (run.predicted_s[2], run.spread[2]) == after[1].predict("", 1)
        assert (recorded.predicted_s[2], recorded.spread[2]) == after[2].predict("", 1)

    def test_recorded_queueing_delays_count(self) -> None:
        delays = {"queue_s": np.array([9.0, math.nan, math.nan])}
        trace = dataclasses.replace(trace_of([0, 15, 20], [10, 10, 10]), extra=delays)
        predictions = predict_trace(trace, ClusterSpec.uniform(1, 1), recorded_until_s=15.0)
        seen = RunningMean()
        seen.observe("", 1, 10.0)
        assert predictions.predicted_s.tolist() == [*[pytest.approx(PRIOR_S)] * 2, seen.predict("", 1)[0]]

    def test_oracle_has_the_true_run_times(self) -> None:
        trace = trace_of([0, 1], [10, 20], predicted_s=[1, 1])
        predictions = predict_trace(trace, ClusterSpec.uniform(1, 1), oracle=True)
        assert predictions.predicted_s.tolist() == [10, 20]
        assert predictions.spread.tolist() == [0, 0]

    def test_own_spread_by_hand(self) -> None:
        trace = trace_of([0, 5, 30], [math.e**2 * 10, 10, 10], predicted_s=[10, 10, 10])
        spread = own_spread(trace, np.array([20.0, 100.0, 100.0]))
        assert spread.tolist() == pytest.approx([2, 2, math.sqrt((5 * 4 + 4) / 6)])


JOB = st.tuples(st.integers(0, 200), st.integers(0, 100), st.integers(1, 3), st.sampled_from(["a", "b"]))


@settings(max_examples=80, deadline=None)
@given(st.lists(JOB, min_size=2, max_size=30), st.integers(0, 200), st.data())
def test_stamps_do_not_use_unfinished_jobs(
    jobs: list[tuple[int, int, int, str]], now_s: int, data: st.DataObject
) -> None:
    submit, duration, gpus, vc = (list(column) for column in zip(*jobs, strict=True))
    trace = Trace.from_columns(name="t", submit_s=submit, duration_s=duration, num_gpus=gpus, vc=vc)
    end_s = trace.submit_s + trace.duration_s
    changed = trace.duration_s.copy()
    for row in np.flatnonzero(end_s > now_s).tolist():
        changed[row] = max(now_s + 1 - trace.submit_s[row], 0) + data.draw(st.integers(0, 500))
    other = Trace.from_columns(
        name="t", submit_s=trace.submit_s, duration_s=changed, num_gpus=trace.num_gpus, vc=trace.vc
    )
    before = trace.submit_s <= now_s
    one = causal_predictions(trace, end_s)
    two = causal_predictions(other, other.submit_s + other.duration_s)
    for prediction, other_stamp in zip(one, two, strict=True):
        np.testing.assert_array_equal(prediction[before], other_stamp[before])
