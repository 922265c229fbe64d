"""Output of revised predictions: jobs and predictions, without the test split."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace, run_time_s
from studies.policy import revised
from studies.policy.abilities import REVISED, able
from studies.policy.cases import Workload
from studies.policy.revised import Row, Started


def test_waiting_job_has_predictions_at_submission_and_at_start() -> None:
    trace = Trace.from_columns(
        name="t", submit_s=[0.0, 1.0, 2.0, 9000.0], duration_s=[30.0, 70.0, 50.0, 9.0], num_gpus=[1, 1, 1, 1]
    )
    work = Workload(trace, ClusterSpec.uniform(1, 1), MeasuredWindow(1.0, 10_000.0), 1.0)
    found = revised.started(work, PredictedTimes(np.full(4, 600.0), np.full(4, 1.5)), revised.DEFAULT)
    assert found.run_s.tolist() == [50.0]  # the first is not measured, the second waits 29 s, the last 0 s
    assert found.first_predicted_s.tolist() == [600.0]
    assert 50.0 < found.revised_s[0] < 0.5 * 600.0


def test_jobs_start_as_under_the_compiled_rule() -> None:
    trace, spec = synthesize("helios", jobs=400, load=1.2, gpus=32, seed=3, predictability="causal")
    work = Workload(trace, spec, MeasuredWindow(float(trace.submit_s[100]), float(trace.submit_s[300])), 1.0)
    predictions = predict_trace(trace, spec)
    found = revised.started(work, predictions, revised.DEFAULT)
    kept = trace.submit_s >= work.window.replay_from_s
    fed = PredictedTimes(predictions.predicted_s[kept], predictions.spread[kept])
    rule = able(revised.DEFAULT, REVISED).rule
    table = Engine(trace.select(kept), spec, order=rule.order, predictions=fed).run_rule(rule)
    waited = work.window.measured(table.trace) & (table.start_s - table.trace.submit_s > revised.LEAST_WAIT_S)
    np.testing.assert_array_equal(found.run_s, run_time_s(table.trace)[waited])
    np.testing.assert_array_equal(found.first_predicted_s, fed.predicted_s[waited])
    assert 0.1 < np.mean(found.revised_s != found.first_predicted_s) < 1.0


def test_ranks_and_errors_by_hand() -> None:
    run_s = np.array([100.0, 200.0, 400.0])
    first_predicted_s, revised_s = np.array([400.0, 200.0, 100.0]), np.array([100.0, 200.0, 800.0])
    row = revised.row_of("t", Started(first_predicted_s, revised_s, run_s))
    assert (row.jobs, row.revised_frac) == (3, pytest.approx(2 / 3))
    assert row.rank == pytest.approx((-1.0, 1.0))
    assert row.error == pytest.approx((math.log(4.0), 0.0))
    nobody = revised.row_of("u", Started(np.empty(0), np.empty(0), np.empty(0)))
    both = revised.pooled([row, nobody, Row("v", 5, 0.0, (0.0, None), (0.0, 0.0))])
    assert (both.jobs, both.revised_frac) == (8, pytest.approx(1 / 3))
    assert both.rank == pytest.approx((-0.5, 1.0))
    assert both.error == pytest.approx((math.log(2.0), 0.0))
    assert revised.line(row) == "| t | 3 | 67 % | -1.00 | 1.00 | 1.39 | 0.00 |"
    assert revised.line(nobody) == "| u | 0 | - | - | - | - | - |"


def test_test_split_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        revised.main(["--part", "test"])
    assert left.value.code == 2
    assert "invalid choice: 'test'" in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["sjf", "gittins", "pack"])
def test_unsupported_rule_is_one_line(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert revised.main(["--policy", rule, "--traces", "nowhere"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert rule in said
