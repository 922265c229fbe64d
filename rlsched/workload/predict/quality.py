"""Accuracy of predictions compared with the true run times: ranks, areas under the curve, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.describe import spearman
from rlsched.workload.predict.distribution import (
    THRESHOLDS_S,
    Floats,
    mean_ln,
    mean_s,
    p_longer,
    quantile_s,
    shortfall,
)

LARGE_GPUS = 8
"""Jobs with this number of GPUs or more are also reported separately."""
INTERVAL = (0.1, 0.9)
MIN_JOBS = 20
"""Minimum number of jobs for which a statistic is computed."""


def area_under_curve(longer: NDArray[np.bool_], score: Floats) -> float | None:
    """Return the probability that a long job has a higher score than a short job; ties count half.

    `longer` is true for long jobs. None: all jobs are long, or all are short.
    """
    long, short = int(longer.sum()), int((~longer).sum())
    if not long or not short:
        return None
    _, index, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[index]
    return float((rank[longer].sum() - long * (long + 1) / 2.0) / (long * short))


def quality(probabilities: Floats, duration_s: Floats, gpus: Floats) -> dict[str, Any]:
    """Report the accuracy of (J, BINS) predicted distributions, compared with the (J,) true durations.

    Returns:
        `jobs`: number of jobs.
        `spearman_mean`: rank correlation of the true durations with the predicted means.
        `spearman_ln`: rank correlation of the true durations with the predicted means of ln(duration).
        `large_...`: the same values for jobs of `LARGE_GPUS` or more GPUs.
        Correlations are None for fewer than `MIN_JOBS` jobs.
        `longer`: a row per threshold of `THRESHOLDS_S`: fraction of the jobs that reached the threshold, mean
        of their predicted probability, area under the curve, and Brier score (mean squared error of the
        probability; Brier, 1950).
        `covered_frac`: fraction of the jobs with a duration between the predicted 10 % and 90 % quantiles.
        `median_abs_ln`: median of |ln(true / predicted median)|.
        `longer_than_median_frac`: fraction of the jobs that ran longer than the predicted median; 0.5 if
        calibrated.
        `ks`: Kolmogorov-Smirnov distance of `shortfall` from the uniform distribution; 0 if calibrated.
    """
    large = gpus >= LARGE_GPUS
    mean, middle, longer = mean_s(probabilities), mean_ln(probabilities), p_longer(probabilities)
    low, high = (quantile_s(probabilities, at) for at in INTERVAL)
    median = quantile_s(probabilities, 0.5)
    below = np.sort(shortfall(probabilities, duration_s))
    grid = np.arange(1, len(below) + 1) / len(below)
    return {
        "jobs": len(duration_s),
        "spearman_mean": _rank(mean, duration_s),
        "spearman_ln": _rank(middle, duration_s),
        "large_jobs": int(large.sum()),
        "large_spearman_mean": _rank(mean[large], duration_s[large]),
        "large_spearman_ln": _rank(middle[large], duration_s[large]),
        "longer": [
            {
                "than_s": than_s,
                "true_frac": float((duration_s >= than_s).mean()),
                "predicted_frac": float(longer[:, k].mean()),
                "auc": area_under_curve(duration_s >= than_s, longer[:, k]),
                "brier": float(np.mean((longer[:, k] - (duration_s >= than_s)) ** 2)),
            }
            for k, than_s in enumerate(THRESHOLDS_S)
        ],
        "covered_frac": float(((duration_s >= low) & (duration_s <= high)).mean()),
        "median_abs_ln": float(np.median(np.abs(np.log(np.maximum(duration_s, 1.0) / median)))),
        "longer_than_median_frac": float((duration_s > median).mean()),
        "ks": float(np.max(np.maximum(grid - below, below - grid + 1.0 / len(below)))),
    }


def _rank(predicted: Floats, true: Floats) -> float | None:
    return spearman(predicted, true) if len(true) >= MIN_JOBS else None
