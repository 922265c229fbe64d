"""Effects of GPUs apart from running jobs, computed by hand: clock dwell times, power caps, faults."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.policies.policy import Policy
from rlsched.models.clocks import DWELL_S, MIN_CLOCK_FRAC, capped_clock, dynamic_power_w
from rlsched.models.memory import FAULT_FRAC, is_device_fault
from rlsched_envs.sim.attempt_arrays import FAILED, NEIGHBOUR_FAULT
from rlsched_envs.sim.attempt_log import PreemptionCosts
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.modelling import Models, job_keys
from tests.support.sim.changing_speed import (
    FREE_RESTARTS,
    GPT2,
    LIGHT,
    ONE_V100,
    V100,
    draws,
    paired,
    play,
    slower,
    trait,
)
from tests.support.sim.play import trace_of

# ---- dwell time of clocks --------------------------------------------------------------------------


@pytest.mark.parametrize("second_s", [DWELL_S - 4.0, DWELL_S + 4.0])
def test_clock_does_not_fall_within_the_dwell_time(second_s: float) -> None:
    """A new job raises the clock at 100 s. If it ends within the dwell time, the clock stays up."""
    x, speed, switch_s = 0.6, paired(LIGHT, LIGHT), float(V100.switch_s)
    work_s = second_s * speed
    table = play(
        [(0, 1000, 1), (0, work_s, 1)],
        [LIGHT, LIGHT],
        {0: [Start(0, (0,), sm_clock_frac=x)], 100: [Start(1, (0,), sm_clock_frac=1.0, share_with=0)]},
    )
    low, left_at = 1 / slower(LIGHT, x), 100 + second_s
    done = (100 - switch_s) * low + work_s
    falls = second_s > DWELL_S
    left_s = (1000 - done + switch_s * speed) / low if falls else 1000 - done
    np.testing.assert_allclose(table.end_s, [left_at + left_s, left_at], rtol=1e-9)


# ---- power caps -----------------------------------------------------------------------------------


def test_power_cap_lowers_the_clock_until_the_power_fits() -> None:
    uncapped_w, cap_frac = draws(GPT2), 0.5
    cap_w = cap_frac * float(V100.tdp_w)
    assert cap_w < 0.8 * uncapped_w
    table = play([(0, 100, 1)], [GPT2], {0: [Start(0, (0,))]}, models=Models(power_cap_frac=cap_frac))
    gpu = np.array([V100], V100.dtype).view(np.recarray)
    x = capped_clock(gpu, 0, trait(GPT2, "clock_bound"), trait(GPT2, "dynamic_w"), cap_w)
    assert MIN_CLOCK_FRAC < x < 1
    assert table.end_s[0] == pytest.approx(100 * slower(GPT2, x), rel=1e-7)
    assert table.energy is not None
    assert table.energy.job_j[0] / table.end_s[0] == pytest.approx(cap_w, rel=1e-7)


def test_power_cap_counts_all_co_tenants_and_spares_gpus_below_it() -> None:
    cap_frac, speed = 0.5, paired(GPT2, GPT2)
    models = Models(noise=False, power_cap_frac=cap_frac)
    both = play(
        [(0, 100, 1), (0, 200, 1)],
        [GPT2, GPT2],
        {0: [Start(0, (0,)), Start(1, (0,), share_with=0)]},
        models=models,
    )
    gpu = np.array([V100], V100.dtype).view(np.recarray)
    x = slower_clock = 1.0
    for x in np.linspace(1.0, MIN_CLOCK_FRAC, 50_001):
        own_w = dynamic_power_w(gpu, 0, trait(GPT2, "dynamic_w"), trait(GPT2, "clock_bound"), x, speed)
        if V100.static_w + 2 * own_w <= cap_frac * V100.tdp_w:
            slower_clock = float(x)
            break
    assert slower_clock < 1.0
    np.testing.assert_allclose(both.end_s[0], 100 / speed * slower(GPT2, slower_clock), rtol=1e-4)
    alone = play([(0, 100, 1)], [LIGHT], {0: [Start(0, (0,))]}, models=models)
    assert alone.end_s[0] == 100.0


# ---- faults ---------------------------------------------------------------------------------------

FAULTS = Models(noise=False, sharing_mode="mps", fault_frac=1.0)


def test_fault_under_mps_ends_all_jobs_of_the_gpu() -> None:
    """The first job fails after 30 s; its co-tenant restarts too and has lost its work."""
    speed, actions = paired(GPT2, LIGHT), {0: [Start(0, (0,)), Start(1, (0,), share_with=0)]}
    fail_s = 30 / speed
    actions[fail_s] = [Start(1, (0,)), Start(0, (0,), share_with=1)]
    table = play([(0, 100, 1), (0, 500, 1)], [GPT2, LIGHT], actions, models=FAULTS, fail_after_s=["30", ""])
    assert table.log is not None
    assert [table.log.reason_name(k) for k in (0, 1)] == ["failed", "neighbour_fault"]
    assert table.log.useful_s[:2].tolist() == [0.0, 0.0]
    assert table.log.end_s[:2] == pytest.approx([fail_s, fail_s], rel=1e-12)
    own = fail_s + 100 / speed
    assert table.end_s[0] == pytest.approx(own, rel=1e-12)
    done = (own - fail_s) * paired(LIGHT, GPT2)
    assert table.end_s[1] == pytest.approx(own + 500 - done, rel=1e-9)


@pytest.mark.parametrize(
    "models", [Models(noise=False), Models(noise=False, sharing_mode="mps", fault_frac=0.0)]
)
def test_co_tenant_survives_other_failures_and_faults_under_time_slicing(models: Models) -> None:
    speed = paired(GPT2, LIGHT)
    actions = {0: [Start(0, (0,)), Start(1, (0,), share_with=0)], 30 / speed: [Start(0, (0,), share_with=1)]}
    table = play([(0, 100, 1), (0, 500, 1)], [GPT2, LIGHT], actions, models=models, fail_after_s=["30", ""])
    assert table.log is not None
    assert sorted(table.log.reason.tolist()) == sorted([FAILED, 1, 1])
    assert NEIGHBOUR_FAULT not in table.log.reason


def test_no_decision_expects_faults() -> None:
    """Jobs that do not fail: `pack` decides alike under MPS, where any failure would be a fault."""
    trace = trace_of([(0, 100 + k, 1) for k in range(6)], workload=[GPT2, LIGHT] * 3)
    spec, rule = ClusterSpec(name="hand", nodes=tuple(ONE_V100)), Policy("pack").rule
    tables = [
        Engine(trace, spec, order=rule.order, oracle=True, models=models).run_rule(rule)
        for models in (FAULTS, Models(noise=False))
    ]
    assert tables[0].start_s.tolist() == tables[1].start_s.tolist()
    assert tables[0].gpus == tables[1].gpus
    assert len(set(tables[0].start_s.tolist())) < len(trace), "jobs share"


def test_share_of_faults_is_drawn_by_job_and_failure() -> None:
    trace = trace_of([(k, 10, 1) for k in range(2000)])
    keys = job_keys(trace)
    drawn = np.array([[is_device_fault(key, failure, FAULT_FRAC) for failure in range(3)] for key in keys])
    assert drawn.mean() == pytest.approx(FAULT_FRAC, abs=4 * math.sqrt(FAULT_FRAC * 0.9 / 6000))
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 4 / math.sqrt(2000)
    assert [is_device_fault(keys[0], 0, frac) for frac in (0.0, 1.0)] == [False, True]


# ---- restarts -------------------------------------------------------------------------------------


def test_default_restart_cost_is_that_of_the_catalogue() -> None:
    saves_s = trait(GPT2, "checkpoint_s")
    assert saves_s > 20
    actions = {0: [Start(0, (0,))], 60: [Preempt(0), Start(1, (0,))], 70: [Start(0, (0,))]}

    def ends_s(costs: PreemptionCosts | None, **columns: list[float]) -> float:
        table = play([(0, 100, 1), (60, 10, 1)], [GPT2, LIGHT], actions, costs=costs, **columns)
        return float(table.end_s[0])

    assert ends_s(None) == pytest.approx(70 + saves_s + 40, rel=1e-12)
    assert ends_s(FREE_RESTARTS) == pytest.approx(70 + 40, rel=1e-12)
    assert ends_s(None, restart_s=[7.0, math.nan]) == pytest.approx(70 + 7 + 40, rel=1e-12)
