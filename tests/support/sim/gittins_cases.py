"""Cases of the Gittins rules, for comparisons of two implementations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.contract.test_start_options_two_ways import check_books
from tests.contract.test_start_options_two_ways import check_equal as check_equal_modelled

SHORT: Final[dict[str, Any]] = {
    "by": "gittins",
    "spread": 1.0,
    "trust": 0.5,
    "margin": 0.2,
    "first_age": "4s",
    "tick": "3s",
}
"""For jobs of seconds."""


def preempted(table: JobTable) -> int:
    assert table.log is not None
    return int((table.log.reason == PREEMPTED).sum())


def with_preemptible(trace: Trace, frac: float) -> Trace:
    may = np.random.default_rng(0).random(len(trace)) < frac
    return replace(trace, extra=trace.extra | {"preemptible": np.where(may, "true", "false")})


def crowd(seed: int, jobs: int = 60) -> tuple[Trace, ClusterSpec, PredictedTimes]:
    """Gangs, failures and owners on two partitions of V100; half of the jobs may be preempted."""
    rng = np.random.default_rng(seed)
    trace = Trace.from_columns(
        name="crowd",
        submit_s=np.sort(rng.integers(0, 3000, jobs)).astype(float),
        duration_s=np.ceil(rng.lognormal(5, 1.5, jobs)),
        num_gpus=rng.choice([1, 1, 1, 2, 4, 8], jobs).astype(float),
        vc=rng.choice(["", "a"], jobs),
        extra={
            "preemptible": rng.choice(["true", "true", "false"], jobs),
            "fail_after_s": rng.choice(["", "", "", "40"], jobs),
        },
    )
    spec = ClusterSpec(
        name="two",
        nodes=(
            NodeGroup(count=2, gpus=4, gpu_type="V100", cpus=24, vc="a"),
            NodeGroup(count=2, gpus=4, gpu_type="V100", cpus=24),
        ),
    )
    return trace, spec, PredictedTimes(trace.duration_s * rng.lognormal(0, 1, jobs), np.ones(jobs))


def crowd_both_ways(one: RuleScheduler, seed: int) -> tuple[JobTable, list[DecisionRecord]]:
    """A crowd under models, compiled and one by one: the same, with books that add up."""
    trace, spec, predictions = crowd(seed)
    compiled, stepped = (
        Engine(
            trace,
            spec,
            order=one.order,
            predictions=predictions,
            models=Models(workload_seed=seed),
            rules=RunRules(costs=PreemptionCosts(restart_s=20.0)),
        )
        for _ in range(2)
    )
    table, records = compiled.run_rule(one.rule), list[DecisionRecord]()
    check_equal_modelled(table, stepped.run(one, on_record=records.append))
    check_books(table)
    return table, records
