"""What the jobs of a case are predicted to take: causally, or as well as published predictors do it.

Published predictions come from users and job names, which these traces do not have. A diagnostic says what a
policy is worth where they are there: the good stamps know the true durations through a noisy look
(`rlsched.workload.foresight`), and jobs of one burst share most of its error.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.policy.cases import Case, Workload
from rlsched.workload.characterise.parts import keyed
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.foresight import predict_known
from rlsched.workload.trace import Trace
from rlsched_envs.engine import Predictions, predict_trace, run_time_s

GOOD_CORRELATION: Final = 0.7
"""Correlation of the look with the normal score of the duration: the middle of the rank correlations of 0.6
to 0.8 that predictors with users and job names are published with."""
GOOD_SEED: Final = 0
SIZE_EDGES: Final = (1, 4, 8)
"""Jobs of up to 1, up to 4, up to 8 and more GPUs are size classes of their own."""
LEAST_CLASS: Final = 50
"""A size class with fewer jobs is part of the one below it: it has no quantiles to speak of."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Z: Final = np.linspace(-4.0, 4.0, 161)
_P: Final = np.array([0.5 * (1.0 + math.erf(z / math.sqrt(2.0))) for z in _Z])


class TraceQuantiles:
    """ln(run time) of a trace's own jobs by size class and normal score, linear between 161 scores.

    Args:
        size_class: (J,) size class of each job, 0, 1, ...
        ln_s: (J,) ln of its run time in seconds.
    """

    def __init__(self, size_class: Ints, ln_s: Floats) -> None:
        classes = range(int(size_class.max()) + 1)
        self._curves = np.stack([np.quantile(ln_s[size_class == k], _P) for k in classes])
        self._spread = np.array([ln_s[size_class == k].std() for k in classes])

    def __call__(self, size_class: Ints, z: Floats) -> Floats:
        """ln(seconds), (J,)."""
        out = np.empty(len(z))
        for k, curve in enumerate(self._curves):
            mine = size_class == k
            out[mine] = np.interp(z[mine], _Z, curve)
        return out

    def spread(self, size_class: Ints) -> Floats:
        """Standard deviation of ln(seconds) in the size class, (J,)."""
        return np.asarray(self._spread[size_class], np.float64)


def stamps_of(case: Case, work: Workload) -> Predictions:
    """The stamps of a case, the same for all policies."""
    if case.predictions == "good":
        return good_predictions(work.trace, stretch=work.stretch)
    return predict_trace(work.trace, work.spec, recorded_until_s=work.window.replay_from_s)


def good_predictions(trace: Trace, *, stretch: float = 1.0) -> Predictions:
    """Stamps whose rank correlation with the true run times is about `GOOD_CORRELATION`.

    They are calibrated, and never outside of what the jobs of a size class take. Only the jobs that are given
    are looked at; loads of one part of a trace have the same draws.

    Args:
        trace: J jobs.
        stretch: What submission times were multiplied by: bursts are those of the times before.
    """
    truth_s = np.maximum(run_time_s(trace), 1.0)
    size_class = size_classes(trace.num_gpus)
    ln_s = np.log(truth_s)
    submit_s = np.round(trace.submit_s / stretch, 3)  # as in the trace, whatever the load
    burst = bursts(keyed(trace.vc).code, trace.num_gpus, submit_s)
    predicted_s, spread = predict_known(
        np.full(len(trace), GOOD_CORRELATION),
        TraceQuantiles(size_class, ln_s),
        size_class,
        normal_scores(size_class, ln_s),
        burst,
        np.random.default_rng(GOOD_SEED),
    )
    return Predictions(np.fmin(predicted_s, trace.time_limit_s), spread)


def size_classes(num_gpus: Floats) -> Ints:
    """(J,) size class of each job; a class of few jobs is joined to the one below it, if there is one."""
    found = np.searchsorted(SIZE_EDGES, num_gpus)
    counts = np.bincount(found, minlength=len(SIZE_EDGES) + 1)
    joined, at = np.zeros(len(counts), np.int64), 0
    for k in range(1, len(counts)):
        at += counts[k] >= LEAST_CLASS and counts[:k].sum() > 0
        joined[k] = at
    return np.asarray(joined[found], np.int64)


def normal_scores(size_class: Ints, values: Floats) -> Floats:
    """(J,) normal score of each value within its size class; equal values share one."""
    z = np.empty(len(values))
    for k in np.unique(size_class):
        mine = size_class == k
        _, which, counts = np.unique(values[mine], return_inverse=True, return_counts=True)
        middle = np.cumsum(counts) - counts / 2.0
        z[mine] = np.interp(middle[which] / len(which), _P, _Z)
    return z
