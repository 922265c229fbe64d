"""The search of small instances: it finds what is best by hand, and no rule does better."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.trace import Trace
from studies.policy.small_optimum import Scripted, instance, jct_s, optimum_s, prices

HEAVY = "resnet50-imagenet-b64"


def jobs(*duration_s: float, gpus: int = 2) -> Trace:
    return Trace.from_columns(
        name="small",
        submit_s=np.zeros(len(duration_s)),
        duration_s=np.array(duration_s),
        num_gpus=np.full(len(duration_s), gpus),
        extra={"workload": [HEAVY] * len(duration_s)},
    )


def test_one_job_runs_on_the_faster_type() -> None:
    trace = jobs(1000.0)
    options = [jct_s(trace, Scripted([k])) for k in range(2)]
    assert optimum_s(trace) == min(options) < max(options)
    assert jct_s(trace, RuleScheduler(prices(0.0, 2.0, 0.3))) == min(options)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_rule_is_better_than_the_best_sequence(seed: int) -> None:
    trace = instance(3, np.random.default_rng(seed))
    least_s = optimum_s(trace)
    for each in ((0.0, 2.0, 0.0), (0.3, 2.0, 0.3), (1.0, 0.5, 0.6)):
        assert least_s <= jct_s(trace, RuleScheduler(prices(*each))) * (1.0 + 1e-9)


def test_a_short_job_first_where_there_is_one_place() -> None:
    """Four GPUs each: a gang over both nodes runs alone."""
    trace = jobs(1000.0, 100.0, gpus=4)
    long_first, short_first = jct_s(trace, Scripted([0])), optimum_s(trace)
    assert short_first < 0.7 * long_first
