"""Reservations under models of job speed: ends are predicted at predicted speeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.speed import present_speed
from rlsched.compile.jit import specialise
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rules.reservation import predicted_end_s, predicted_run_s
from rlsched.models.clocks import relative_time
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.modelling import Models
from tests.quick import quick
from tests.support.sim.board import CATALOGUE, add, modelled, node, running

COMPUTE, MEMORY = "bert-base-squad-b16", "vit-tiny"
"""A workload that a lower clock slows much, and one that it slows little."""
ONE_NODE = ClusterSpec(name="one", nodes=(NodeGroup(count=1, gpus=4, gpu_type="V100"),))


def starts(policy: Policy, *, compiled: bool, workloads: list[str], run_s: list[float]) -> list[float]:
    """Starts of a job of three GPUs, of one that needs all four, and of a last one that might pass it."""
    trace = Trace.from_columns(
        name="hand",
        submit_s=[0, 1, 2],
        duration_s=run_s,
        num_gpus=[3, 4, 1],
        extra={"workload": np.array(workloads)},
    )
    predictions = PredictedTimes(trace.duration_s.copy(), np.zeros(3))
    engine = Engine(
        trace, ONE_NODE, order=policy.rule.order, predictions=predictions, models=Models(noise=False)
    )
    table = engine.run_rule(policy.rule) if compiled else engine.run(load_scheduler(policy))
    return table.start_s.tolist()


def slowed(workload: str, clock: float) -> float:
    """Slowdown factor of a workload at a clock on a V100."""
    bound = CATALOGUE.arrays(("V100",)).trait.clock_bound[CATALOGUE.number(workload), 0]
    return float(relative_time(bound, clock))


@pytest.mark.parametrize("compiled", quick([True, False], lambda compiled: not compiled))
def test_slow_job_leaves_time_for_another_before_the_reservation(compiled: bool) -> None:
    """At half clock the first job takes nearly twice as long: 1,200 s fit before the reservation."""
    jobs: Mapping[str, Any] = {"workloads": [COMPUTE, COMPUTE, MEMORY], "run_s": [1000.0, 50.0, 1200.0]}
    assert slowed(COMPUTE, 0.5) > 1.9
    ends_s = 1000 * slowed(COMPUTE, 0.5)
    half = starts(Policy("easy", clock={"rule": "fixed", "at": 0.5}), compiled=compiled, **jobs)
    assert half == pytest.approx([0, ends_s, 2])
    full = starts(Policy("easy"), compiled=compiled, **jobs)
    assert full == pytest.approx([0, 1000, 1050])


def test_predicted_ends_follow_clocks_and_co_tenants() -> None:
    end_s = specialise(predicted_end_s, MODELLED=True)
    state = modelled(node("a", 4))
    alone = running(state, COMPUTE, [0], clock=1.0)
    slow = running(state, COMPUTE, [1], clock=0.5)
    first = running(state, MEMORY, [2])
    state.start(add(state, MEMORY), [2], 0.0, share_milli=500, share_with=first)
    s, slot = state.arrays, state.slot_of
    assert end_s(s, slot(slow), 10.0) == pytest.approx(100.0 * slowed(COMPUTE, 0.5)), "as in a broker"
    s.gpu.clock_frac[1] = 0.5  # as the simulator records it
    s.gpu.clock_frac[[0, 2]] = 1.0
    assert end_s(s, slot(alone), 10.0) == 100.0
    assert end_s(s, slot(slow), 10.0) == pytest.approx(100.0 * slowed(COMPUTE, 0.5))
    assert end_s(s, slot(first), 10.0) == pytest.approx(100.0 / present_speed(s, slot(first)))
    assert present_speed(s, slot(first)) < 1.0


def test_speeds_are_cached_until_the_sharing_jobs_change() -> None:
    state = modelled(node("a", 2))
    first = running(state, MEMORY, [0, 1])
    s, slot = state.arrays, state.slot_of
    kept = s.derived.slot.speed
    alone = present_speed(s, slot(first))
    assert kept[slot(first)] == alone
    second = add(state, MEMORY, 2)
    state.start(second, [0, 1], 5.0, share_milli=500, share_with=first)
    assert np.isnan(kept[[slot(first), slot(second)]]).all()
    assert present_speed(s, slot(first)) < alone
    assert present_speed(s, slot(first)) == kept[slot(first)]
    state.release(second, 10.0)
    assert np.isnan(kept[slot(first)])
    assert present_speed(s, slot(first)) == alone


def test_start_is_predicted_on_its_candidate_gpus() -> None:
    run_s = specialise(predicted_run_s, MODELLED=True)
    state = modelled(node("a", 2, "V100"), node("b", 2, "A100-40GB"))
    state.start(add(state, COMPUTE, 2), [0, 1], 0.0)
    seq = add(state, COMPUTE, 1)
    slot = state.slot_of(seq)
    state.arrays.job.reference_kind[slot] = state.kind_names.index("V100")
    faster = CATALOGUE.arrays(state.kind_names).trait.speed[CATALOGUE.number(COMPUTE)]
    assert faster[1] > faster[0]
    assert run_s(state.arrays, 0, slot, -1) == pytest.approx(100.0 * faster[0] / faster[1])
