"""Time and power of a job as functions of the SM clock, and the choice of the clock.

x is the SM clock as a fraction of its maximum. A job has rho, the fraction of its run time that depends on
the clock (its clock-bound fraction), and A, its dynamic power at full clock. A GPU type has P_s, x_c, k and
theta (`GPU_MODEL`)::

    T(x) = ((rho/x)^5 + 1 - rho^5)^(1/5)            time, relative to x = 1
    v(x) = max(1 + k(x-1), 1 + k(x_c-1))            voltage, relative to x = 1
    P(x) = P_s + A*(theta/T(x) + (1-theta)*x)*v(x)^2

Fitted to the GPU-DVFS-Dataset (V100, 33 workloads, 13 clocks) and to the power-limit traces of Zeus
(NSDI'23); errors by GPU type: `docs/explanation/clocks.md`, `studies/models/fit_models.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.compile.jit import kernel
from rlsched.models import at_clock
from rlsched.models.arrays import NUM_LEVELS, Records
from rlsched.models.at_clock import DWELL_S as DWELL_S
from rlsched.models.at_clock import MIN_CLOCK_FRAC as MIN_CLOCK_FRAC
from rlsched.models.at_clock import SWITCH_S as SWITCH_S

_HALVINGS: Final = 40


relative_time = kernel(at_clock.relative_time)
relative_voltage = kernel(at_clock.relative_voltage)
clock_bound_of = kernel(at_clock.clock_bound_of)
_dynamic_w = kernel(at_clock.dynamic_w)
_board_w = kernel(at_clock.board_w)
_part_w = kernel(at_clock.part_w)


@kernel
def dynamic_power_w(
    gpu: Records, kind: int, dynamic_w: float, clock_bound: float, x: float, speed_frac: float
) -> float:
    """Return the dynamic power of one job on one GPU, W: the power that the job adds to the static power.

    Args:
        gpu: (K,) GPU_MODEL.
        kind: Row of `gpu`.
        dynamic_w: A, the job's dynamic power at full clock, W.
        clock_bound: rho, the job's clock-bound fraction, 0 to 1.
        x: SM clock, fraction of the maximum.
        speed_frac: Speed of the job, 0 to 1, relative to its speed at this clock without co-tenants and with
            enough input. The power is proportional to it (assumed: there is no public data).
    """
    g = gpu[kind]
    v = relative_voltage(g.knee_frac, g.voltage_slope, x)
    return _dynamic_w(dynamic_w, g.theta, relative_time(clock_bound, x), v, x, speed_frac)


@kernel
def gpu_power_w(gpu: Records, kind: int, jobs: int, dynamic_sum_w: float) -> float:
    """Return the power of one GPU, W.

    A GPU without jobs draws `idle_w`. A GPU with jobs draws the static power plus the sum of the jobs'
    dynamic power, at most the board's limit and at least `idle_w` (a V100's static power is lower).

    Args:
        gpu: (K,) GPU_MODEL.
        kind: Row of `gpu`.
        jobs: Number of jobs on the GPU.
        dynamic_sum_w: Sum of the jobs' `dynamic_power_w`.
    """
    g = gpu[kind]
    return _board_w(g.static_w, g.idle_w, g.tdp_w, jobs, dynamic_sum_w)


@kernel
def job_part_w(gpu: Records, kind: int, jobs: int, dynamic_sum_w: float, own_dynamic_w: float) -> float:
    """Return one job's part of the power of a GPU, W; the parts of all jobs add up to `gpu_power_w`.

    A job's part is its dynamic power, and an equal part of the remaining power. If the board's limit is
    exceeded, the dynamic power of all jobs is reduced in proportion.

    Args:
        gpu: (K,) GPU_MODEL.
        kind: Row of `gpu`.
        jobs: Number of jobs on the GPU, at least 1.
        dynamic_sum_w: Sum of the jobs' `dynamic_power_w`.
        own_dynamic_w: `dynamic_power_w` of this job.
    """
    g = gpu[kind]
    return _part_w(g.static_w, g.idle_w, g.tdp_w, jobs, dynamic_sum_w, own_dynamic_w)


@kernel
def power_at(gpu: Records, kind: int, clock_bound: float, dynamic_w: float, x: float) -> float:
    """Return P(x): the power of a GPU that runs only this job at SM clock `x`, W."""
    return gpu_power_w(gpu, kind, 1, dynamic_power_w(gpu, kind, dynamic_w, clock_bound, x, 1.0))


@kernel
def capped_clock(gpu: Records, kind: int, clock_bound: float, dynamic_w: float, cap_w: float) -> float:
    """Return the SM clock of a GPU that runs only this job under a power cap, as a fraction of the maximum.

    The result is the largest x <= 1 with P(x) <= `cap_w`, rounded down by less than 1e-9, but at least
    MIN_CLOCK_FRAC. The search assumes that P(x) does not fall as x grows.
    """
    if power_at(gpu, kind, clock_bound, dynamic_w, 1.0) <= cap_w:
        return 1.0
    low, high = MIN_CLOCK_FRAC, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if power_at(gpu, kind, clock_bound, dynamic_w, middle) <= cap_w:
            low = middle
        else:
            high = middle
    return low


@kernel
def best_level(
    gpu: Records, kind: int, clock_bound: float, dynamic_w: float, max_slowdown_frac: float
) -> int:
    """Return the level of `levels_frac` with the least GPU energy, P(x)*T(x), within a slowdown budget.

    Args:
        gpu: (K,) GPU_MODEL.
        kind: Row of `gpu`.
        clock_bound: rho, the job's clock-bound fraction, 0 to 1.
        dynamic_w: A, the job's dynamic power at full clock, W.
        max_slowdown_frac: Budget b: a level is a candidate if T(x) <= 1 + b. Level 0, the full clock, is
            always a candidate. Of levels with equal energy, the higher clock is returned.
    """
    best, least = 0, power_at(gpu, kind, clock_bound, dynamic_w, 1.0)
    for level in range(1, NUM_LEVELS):
        x = gpu[kind].levels_frac[level]
        time = relative_time(clock_bound, x)
        if x < MIN_CLOCK_FRAC or time > 1.0 + max_slowdown_frac:
            continue
        energy = power_at(gpu, kind, clock_bound, dynamic_w, x) * time
        if energy < least:
            best, least = level, energy
    return best


@kernel
def priced_level(
    gpu: Records,
    kind: int,
    clock_bound: float,
    dynamic_w: float,
    overhead_w: float,
    time_price: float,
    energy_price: float,
) -> int:
    """Return the level of `levels_frac` with the least cost of time and energy together.

    The cost of a unit of work is `time_price`*T(x) + `energy_price`*(P(x) + `overhead_w`)*T(x).

    Args:
        gpu: (K,) GPU_MODEL.
        kind: Row of `gpu`.
        clock_bound: rho, the job's clock-bound fraction, 0 to 1.
        dynamic_w: A, the job's dynamic power at full clock, W.
        overhead_w: Power drawn while the job runs, at any clock: the job's part of the node's power.
        time_price: Price of a second, in any unit.
        energy_price: Price of a joule, in the same unit. With 0 the full clock is chosen. Of levels with
            equal cost, the higher clock is returned.
    """
    best, least = 0, np.inf
    for level in range(NUM_LEVELS):
        x = gpu[kind].levels_frac[level]
        if level > 0 and x < MIN_CLOCK_FRAC:
            continue
        power_w = power_at(gpu, kind, clock_bound, dynamic_w, x) + overhead_w
        cost = (time_price + energy_price * power_w) * relative_time(clock_bound, x)
        if cost < least:
            best, least = level, cost
    return best
