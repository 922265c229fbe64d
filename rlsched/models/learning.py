"""Learning from observation how workloads share a GPU: an observed speed comes in, better parameters come
out.

No I/O and no compiled code: the broker and a node's telemetry may run it, and `observing` compiles the same
formulas for the simulator. Each workload has on each GPU type two factors, *sensitivity* and *pressure*; a
job beside another runs at 1 / (1 + sensitivity x pressure) (`sharing.latent_speed`). Their logarithms are
believed to be normal, with a mean and a variance, and each observed pair moves both by Bayes' rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from rlsched.errors import InputError
from rlsched.models.arrays import ModelArrays

POPULATION: Final = (0.80, 0.80)
"""Sensitivity and pressure of a workload of which nothing is known: geometric mean over the 77 of Gavel's
(K80, P100, V100)."""
POPULATION_SD: Final = 0.60
"""Spread of their logarithms over workloads: .86 on V100, .43 on P100, .31 on K80 (same source), root mean
square .58."""
INTRODUCED_SD: Final = 0.20
"""Doubt about the logarithm of factors that were fitted on other pairs of the same workload."""
OBSERVATION_SD: Final = 0.10
"""Spread of ln(speed) about the product form once the factors are fitted: .10 on P100, .09 on K80; .29 on
V100, where half are within .14 (`studies/models/fit_sharing.py`)."""
JOB_SD: Final = 0.05
"""Spread of one job's ln(speed) about its workload's. Assumed."""
REPEAT_SD: Final = 0.03
"""Spread of ln(speed) when the same pair is observed again. Assumed."""
FLOOR_SD: Final = 0.05
"""No factor is ever believed more exactly: workloads change with their users."""
SLOWEST, FASTEST = 1e-3, 0.999
"""Observed speeds are taken to lie within these: a logarithm of nothing would move everything."""
WIDEST: Final = 4.0
"""Sensitivities and pressures stay between e^-4 and e^4."""
MAX_PAIRS: Final = 100_000
"""Pairs that are remembered one by one; beyond it the one not seen for longest is forgotten."""
_FORM: Final = 1


class Observed(msgspec.Struct, frozen=True):
    """A job was seen beside one other job for long enough to tell its speed.

    Attributes:
        workload: Name of its workload.
        partner: Name of the other's.
        kind: GPU type.
        speed: Relative to the same job alone at the same clock.
        job: Id of the job, where its own deviation from its workload is to be learnt too.
    """

    workload: str
    partner: str
    kind: str
    speed: float
    job: str = ""


@dataclass(frozen=True)
class Factors:
    """What is believed of one workload on one GPU type: means and standard deviations of the logarithms."""

    log_sensitivity: float = math.log(POPULATION[0])
    log_pressure: float = math.log(POPULATION[1])
    sensitivity_sd: float = POPULATION_SD
    pressure_sd: float = POPULATION_SD

    @property
    def sensitivity(self) -> float:
        """The median."""
        return math.exp(self.log_sensitivity)

    @property
    def pressure(self) -> float:
        """The median."""
        return math.exp(self.log_pressure)


STRANGER: Final = Factors()


class PairKnowledge:
    """What is known of workloads that share a GPU. Every query and every update takes constant time.

    In the order of their worth, a prediction uses: what this very pair ran at; the factors of the two
    workloads, by introduction, by observation of either beside others, or of the population; and how this
    job, if named, deviated from its workload so far."""

    def __init__(self) -> None:
        self._factors: dict[tuple[str, str], Factors] = {}
        self._pairs: dict[tuple[str, str, str], tuple[float, float]] = {}  # observations, mean ln(speed)
        self._jobs: dict[str, tuple[float, float]] = {}  # observations, sum of ln(observed / predicted)

    def introduce(
        self, workload: str, kind: str, sensitivity: float, pressure: float, sd: float = INTRODUCED_SD
    ) -> None:
        """Begin with these factors, from a catalogue or from a utilisation, instead of the population's.

        Raises:
            InputError: A factor that is not a positive number.
        """
        for name, value in (("sensitivity", sensitivity), ("pressure", pressure), ("sd", sd)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"the {name} of workload {workload!r} on {kind} must be a positive number, not {value}"
                )
        self._factors[kind, workload] = Factors(math.log(sensitivity), math.log(pressure), sd, sd)

    def factors(self, workload: str, kind: str) -> Factors:
        """What is believed of a workload; the population's where it never came up."""
        return self._factors.get((kind, workload), STRANGER)

    def predicted_speed(self, workload: str, partner: str, kind: str, job: str = "") -> float:
        """Speed of a job beside another, in (0, 1]."""
        count, mean = self._pairs.get((kind, workload, partner), (0.0, 0.0))
        log_speed = with_pair(self._modelled(workload, partner, kind), count, mean)
        return math.exp(min(log_speed + self._job_ratio(job), 0.0))

    def observe(self, seen: Observed) -> None:
        """Learn from one observation: the job's own ratio, the pair's mean, and the factors of both
        workloads.

        Raises:
            InputError: A speed that is not a positive number.
        """
        if not (math.isfinite(seen.speed) and seen.speed > 0):
            raise InputError(
                f"the speed of {seen.workload!r} beside {seen.partner!r} must be a positive number, "
                f"not {seen.speed}"
            )
        log_speed = math.log(min(max(seen.speed, SLOWEST), FASTEST))
        if seen.job:
            count, total = self._jobs.get(seen.job, (0.0, 0.0))
            expected = math.log(self.predicted_speed(seen.workload, seen.partner, seen.kind))
            self._jobs[seen.job] = count + 1, total + log_speed - expected
        self._remember((seen.kind, seen.workload, seen.partner), log_speed)
        self._move(seen, log_speed)

    def forget_job(self, job: str) -> None:
        """The job has ended."""
        self._jobs.pop(job, None)

    def applied_to(
        self, models: ModelArrays, kinds: Mapping[str, int], workloads: Mapping[str, int]
    ) -> ModelArrays:
        """The models as they came, with the factors that were introduced or learnt, as the engine reads them.

        Measured pairs stay; a pair that was observed stands in `pair` where nobody had measured it.

        Args:
            models: As they came from the catalogue; left as they are.
            kinds: Number of each GPU type; types that it lacks are passed over.
            workloads: Number of each workload, likewise.
        """
        trait, pair = models.trait.copy(), models.pair.copy()
        for (kind, workload), factors in self._factors.items():
            if kind in kinds and workload in workloads:
                place = workloads[workload], kinds[kind]
                trait["sensitivity"][place] = factors.sensitivity
                trait["pressure"][place] = factors.pressure
        for kind, workload, partner in self._pairs:
            if kind in kinds and workload in workloads and partner in workloads:
                cell = kinds[kind], workloads[workload], workloads[partner]
                if math.isnan(models.pair[cell]):
                    pair[cell] = self.predicted_speed(workload, partner, kind)
        return models._replace(trait=trait, pair=pair)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as a journal or JSON keeps it; `from_dict` gives back the same, to the last bit."""
        return {
            "form": _FORM,
            "factors": [
                [*key, f.log_sensitivity, f.log_pressure, f.sensitivity_sd, f.pressure_sd]
                for key, f in self._factors.items()
            ],
            "pairs": [[*key, *value] for key, value in self._pairs.items()],
            "jobs": [[key, *value] for key, value in self._jobs.items()],
        }

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> PairKnowledge:
        """What `to_dict` gave.

        Raises:
            InputError: It is of another form, or damaged.
        """
        if kept.get("form") != _FORM:
            raise InputError(
                f"knowledge of pairs: expected form {_FORM}, not {kept.get('form')!r}: start without it"
            )
        known = cls()
        try:
            known._factors = {(str(k), str(w)): Factors(*map(float, rest)) for k, w, *rest in kept["factors"]}
            known._pairs = {(k, w, p): (float(n), float(mean)) for k, w, p, n, mean in kept["pairs"]}
            known._jobs = {job: (float(n), float(total)) for job, n, total in kept["jobs"]}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"knowledge of pairs is damaged ({error}): start without it") from error
        return known

    def _modelled(self, workload: str, partner: str, kind: str) -> float:
        """ln(speed) by the factors of the two workloads."""
        mine, theirs = self.factors(workload, kind), self.factors(partner, kind)
        return -math.log1p(math.exp(mine.log_sensitivity + theirs.log_pressure))

    def _job_ratio(self, job: str) -> float:
        """Shrunk mean of ln(observed / predicted) of one job: 0 before the first observation."""
        count, total = self._jobs.get(job, (0.0, 0.0))
        return total / (count + (OBSERVATION_SD / JOB_SD) ** 2)

    def _remember(self, pair: tuple[str, str, str], log_speed: float) -> None:
        """Take an observation into the mean of its pair."""
        count, mean = self._pairs.pop(pair, (0.0, 0.0))
        self._pairs[pair] = count + 1, mean + (log_speed - mean) / (count + 1)
        if len(self._pairs) > MAX_PAIRS:
            del self._pairs[next(iter(self._pairs))]

    def _move(self, seen: Observed, log_speed: float) -> None:
        """Move the sensitivity of the one and the pressure of the other, each by its share of the doubt."""
        mine, theirs = self.factors(seen.workload, seen.kind), self.factors(seen.partner, seen.kind)
        of_mine, of_theirs = mine.sensitivity_sd**2, theirs.pressure_sd**2
        both = of_mine + of_theirs
        before = mine.log_sensitivity + theirs.log_pressure
        after = most_likely(before, both, log_speed)
        log_factor, sd = moved(mine.log_sensitivity, of_mine, both, before, after)
        self._factors[seen.kind, seen.workload] = replace(mine, log_sensitivity=log_factor, sensitivity_sd=sd)
        theirs = self.factors(seen.partner, seen.kind)  # again: a workload may be its own partner
        log_factor, sd = moved(theirs.log_pressure, of_theirs, both, before, after)
        self._factors[seen.kind, seen.partner] = replace(theirs, log_pressure=log_factor, pressure_sd=sd)


# ---- formulas, compiled by `observing` as kernels: each calls nothing but `math` ----------------------


def most_likely(before: float, variance: float, log_speed: float) -> float:
    """The likeliest z = ln(sensitivity x pressure) after one observation of ln(speed) = -ln(1 + e^z) + noise.

    The likelihood's slope changes sign between what was believed and what was seen: Newton's step is taken
    where it stays within that interval, else the interval is halved, so a maximum is found however far
    apart they are.

    Args:
        before: Mean of z before.
        variance: ... and its variance.
        log_speed: Observed, below 0.
    """
    seen = math.log(math.expm1(-log_speed))
    low, high = min(before, seen), max(before, seen)
    z = before
    for _ in range(60):
        product = math.exp(z)
        share = product / (1.0 + product)  # slope of -ln(speed) with z
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
    """Logarithm of a factor, and the doubt about it (sd), after an observation.

    Args:
        log_factor: Before it.
        variance: Of the doubt before.
        both: The same plus that of the other factor of the product.
        before: ln of the product before ...
        after: ... and after, by `most_likely`. The factor moves by its share of the doubt.
    """
    slope = 1.0 / (1.0 + math.exp(-after))  # of -ln(speed) with the logarithm of the product
    gain = slope**2 / (both * slope**2 + OBSERVATION_SD**2)
    sd = max(math.sqrt(variance * (1.0 - variance * gain)), FLOOR_SD)
    return min(max(log_factor + (after - before) * variance / both, -WIDEST), WIDEST), sd


def with_pair(log_speed: float, count: float, mean: float) -> float:
    """ln(speed) of a pair by the factors, and by what the pair itself was observed at.

    Args:
        log_speed: By the factors.
        count: Observations of this pair.
        mean: Their mean ln(speed).
    """
    return log_speed + count / (count + (REPEAT_SD / OBSERVATION_SD) ** 2) * (mean - log_speed)
