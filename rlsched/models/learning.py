"""Online learning of the slowdown of workloads that share a GPU, from observed speeds.

Each workload has two factors on each GPU type, *sensitivity* and *pressure*. The speed of a job next to
another job is 1 / (1 + its own sensitivity x the other job's pressure) (`sharing.latent_speed`). The beliefs
about the logarithms of the factors are normal, with a mean and a variance, and each observed pair updates
both factors by Bayes' rule. `observing` compiles the same formulas for the simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from rlsched.errors import InputError

POPULATION: Final = (0.80, 0.80)
"""Sensitivity and pressure of an unknown workload: geometric means of 77 fits to Gavel's data, each of one
workload on one GPU type (K80, P100, V100).
"""
POPULATION_SD: Final = 0.60
"""Standard deviation, between workloads, of ln(sensitivity) and of ln(pressure). In the fits of `POPULATION`
it is .86 on V100, .43 on P100 and .31 on K80; the root mean square is .58.
"""
INTRODUCED_SD: Final = 0.20
"""Default standard deviation of the logarithm of a workload's initial factors, for `introduce`. It is the
error of factors that were fitted to other pairs with the same workload."""
OBSERVATION_SD: Final = 0.10
"""Standard deviation of ln(speed) around 1 / (1 + sensitivity x pressure) with fitted factors: .10 on P100,
.09 on K80; .29 on V100, where half of the pairs are within .14 (`studies/models/fit_sharing.py`)."""
REPEAT_SD: Final = 0.03
"""Standard deviation of ln(speed) between observations of the same pair of workloads (assumed)."""
FLOOR_SD: Final = 0.05
"""Minimum standard deviation of a factor's logarithm: workloads change over time."""
SLOWEST, FASTEST = 1e-3, 0.999
"""Range to which observed speeds are limited: the logarithm of 0 would dominate every mean."""
WIDEST: Final = 4.0
"""Limit of the absolute logarithm of a factor: sensitivities and pressures stay between e^-4 and e^4."""
MAX_PAIRS: Final = 100_000
"""Maximum number of pairs stored individually. If there are more, the pair observed least recently is
removed.
"""


class Observed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The observed speed of a job next to one other job.

    Attributes:
        workload: Name of the job's workload.
        partner: Name of the other job's workload.
        kind: GPU type.
        speed: Speed relative to the same job running solo at the same clock.
    """

    workload: str
    partner: str
    kind: str
    speed: float


@dataclass(frozen=True)
class Factors:
    """Beliefs about one workload on one GPU type: mean and standard deviation of each factor's logarithm."""

    log_sensitivity: float = math.log(POPULATION[0])
    log_pressure: float = math.log(POPULATION[1])
    sensitivity_sd: float = POPULATION_SD
    pressure_sd: float = POPULATION_SD

    @property
    def sensitivity(self) -> float:
        """Median of the sensitivity."""
        return math.exp(self.log_sensitivity)

    @property
    def pressure(self) -> float:
        """Median of the pressure."""
        return math.exp(self.log_pressure)


STRANGER: Final = Factors()


class PairKnowledge:
    """Beliefs about workloads that share a GPU. Every query and every update takes constant time.

    A prediction combines the observed speeds of the pair, if any, with the factors of the two workloads.
    `introduce` sets the initial factors of a workload; the default is `POPULATION`. Observations update them.
    """

    def __init__(self) -> None:
        self._factors: dict[tuple[str, str], Factors] = {}
        self._pairs: dict[tuple[str, str, str], tuple[float, float]] = {}  # observations, mean ln(speed)

    def introduce(
        self, workload: str, kind: str, sensitivity: float, pressure: float, sd: float = INTRODUCED_SD
    ) -> None:
        """Set the initial factors of a workload, from a catalogue or a utilisation.

        Raises:
            InputError: a factor is not a positive number.
        """
        for name, value in (("sensitivity", sensitivity), ("pressure", pressure), ("sd", sd)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"the {name} of workload {workload!r} on {kind} must be a positive number, not {value}"
                )
        self._factors[kind, workload] = Factors(math.log(sensitivity), math.log(pressure), sd, sd)

    def factors(self, workload: str, kind: str) -> Factors:
        """Return the factors of a workload; for an unknown workload, the initial factors `POPULATION`."""
        return self._factors.get((kind, workload), STRANGER)

    def predicted_speed(self, workload: str, partner: str, kind: str) -> float:
        """Return the predicted speed of a job next to another job, in (0, 1]."""
        count, mean = self._pairs.get((kind, workload, partner), (0.0, 0.0))
        return math.exp(min(with_pair(self._modelled(workload, partner, kind), count, mean), 0.0))

    def observe(self, seen: Observed) -> None:
        """Learn from one observation: update the pair's mean speed, the sensitivity and the pressure.

        The sensitivity is that of the observed job's workload, the pressure that of its partner's workload.

        Raises:
            InputError: the speed is not a positive number.
        """
        if not (math.isfinite(seen.speed) and seen.speed > 0):
            raise InputError(
                f"the speed of {seen.workload!r} next to {seen.partner!r} must be a positive number, "
                f"not {seen.speed}"
            )
        log_speed = math.log(min(max(seen.speed, SLOWEST), FASTEST))
        self._remember((seen.kind, seen.workload, seen.partner), log_speed)
        self._move(seen, log_speed)

    def _modelled(self, workload: str, partner: str, kind: str) -> float:
        """Return ln(speed) computed from the factors of the two workloads."""
        mine, theirs = self.factors(workload, kind), self.factors(partner, kind)
        return -math.log1p(math.exp(mine.log_sensitivity + theirs.log_pressure))

    def _remember(self, pair: tuple[str, str, str], log_speed: float) -> None:
        """Add an observation to the mean of its pair."""
        count, mean = self._pairs.pop(pair, (0.0, 0.0))
        self._pairs[pair] = count + 1, mean + (log_speed - mean) / (count + 1)
        if len(self._pairs) > MAX_PAIRS:
            del self._pairs[next(iter(self._pairs))]

    def _move(self, seen: Observed, log_speed: float) -> None:
        """Update the sensitivity of the job's workload and the pressure of its partner's workload.

        The factor with the larger variance changes more.
        """
        mine, theirs = self.factors(seen.workload, seen.kind), self.factors(seen.partner, seen.kind)
        of_mine, of_theirs = mine.sensitivity_sd**2, theirs.pressure_sd**2
        both = of_mine + of_theirs
        before = mine.log_sensitivity + theirs.log_pressure
        after = most_likely(before, both, log_speed)
        log_factor, sd = moved(mine.log_sensitivity, of_mine, both, before, after)
        self._factors[seen.kind, seen.workload] = replace(mine, log_sensitivity=log_factor, sensitivity_sd=sd)
        theirs = self.factors(seen.partner, seen.kind)  # read again: a workload may be its own partner
        log_factor, sd = moved(theirs.log_pressure, of_theirs, both, before, after)
        self._factors[seen.kind, seen.partner] = replace(theirs, log_pressure=log_factor, pressure_sd=sd)


def seen_factor(speed: float, other: float) -> float:
    """Return the sensitivity, or the pressure, that explains the observed speed of a pair of workloads.

    The result is (1 / speed - 1) / `other`. The speed is limited to `SLOWEST` to `FASTEST`, and the result by
    `WIDEST`. A speed of 1 or more therefore gives a small factor.

    Args:
        speed: Speed of the job next to its only co-tenant, relative to its speed without co-tenants; above 0.
        other: The known factor, above 0: the co-tenant's pressure, or the job's sensitivity.
    """
    slowdown = 1.0 / min(max(speed, SLOWEST), FASTEST) - 1.0
    return math.exp(min(max(math.log(slowdown / other), -WIDEST), WIDEST))


# ---- formulas, compiled by `observing` as kernels: each calls nothing but `math` ----------------------


def most_likely(before: float, variance: float, log_speed: float) -> float:
    """Return the most likely z = ln(sensitivity x pressure) after observing ln(speed) = -ln(1 + e^z) + noise.

    The method is Newton's, with bisection between the prior mean and the z that the speed implies.

    Args:
        before: Mean of z before the observation.
        variance: Variance of z before the observation.
        log_speed: Observed ln(speed), below 0.
    """
    seen = math.log(math.expm1(-log_speed))
    low, high = min(before, seen), max(before, seen)
    z = before
    for _ in range(60):
        product = math.exp(z)
        share = product / (1.0 + product)  # slope of -ln(speed) in z
        miss = math.log1p(product) + log_speed
        climb = (z - before) / variance + miss * share / OBSERVATION_SD**2
        if climb > 0.0:
            high = z
        else:
            low = z
        bend = 1.0 / variance + share * (share + miss * (1.0 - share)) / OBSERVATION_SD**2
        last, z = z, 0.5 * (low + high)
        if bend > 0.0 and low < last - climb / bend < high:
            z = last - climb / bend
        if abs(z - last) < 1e-13:
            break
    return z


def moved(
    log_factor: float, variance: float, both: float, before: float, after: float
) -> tuple[float, float]:
    """Return the logarithm of a sensitivity or a pressure, and its standard deviation, after an observation.

    An observed speed changes z = ln(sensitivity x pressure). The factor takes `variance` / `both` of the
    change, and the other factor takes the rest.

    Args:
        log_factor: Logarithm of the factor before the observation.
        variance: Variance of this logarithm before the observation.
        both: Sum of the variances of ln(sensitivity) and ln(pressure) before the observation.
        before: z before the observation.
        after: z after the observation, by `most_likely`.
    """
    slope = 1.0 / (1.0 + math.exp(-after))  # slope of -ln(speed) in the logarithm of the product
    gain = slope**2 / (both * slope**2 + OBSERVATION_SD**2)
    sd = max(math.sqrt(variance * (1.0 - variance * gain)), FLOOR_SD)
    return min(max(log_factor + (after - before) * variance / both, -WIDEST), WIDEST), sd


def with_pair(log_speed: float, count: float, mean: float) -> float:
    """Return the predicted ln(speed) of a pair: a weighted mean of `log_speed` and `mean`.

    Args:
        log_speed: ln(speed) that the factors predict.
        count: Number of observations of this pair.
        mean: Mean ln(speed) of these observations.
    """
    return log_speed + count / (count + (REPEAT_SD / OBSERVATION_SD) ** 2) * (mean - log_speed)
