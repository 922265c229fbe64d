"""The Gittins index against plain integrals, at its limits, and at its steps."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from rlsched.cluster.arrays import JOB, Records, StateArrays, empty_state, records
from rlsched.decide.order.gittins import (
    LEAST_LOG_AGE,
    LOG_AGE_STEP,
    Gittins,
    gittins_table,
    job_index,
    log_cost,
    next_step_s,
)
from rlsched.decide.order.keys import Order


def job(
    predicted_s: float = 3600.0,
    *,
    spread: float = 0.0,
    gpus: int = 1,
    age_s: float = 0.0,
    running: bool = False,
    pinned: bool = False,
    share_milli: int = 1000,
) -> Records:
    """One slot with this service by second 0, which runs from then on if `runs`."""
    one = records(1, JOB)
    one.predicted_s, one.spread, one.gpus, one.share_milli = predicted_s, spread, gpus, share_milli
    one.attained_gpu_s, one.pinned = age_s * gpus, pinned
    one.placed_in, one.start_s = (0, 0.0) if running else (-1, math.nan)
    return one


def state_of(one: Records, how: Gittins) -> StateArrays:
    """A state with this one slot, whose queue is ordered by the index."""
    return empty_state(0, 0, 1, 1, 0, order=Order(by="index", index=how).arrays)._replace(job=one)


def index(one: Records, how: Gittins, now_s: float = 0.0) -> float:
    return float(job_index(state_of(one, how), 0, now_s))


def integrated(spread: float, age: float) -> float:
    """ln(cost / median) by summing the density: from the age on, on a fine grid of run times.

    Every end of the grid is tried as a d, from exp(-10) medians on as in the table.
    """
    x = np.exp(np.linspace(math.log(age), max(math.log(age), 6.0 * spread) + 8.0, 100_001))
    middle, width = np.sqrt(x[1:] * x[:-1]), np.diff(x)
    density = np.exp(-0.5 * (np.log(middle) / spread) ** 2) / (middle * spread * math.sqrt(2 * math.pi))
    mass = density * width
    beyond = 0.5 * math.erfc(math.log(x[-1]) / spread / math.sqrt(2.0))
    alive = np.append(np.cumsum(mass[::-1])[::-1], 0.0) + beyond  # P(X > x)
    served = np.append(0.0, np.cumsum((alive[1:] + alive[:-1]) / 2 * width))
    ends, d = alive[0] - alive, x - age
    tried = (d >= math.exp(-10.0)) & (d <= math.exp(14.0)) & (ends > 1e-9)
    return float(np.log((served[tried] / ends[tried]).min()))


INTEGRATED = [
    (spread, age)
    for spread in (0.2, 0.5, 1.0, 2.0, 2.5, 4.0)
    for age in (1e-4, 0.05, 0.5, 1.0, 3.0, 20.0)
    if math.log(age) < 3.9 * spread  # beyond four standard deviations the cost is given, not integrated
]


@pytest.mark.parametrize(("spread", "age"), INTEGRATED)
def test_table_equals_the_integral(spread: float, age: float) -> None:
    got = float(log_cost(gittins_table(), spread, math.log(age)))
    assert got == pytest.approx(integrated(spread, age), abs=0.03)


def test_table_is_finite_and_smooth() -> None:
    table = gittins_table()
    assert np.isfinite(table).all()
    assert not table.flags.writeable
    assert np.abs(np.diff(table, axis=1)).max() < 8 * LOG_AGE_STEP


def test_certain_job_costs_its_remaining_time() -> None:
    for age in (0.0, 0.25, 0.5, 0.75):
        log_age = math.log(age) if age else LEAST_LOG_AGE
        assert math.exp(log_cost(gittins_table(), 0.1, log_age)) == pytest.approx(1.0 - age, abs=0.1)


def test_with_a_heavy_tail_older_jobs_cost_more() -> None:
    costs = [float(log_cost(gittins_table(), 2.5, log_age)) for log_age in np.arange(-6.0, 10.0, 0.25)]
    assert (np.diff(costs) > 0).all()
    assert costs[-1] - costs[0] > 5


def test_beyond_four_deviations_the_cost_grows_with_the_age() -> None:
    one, two = (float(log_cost(gittins_table(), 1.0, log_age)) for log_age in (5.0, 7.0))
    assert two - one == pytest.approx(2.0)


@pytest.mark.parametrize("predicted_s", [0.0, 1e-9, 1.0, 3600.0, 1e9])
@pytest.mark.parametrize("age_s", [0.0, 1e-6, 59.0, 60.0, 1e5, 1e9])
@pytest.mark.parametrize("spread", [0.0, 0.05, 2.5, 10.0])
@pytest.mark.parametrize("pinned", [False, True])
def test_every_job_has_an_index(predicted_s: float, age_s: float, spread: float, pinned: bool) -> None:
    for gpus in (0, 1, 512):
        for how in (Gittins(spread=spread), Gittins(spread=0.0, trust=1.0), Gittins(gpus_power=0.0)):
            one = job(predicted_s, spread=spread, gpus=gpus, age_s=age_s, pinned=pinned)
            assert math.isfinite(index(one, how))


def test_non_preemptible_job_costs_its_mean() -> None:
    how = Gittins(spread=1.5, trust=2.0, gpus_power=0.5)
    spread = math.hypot(1.5, 2.0 * 0.4)
    mean_s = 500.0 * math.exp(spread**2 / 2)  # of a lognormal
    got = index(job(500.0, spread=0.4, gpus=4, pinned=True), how)
    assert math.exp(got) == pytest.approx(mean_s * 4**0.5)


def test_weight_of_a_gang() -> None:
    one, eight = job(), job(gpus=8)
    for power in (0.0, 0.7, 1.0):
        how = Gittins(gpus_power=power)
        assert index(eight, how) - index(one, how) == pytest.approx(power * math.log(8))


def test_trust_scales_the_spread_of_a_prediction() -> None:
    trusting = Gittins(spread=0.6, trust=2.0)
    known = Gittins(spread=1.0, trust=0.0)
    assert index(job(spread=0.4), trusting) == pytest.approx(index(job(spread=9.0), known))


def test_prediction_may_be_the_mean_of_its_lognormal() -> None:
    how = Gittins(spread=0.3, trust=1.0)
    of_mean = msgspec.structs.replace(how, of_mean=True)
    median_s, spread = 3600.0, 0.9
    mean_s = median_s * math.exp(0.5 * spread**2)
    for pinned in (False, True):
        of_median = index(job(median_s, spread=spread, pinned=pinned), how)
        assert index(job(mean_s, spread=spread, pinned=pinned), of_mean) == pytest.approx(of_median)
    stays = index(job(mean_s, spread=spread, pinned=True), of_mean)
    assert stays == pytest.approx(math.log(mean_s) + 0.5 * 0.3**2), "its mean; added spread widens all alike"


def test_index_changes_only_at_its_steps() -> None:
    """Ages of 60, 120, 240, ... seconds: between two of them the index stays at the first."""
    how = Gittins()
    steps = [60.0 * 2**k for k in range(12)]
    one = job(running=True)
    values = [index(one, how, 0.0)]
    for since_s, until_s in zip(steps, [*steps[1:], 2 * steps[-1]], strict=True):
        first, last = index(one, how, since_s), index(one, how, until_s - 1e-3)
        assert first == last != values[-1]
        waiting = index(job(age_s=since_s), how)
        assert waiting == pytest.approx(first)
        values.append(first)
    assert index(one, how, 59.999) == values[0]


@pytest.mark.parametrize("seed", range(40))
def test_next_step_is_the_next_change_of_the_index(seed: int) -> None:
    rng = np.random.default_rng(seed)
    how = Gittins(age_step=float(rng.choice([1.5, 2.0, 3.0])), first_age_s=float(rng.choice([10.0, 60.0])))
    gpus, share = int(rng.choice([1, 3, 8])), int(rng.choice([1000, 500, 333]))
    before_s = float(rng.choice([0.0, rng.exponential(100.0)]))
    start_s = float(rng.uniform(0, 1e7))
    one = job(float(rng.exponential(5000.0)), gpus=gpus, age_s=before_s, running=True, share_milli=share)
    one.start_s = start_s
    now_s = start_s + float(rng.exponential(200.0))
    for _ in range(8):
        then_s = float(next_step_s(state_of(one, how), 0, now_s))
        assert then_s > now_s
        early_s = then_s - 1e-4 * (then_s - now_s)
        assert index(one, how, early_s) == index(one, how, now_s)
        assert next_step_s(state_of(one, how), 0, early_s) == pytest.approx(then_s, abs=1e-6)
        assert index(one, how, then_s) != index(one, how, now_s)
        now_s = then_s


def test_parameters_of_an_index_reach_its_code() -> None:
    how = Gittins(spread=1.0, trust=0.5, gpus_power=0.2, margin=0.1, age_step=3.0, first_age_s=5.0)
    arrays = Order(by="index", index=how).arrays
    names = ("spread", "trust", "index_gpus_power", "margin", "age_step", "first_age_s", "tick_s")
    assert tuple(arrays.code[name][0] for name in names) == (1.0, 0.5, 0.2, 0.1, 3.0, 5.0, 60.0)
    assert arrays.code.threshold_gpu_s[0] == math.inf
    levels = Order(by="index", index=Gittins(threshold_gpu_s=7.0)).arrays
    assert levels.code.threshold_gpu_s[0] == 7.0
    assert arrays.cost is gittins_table()
