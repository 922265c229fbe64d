"""Runs with the ends and the observed pairs of a broker: models only predict, and learn only what it saw."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.models.learning import Observed
from rlsched.power_down.plan import PowerDownPlan
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import ENDED
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models, core_need_milli
from rlsched_envs.sim.seen import SeenMemory

A, B = "a2c-b64", "gpt2-b4"
ONE_GPU, TWO_GPUS = (
    ClusterSpec(name="node", nodes=(NodeGroup(gpus=gpus, gpu_type="H100", cpus=8),)) for gpus in (1, 2)
)
SLOW = (Observed(A, B, "H100", 0.2), Observed(B, A, "H100", 0.2))
POLICY = Policy("pack")


def engine(
    submit_s: list[float], end_s: list[float], spec: ClusterSpec = ONE_GPU, unshared: int = -1, **options: Any
) -> Engine:
    """Jobs of A and B in turn, each on one GPU, which they share well by the catalogue."""
    jobs = len(submit_s)
    trace = Trace.from_columns(
        name="recorded", submit_s=submit_s, duration_s=[50.0] * jobs, num_gpus=[1] * jobs
    )
    extra = {"workload": np.array([(A, B)[job % 2] for job in range(jobs)])}
    extra["shares"] = np.where(np.arange(jobs) == unshared, "false", "true")
    trace = replace(trace, extra=extra)
    options = {"models": Models(), "fixed_end_s": np.array(end_s)} | options
    known = PredictedTimes(np.full(jobs, 60.0), np.full(jobs, 0.5))
    return Engine(trace, spec, order=POLICY.rule.order, predictions=known, **options)


def run(made: Engine, *, compiled: bool) -> JobTable:
    """Run the policy, compiled or decision by decision."""
    return made.run_rule(POLICY.rule) if compiled else made.run(RuleScheduler(POLICY))


both = pytest.mark.parametrize("compiled", [True, False])


@both
def test_jobs_that_share_gpus_end_as_recorded_and_draw_no_power(compiled: bool) -> None:
    made = engine([0.0, 1.0, 10.0, 31.0], [100.0, 47.0, 30.0, math.nan], TWO_GPUS, unshared=0)
    table = run(made, compiled=compiled)
    assert table.gpus[1] == table.gpus[2] == (1,)
    assert table.start_s.tolist() == [0.0, 1.0, 10.0, 47.0]
    assert table.end_s.tolist() == [100.0, 47.0, 30.0, 97.0], "without a recorded end: start + duration"
    assert table.ended_by is not None
    assert table.ended_by.tolist() == [ENDED] * 4
    assert table.energy is None
    assert table.attempts.books is None
    progress = made.arrays.progress.run[0]
    assert (progress.gpu_s, progress.allocated_milli) == (100.0 + 96.0, 0), "shared GPUs count once"


@both
@pytest.mark.parametrize(("at_s", "start_s"), [(-5.0, 90.0), (0.0, 90.0), (10.0, 90.0), (10.001, 10.0)])
def test_decisions_know_a_pair_from_the_time_of_its_observation(
    compiled: bool, at_s: float, start_s: float
) -> None:
    made = engine([0.0, 10.0], [90.0, 95.0], seen=[(at_s, pair) for pair in SLOW])
    assert run(made, compiled=compiled).start_s.tolist() == [0.0, start_s]


@both
def test_nothing_else_is_learnt(compiled: bool) -> None:
    """A simulated pair would reveal its speeds after 300 s."""
    made = engine([0.0, 10.0], [5000.0, 6000.0], seen=[(50.0, Observed("vit-tiny", A, "H100", 0.5))])
    run(made, compiled=compiled)
    trait, number = made.state.arrays.models.trait, Models().catalogue().number
    assert trait.times_seen.sum() == 1.0
    assert trait.times_seen[number("vit-tiny"), 0, number(A)] == 1.0


@both
@pytest.mark.parametrize(("mib", "start_s"), [(60_000, 10.0), (80_000, 90.0)])
def test_decisions_know_the_memory_that_a_job_uses(compiled: bool, mib: int, start_s: float) -> None:
    made = engine([0.0, 10.0], [90.0, 95.0], seen=[(9.0, SeenMemory(0, mib)), (9.5, SeenMemory(1, 70_000))])
    assert run(made, compiled=compiled).start_s.tolist() == [0.0, start_s]


def test_jobs_have_the_workloads_and_cores_that_the_broker_knows() -> None:
    trace = Trace.from_columns(name="plain", submit_s=[0.0], duration_s=[5.0], num_gpus=[1])
    assert Engine(trace, ONE_GPU, models=Models()).arrays.truth.workload[0] > 0, "drawn"
    made = Engine(trace, ONE_GPU, models=Models(), fixed_end_s=np.array([5.0]))
    assert made.arrays.truth.workload[0] == 0
    assert made.state.arrays.demand.cpu_milli_each[made.arrays.truth.demand[0]] == 0


def test_observed_pairs_need_recorded_ends_and_models_and_nodes_that_stay_on() -> None:
    pairs = [(1.0, SLOW[0])]
    with pytest.raises(ValueError, match="expected models and fixed_end_s"):
        engine([0.0], [9.0], models=None, seen=pairs)
    with pytest.raises(ValueError, match="expected models and fixed_end_s"):
        engine([0.0], [9.0], fixed_end_s=None, seen=pairs)
    with pytest.raises(ValueError, match=r"seen and models\.power_down exclude each other"):
        engine([0.0], [9.0], models=Models(power_down=PowerDownPlan()), seen=pairs)


def test_cores_in_whole_thousandths_stay_as_they_are() -> None:
    """2.007 x 1000 is a little more than 2007."""
    trace = Trace.from_columns(name="cores", submit_s=[0.0] * 3, duration_s=[1.0] * 3, num_gpus=[1] * 3)
    trace = replace(trace, extra={"core_need": np.array([2.007, 4.001, 2.0071])})
    assert core_need_milli(trace).tolist() == [2007, 4001, 2008]
