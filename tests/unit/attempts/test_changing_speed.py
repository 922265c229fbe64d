"""Jobs that change speed, and their power, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from rlsched.cluster.arrays import NODE_DOWN, NODE_UP
from rlsched.cluster.spec import NodeGroup
from rlsched.decide.actions import Preempt, Start
from rlsched.models.power import NodePower
from rlsched_envs.sim.attempt_arrays import ENDED, TIMEOUT
from rlsched_envs.sim.node_events import NodeEvent
from tests.support.sim.changing_speed import (
    GPT2,
    INPUT_BOUND,
    LIGHT,
    NO_NOISE,
    V100,
    draws,
    paired,
    play,
    slower,
    trait,
)


def test_co_tenants_slow_each_other_while_both_run() -> None:
    """Both do 60 s of work at the shared speed; then the second has the GPU to itself for 40 s."""
    speed = paired(GPT2, GPT2)
    assert speed < 0.7
    table = play(
        [(0, 100, 1), (0, 100, 1)], [GPT2, GPT2], {0: [Start(0, (0,))], 40: [Start(1, (0,), share_with=0)]}
    )
    assert table.start_s.tolist() == [0, 40]
    np.testing.assert_allclose(table.end_s, [40 + 60 / speed, 40 + 60 / speed + 40], rtol=1e-12)


def test_time_limit_is_wall_time() -> None:
    """The first job is killed at 70 s with work left; then the second has the GPU to itself."""
    speed = paired(GPT2, GPT2)
    table = play(
        [(0, 100, 1), (0, 100, 1)],
        [GPT2, GPT2],
        {0: [Start(0, (0,)), Start(1, (0,), share_with=0)]},
        time_limit_s=[70.0, math.nan],
    )
    assert table.ended_by is not None
    assert table.ended_by.tolist() == [TIMEOUT, ENDED]
    np.testing.assert_allclose(table.end_s, [70, 70 + 100 - 70 * speed], rtol=1e-12)
    assert table.log is not None
    np.testing.assert_allclose(table.log.useful_s, [70 * speed, 100], rtol=1e-12)


def test_time_limit_sufficient_at_full_speed_kills_a_slow_job() -> None:
    table = play([(0, 100, 1)], [GPT2], {0: [Start(0, (0,), sm_clock_frac=0.5)]}, time_limit_s=[100.0])
    assert table.ended_by is not None
    assert (table.ended_by.tolist(), table.end_s.tolist()) == ([TIMEOUT], [100.0])
    same = play([(0, 100, 1)], [GPT2], {0: [Start(0, (0,))]}, time_limit_s=[100.0])
    assert same.ended_by is not None
    assert (same.ended_by.tolist(), same.end_s.tolist()) == ([ENDED], [100.0])


def test_lower_clock_takes_longer_and_draws_less() -> None:
    for x in (1.0, 0.75, 0.5):
        table = play([(5, 100, 1)], [GPT2], {5: [Start(0, (0,), sm_clock_frac=x)]})
        lasts_s = 100 * slower(GPT2, x)
        assert table.end_s[0] == pytest.approx(5 + lasts_s, rel=1e-12)
        energy, node_w = table.energy, NodePower().idle_w(0, 1, 0.0)
        assert energy is not None
        assert energy.job_j[0] == pytest.approx(draws(GPT2, x) * lasts_s, rel=1e-12)
        assert energy.idle_j == pytest.approx(node_w * lasts_s, rel=1e-12)
        assert energy.cluster_j == pytest.approx((draws(GPT2, x) + node_w) * lasts_s, rel=1e-12)
    assert play([(0, 100, 1)], [GPT2], {0: [Start(0, (0,))]}).end_s[0] == 100.0


def test_change_of_clock_costs_running_jobs_time() -> None:
    """The second job raises the clock of both; after its end the clock falls again.

    Each change costs time.
    """
    x, y = 0.6, 1.0
    table = play(
        [(0, 1000, 1), (0, 50, 1)],
        [LIGHT, LIGHT],
        {0: [Start(0, (0,), sm_clock_frac=x)], 100: [Start(1, (0,), sm_clock_frac=y, share_with=0)]},
    )
    speed, switch_s = paired(LIGHT, LIGHT), float(V100.switch_s)
    assert switch_s > 0.1
    first_left_at = 100 + 50 / speed  # the new job pays nothing
    low = 1 / slower(LIGHT, x)
    done = (100 - switch_s) * low + 50 - switch_s * speed
    np.testing.assert_allclose(table.end_s, [first_left_at + (1000 - done) / low, first_left_at], rtol=1e-9)


def test_shared_power_is_split_and_adds_up() -> None:
    """Two equal jobs share from the start: each has half of the power, and both end together."""
    speed = paired(GPT2, GPT2)
    table = play([(0, 100, 1)] * 2, [GPT2, GPT2], {0: [Start(0, (0,)), Start(1, (0,), share_with=0)]})
    busy_w = min(V100.static_w + 2 * speed * trait(GPT2, "dynamic_w"), V100.tdp_w)
    np.testing.assert_allclose(table.end_s, 100 / speed, rtol=1e-9)
    assert table.energy is not None
    np.testing.assert_allclose(table.energy.job_j, busy_w * 50 / speed, rtol=1e-9)


def test_preempted_job_keeps_its_work_not_its_run_time() -> None:
    table = play(
        [(0, 100, 1), (60, 10, 1)],
        [GPT2, LIGHT],
        {0: [Start(0, (0,), sm_clock_frac=0.5)], 60: [Preempt(0), Start(1, (0,))], 70: [Start(0, (0,))]},
    )
    done = 60 / slower(GPT2, 0.5)
    assert done < 45
    assert table.end_s[0] == pytest.approx(70 + 100 - done, rel=1e-12)
    assert table.log is not None
    np.testing.assert_allclose(table.log.useful_s, [done, 10, 100 - done], rtol=1e-12)


def test_speed_depends_on_the_number_of_cores() -> None:
    """It needs 8.66 cores and requested 4: the run time in its trace is that with 4 cores."""
    node = (NodeGroup(gpus=1, gpu_type="V100", cpus=16),)
    need = trait(INPUT_BOUND, "cores_each")
    for cores, speed in ((4000, 1.0), (2000, 0.5**0.83), (8000, 2**0.83), (16_000, (need / 4) ** 0.83)):
        table = play(
            [(0, 100, 1)],
            [INPUT_BOUND],
            {0: [Start(0, (0,), cpu_milli_each=cores)]},
            nodes=node,
            num_cpus=[4.0],
        )
        assert table.end_s[0] == pytest.approx(100 / speed, rel=1e-9)
        frac = min(speed * (4 / need) ** 0.83, 1.0)
        gpu_w = max(V100.idle_w, V100.static_w + trait(INPUT_BOUND, "dynamic_w") * frac)
        assert table.energy is not None
        used = min(cores / 1000, need * frac)
        core_w = NodePower().cpu_active_w_per_core - NodePower().cpu_idle_w_per_core
        assert table.energy.job_j[0] == pytest.approx((gpu_w + used * core_w) * 100 / speed, rel=1e-9)


def test_borrower_slows_down_when_its_loan_is_withdrawn() -> None:
    """It requested 4 cores and borrows 4 of 8; after 30 s, a job that requests 5 cores starts."""
    node = (NodeGroup(gpus=2, gpu_type="V100", cpus=9),)
    table = play(
        [(0, 100, 1), (30, 10, 1)],
        [INPUT_BOUND, LIGHT],
        {0: [Start(0, (0,), cpu_milli_each=8000)], 30: [Start(1, (1,))]},
        nodes=node,
        models=replace(NO_NOISE, lends_cores=True),
        num_cpus=[4.0, 5.0],
    )
    faster = 2**0.83
    assert table.end_s[0] == pytest.approx(30 + 100 - 30 * faster, rel=1e-9)
    assert table.energy is not None
    assert table.energy.cluster_j == pytest.approx(table.energy.job_j.sum() + table.energy.idle_j, rel=1e-9)


def test_gang_on_more_nodes_than_it_needs_is_slower() -> None:
    two = (NodeGroup(count=2, gpus=2, gpu_type="V100"),)
    near = play([(0, 100, 2)], [GPT2], {0: [Start(0, (0, 1))]}, nodes=two)
    far = play([(0, 100, 2)], [GPT2], {0: [Start(0, (0, 2))]}, nodes=two)
    whole = play([(0, 100, 4)], [GPT2], {0: [Start(0, (0, 1, 2, 3))]}, nodes=two)
    assert near.end_s[0] == whole.end_s[0] == 100.0
    assert far.end_s[0] == pytest.approx(100 * (1 + trait(GPT2, "node_penalty")), rel=1e-12)


def test_gpu_type_changes_the_speed() -> None:
    """Run times refer to the cluster's most common type, or to the type that a job requests."""
    mixed = (NodeGroup(count=3, gpus=1, gpu_type="V100"), NodeGroup(gpus=1, gpu_type="A100"))
    ratio = trait(GPT2, "speed", "A100") / trait(GPT2, "speed", "V100")
    assert ratio > 1.2
    for g, gpu_type, lasts_s in ((0, "", 100.0), (3, "", 100 / ratio), (3, "A100", 100.0)):
        table = play([(0, 100, 1)], [GPT2], {0: [Start(0, (g,))]}, nodes=mixed, gpu_type=[gpu_type])
        assert table.end_s[0] == pytest.approx(lasts_s, rel=1e-12)


def test_node_events_before_the_first_submission_apply() -> None:
    """A node that went down before the first job draws no power, and time never goes backwards."""
    two = (NodeGroup(count=2, gpus=1, gpu_type="V100"),)
    table = play(
        [(100, 10, 1)],
        [GPT2],
        {100: [Start(0, (0,))]},
        nodes=two,
        events=[NodeEvent(0.0, 1, NODE_DOWN), NodeEvent(104.0, 1, NODE_UP)],
    )
    node_w = NodePower().idle_w(0, 1, 0.0)
    assert table.energy is not None
    assert table.energy.idle_j == pytest.approx(10 * node_w + 6 * (node_w + V100.idle_w), rel=1e-12)
    assert table.energy.cluster_j == pytest.approx(table.energy.idle_j + 10 * draws(GPT2), rel=1e-12)
