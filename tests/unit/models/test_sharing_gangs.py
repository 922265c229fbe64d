"""A gang that joins another one keeps its GPUs when that has ended: small jobs wait, unless it is priced."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

HOUR_S = 3600.0
UNPRICED = Policy("pack", share={"min_speed": 0.5})
PRICED = Policy("pack", share={"min_speed": 0.5, "min_gain": 0.0, "by_hold": 5.0})


def replay(policy: Policy, gang_s: float, shares: str = "") -> JobTable:
    """Two gangs have a node each, for an hour and for ten; a third one arrives, and then a job of one GPU.

    `shares`: whether the third one may share.
    """
    duration_s = np.array([HOUR_S, 10 * HOUR_S, gang_s, 60.0])
    trace = Trace.from_columns(
        name="gangs",
        submit_s=[0.0, 0.0, 60.0, 120.0],
        duration_s=duration_s,
        num_gpus=[8, 8, 8, 1],
        predicted_s=duration_s,
        predicted_spread=np.zeros(4),
        extra={"workload": ["gpt2-b4"] * 4, "shares": ["", "", shares, ""]},
    )
    spec = ClusterSpec.uniform(2, 8, gpu_type="V100", cpus=48)
    engine = Engine(
        trace,
        spec,
        order=policy.rule.order,
        predictions=predict_trace(trace, spec),
        models=Models(noise=False),
    )
    return engine.run_rule(policy.rule)


def test_long_gang_that_joins_keeps_the_node_from_small_jobs() -> None:
    table = replay(UNPRICED, 5 * HOUR_S)
    assert table.gpus[2] == table.gpus[0], "it has joined the gang that ends first"
    assert table.start_s[2] == 60.0
    assert table.end_s[0] < 2 * HOUR_S
    assert table.start_s[3] == table.end_s[2] > 5 * HOUR_S, "the node was never free"


def test_gang_that_does_not_share_waits_for_a_free_node() -> None:
    table = replay(UNPRICED, 5 * HOUR_S, "false")
    assert table.end_s[0] == HOUR_S
    assert table.start_s[2] >= HOUR_S


def test_priced_gang_waits_and_the_small_job_starts() -> None:
    table = replay(PRICED, 5 * HOUR_S)
    assert table.end_s[0] == HOUR_S
    assert table.start_s[3] == table.end_s[0]
    assert table.start_s[2] == table.end_s[3], "an order by size has the small one first"


@pytest.mark.parametrize("policy", [UNPRICED, PRICED], ids=["unpriced", "priced"])
def test_short_gang_joins_in_either_case(policy: Policy) -> None:
    table = replay(policy, 120.0)
    assert table.start_s[2] == 60.0
    assert table.end_s[0] == pytest.approx(HOUR_S, rel=0.05)
