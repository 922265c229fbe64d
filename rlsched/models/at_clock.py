"""Time and power at an SM clock as formulas of plain numbers; `clocks` compiles the formulas for kernels.

Nodes, which have no numba, divide the energy of their GPUs among jobs by these formulas. No formula calls
another formula, so that numba can compile each one separately. `rlsched.models.clocks` describes the model.
"""

from __future__ import annotations

from typing import Final

MIN_CLOCK_FRAC: Final = 0.5
"""Lowest SM clock, as a fraction of the maximum. The energy optimum of 18 of 19 jobs lies at 0.54 to 0.62 on
a V100 (GPU-DVFS-Dataset), and no clock below 0.49 was measured."""
DWELL_S: Final = 10.0
"""Shortest time between changes of a clock, seconds. Locking clocks every 50 ms slows collectives, at any
clock (NVIDIA/nccl#1551); 10 s is twenty times the longest known settling time (SWITCH_S).
"""
SWITCH_S: Final = 0.3
"""Time that a clock change costs, seconds. The worst cases are 5 to 25 ms on an A100, about 350 ms on a
Quadro RTX 6000, 480 ms on a GH200 (arXiv:2502.20075; the variation was checked there, the figures are quoted
from memory).
"""


def relative_time(clock_bound: float, x: float) -> float:
    """Return T(x): run time at clock `x` relative to full clock; exactly 1 at x = 1 and for rho = 0.

    Args:
        clock_bound: rho, the fraction of the job's run time that depends on the clock, 0 to 1.
        x: SM clock, fraction of the maximum, above 0.
    """
    if x == 1.0 or clock_bound == 0.0:
        return 1.0
    bound = clock_bound / x
    return float((bound * bound * bound * bound * bound + 1.0 - clock_bound**5) ** 0.2)


def time_of_busy(busy_full: float, busy: float) -> float:
    """Return T(x) of a job without co-tenants, given how much of the time it keeps its GPUs busy.

    A unit of work consists of GPU time and of pauses, in which the job's CPU or storage works. Assumption:
    pauses do not depend on the clock and do not overlap with GPU time. Then T = (1 - busy_full) / (1 - busy),
    at least 1.

    Args:
        busy_full: Fraction of the time in which a kernel ran, at full clock; below 1.
        busy: Fraction of the time in which a kernel ran, at clock x; below 1.
    """
    return max((1.0 - busy_full) / (1.0 - busy), 1.0)


def busy_at(busy_full: float, time: float) -> float:
    """Return the fraction of the time in which a kernel runs, at a clock with T(x) = `time`.

    Inverse of `time_of_busy`.
    """
    return 1.0 - (1.0 - busy_full) / time


def clock_bound_of(time: float, x: float) -> float:
    """Return rho of a job with T(x) = `time` at clock `x`; inverse of `relative_time`.

    Args:
        time: Observed run time at clock `x` relative to full clock. Values outside 1 to 1/x are noise, and
            are limited to this range.
        x: SM clock, fraction of the maximum, below 1.
    """
    bounded = min(max(time, 1.0), 1.0 / x)
    return float(min(((bounded**5 - 1.0) / (x**-5.0 - 1.0)) ** 0.2, 1.0))


def relative_voltage(knee_frac: float, voltage_slope: float, x: float) -> float:
    """Return v(x): core voltage at clock `x` relative to full clock; constant below the clock `knee_frac`."""
    return 1.0 + voltage_slope * (max(x, knee_frac) - 1.0)


def dynamic_w(full_w: float, theta: float, time: float, voltage: float, x: float, speed_frac: float) -> float:
    """Return the power that a job adds to a GPU's static power, W.

    Args:
        full_w: A, the job's dynamic power at full clock, W.
        theta: Fraction of A that follows the work done instead of the clock.
        time: T(x), run time at clock `x` relative to full clock.
        voltage: v(x), core voltage at clock `x` relative to full clock.
        x: SM clock, fraction of the maximum.
        speed_frac: Speed of the job, 0 to 1, relative to its speed at this clock without co-tenants and with
            enough input.
    """
    work = theta / time + (1.0 - theta) * x
    return full_w * work * voltage * voltage * speed_frac


def board_w(static_w: float, idle_w: float, tdp_w: float, jobs: int, dynamic_sum_w: float) -> float:
    """Return the power of one GPU, W; see `rlsched.models.clocks.gpu_power_w`."""
    if jobs == 0:
        return idle_w
    return max(idle_w, min(static_w + dynamic_sum_w, tdp_w))


def part_w(
    static_w: float, idle_w: float, tdp_w: float, jobs: int, dynamic_sum_w: float, own_dynamic_w: float
) -> float:
    """Return one job's part of the power of a GPU, W; see `rlsched.models.clocks.job_part_w`."""
    shared_w = max(static_w, idle_w - dynamic_sum_w)
    room_w = tdp_w - static_w
    cut = room_w / dynamic_sum_w if dynamic_sum_w > room_w else 1.0
    return shared_w / jobs + own_dynamic_w * cut
