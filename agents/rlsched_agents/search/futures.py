"""Sampled futures: run times around the predictions, ends of running jobs, arrivals like recent arrivals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import RUNNING
from rlsched.cluster.state import ClusterState
from rlsched_agents.search.arrivals import Arrivals
from rlsched_envs.sim.lookahead import Futures

MAX_SIGMA: Final = 3.0
MIN_SPREAD: Final = 0.1
_STANDARD: Final = NormalDist()


def imagine(
    draws: np.random.Generator,
    samples: int,
    state: ClusterState,
    slots: NDArray[np.int32],
    seen: Arrivals,
    arrivals: int,
    now_s: float,
) -> Futures:
    """Draw run times, ends and arrivals.

    Args:
        draws: Random generator.
        samples: S, number of futures.
        slots: (L,) live jobs in the futures.
        seen: Recent arrivals to draw from.
        arrivals: A, number of arrivals; 0 if too few were seen.
    """
    job = state.arrays.job.view(np.ndarray)[slots]
    shape = (samples, arrivals)
    marks = seen.ring[draws.integers(0, max(seen.count, 1), shape)]
    gap_s = seen.mean_gap_s(now_s) if arrivals else 0.0
    submit_s = now_s + np.cumsum(draws.exponential(gap_s, shape), axis=1)
    normal = draws.standard_normal((samples, len(slots)))
    run_s = np.fmin(draw_run_times(normal, job["predicted_s"], job["spread"]), job["limit_s"])
    end_s = np.full((samples, len(slots)), math.nan)
    tails = draws.random((samples, len(slots)))
    for k in np.flatnonzero(job["status"] == RUNNING).tolist():
        ran_s = now_s - float(job["start_s"][k])
        for sample in range(samples):
            left_s = draw_time_left(
                float(tails[sample, k]), ran_s, float(job["predicted_s"][k]), float(job["spread"][k])
            )
            end_s[sample, k] = now_s + left_s
    coming_s = draw_run_times(draws.standard_normal(shape), marks["predicted_s"], marks["spread"])
    return Futures(
        duration_s=np.concatenate([run_s, coming_s], axis=1),
        end_s=end_s,
        submit_s=submit_s,
        demand=np.ascontiguousarray(marks["demand"]),
        predicted_s=np.ascontiguousarray(marks["predicted_s"]),
        spread=np.ascontiguousarray(marks["spread"]),
    )


def some_of(futures: Futures, samples: slice) -> Futures:
    """Return a selection of the samples."""
    return Futures(
        futures.duration_s[samples],
        futures.end_s[samples],
        futures.submit_s[samples],
        futures.demand[samples],
        futures.predicted_s[samples],
        futures.spread[samples],
    )


def draw_run_times(
    normal: NDArray[np.float64], predicted_s: NDArray[np.float64], spread: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return lognormal run times, seconds: ln(run time / predicted) has mean 0 and deviation `spread`."""
    bounded = np.clip(normal, -MAX_SIGMA, MAX_SIGMA)
    return np.maximum(predicted_s, 1.0) * np.exp(np.maximum(spread, MIN_SPREAD) * bounded)


def draw_time_left(tail: float, ran_s: float, predicted_s: float, spread: float) -> float:
    """Return the remaining part of a lognormal run time, given that the run time exceeds `ran_s`, seconds.

    Args:
        tail: Uniform in [0, 1): the share of the tail above the drawn value is 1 - tail.
        ran_s: Elapsed time, seconds.
        predicted_s: Median of the run time, seconds.
        spread: Standard deviation of the logarithm.
    """
    spread, predicted_s = max(spread, MIN_SPREAD), max(predicted_s, 1.0)
    share = 1.0 - tail
    z = math.log(ran_s / predicted_s) / spread if ran_s > 0 else -math.inf
    if z > MAX_SIGMA:  # far out, a normal's tail falls as exp(-z^2 / 2)
        drawn = math.sqrt(z * z - 2.0 * math.log(share))
    else:
        above = 0.5 * math.erfc(z / math.sqrt(2.0)) * share
        drawn = -_STANDARD.inv_cdf(min(max(above, 1e-300), 1.0 - 1e-16))
    return max(predicted_s * math.exp(spread * min(drawn, max(MAX_SIGMA, z + 1.0))) - ran_s, 1.0)
