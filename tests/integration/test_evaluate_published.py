"""The metrics equal the published numbers for the same schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.build import build_report
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import predict_trace

# Lucid's simulator on a week of Philly, 60 nodes of 8 GPUs: mean JCT, mean, p99 and p99.9 queueing delay (s).
LUCID = {
    "fifo": (46_321, 38_492, 108_934, 112_913),
    "sjf": (10_633, 2_804, 23_482, 187_071),
    "qssf": (10_554, 2_725, 26_059, 206_158),
}


def test_philly_week_on_60_nodes(shared_data: Path) -> None:
    trace = Trace.read(shared_data / "fidelity" / "philly_week.csv.gz")
    spec, window = ClusterSpec.uniform(60, 8), MeasuredWindow()
    policies = [Policy(name) for name in LUCID]
    tasks = replay_tasks(trace, spec, window, predict_trace(trace, spec), policies, [0])
    report = build_report(trace, spec, window, [0], run_tasks(tasks, workers=1))
    for name, (jct, queue, p99, p999) in LUCID.items():
        one = report.policies[name]
        found = (one.jct_mean_s, one.queue_mean_s, one.queue_p99_s, one.queue_p999_s)
        assert found == pytest.approx((jct, queue, p99, p999), abs=0.51), name
        assert (one.jobs, one.rejected, one.unfinished) == (10_650, 0, 0)
