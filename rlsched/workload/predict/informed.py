"""Predictions with a chosen accuracy for the jobs of a recorded trace.

A trace without users and job names contains no data from which run times could be predicted. Here, a
prediction is computed from a noisy observation of the true duration (`rlsched.workload.predictability`). Use
these predictions only for diagnostics and training, never for deployment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.predictability import predict_known

SIZE_EDGES: Final = (1, 4, 8)
"""Upper limits of the size classes: jobs of at most 1 GPU, at most 4, at most 8, and more than 8 GPUs."""
LEAST_CLASS: Final = 50
"""Minimum number of jobs in a size class; a class with fewer jobs is merged with the next smaller size."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Z: Final = np.linspace(-4.0, 4.0, 161)
_P: Final = np.array([0.5 * (1.0 + math.erf(z / math.sqrt(2.0))) for z in _Z])


class TraceQuantiles:
    """Quantile function of ln(run time) of a trace's jobs, by size class and normal score.

    The normal score of a job is the standard normal quantile of its rank by run time in its size class.

    Args:
        size_class: (J,) size class of each job, 0, 1, ...
        ln_s: (J,) ln of each job's run time in seconds.
    """

    def __init__(self, size_class: Ints, ln_s: Floats) -> None:
        classes = range(int(size_class.max()) + 1)
        self._curves = np.stack([np.quantile(ln_s[size_class == k], _P) for k in classes])
        self._spread = np.array([ln_s[size_class == k].std() for k in classes])

    def __call__(self, size_class: Ints, z: Floats) -> Floats:
        """Return the (J,) ln(run time in seconds) for (J,) size classes and (J,) normal scores."""
        out = np.empty(len(z))
        for k, curve in enumerate(self._curves):
            mine = size_class == k
            out[mine] = np.interp(z[mine], _Z, curve)
        return out

    def spread(self, size_class: Ints) -> Floats:
        """Return the (J,) standard deviation of ln(run time) in each job's size class."""
        return np.asarray(self._spread[size_class], np.float64)


@dataclass(frozen=True)
class Informed:
    """J jobs, for which predictions of any accuracy can be drawn.

    Attributes:
        quantiles: Quantile function of the run times.
        size_class: (J,) size class of each job.
        score: (J,) normal score of each job's run time within its size class.
        burst: (J,) index of each job's burst; jobs of one burst have part of the error in common.
    """

    quantiles: TraceQuantiles
    size_class: Ints
    score: Floats
    burst: Ints

    @classmethod
    def from_jobs(cls, duration_s: Floats, num_gpus: Floats, burst: Ints) -> Informed:
        """Derive scores and quantiles from these jobs only.

        Args:
            duration_s: (J,) true run times; values below 1 s are raised to 1 s.
            num_gpus: (J,) GPUs of each job.
            burst: (J,) index of each job's burst, from `characterise.repeats.bursts`.
        """
        size_class, ln_s = size_classes(num_gpus), np.log(np.maximum(duration_s, 1.0))
        return cls(TraceQuantiles(size_class, ln_s), size_class, normal_scores(size_class, ln_s), burst)

    def rows(self, kept: slice | Ints) -> Informed:
        """Return the jobs selected by `kept`. Their quantiles and scores do not change."""
        return Informed(self.quantiles, self.size_class[kept], self.score[kept], self.burst[kept])

    def draw(self, known: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw (J,) predicted run times in whole seconds, and their (J,) spreads of ln(true / predicted).

        Args:
            known: Correlation, 0 to 1, between the noisy observation from which a job is predicted and the
                normal score of its run time. The rank correlation of predictions and run times is about the
                same. At 0, each prediction is the median of the size class.
            rng: Random generator for the errors.
        """
        _, burst = np.unique(self.burst, return_inverse=True)
        looks = np.full(len(burst), known)
        return predict_known(looks, self.quantiles, self.size_class, self.score, burst, rng)


def size_classes(num_gpus: Floats) -> Ints:
    """Return the (J,) size class of each job, after classes with few jobs are merged (`LEAST_CLASS`)."""
    found = np.searchsorted(SIZE_EDGES, num_gpus)
    counts = np.bincount(found, minlength=len(SIZE_EDGES) + 1)
    joined, at = np.zeros(len(counts), np.int64), 0
    for k in range(1, len(counts)):
        at += counts[k] >= LEAST_CLASS and counts[:k].sum() > 0
        joined[k] = at
    return np.asarray(joined[found], np.int64)


def normal_scores(size_class: Ints, values: Floats) -> Floats:
    """Return the (J,) normal score of each value within its size class; equal values have equal scores."""
    z = np.empty(len(values))
    for k in np.unique(size_class):
        mine = size_class == k
        _, which, counts = np.unique(values[mine], return_inverse=True, return_counts=True)
        middle = np.cumsum(counts) - counts / 2.0
        z[mine] = np.interp(middle[which] / len(which), _P, _Z)
    return z
