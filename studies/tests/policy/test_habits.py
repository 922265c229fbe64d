"""Habits of users on the generator: the best prediction from names, and the accuracy of predictors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlsched.workload.describe import spearman
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.reference import recorded_end_s
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from studies.policy.habits import best_by_name

HABIT = 0.7
LATE = slice(500, None)


def sequence(jobs: int = 1500) -> Trace:
    return synthesize("helios", jobs, 0.95, 128, seed=1, habit=HABIT)[0]


def test_predictors_learn_most_of_the_information_in_names() -> None:
    trace = sequence()
    end_s = recorded_end_s(trace)
    best = spearman(best_by_name(trace, end_s, "helios", HABIT)[LATE], trace.duration_s[LATE])
    counted = np.array([f"{name}_{run}" for run, name in enumerate(trace.job_name.tolist())])
    nobody = np.full(len(trace), "")
    learnt, nameless = (
        spearman(predict_at_submission(jobs, end_s, model="survival").median_s[LATE], trace.duration_s[LATE])
        for jobs in (replace(trace, job_name=counted), replace(trace, user=nobody, job_name=nobody))
    )
    assert best is not None
    assert learnt is not None
    assert nameless is not None
    assert learnt > 0.8 * best
    assert nameless < 0.5 * best


def test_best_prediction_uses_no_unfinished_job() -> None:
    trace = sequence(600)
    end_s = recorded_end_s(trace)
    now_s = trace.submit_s[400]
    open_then = end_s > now_s
    other = replace(trace, duration_s=np.where(open_then, trace.duration_s * 3 + 7, trace.duration_s))
    before, after = (best_by_name(one, recorded_end_s(one), "helios", HABIT) for one in (trace, other))
    assert before[:401].tolist() == after[:401].tolist()
    assert before[401:].tolist() != after[401:].tolist()
