"""How far observed pairs may change the workload that models a job: errors of predicted speeds by limit.

    .venv/bin/python -m studies.models.nearest_by_pairs     # ten seconds

Each workload with measured pairs is left out of the catalogue in turn, as a job without a named workload. Its
GPU time is known, and its factors of sharing from a few of its measured pairs, as the broker learns them. The
nearest other workload predicts its speeds next to all its measured partners, and theirs next to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.broker.base.ledger_models import factors_of, traits_of
from rlsched.models.catalogue import load_catalogue
from rlsched.models.catalogue.table import REFERENCE_TYPE
from rlsched.models.learning import REPEAT_SD, seen_factor
from rlsched.models.sharing import shared_speed

GPU_TYPES: Final = ("V100", "P100")
"""GPU types with enough measured pairs."""
LIMITS: Final = (0.0, 0.1, 0.2, 0.3, 0.6, math.inf)
OBSERVED: Final = (1, 4)
"""Numbers of observed co-tenants of each job."""
REPEATS: Final = 6
UTIL_SD: Final = 0.03
"""Assumed standard deviation of a learnt GPU time, as a fraction."""
LEAST_PARTNERS: Final = 3
Floats = NDArray[np.float64]


class Error(NamedTuple):
    """Mean errors of the jobs of one case.

    Attributes:
        gpu_type: GPU type.
        observed: Number of observed co-tenants.
        limit: Highest distance by factors of sharing, as `job_requests.MOST_FOR_PAIRS`.
        speed: Mean |ln(predicted / measured speed)|.
        util: Mean difference of GPU time between job and workload.
    """

    gpu_type: str
    observed: int
    limit: float
    speed: float
    util: float


def errors(gpu_type: str, observed: int) -> Iterator[Error]:
    """Yield the errors for each limit."""
    models, draw = load_catalogue().arrays((gpu_type,)), np.random.default_rng(0)
    measured = np.array(models.pair[0], np.float64)[1:, 1:]
    count = len(measured)
    speeds = np.array([
        [float(shared_speed(models, 0, mine + 1, np.array([other + 1]), 1)) for other in range(count)]
        for mine in range(count)
    ])  # fmt: skip
    factors, own = np.array(factors_of(gpu_type)), np.array(models.trait.util_frac[1:, 0], np.float64)
    of_reference = np.array(traits_of(REFERENCE_TYPE)["util_frac"][1:], np.float64)
    found: dict[float, list[tuple[float, float]]] = {limit: [] for limit in LIMITS}
    both = ~np.isnan(measured) & ~np.isnan(measured.T)
    for job in np.flatnonzero(both.sum(axis=1) >= LEAST_PARTNERS).tolist():
        partners = np.flatnonzero(both[job])
        for _ in range(REPEATS):
            learnt = [
                np.mean([
                    math.log(seen_factor(pairs[other] * math.exp(draw.normal(0.0, REPEAT_SD)), theirs[other]))
                    for other in draw.choice(partners, observed).tolist()
                ])
                for pairs, theirs in ((measured[job], factors[:, 1]), (measured[:, job], factors[:, 0]))
            ]  # fmt: skip
            apart = np.abs(np.log(factors) - np.array(learnt)).mean(axis=1)
            off = np.abs(of_reference - own[job] - draw.normal(0.0, UTIL_SD))
            off[job] = math.inf
            for limit, rows in found.items():
                like = int(np.argmin(off + np.minimum(apart, limit)))
                others = partners[partners != like]
                wrong = [
                    np.abs(np.log(np.minimum(said, 1.0) / np.minimum(true, 1.0))).mean()
                    for said, true in (
                        (speeds[like, others], measured[job, others]),
                        (speeds[others, like], measured[others, job]),
                    )
                ]
                rows.append((float(np.mean(wrong)), abs(own[like] - own[job])))
    for limit, rows in found.items():
        speed, util = np.mean(rows, axis=0)
        yield Error(gpu_type, observed, limit, float(speed), float(util))


def main() -> None:
    """Print a table of errors by limit."""
    print("GPU type  observed  limit  |ln(predicted / measured speed)|  difference of GPU time")
    for gpu_type in GPU_TYPES:
        for observed in OBSERVED:
            for one in errors(gpu_type, observed):
                print(f"{gpu_type:8}  {observed:8}  {one.limit:5}  {one.speed:31.3f}  {one.util:22.3f}")


if __name__ == "__main__":
    main()
