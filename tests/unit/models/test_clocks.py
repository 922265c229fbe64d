"""The clock model: its limits, properties for any job and GPU, and the measured V100."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.models import clocks
from rlsched.models.arrays import NUM_LEVELS
from rlsched.models.power import GPU_FIGURES, gpu_models

KINDS = tuple(GPU_FIGURES)
GPU = gpu_models(KINDS)
V100 = KINDS.index("V100")

shares = st.floats(0.0, 1.0)
watts = st.floats(0.0, 500.0)
clock_fracs = st.floats(clocks.MIN_CLOCK_FRAC, 1.0)
kinds = st.integers(0, len(KINDS) - 1)
budgets = st.floats(0.0, 1.0)


def energy(kind: int, rho: float, dynamic_w: float, x: float) -> float:
    return clocks.power_at(GPU, kind, rho, dynamic_w, x) * clocks.relative_time(rho, x)


@given(rho=shares)
@settings(deadline=None)
def test_full_clock_takes_exactly_the_time_of_the_trace(rho: float) -> None:
    assert clocks.relative_time(rho, 1.0) == 1.0


def test_time_at_half_the_clock_by_hand() -> None:
    assert clocks.relative_time(1.0, 0.5) == pytest.approx(2.0)
    assert clocks.relative_time(0.0, 0.5) == 1.0
    assert clocks.relative_time(0.5, 0.5) == pytest.approx((1 + 1 - 1 / 32) ** 0.2)


@given(rho=st.floats(0.05, 1.0), x=st.floats(clocks.MIN_CLOCK_FRAC, 0.95))
@settings(deadline=None)
def test_clock_bound_share_is_found_from_one_lower_clock(rho: float, x: float) -> None:
    assert clocks.clock_bound_of(clocks.relative_time(rho, x), x) == pytest.approx(rho, abs=1e-3)


def test_noisy_time_gives_a_share_within_its_bounds() -> None:
    assert clocks.clock_bound_of(0.97, 0.7) == 0.0
    assert clocks.clock_bound_of(3.0, 0.7) == pytest.approx(1.0)


def test_voltage_falls_to_the_knee_and_no_further() -> None:
    assert clocks.relative_voltage(0.7, 0.48, 1.0) == 1.0
    assert clocks.relative_voltage(0.7, 0.48, 0.85) == pytest.approx(1 - 0.48 * 0.15)
    assert clocks.relative_voltage(0.7, 0.48, 0.7) == clocks.relative_voltage(0.7, 0.48, 0.5)


@given(rho=shares, low=clock_fracs, high=clock_fracs)
@settings(deadline=None)
def test_lower_clock_is_never_faster_and_at_most_proportionally_slower(
    rho: float, low: float, high: float
) -> None:
    low, high = min(low, high), max(low, high)
    assert clocks.relative_time(rho, low) >= clocks.relative_time(rho, high) - 1e-12
    assert clocks.relative_time(rho, low) <= 1.0 / low + 1e-12


@given(kind=kinds, rho=shares, dynamic_w=watts, low=clock_fracs, high=clock_fracs)
@settings(deadline=None)
def test_power_never_falls_as_the_clock_rises(
    kind: int, rho: float, dynamic_w: float, low: float, high: float
) -> None:
    low, high = min(low, high), max(low, high)
    at_low = clocks.power_at(GPU, kind, rho, dynamic_w, low)
    assert at_low <= clocks.power_at(GPU, kind, rho, dynamic_w, high) + 1e-9
    assert GPU[kind]["idle_w"] <= at_low <= GPU[kind]["tdp_w"]


@given(kind=kinds, rho=shares, dynamic_w=watts, x=clock_fracs, speed=shares)
@settings(deadline=None)
def test_dynamic_power_is_the_formula_times_speed(
    kind: int, rho: float, dynamic_w: float, x: float, speed: float
) -> None:
    g = GPU[kind]
    time = ((rho / x) ** 5 + 1 - rho**5) ** 0.2
    v = max(1 + g["voltage_slope"] * (x - 1), 1 + g["voltage_slope"] * (g["knee_frac"] - 1))
    expected = dynamic_w * (g["theta"] / time + (1 - g["theta"]) * x) * v**2 * speed
    assert clocks.dynamic_power_w(GPU, kind, dynamic_w, rho, x, speed) == pytest.approx(expected)
    assert clocks.dynamic_power_w(GPU, kind, dynamic_w, rho, 1.0, 1.0) == pytest.approx(dynamic_w)


def test_power_of_a_gpu_by_hand() -> None:
    assert clocks.gpu_power_w(GPU, V100, 0, 0.0) == 41.0
    assert clocks.gpu_power_w(GPU, V100, 1, 100.0) == 115.0
    assert clocks.gpu_power_w(GPU, V100, 2, 400.0) == 300.0  # the board's limit
    assert clocks.gpu_power_w(GPU, V100, 1, 5.0) == 41.0  # a job that waits for its input


@given(kind=kinds, dynamic=st.lists(watts, min_size=1, max_size=4))
@settings(deadline=None)
def test_parts_of_jobs_add_up_to_the_gpu(kind: int, dynamic: list[float]) -> None:
    total = math.fsum(dynamic)
    parts = [clocks.job_part_w(GPU, kind, len(dynamic), total, own) for own in dynamic]
    assert math.fsum(parts) == pytest.approx(clocks.gpu_power_w(GPU, kind, len(dynamic), total))
    assert min(parts) > 0.0


def test_parts_by_hand() -> None:
    assert clocks.job_part_w(GPU, V100, 2, 100.0, 60.0) == 7.5 + 60.0
    assert clocks.job_part_w(GPU, V100, 2, 570.0, 190.0) == pytest.approx(7.5 + 95.0)  # 285 W above static
    assert clocks.job_part_w(GPU, V100, 2, 10.0, 10.0) == 15.5 + 10.0  # lifted to 41 W


@given(kind=kinds, rho=shares, dynamic_w=st.floats(1.0, 500.0), cap_w=st.floats(30.0, 700.0))
@settings(deadline=None)
def test_power_cap_is_kept_and_used_up(kind: int, rho: float, dynamic_w: float, cap_w: float) -> None:
    x = clocks.capped_clock(GPU, kind, rho, dynamic_w, cap_w)
    assert clocks.MIN_CLOCK_FRAC <= x <= 1.0
    drawn = clocks.power_at(GPU, kind, rho, dynamic_w, x)
    if clocks.power_at(GPU, kind, rho, dynamic_w, 1.0) <= cap_w:
        assert x == 1.0
    elif clocks.power_at(GPU, kind, rho, dynamic_w, clocks.MIN_CLOCK_FRAC) <= cap_w:
        assert drawn <= cap_w
        assert clocks.power_at(GPU, kind, rho, dynamic_w, x + 1e-6) > cap_w
    else:
        assert x == clocks.MIN_CLOCK_FRAC


@given(kind=kinds, rho=shares, dynamic_w=watts, budget=budgets)
@settings(deadline=None)
def test_best_level_keeps_its_budget_and_no_other_within_it_is_better(
    kind: int, rho: float, dynamic_w: float, budget: float
) -> None:
    levels = GPU[kind]["levels_frac"]
    level = clocks.best_level(GPU, kind, rho, dynamic_w, budget)
    assert clocks.relative_time(rho, levels[level]) <= 1.0 + budget
    for x in levels:
        if clocks.relative_time(rho, x) <= 1.0 + budget:
            assert energy(kind, rho, dynamic_w, levels[level]) <= energy(kind, rho, dynamic_w, x)


def test_zero_budget_leaves_a_clock_bound_job_at_full_clock() -> None:
    assert clocks.best_level(GPU, V100, 0.8, 150.0, 0.0) == 0
    assert clocks.best_level(GPU, V100, 0.0, 150.0, 0.0) == NUM_LEVELS - 1  # rho = 0: no time is lost


@given(
    kind=kinds,
    rho=shares,
    dynamic_w=watts,
    overhead_w=watts,
    time_price=st.floats(0.0, 10.0),
    energy_price=st.floats(0.0, 1.0),
)
@settings(deadline=None)
def test_priced_level_costs_least(
    kind: int, rho: float, dynamic_w: float, overhead_w: float, time_price: float, energy_price: float
) -> None:
    levels = GPU[kind]["levels_frac"]
    cost = [
        time_price * clocks.relative_time(rho, x)
        + energy_price * (energy(kind, rho, dynamic_w, x) + overhead_w * clocks.relative_time(rho, x))
        for x in levels
    ]
    level = clocks.priced_level(GPU, kind, rho, dynamic_w, overhead_w, time_price, energy_price)
    assert cost[level] <= min(cost) * (1 + 1e-12)


def test_limits_of_prices() -> None:
    """Free energy gives full clock, free time gives least energy; a node's own power favours speed."""
    assert clocks.priced_level(GPU, V100, 0.8, 150.0, 0.0, 1.0, 0.0) == 0
    free_time = clocks.priced_level(GPU, V100, 0.8, 150.0, 0.0, 0.0, 1.0)
    assert free_time == clocks.best_level(GPU, V100, 0.8, 150.0, math.inf) > 0
    assert clocks.priced_level(GPU, V100, 0.8, 150.0, 5000.0, 0.0, 1.0) == 0


def test_level_below_half_the_clock_is_never_chosen() -> None:
    gpu = gpu_models(["V100"])
    gpu["levels_frac"] = (1.0, 0.45, 0.4, 0.3)
    assert clocks.best_level(gpu, 0, 0.0, 150.0, math.inf) == 0
    assert clocks.priced_level(gpu, 0, 0.0, 150.0, 0.0, 0.0, 1.0) == 0
