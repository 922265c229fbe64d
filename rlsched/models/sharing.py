"""Compiled speed of jobs that share a GPU by time slicing or MPS.

The speed comes from the table of measured pairs, else from latent factors, else from a formula. A *speed* is
relative to the same job running solo on the same GPU at the same clock: exactly 1 without co-tenants. A
*slowdown* here is 1 / speed - 1, the time that co-tenants add to a second of work.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel
from rlsched.models.arrays import ModelArrays
from rlsched.models.learning import REPEAT_SD

SATURATION: Final = 1.194
"""Slowdown that each further unit of utilisation adds on a full GPU.

`studies/models/fit_sharing.py` fitted this and the next three constants to two data sets of equal weight. The
first set is computed by an earlier formula, which was fitted to Lucid's pairs (RTX 3090; R2 .45). The second
set is the combined throughput of the 1,091 measured pairs, averaged by bands of utilisation. The error is at
most .031 (rms .013) on the first set, and at most .05 on the second.
"""
THRESHOLD: Final = 1.487
"""Total utilisation of all tenants at which the GPU is full."""
SHARPNESS: Final = 2.80
"""Sharpness of the bend at the threshold."""
LIGHT_SLOWDOWN: Final = 0.0187
"""Slowdown per unit of the co-tenants' utilisation on a GPU that is not full."""
RESIDUAL_SD: Final = 0.10
"""Standard deviation of ln(speed) around the prediction: .10 around the formula on Lucid's pairs (RTX 3090);
around latent factors, on held-out pairs, .11 on P100, .10 on K80 and .32 on V100 (Gavel)."""
OF_JOBS: Final = REPEAT_SD / RESIDUAL_SD
"""Weight, in the random number of `share_deviate`, of the part that depends on the two jobs."""
OF_SINGLES: Final = math.sqrt(0.55)
"""Weight, in `share_deviate`, of the part that depends on single workloads. Half of the variance of this part
is due to the sensitivity of one workload, half to the pressure of the other. The weight's square is .55: on
held-out pairs of Lucid (RTX 3090), factors of single workloads reduce the unexplained variance from .60 to
.27.
"""
OF_PAIRS: Final = math.sqrt(1.0 - OF_JOBS**2 - OF_SINGLES**2)
"""Weight, in `share_deviate`, of the part that depends on the pair of workloads. The squares of the three
weights add up to 1."""
NOISE_FLOOR: Final = 0.2
"""Speed below which noise does not reduce the speed further."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_SUFFERS: Final = np.uint64(1)
_PRESSES: Final = np.uint64(2)


@kernel
def _softplus(excess: float) -> float:
    """Return ln(1 + e^(s y)) / s without overflow, where y is `excess` and s is `SHARPNESS`."""
    return max(excess, 0.0) + math.log1p(math.exp(-SHARPNESS * abs(excess))) / SHARPNESS


@kernel
def stranger_speed(util_frac: float, others_util_frac: float) -> float:
    """Return the speed of a job next to others, in (0, 1], from solo GPU utilisations only.

    A saturation formula: 1 / (1 + a (softplus(u + U - t) - softplus(u - t)) + b U). a is `SATURATION`, b is
    `LIGHT_SLOWDOWN`, and t is `THRESHOLD`. Without others, the value is exactly 1. The formula was fitted to
    pairs of jobs; for more jobs on a GPU, it is an extrapolation.

    Args:
        util_frac: u, solo GPU utilisation of the job, 0 to 1.
        others_util_frac: U, sum of the solo utilisations of the other tenants.
    """
    full = _softplus(util_frac + others_util_frac - THRESHOLD) - _softplus(util_frac - THRESHOLD)
    return 1.0 / (1.0 + SATURATION * max(full, 0.0) + LIGHT_SLOWDOWN * others_util_frac)


@kernel
def latent_speed(sensitivity: float, pressure_sum: float) -> float:
    """Return the speed, at most 1, of a job next to jobs whose pressures add up to `pressure_sum`.

    The formula 1 / (1 + sensitivity x pressure) was fitted to pairs of jobs (Gavel). For several co-tenants,
    whose pressures are added up, it is an extrapolation.
    """
    return 1.0 / (1.0 + max(sensitivity * pressure_sum, 0.0))


def factors_of_util(util_frac: float) -> tuple[float, float]:
    """Return the initial sensitivity and pressure of a job with a known solo utilisation and no other data.

    Their products approximate the slowdowns of `stranger_speed` (least squares of the logarithm, for
    utilisations .1 to 1); `studies/models/fit_sharing.py` reports the error.

    Args:
        util_frac: Solo GPU utilisation, 0 to 1.
    """
    mine = max(util_frac, 0.01)
    suffered = np.log([1.0 / stranger_speed(mine, v) - 1.0 for v in _GRID])
    caused = np.log([1.0 / stranger_speed(u, mine) - 1.0 for u in _GRID])
    half = _half_of_grid()
    return math.exp(suffered.mean() - half), math.exp(caused.mean() - half)


_GRID: Final = tuple(0.1 * step for step in range(1, 11))


@cache
def _half_of_grid() -> float:
    """Return half of the mean of ln(slowdown) over all pairs of utilisations in `_GRID`.

    ln(slowdown) is ln(sensitivity) + ln(pressure). `factors_of_util` computes both as means over `_GRID`, so
    their sum contains the mean over all pairs once too often. It subtracts half of that mean from each.
    """
    return float(0.5 * np.log([[1.0 / stranger_speed(u, v) - 1.0 for v in _GRID] for u in _GRID]).mean())


@kernel
def known_pair(m: ModelArrays, kind: int, workload: int, partner: int) -> float:
    """Return the measured speed of `workload` next to `partner` on GPU type `kind`; nan if not measured."""
    if workload <= 0 or partner <= 0:
        return math.nan
    return m.pair[kind, workload, partner]


@kernel
def shared_speed(m: ModelArrays, kind: int, workload: int, others: NDArray[np.int64], count: int) -> float:
    """Return the predicted speed of a job on a shared GPU, from the best data for each co-tenant.

    The slowdown by a co-tenant is the measured slowdown, if the pair was measured. Otherwise it follows from
    latent factors, if the job's sensitivity and the co-tenant's pressure are known. These slowdowns add up.
    The remaining co-tenants have neither. Their slowdown follows from `stranger_speed`, for all of them
    together, and is added. More than one co-tenant is an extrapolation: all fits are of pairs.

    Args:
        kind: GPU type.
        workload: Workload of the job; 0 is unknown. `util_frac` of row 0 is used for such jobs and must be
            finite.
        others: Workloads of the co-tenants; only the first `count` entries are read.
        count: Number of co-tenants; 0 gives exactly 1.

    Returns:
        The speed, in (0, 1]; a measured speed can be a little above 1.
    """
    if count == 0:
        return 1.0
    if count == 1:
        measured = known_pair(m, kind, workload, others[0])
        if not math.isnan(measured):
            return measured
    mine = m.trait[workload, kind]
    slowdown = 0.0
    known_util, strange_util = 0.0, 0.0
    for k in range(count):
        theirs = m.trait[others[k], kind]
        measured = known_pair(m, kind, workload, others[k])
        product = mine.sensitivity * theirs.pressure
        if not math.isnan(measured):
            slowdown += 1.0 / measured - 1.0
            known_util += theirs.util_frac
        elif not math.isnan(product):
            slowdown += 1.0 / latent_speed(mine.sensitivity, theirs.pressure) - 1.0
            known_util += theirs.util_frac
        else:
            strange_util += theirs.util_frac
    if strange_util > 0.0:
        slowdown += 1.0 / stranger_speed(mine.util_frac, known_util + strange_util)
        slowdown -= 1.0 / stranger_speed(mine.util_frac, known_util)
    return 1.0 / (1.0 + max(slowdown, 0.0))


@kernel
def _mixed(z: np.uint64) -> np.uint64:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA'14): each bit affects all output bits."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@kernel
def pair_noise(key_a: np.uint64, key_b: np.uint64) -> float:
    """Return a standard normal deviate for two jobs or workloads, the same in either order and any process.

    SplitMix64, seeded by a hash of the keys, returns two numbers for the deviate (Box and Muller, 1958).

    Args:
        key_a: 64-bit key of a job, or of a workload.
        key_b: 64-bit key of the co-tenant.
    """
    a, b = np.uint64(key_a), np.uint64(key_b)
    low, high = min(a, b), max(a, b)
    counter = _mixed(_mixed(low + _GOLDEN) ^ (high + _GOLDEN))
    first = _mixed(counter + _GOLDEN)
    second = _mixed(counter + _GOLDEN + _GOLDEN)
    radius = math.sqrt(-2.0 * math.log((float(first >> np.uint64(11)) + 1.0) * 2.0**-53))
    return radius * math.cos(2.0 * math.pi * float(second >> np.uint64(11)) * 2.0**-53)


@kernel
def _workload_key(luck: np.uint64, kind: int, workload: int) -> np.uint64:
    of_run = _mixed(np.uint64(luck) + _GOLDEN)
    return _mixed(_mixed(of_run ^ (np.uint64(kind) + _GOLDEN)) ^ (np.uint64(workload) + _GOLDEN))


@kernel
def share_deviate(luck: np.uint64, kind: int, workload: int, partner: int, of_jobs: float) -> float:
    """Return a standard normal deviate of a job next to another job, composed of three parts.

    The parts depend on the single workloads, on the pair of workloads, and on the two jobs. The first two are
    the same for all jobs of these workloads in a run, and differ between GPU types (a pair's combined
    throughput correlates by only .43 to .55 between types: Gavel).

    Args:
        luck: Seed of the run.
        kind: GPU type.
        workload: Workload of the job. If this workload or the partner is unknown (0), only the jobs' part
            remains.
        partner: Workload of the other job.
        of_jobs: `pair_noise` of the two jobs.
    """
    if workload <= 0 or partner <= 0:
        return of_jobs
    mine, theirs = _workload_key(luck, kind, workload), _workload_key(luck, kind, partner)
    of_singles = (pair_noise(mine, _SUFFERS) + pair_noise(theirs, _PRESSES)) * math.sqrt(0.5)
    return OF_SINGLES * of_singles + OF_PAIRS * pair_noise(mine, theirs) + OF_JOBS * of_jobs


@kernel
def with_noise(speed: float, deviate: float) -> float:
    """Return the simulated true speed of a pair that was not measured: the model's speed with noise.

    The noise of ln(speed) has the standard deviation `RESIDUAL_SD`. The result is at most 1, and at least the
    lower of `NOISE_FLOOR` and `speed`. For n co-tenants, pass the sum of their deviates divided by sqrt(n).

    Args:
        speed: Result of `shared_speed`.
        deviate: Result of `share_deviate`; 0 leaves a speed of at most 1 unchanged.
    """
    return min(max(speed * math.exp(RESIDUAL_SD * deviate), min(speed, NOISE_FLOOR)), 1.0)
