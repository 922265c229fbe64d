"""The Gittins index of a job, compiled: the least expected service (GPU time) per completion.

A job has run for `a` seconds, and its run time X is lognormal around its prediction. If it may run for at
most d seconds more, it uses an expected service, and ends with some probability. The index is the minimum of
their ratio:

    cost(a) = min over d of E[min(X - a, d) | X > a] / P(X - a <= d | X > a)

Serving the job of least cost first minimises the mean JCT on a single machine with free preemption (Gittins
1979; Aalto, Ayesta and Righter, Queueing Systems 2009). A gang's service is its time multiplied by a power of
its GPU count, as in the 2D-Gittins index of Tiresias (Gu et al., NSDI'19). For a job that must not be
preempted, d is infinite, so that the cost before its start is the mean run time.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.dials.counting import partition_of

LEAST_SPREAD: Final = 0.1
SPREAD_STEP: Final = 0.1
_SPREADS: Final = 45
LEAST_LOG_AGE: Final = -12.0
LOG_AGE_STEP: Final = 0.1875
_AGES: Final = 129
_FAR: Final = 4.0
"""Age, in standard deviations of ln(run time) above the median, beyond which cost is proportional to age."""


class Gittins(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the index.

    Attributes:
        spread: Standard deviation of ln(run time / prediction) that is assumed for all jobs. The index uses
            sqrt(`spread`^2 + (`trust` x spread of the prediction)^2).
        trust: Factor of the standard deviation that comes with each prediction.
        of_mean: Whether a prediction is the mean of its lognormal instead of the median. If so, ln(median) is
            ln(prediction) - (`trust` x spread of the prediction)^2 / 2.
        gpus_power: Exponent p: the service of a gang is its time multiplied by (number of GPUs)^p.
        margin: A waiting job can preempt a running job if the running job's ln(cost) exceeds the waiting
            job's by more than this. The cost is defined at the top of this module.
        age_step: Ratio of successive age steps. Ages are rounded down to steps, so that an index changes
            rarely.
        first_age_s: First age step, seconds.
        tick_s: Indices that change with time are updated at multiples of this time, seconds.
        threshold_gpu_s: Attained service, GPU-seconds. If finite, the index is 1 for jobs above this value,
            else 0: the two queues of Tiresias. Predictions then have no effect.
    """

    spread: float = 1.5
    trust: float = 0.0
    of_mean: bool = False
    gpus_power: float = 0.7
    margin: float = 0.5
    age_step: float = 2.0
    first_age_s: float = 60.0
    tick_s: float = 60.0
    threshold_gpu_s: float = math.inf

    @property
    def table(self) -> NDArray[np.float64]:
        """The table of `gittins_table`; only the rows that this index reads are filled."""
        if self.trust != 0.0:
            return gittins_table()
        row = min(max(int((self.spread - LEAST_SPREAD) / SPREAD_STEP), 0), _SPREADS - 2)
        return gittins_table(max(row - 1, 0), min(row + 3, _SPREADS))


@lru_cache(maxsize=4)
def gittins_table(first: int = 0, end: int = _SPREADS) -> NDArray[np.float64]:
    """Return a (_SPREADS, _AGES) table of ln(cost / median) of lognormal run times.

    Rows are spreads, columns ln(age / median). Rows before `first`, and from `end` on, are nan.
    """
    log_ages = LEAST_LOG_AGE + LOG_AGE_STEP * np.arange(_AGES)
    given = np.exp(np.linspace(-10.0, 14.0, 97))
    table = np.full((_SPREADS, _AGES), np.nan)
    for k in range(first, end):
        spread = LEAST_SPREAD + SPREAD_STEP * k
        age = np.exp(np.minimum(log_ages, _FAR * spread))[:, None]
        until = age + given[None, :]
        alive, alive_then = _survival(age, spread), _survival(until, spread)
        used = until * alive_then - age * alive + _mean_below(until, spread) - _mean_below(age, spread)
        ends = alive - alive_then
        cost = np.where(ends > 1e-13, used / np.maximum(ends, 1e-13), np.inf).min(axis=1)
        table[k] = np.log(cost) + np.maximum(log_ages - _FAR * spread, 0.0)
    table.flags.writeable = False
    return table


_erfc: Final = np.vectorize(math.erfc, otypes=[np.float64])


def _survival(t: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Return P(X > t) of a lognormal X with median 1."""
    return np.asarray(0.5 * _erfc(np.log(t) / spread / math.sqrt(2.0)))


def _mean_below(t: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Return the partial expectation E[X; X <= t] of a lognormal X with median 1."""
    above = 0.5 * _erfc((np.log(t) / spread - spread) / math.sqrt(2.0))
    return np.asarray(math.exp(spread**2 / 2.0) * (1.0 - above))


@kernel
def log_cost(table: NDArray[np.float64], spread: float, log_age: float) -> float:
    """Return ln(cost / median), interpolated linearly in the table.

    Beyond an edge of the table, returns the value at the edge.
    """
    x = min(max((spread - LEAST_SPREAD) / SPREAD_STEP, 0.0), table.shape[0] - 1.001)
    y = min(max((log_age - LEAST_LOG_AGE) / LOG_AGE_STEP, 0.0), table.shape[1] - 1.001)
    i, j = int(x), int(y)
    x, y = x - i, y - j
    low = table[i, j] * (1.0 - y) + table[i, j + 1] * y
    high = table[i + 1, j] * (1.0 - y) + table[i + 1, j + 1] * y
    return low * (1.0 - x) + high * x


@kernel
def attained_gpu_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the GPU-seconds that a live job has used until now, in all attempts."""
    job, attained = s.job, s.job.attained_gpu_s[slot]
    if job.placed_in[slot] >= 0:
        attained += (now_s - job.start_s[slot]) * job.gpus[slot] * job.share_milli[slot] / 1000.0
    return attained


@kernel
def age_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the seconds that a live job has run until now.

    Time on a part of a GPU is multiplied by this part.
    """
    return attained_gpu_s(s, slot, now_s) / max(s.job.gpus[slot], 1)


@kernel
def _is_young(first_age_s: float, age: float) -> bool:
    """Return whether an age is below the first age step; tolerates rounding errors, as `_steps` does."""
    return age < first_age_s * (1.0 - 1e-9)


@kernel
def _steps(first_age_s: float, age_step: float, age: float) -> float:
    """Return the index of the last age step that an age has reached, from 0; tolerates rounding errors."""
    return np.floor(math.log(age / first_age_s) / math.log(age_step) + 1e-9)


@kernel
def _age_at(first_age_s: float, age_step: float, steps: float) -> float:
    return first_age_s * math.exp(steps * math.log(age_step))


@kernel
def next_step_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the time at which the age of a running job next changes the job's index; infinite: never."""
    job, c = s.job, s.order.code[0]
    if c.threshold_gpu_s < math.inf:
        left_gpu_s = c.threshold_gpu_s - attained_gpu_s(s, slot, now_s)
        rate = job.gpus[slot] * job.share_milli[slot] / 1000.0
        return now_s + left_gpu_s / rate if left_gpu_s >= 0.0 and rate > 0.0 else math.inf
    age, first_s, factor = age_s(s, slot, now_s), c.first_age_s, c.age_step
    if _is_young(first_s, age):
        then = first_s
    else:
        then = _age_at(first_s, factor, _steps(first_s, factor, age) + 1.0)
    return now_s + max(then - age, 0.0) * 1000.0 / job.share_milli[slot]


@kernel
def job_index(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the Gittins index of a live job; jobs with the least index come first.

    The index is ln(cost). With a finite `threshold_gpu_s`, the index is instead 1 for attained service above
    this threshold, else 0.
    """
    job, c, table = s.job, s.order.code[0], s.order.cost
    if c.threshold_gpu_s < math.inf:
        return 1.0 if attained_gpu_s(s, slot, now_s) > c.threshold_gpu_s else 0.0
    gpus = max(job.gpus[slot], 1)
    spread = math.sqrt((c.trust * job.spread[slot]) ** 2 + c.spread**2)
    median = math.log(max(job.predicted_s[slot], 1.0))
    if c.of_mean:
        median -= 0.5 * (c.trust * job.spread[slot]) ** 2
    size = c.index_gpus_power * math.log(gpus)
    if job.pinned[slot] and job.placed_in[slot] < 0:
        return median + 0.5 * spread * spread + size + s.dials.dial[partition_of(s, slot)].must_stay
    age, first_s, factor = age_s(s, slot, now_s), c.first_age_s, c.age_step
    if _is_young(first_s, age):
        return median + log_cost(table, spread, LEAST_LOG_AGE) + size
    reached_s = _age_at(first_s, factor, _steps(first_s, factor, age))
    return median + log_cost(table, spread, math.log(reached_s) - median) + size
