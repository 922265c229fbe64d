"""Estimates distributions of recent run times relative to predictions, by job size.

The spread of a prediction is the standard deviation of the logarithm of the run time. The distributions are
of z = ln(run time / predicted median) / spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.forecast.record import SIZES, size_classes

Floats = NDArray[np.float64]

FEWEST: Final = 30
"""Minimum number of ended jobs for a shape (distribution). A size class with fewer jobs uses the shape of all
sizes, or none.
"""
OUTLIVED: Final = 5
"""Minimum number of ended jobs that ran longer than a job's age; with fewer, no distribution is used."""
LEAST_SPREAD: Final = 0.05
"""Minimum spread of a prediction for which the distribution of z is used. A prediction with less spread
counts as certain."""
_KNOTS: Final = 512
_BEYOND: Final = 0.5
"""Assumed mean amount by which longer run times exceed the longest known run time, as a fraction of that
longest run time."""


@dataclass(frozen=True)
class _Shape:
    """Distribution of z in one size class.

    Attributes:
        z: (K,) values, ascending.
        below: (K,) for each entry of `z`, the fraction of the jobs with this or a smaller value.
        middle: (K,) for each entry of `z`, the fraction of the jobs with a smaller value, plus half of the
            fraction with exactly this value.
        oldest: `OUTLIVED`-th largest value of the ended jobs. The distribution is not used for a job whose
            age gives this or a larger value.
    """

    z: Floats
    below: Floats
    middle: Floats
    oldest: float


class Lengths:
    """Distributions of run times relative to their predictions, by size class.

    The distributions are product-limit estimates (Kaplan, Meier, JASA 1958). A running job counts as a run
    time above its age. Without running jobs, short jobs would be overrepresented, because they end first.

    Args:
        gpus: (N,) GPUs of ended and running jobs.
        z: (N,) z of each job, from its run time so far.
        ended: (N,) whether the job has ended.
    """

    def __init__(self, gpus: Floats, z: Floats, ended: NDArray[np.bool_]) -> None:
        size = size_classes(gpus)
        of_all = _shape(z, ended)
        self._shapes = [_shape(z[size == one], ended[size == one]) or of_all for one in range(len(SIZES))]

    @classmethod
    def from_runs(
        cls,
        gpus: Floats,
        run_s: Floats,
        predicted_s: Floats,
        spread: Floats,
        ended: NDArray[np.bool_],
    ) -> Lengths:
        """Estimate distributions from (N,) run times so far (nan: not started), and (N,) predictions."""
        counts = (run_s > 0.0) & (predicted_s > 0.0) & (spread >= LEAST_SPREAD)
        z = np.log(run_s[counts] / predicted_s[counts]) / spread[counts]
        return cls(gpus[counts], z, ended[counts])

    def totals(self, gpus: Floats, predicted_s: Floats, spread: Floats, age_s: Floats, at: Floats) -> Floats:
        """Return (L, S) quantiles of the jobs' total run times, given that each job has run for `age_s`.

        A row is nan if the distribution of the job is unknown.

        Args:
            gpus: (L,) GPUs of the jobs.
            predicted_s: (L,) predicted medians, seconds.
            spread: (L,) standard deviations of the logarithm of the run time.
            age_s: (L,) time that each job has run, seconds.
            at: (L, S) levels of the quantiles, 0 to 1, in the distribution of the remaining time.
        """
        found = np.full(at.shape, np.nan)
        outlived = self.outlived(gpus, predicted_s, spread, age_s)
        for shape, mine in self._by_shape(gpus, ~np.isnan(outlived)):
            target = outlived[mine, None] + at[mine] * (1.0 - outlived[mine])[:, None]
            last = shape.below[-1]
            over = np.clip((target - last) / max(1.0 - last, 1e-12), 0.0, 1.0 - 1e-9)
            beyond = np.where(target > last, 1.0 - _BEYOND * np.log1p(-over), 1.0)
            z = np.interp(target, shape.below, shape.z)
            found[mine] = predicted_s[mine, None] * np.exp(spread[mine, None] * z) * beyond
        return found

    def outlived(self, gpus: Floats, predicted_s: Floats, spread: Floats, age_s: Floats) -> Floats:
        """Return the (L,) predicted probability that the run time is below `age_s`; nan: unknown."""
        found = np.full(len(gpus), np.nan)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            aged = np.where(age_s > 0.0, np.log(age_s / predicted_s) / spread, -np.inf)
        for shape, mine in self._by_shape(gpus, spread >= LEAST_SPREAD):
            known = mine & (aged < shape.oldest)
            found[known] = np.interp(aged[known], shape.z, shape.below, left=0.0)
        return found

    def shares(self, gpus: Floats, z: Floats) -> Floats:
        """Return, for each job, the estimated fraction of jobs of its size class with a lower z, (N,).

        The estimate counts ended and running jobs (see `Lengths`); nan: unknown. The module defines z.

        Args:
            gpus: (N,) GPUs of the jobs.
            z: (N,) z of each job; nan: unknown.
        """
        found = np.full(len(gpus), np.nan)
        for shape, mine in self._by_shape(gpus, np.isfinite(z)):
            found[mine] = np.interp(z[mine], shape.z, shape.middle)
        return found

    def _by_shape(
        self, gpus: Floats, counts: NDArray[np.bool_]
    ) -> Iterator[tuple[_Shape, NDArray[np.bool_]]]:
        """Yield each distribution of z (`_Shape`), with a mask of the jobs of its size class.

        `counts`: mask of the jobs to include.
        """
        size = size_classes(gpus)
        for number, shape in enumerate(self._shapes):
            mine = counts & (size == number)
            if shape is not None and mine.any():
                yield shape, mine


def _shape(z: Floats, ended: NDArray[np.bool_]) -> _Shape | None:
    if np.count_nonzero(ended) < FEWEST:
        return None
    order = np.argsort(z, kind="stable")
    z, ended = z[order], ended[order]
    at_risk = len(z) - np.arange(len(z))
    outlive = np.cumprod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0))
    below = np.asarray(1.0 - outlive, np.float64)
    z, below = z[ended], below[ended]
    middle = below - 0.5 * np.diff(below, prepend=0.0)
    oldest = float(z[-OUTLIVED])
    if len(z) > _KNOTS:
        kept = np.linspace(0, len(z) - 1, _KNOTS).astype(np.int64)
        z, below, middle = z[kept], below[kept], middle[kept]
    return _Shape(z, below, middle, oldest)
