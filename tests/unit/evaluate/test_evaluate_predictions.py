"""Policies that need a history of predictions, and policies that run without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.predict import PRIOR_S, PRIOR_SPREAD
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate import run
from rlsched_agents.evaluate.windows import WARMUP_S, MeasuredWindow
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import PredictedTimes, predict_trace

FED = (
    Policy("qssf"),
    Policy("easy"),
    Policy("easy", order="area^0.7", reserve_after="1h"),
    Policy("reserve"),
    Policy("fifo-backfill", predictions="revised"),
    Policy("tiresias"),
    Policy("gittins"),
    Policy("random"),
)
UNFED = tuple(Policy(name) for name in ("fifo", "fifo-backfill", "sjf", "sjf-backfill", "srtf"))


def test_history_is_computed_only_where_a_policy_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, spec = synthesize("helios", 60, 0.9, 16, seed=1)
    asked: list[float] = []

    def history(trace: Trace, spec: ClusterSpec, *, recorded_until_s: float, **more: Any) -> PredictedTimes:
        asked.append(recorded_until_s)
        return predict_trace(trace, spec, recorded_until_s=recorded_until_s, **more)

    monkeypatch.setattr(run, "predict_trace", history)
    window = MeasuredWindow(since_s=10.0 + WARMUP_S)
    unfed = run.predictions_for(run.load_policies(UNFED, None), trace, spec, window)
    assert not asked
    assert set(unfed.predicted_s.tolist()) == {PRIOR_S}
    assert set(unfed.spread.tolist()) == {PRIOR_SPREAD}
    for policy in FED:
        fed = run.predictions_for(run.load_policies([Policy("fifo"), policy], None), trace, spec, window)
        assert asked.pop() == 10.0, policy
    assert fed.predicted_s.tolist() == predict_trace(trace, spec, recorded_until_s=10.0).predicted_s.tolist()
    run.predictions_for(run.load_policies([Policy("fifo")], None), trace, spec, window, looked_at=True)
    assert len(asked) == 1


@pytest.mark.parametrize("policy", UNFED, ids=lambda policy: policy.name)
def test_other_policies_decide_alike_with_any_history(policy: Policy) -> None:
    trace, spec = synthesize("helios", 400, 1.1, 32, seed=2)
    rng, found = np.random.default_rng(0), []
    for predicted_s in (np.full(400, PRIOR_S), rng.exponential(3600, 400), rng.exponential(60, 400)):
        predictions = PredictedTimes(predicted_s, np.ones(400))
        tasks = run.replay_tasks(
            trace, spec, MeasuredWindow(), predictions, [policy], [0], rules=RunRules(max_retries=1)
        )
        found.append(run.run_tasks(tasks, workers=1)[0].table)
    assert (found[0].start_s > trace.submit_s).any(), "jobs wait"
    for table in found[1:]:
        np.testing.assert_array_equal(table.start_s, found[0].start_s)
        np.testing.assert_array_equal(table.end_s, found[0].end_s)
        assert table.gpus == found[0].gpus
