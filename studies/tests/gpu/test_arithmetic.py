"""The arithmetic of the GPU profile, by hand on made-up inputs."""

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
from studies.tests.gpu.making import measurement_of, run_of

ALWAYS = (-math.inf, math.inf)


def test_a_figure_is_the_median_and_its_spread_the_interquartile_range() -> None:
    assert estimate([5.0, 1.0, 2.0, 4.0, 3.0]) == Estimate(3.0, 2.0, 5)
    assert estimate([7.0]) == Estimate(7.0, None, 1), "one reading says nothing of its spread"
    assert estimate([]) is None


def test_a_pair_counts_while_both_run_and_have_settled() -> None:
    early = run_of("a", start_s=10.0, steps=[5] * 6)  # to 22 s
    late = run_of("b", start_s=12.5, steps=[4] * 6)  # to 24.5 s
    pair = measurement_of("pair", early, late)
    assert counted_span(pair) == (13.5, 22.0)
    # whole windows within: of the first those from 14 s on, of the second from 14.5 s to 20.5 s
    assert samples_per_s(early, counted_span(pair)) == Estimate(25.0, 0.0, 4)
    assert samples_per_s(late, counted_span(pair)) == Estimate(20.0, 0.0, 3)


def test_a_window_that_hangs_over_the_end_does_not_count() -> None:
    run = run_of("a", start_s=0.0, steps=[100, 10, 20, 400])
    assert samples_per_s(run, (1.0, 7.0)) == Estimate(75.0, 25.0, 2), "50 and 100 samples a second"
    assert samples_per_s(run, (7.0, 7.5)) is None


def test_power_is_the_energy_of_stretches_of_a_second_or_more() -> None:
    half_seconds = [Sample(at_s=at / 2, energy_j=joules) for at, joules in enumerate([0, 10, 100, 300, 400])]
    # 0 to 1 s: 100 J; 1 to 2 s: 300 J
    assert power_w(half_seconds, ALWAYS) == Estimate(200.0, 100.0, 2)
    assert power_w(half_seconds, (0.5, 1.4)) is None, "less than a second"


def test_an_energy_counter_that_starts_anew_costs_a_stretch_and_no_more() -> None:
    readings = [(0.0, 500.0), (1.0, 600.0), (2.0, 30.0), (3.0, 130.0), (4.0, 230.0)]
    samples = [Sample(at_s=at_s, energy_j=joules) for at_s, joules in readings]
    assert power_w(samples, ALWAYS) == Estimate(100.0, 0.0, 3)


def test_without_an_energy_counter_the_readings_of_power_count() -> None:
    samples = [Sample(at_s=float(at), power_w=watts) for at, watts in enumerate([90.0, 100.0, 110.0])]
    assert power_w(samples, ALWAYS) == Estimate(100.0, 10.0, 3)
    assert power_w([Sample(at_s=0.0)], ALWAYS) is None


def test_utilisation_is_a_mean_over_what_counts() -> None:
    samples = [
        Sample(at_s=at, utilisation_frac=frac) for at, frac in [(0, 0.0), (1, 0.5), (2, 0.9), (3, None)]
    ]
    assert utilisation_frac(samples, (0.5, 9.0)) == pytest.approx((0.7, 0.2, 2))


def test_memory_is_the_process_own_or_what_the_device_lost_to_it() -> None:
    run = run_of("a", start_s=0.0, steps=[1], pid=7)
    named = [
        Sample(at_s=0.0, used_mib=900, process_mib={7: 300, 8: 50}),
        Sample(at_s=1.0, process_mib={7: 350}),
    ]
    assert memory_mib(measurement_of("alone", run, samples=named), 0) == Estimate(350.0, 0.0, 2)
    unnamed = [Sample(at_s=0.0, used_mib=400), Sample(at_s=1.0, used_mib=460)]
    assert memory_mib(measurement_of("alone", run, samples=unnamed), 0) == Estimate(360.0, 0.0, 2)
    pair = measurement_of("pair", run, run_of("b", start_s=0.0, steps=[1], pid=8), samples=unnamed)
    assert memory_mib(pair, 0) is None, "the owner is unknown"


def test_spreads_of_derived_figures_are_propagated() -> None:
    # relative errors 3/10 and 4/10 * 2/2: 0.3 and 0.4 make 0.5
    assert ratio(Estimate(10.0, 3.0, 5), Estimate(2.0, 0.8, 4)) == pytest.approx((5.0, 2.5, 4))
    assert ratio(Estimate(10.0, None, 1), Estimate(2.0, None, 1)) == Estimate(5.0, None, 1)
    assert ratio(Estimate(1.0, 0.1, 2), Estimate(0.0, 0.1, 2)) is None
    assert ratio(Estimate(0.0, 0.1, 2), Estimate(2.0, 0.2, 2)) == Estimate(0.0, 0.0, 2)
    assert difference(Estimate(300.0, 3.0, 5), Estimate(100.0, 4.0, 6)) == Estimate(200.0, 5.0, 5)
    assert difference(None, Estimate(1.0, 1.0, 1)) is None


def test_the_cores_that_feed_a_job_follow_the_model_of_cores() -> None:
    from rlsched.models.cores import input_speed

    needed = 5.0
    speeds = {cores: 1000.0 * input_speed(float(cores), needed) for cores in (1, 2, 4, 8)}
    assert speeds[8] == 1000.0
    found = cores_to_feed(speeds, 1000.0)
    assert found is not None
    assert found == pytest.approx((needed, 0.0, 3)), "three of the four were starved"


def test_cores_at_their_limits() -> None:
    assert cores_to_feed({1: 99.0}, 100.0) == Estimate(1.0, None, 1), (
        "a single one suffices, fewer were not tried"
    )
    assert cores_to_feed({2: 99.0, 4: 100.0}, 100.0) is None, "two are enough, and one may be"
    assert cores_to_feed({}, 100.0) is None
    beyond = cores_to_feed({8: 50.0}, 100.0)
    assert beyond is not None
    assert beyond.value == pytest.approx(8 * 2 ** (1 / 0.83)), "more than were tried, by the curve"
