"""The arithmetic of the GPU profile, checked by hand on made-up inputs."""

from __future__ import annotations

import math

import pytest

from studies.gpu.arithmetic import (
    Estimate,
    cores_to_feed,
    counted_span,
    difference,
    estimate,
    memory_mib,
    power_w,
    ratio,
    samples_per_s,
    utilisation_frac,
)
from studies.gpu.protocol import Sample
from studies.tests.gpu.making import make_measurement, windows_of

ALWAYS = (-math.inf, math.inf)


def test_figure_is_median_with_interquartile_range() -> None:
    assert estimate([5.0, 1.0, 2.0, 4.0, 3.0]) == Estimate(3.0, 2.0, 5)
    assert estimate([7.0]) == Estimate(7.0, None, 1), "one reading has no spread"
    assert estimate([]) is None


def test_pair_is_measured_while_both_run_and_have_settled() -> None:
    early = windows_of("a", start_s=10.0, steps=[5] * 6)  # to 22 s
    late = windows_of("b", start_s=12.5, steps=[4] * 6)  # to 24.5 s
    pair = make_measurement("pair", early, late)
    assert counted_span(pair) == (13.5, 22.0)
    # whole windows within the pair: of the first job from 14 s on, of the second from 14.5 s to 20.5 s
    assert samples_per_s(early, counted_span(pair)) == Estimate(25.0, 0.0, 4)
    assert samples_per_s(late, counted_span(pair)) == Estimate(20.0, 0.0, 3)


def test_window_that_exceeds_the_end_does_not_count() -> None:
    run = windows_of("a", start_s=0.0, steps=[100, 10, 20, 400])
    assert samples_per_s(run, (1.0, 7.0)) == Estimate(75.0, 25.0, 2), "50 and 100 samples a second"
    assert samples_per_s(run, (7.0, 7.5)) is None


def test_power_is_averaged_from_energy_of_at_least_a_second() -> None:
    half_seconds = [Sample(at_s=at / 2, energy_j=joules) for at, joules in enumerate([0, 10, 100, 300, 400])]
    # 0 to 1 s: 100 J; 1 to 2 s: 300 J
    assert power_w(half_seconds, ALWAYS) == Estimate(200.0, 100.0, 2)
    assert power_w(half_seconds, (0.5, 1.4)) is None, "less than a second"


def test_energy_counter_reset_drops_one_interval() -> None:
    readings = [(0.0, 500.0), (1.0, 600.0), (2.0, 30.0), (3.0, 130.0), (4.0, 230.0)]
    samples = [Sample(at_s=at_s, energy_j=joules) for at_s, joules in readings]
    assert power_w(samples, ALWAYS) == Estimate(100.0, 0.0, 3)


def test_power_readings_are_used_without_energy_counter() -> None:
    samples = [Sample(at_s=float(at), power_w=watts) for at, watts in enumerate([90.0, 100.0, 110.0])]
    assert power_w(samples, ALWAYS) == Estimate(100.0, 10.0, 3)
    assert power_w([Sample(at_s=0.0)], ALWAYS) is None


def test_utilisation_is_a_mean_of_the_measured_time() -> None:
    samples = [
        Sample(at_s=at, utilisation_frac=frac) for at, frac in [(0, 0.0), (1, 0.5), (2, 0.9), (3, None)]
    ]
    assert utilisation_frac(samples, (0.5, 9.0)) == pytest.approx((0.7, 0.2, 2))


def test_memory_is_the_process_own_or_the_device_difference() -> None:
    run = windows_of("a", start_s=0.0, steps=[1], pid=7)
    named = [
        Sample(at_s=0.0, used_mib=900, process_mib={7: 300, 8: 50}),
        Sample(at_s=1.0, process_mib={7: 350}),
    ]
    assert memory_mib(make_measurement("alone", run, samples=named), 0) == Estimate(350.0, 0.0, 2)
    unnamed = [Sample(at_s=0.0, used_mib=400), Sample(at_s=1.0, used_mib=460)]
    assert memory_mib(make_measurement("alone", run, samples=unnamed), 0) == Estimate(360.0, 0.0, 2)
    pair = make_measurement("pair", run, windows_of("b", start_s=0.0, steps=[1], pid=8), samples=unnamed)
    assert memory_mib(pair, 0) is None, "the owner is unknown"


def test_spreads_of_derived_figures_are_propagated() -> None:
    # relative errors 3/10 and 4/10 * 2/2: 0.3 and 0.4 make 0.5
    assert ratio(Estimate(10.0, 3.0, 5), Estimate(2.0, 0.8, 4)) == pytest.approx((5.0, 2.5, 4))
    assert ratio(Estimate(10.0, None, 1), Estimate(2.0, None, 1)) == Estimate(5.0, None, 1)
    assert ratio(Estimate(1.0, 0.1, 2), Estimate(0.0, 0.1, 2)) is None
    assert ratio(Estimate(0.0, 0.1, 2), Estimate(2.0, 0.2, 2)) == Estimate(0.0, 0.0, 2)
    assert difference(Estimate(300.0, 3.0, 5), Estimate(100.0, 4.0, 6)) == Estimate(200.0, 5.0, 5)
    assert difference(None, Estimate(1.0, 1.0, 1)) is None


def test_cores_of_a_job_follow_the_core_model() -> None:
    from rlsched.models.cores import input_speed

    needed = 5.0
    speeds = {cores: 1000.0 * input_speed(float(cores), needed) for cores in (1, 2, 4, 8)}
    assert speeds[8] == 1000.0
    found = cores_to_feed(speeds, 1000.0)
    assert found is not None
    assert found == pytest.approx((needed, 0.0, 3)), "three of the four were starved"


def test_core_limits() -> None:
    assert cores_to_feed({1: 99.0}, 100.0) == Estimate(1.0, None, 1), (
        "one core suffices; fewer were not tried"
    )
    assert cores_to_feed({2: 99.0, 4: 100.0}, 100.0) is None, "two cores are enough, one may be"
    assert cores_to_feed({}, 100.0) is None
    beyond = cores_to_feed({8: 50.0}, 100.0)
    assert beyond is not None
    assert beyond.value == pytest.approx(8 * 2 ** (1 / 0.83)), "more cores than were tried, by the curve"
