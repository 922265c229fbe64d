"""The simulator against queueing theory: an M/M/c queue, whose mean waiting time is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes

JOBS = 400_000
BATCHES = 40


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits, by the recursion of Erlang's B (Kleinrock, 1975, section 3.4)."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    busy = offered / servers
    return blocked / (1 - busy + busy * blocked)


@pytest.mark.parametrize(("servers", "busy_frac"), [(1, 0.7), (8, 0.8), (64, 0.9)])
def test_mean_waiting_time_of_an_mmc_queue(servers: int, busy_frac: float) -> None:
    rng = np.random.default_rng([servers, 7])
    service_s = 600.0
    submit_s = np.cumsum(rng.exponential(service_s / (servers * busy_frac), JOBS))
    trace = Trace.from_columns(
        name="mmc",
        submit_s=submit_s - submit_s[0],
        duration_s=rng.exponential(service_s, JOBS),
        num_gpus=np.ones(JOBS),
    )
    spec = ClusterSpec.uniform(max(1, servers // 8), min(servers, 8))
    predictions = PredictedTimes(trace.duration_s, np.zeros(JOBS))
    rule = Policy("fifo").rule
    table = Engine(trace, spec, order=rule.order, predictions=predictions, keep_placements=False).run_rule(
        rule
    )
    waited = table.start_s - trace.submit_s
    batches = waited[JOBS // 20 :].reshape(-1, JOBS // BATCHES // 2).mean(axis=1)
    error = batches.std(ddof=1) / math.sqrt(len(batches))
    expected = erlang_c(servers, servers * busy_frac) * service_s / (servers * (1 - busy_frac))
    assert error < 0.1 * expected, "enough jobs to show a difference"
    assert batches.mean() == pytest.approx(expected, abs=4 * error)
    waits = erlang_c(servers, servers * busy_frac)
    assert (waited[JOBS // 20 :] > 0).mean() == pytest.approx(waits, abs=0.02)


def test_erlang_c_by_hand() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
