"""A run of a trace step by step, checked against the compiled run."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable


def run_stepped(trace: Trace, spec: ClusterSpec, policy: Policy | str) -> JobTable:
    """Run a trace with true run times as predictions. Return its jobs.

    If the policy is a rule, checks that the compiled run is the same, and returns all resources.
    """
    scheduler = load_scheduler(policy)
    predictions = predict_trace(trace, spec, oracle=True)
    table = Engine(trace, spec, order=scheduler.order, predictions=predictions).run(scheduler)
    if scheduler.rule is not None:
        engine = Engine(trace, spec, order=scheduler.order, predictions=predictions)
        compiled = engine.run_rule(scheduler.rule)
        np.testing.assert_array_equal(compiled.start_s, table.start_s)
        assert compiled.gpus == table.gpus
        state = engine.state.arrays
        assert (state.gpu.free_milli == 1000).all(), "all resources are returned"
        np.testing.assert_array_equal(state.node.free, state.node.gpus)
        np.testing.assert_array_equal(state.node.cpu_free_milli, state.node.cpu_milli)
        np.testing.assert_array_equal(state.node.memory_free_mib, state.node.memory_mib)
    return table
