"""Effect of CPU cores: a job runs at the lower of its GPU's speed and its input pipeline's speed.

Throughputs are relative to the throughput with three cores per GPU. The throughput of image and audio jobs is
min(G, 0.40 * c^0.83), with c cores per GPU and the limit G of the GPU. Fitted to Synergy's profiles (OSDI'22;
V100, data in memory); errors: `docs/explanation/clocks.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from rlsched.compile.jit import kernel

CORE_EXPONENT: Final = 0.83
THROUGHPUT_OF_ONE_CORE: Final = 0.40
"""Coefficient of the formula in the module's docstring: the throughput with one core per GPU, relative to the
throughput with three. A fit of coefficient and exponent together gives 0.40 to 0.41 for ResNet-18, ResNet-50
and MobileNet.
"""
FEWEST_CORES: Final = 1.0
"""Minimum number of cores per GPU that a job needs; profiles begin at one core."""


class CoreRow(NamedTuple):
    """One row of Synergy's profiles: throughput by cores per GPU, relative to the throughput with three."""

    cores_each: float
    throughput: float


@kernel
def input_speed(cores_each_given: float, cores_each_needed: float) -> float:
    """Return the speed that a job's input pipeline permits, relative to the speed of its GPUs; at most 1.

    Args:
        cores_each_given: CPU cores for each of the job's GPUs; 0: unknown, assumed sufficient.
        cores_each_needed: Cores per GPU that are just sufficient for full speed.

    Returns:
        min(1, (given / needed)^0.83), above 0.
    """
    if cores_each_given >= cores_each_needed or cores_each_given <= 0.0:
        return 1.0
    return (cores_each_given / cores_each_needed) ** CORE_EXPONENT


def cores_needed(rows: Iterable[CoreRow]) -> float:
    """Return the cores per GPU that are just sufficient for a job, from its profile.

    The GPU's limit G is the highest throughput of the profile. The result is the number of cores c at which
    0.40 * c^0.83 reaches G. A job that is as fast with one core as with any number needs FEWEST_CORES.

    Args:
        rows: Throughput by cores per GPU, measured with enough host memory.

    Raises:
        ValueError: there are no rows, or a throughput is not above 0.
    """
    profile = sorted(rows)
    if not profile or not all(row.throughput > 0 and math.isfinite(row.throughput) for row in profile):
        raise ValueError("expected at least one row, and throughputs above 0")
    bound = max(row.throughput for row in profile)
    if profile[0].cores_each <= FEWEST_CORES and profile[0].throughput == bound:
        return FEWEST_CORES
    return (bound / THROUGHPUT_OF_ONE_CORE) ** (1.0 / CORE_EXPONENT)


def throughput(cores_each: float, gpu_bound: float) -> float:
    """Return the throughput with `cores_each` cores per GPU; it is limited to the throughput `gpu_bound`.

    The result and `gpu_bound` are relative to the throughput with three cores per GPU.
    """
    return min(gpu_bound, THROUGHPUT_OF_ONE_CORE * cores_each**CORE_EXPONENT)
