"""How fast jobs run that share a GPU by time slicing or MPS, compiled: table, then latent factors, then
formula.

A *speed* is relative to the same job alone on the same GPU at the same clock: exactly 1 without partners.
A *slowdown* here is 1 / speed - 1, the time that the others add to a second's work.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel
from rlsched.models.arrays import ModelArrays
from rlsched.models.learning import REPEAT_SD

SATURATION: Final = 1.194
"""Slowdown that each further unit of utilisation adds to a GPU that is full. Fitted, as are the next three,
by `studies/models/fit_sharing.py`: to the values of the solo-normalised formula of Lucid's pairs (RTX 3090,
R2 .45 there, but not 1 for a job alone) and, with equal weight, to the mean combined throughput by bands of
utilisation of the 1,091 pairs that were really measured. To the formula: rms .013, at most .031; to the
bands: at most .05 of 2."""
THRESHOLD: Final = 1.487
"""Utilisation of all tenants together at which the GPU is full."""
SHARPNESS: Final = 2.80
"""Of the bend at the threshold."""
LIGHT_SLOWDOWN: Final = 0.0187
"""Slowdown by a unit of the others' utilisation where nothing is full."""
RESIDUAL_SD: Final = 0.10
"""Spread of ln(speed) about what the formula or latent factors say: .10 about the formula on Lucid's pairs
(RTX 3090); about latent factors, on pairs that were held out, .11 on P100, .10 on K80 and .32 on V100
(Gavel)."""
OF_JOBS: Final = REPEAT_SD / RESIDUAL_SD
"""Part of a deviate that is of the pair of jobs. The rest is the same whenever their workloads meet."""
OF_SINGLES: Final = math.sqrt(0.55)
"""Part that is of single workloads, of how the one suffers and the other presses. On Lucid's pairs (RTX 3090)
.60 of the variance is left by the formula, .27 by factors of each workload, both on pairs held out: .55 of
what the formula leaves is of workloads one by one."""
OF_PAIRS: Final = math.sqrt(1.0 - OF_JOBS**2 - OF_SINGLES**2)
"""Part that is of the two workloads together. The squares of the three add up to 1."""
NOISE_FLOOR: Final = 0.2
"""Noise takes no speed below this."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_SUFFERS: Final = np.uint64(1)
_PRESSES: Final = np.uint64(2)


@kernel
def _softplus(excess: float) -> float:
    """ln(1 + e^(s y)) / s, without overflow."""
    return max(excess, 0.0) + math.log1p(math.exp(-SHARPNESS * abs(excess))) / SHARPNESS


@kernel
def stranger_speed(util_frac: float, others_util_frac: float) -> float:
    """Speed of a job of which only solo GPU utilisation is known, beside others; in (0, 1].

    A saturation formula: 1 / (1 + a (softplus(u + U - t) - softplus(u - t)) + b U). The solo term is
    subtracted, so that without others the value is exactly 1. Fitted on pairs; for more tenants U is the sum
    of the others' utilisations, an extrapolation.

    Args:
        util_frac: Solo GPU utilisation of the job, 0 to 1.
        others_util_frac: Sum of those of the other tenants.
    """
    full = _softplus(util_frac + others_util_frac - THRESHOLD) - _softplus(util_frac - THRESHOLD)
    return 1.0 / (1.0 + SATURATION * max(full, 0.0) + LIGHT_SLOWDOWN * others_util_frac)


@kernel
def latent_speed(sensitivity: float, pressure_sum: float) -> float:
    """Speed of a job with this sensitivity beside others whose pressures add up to this; at most 1.

    The product form was fitted on pairs (Gavel); that the pressures of more tenants add up is an
    extrapolation."""
    return 1.0 / (1.0 + max(sensitivity * pressure_sum, 0.0))


def factors_of_util(util_frac: float) -> tuple[float, float]:
    """Sensitivity and pressure of a job of which only solo utilisation is known: where learning begins for
    it.

    The formula is no product. Its logarithm of the slowdown is averaged over partners (jobs) of utilisation
    .1 to 1, which is the nearest product in least squares; `studies/models/fit_sharing.py` says how near.

    Args:
        util_frac: Solo GPU utilisation, 0 to 1.
    """
    grid = [0.1 * step for step in range(1, 11)]
    mine = max(util_frac, 0.01)
    logs = np.log([[1.0 / stranger_speed(u, v) - 1.0 for v in grid] for u in grid])
    suffered = np.log([1.0 / stranger_speed(mine, v) - 1.0 for v in grid])
    caused = np.log([1.0 / stranger_speed(u, mine) - 1.0 for u in grid])
    half = 0.5 * logs.mean()
    return math.exp(suffered.mean() - half), math.exp(caused.mean() - half)


@kernel
def known_pair(m: ModelArrays, kind: int, workload: int, partner: int) -> float:
    """Measured speed of `workload` beside `partner` on GPU type `kind`; nan where nobody measured it."""
    if workload <= 0 or partner <= 0:
        return math.nan
    return m.pair[kind, workload, partner]


@kernel
def shared_speed(m: ModelArrays, kind: int, workload: int, others: NDArray[np.int64], count: int) -> float:
    """Speed of a job on a GPU that it shares, by what is known of each of its partners.

    One partner: the measured speed of the pair as it stands in the table; else the latent factors where the
    job's sensitivity and the partner's pressure are known; else the formula. Several: the slowdowns of the
    known pairs and the latent factors add up, and the partners that are left add what the formula gives for
    all utilisations together less what it gives for the others' alone. So one more tenant never makes it
    faster (but for table entries above 1), and where nothing is known it is the formula, where all factors
    are it is `latent_speed`. More than one partner is an extrapolation: all fits are of pairs.

    Args:
        kind: GPU type.
        workload: Of the job; 0 is unknown. `util_frac` of row 0 stands for such jobs and must be finite.
        others: Workloads of its partners in the first `count` entries.
        count: How many partners; 0 gives exactly 1.

    Returns:
        The speed: as measured for a pair of the table, which may be a little above 1, else in (0, 1].
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
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA'14): every bit of the input moves every bit."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@kernel
def pair_noise(key_a: np.uint64, key_b: np.uint64) -> float:
    """A standard normal deviate of two jobs or workloads, whichever is named first, in any process and order.

    The keys' hash is the counter of SplitMix64; two of its numbers make a deviate (Box and Muller, 1958).

    Args:
        key_a: 64-bit key of a job, or of a workload.
        key_b: ... of its partner.
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
    """A standard normal deviate of a job beside another: of workloads, of pairs of them, and of the two jobs.

    What is of workloads is the same for all their jobs in a run, which is what makes learning worth while; it
    is another on another GPU type (a pair's combined throughput correlates by no more than .43 to .55
    between types: Gavel).

    Args:
        luck: Of the run.
        kind: GPU type.
        workload: Of the job; of one that is unknown (0), or beside one, nothing but the jobs' part is there.
        partner: Of the other.
        of_jobs: `pair_noise` of the two jobs.
    """
    if workload <= 0 or partner <= 0:
        return of_jobs
    mine, theirs = _workload_key(luck, kind, workload), _workload_key(luck, kind, partner)
    of_singles = (pair_noise(mine, _SUFFERS) + pair_noise(theirs, _PRESSES)) * math.sqrt(0.5)
    return OF_SINGLES * of_singles + OF_PAIRS * pair_noise(mine, theirs) + OF_JOBS * of_jobs


@kernel
def with_noise(speed: float, deviate: float) -> float:
    """What a pair that the table does not know really runs at: ln-noise of `RESIDUAL_SD` about the model's
    speed.

    At most 1, and not below `NOISE_FLOOR` unless the model's own speed is. For several partners hand in the
    sum of their deviates divided by the root of their number, which is again standard normal.

    Args:
        speed: By `shared_speed`.
        deviate: By `share_deviate`; 0 leaves a speed of at most 1 as it is.
    """
    return min(max(speed * math.exp(RESIDUAL_SD * deviate), min(speed, NOISE_FLOOR)), 1.0)
