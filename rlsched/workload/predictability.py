"""Predictions of synthetic run times with a chosen accuracy. Errors are correlated within a burst of jobs.

The jobs of a size class are ranked by duration. The standard normal quantile of a job's rank is its normal
score. A prediction is the median of the duration, given a noisy observation of this score. Predictions are
therefore calibrated: the predicted spread equals the standard deviation of ln(true / predicted).
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError

Level = Literal["none", "causal", "informative"]
Predictability = Level | float
LEVELS: tuple[Level, ...] = ("none", "causal", "informative")

CAUSAL_CORRELATION = 0.4
"""Correlation between a job's normal score and the noisy observation of it, for the level `causal`.

On real traces, causal predictions reach Spearman correlations of 0.1 to 0.6.
"""
INFORMATIVE_MIX: tuple[tuple[float, float], ...] = ((0.2, 0.40), (0.6, 0.35), (1.4, 0.25))
"""Pairs (standard deviation of ln(true / predicted), fraction of the bursts) for the level `informative`.

They give a Spearman correlation of about 0.9.
"""
BURST_SHARE = 0.7
"""Fraction of the variance of the noise in the observed normal scores that is common to all jobs of a
burst."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Quantiles(Protocol):
    """Quantile function of ln(duration): takes the size class and the standard normal score of each job."""

    def __call__(self, size_class: Ints, z: Floats) -> Floats:
        """Return (J,) ln(duration in seconds) for (J,) size classes and (J,) normal scores."""

    def spread(self, size_class: Ints) -> Floats:
        """Return the (J,) standard deviation of ln(duration) in each job's size class."""


def parse_predictability(text: str) -> Predictability:
    """Parse a named level, or a number: the standard deviation of ln(true / predicted).

    Raises:
        InputError: The text is neither a named level nor such a number.
    """
    for level in LEVELS:
        if text == level:
            return level
    try:
        sigma = float(text)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma < np.inf:
        raise InputError(
            f"expected a predictability of {', '.join(LEVELS)} or a number, 0 or more "
            f"(the sd of ln(true / predicted)), got {text!r}"
        )
    return sigma


def predict(
    level: Predictability,
    quantiles: Quantiles,
    size_class: Ints,
    z: Floats,
    burst: Ints,
    rng: np.random.Generator,
) -> tuple[Floats, Floats] | None:
    """Return (J,) predicted durations (whole seconds) and their (J,) spreads; None if `level` is `none`.

    Args:
        level: A named level, or a standard deviation of ln(true / predicted).
        quantiles: Quantile function of the durations.
        size_class: (J,) size class of each job.
        z: (J,) normal score of each job's duration.
        burst: (J,) index of each job's burst, 0, 1, ...
        rng: Random generator for the errors.
    """
    if level == "none":
        return None
    parse_predictability(str(level))
    known = _correlation(level, quantiles.spread(size_class), burst, rng)
    return predict_known(known, quantiles, size_class, z, burst, rng)


def predict_known(
    known: Floats,
    quantiles: Quantiles,
    size_class: Ints,
    z: Floats,
    burst: Ints,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return predictions as `predict` does, but with given correlations in place of a level of accuracy.

    `known`: (J,) correlation, 0 to 1, between each job's normal score and the noisy observation of it.
    """
    bursts = int(burst.max()) + 1
    noise = np.sqrt(BURST_SHARE) * rng.standard_normal(bursts)[burst] + np.sqrt(
        1.0 - BURST_SHARE
    ) * rng.standard_normal(len(z))
    left = np.sqrt(1.0 - known**2)
    look = known**2 * z + known * left * noise
    ln_predicted = quantiles(size_class, look)
    around = [quantiles(size_class, look + left * node) - ln_predicted for node in _NODES]
    variance = np.einsum("k,kj->j", _WEIGHTS / _WEIGHTS.sum(), np.square(np.stack(around)))
    return np.maximum(1.0, np.rint(np.exp(ln_predicted))), np.sqrt(variance).round(3)


def _correlation(level: Predictability, spread: Floats, burst: Ints, rng: np.random.Generator) -> Floats:
    """Return the (J,) correlations of normal score and noisy observation that give the accuracy `level`."""
    if level == "causal":
        return np.full(len(spread), CAUSAL_CORRELATION)
    if isinstance(level, str):
        sigmas, shares = zip(*INFORMATIVE_MIX, strict=True)
        sigma = rng.choice(np.array(sigmas), size=int(burst.max()) + 1, p=shares)[burst]
    else:
        sigma = np.full(len(spread), float(level))
    return np.sqrt(np.clip(1.0 - (sigma / spread) ** 2, 0.0, 1.0))
