"""Compares two policies on the same jobs, with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.objective import LATE_S
from rlsched.workload.trace import slack_s
from rlsched_agents.evaluate.metrics import has_ended, jct_s, queue_s

if TYPE_CHECKING:
    from rlsched_envs.sim.job_table import JobTable
    from rlsched_envs.sim.modelling import Energy

Floats = NDArray[np.float64]

CONFIDENCE_FRAC: Final = 0.95
DRAWS: Final = 2000
DAY_S: Final = 86400.0
MIN_BLOCKS: Final = 10
"""Minimum number of blocks (days) for a bootstrap interval. With fewer, the interval would be too narrow."""


class Ratio(msgspec.Struct, frozen=True):
    """A ratio of a policy to the baseline, with its 95 % bootstrap interval. Below 1 is better.

    Attributes:
        ratio: Value under the policy / value under the baseline.
        low: Lower bound of the interval; None: there is no interval, because there are fewer than ten blocks.
        high: Upper bound of the interval; None if `low` is None.
    """

    ratio: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Format as `0.812 [0.75, 0.88]`, or as `0.812` without an interval."""
        if self.low is None or self.high is None:
            return f"{self.ratio:.3f}"
        return f"{self.ratio:.3f} [{self.low:.2f}, {self.high:.2f}]"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One policy relative to the baseline, for the jobs that ended under both policies.

    Attributes:
        jobs: Number of jobs compared.
        jct_mean_ratio: Mean JCT / mean JCT under the baseline; None if the baseline's is zero.
        queue_mean_ratio: Mean queueing delay / mean queueing delay under the baseline; None if the
            baseline's is zero.
        wins_frac: Fraction of jobs that waited less than under the baseline.
        losses_frac: Fraction of jobs that waited longer than under the baseline.
        blocks: Number of days with submissions, from which the bootstrap draws; None in older reports.
        energy_ratio: Energy of these jobs / their energy under the baseline; None without models.
        cost_ratio: Cost of their electricity / its cost under the baseline; None without models or a price.
        carbon_ratio: Carbon of their electricity / its carbon under the baseline; None without models or a
            carbon intensity.
        waiting_blocks: Number of days with submissions of jobs that waited under either policy. If it is
            small, the interval of the queueing delay is meaningless. None in older reports.
        late_frac: Fraction of the jobs with slack (a delay that the user accepts) that ended more than slack
            + `LATE_S` later than under the baseline. None if no job has slack.
        urgent_jct_ratio: `jct_mean_ratio` of the jobs without slack; None if no job has slack.
    """

    jobs: int
    jct_mean_ratio: Ratio | None
    queue_mean_ratio: Ratio | None
    wins_frac: float
    losses_frac: float
    blocks: int | None = None
    energy_ratio: Ratio | None = None
    cost_ratio: Ratio | None = None
    carbon_ratio: Ratio | None = None
    waiting_blocks: int | None = None
    late_frac: float | None = None
    urgent_jct_ratio: Ratio | None = None


def ratio_of_sums(ours: Floats, theirs: Floats, *, draws: int = DRAWS, seed: int = 0) -> Ratio | None:
    """Return the total of `ours` / the total of `theirs`, with an interval; None if `theirs` totals 0.

    Both arguments are (B,) sums over the jobs of each block, usually a day of submissions. The bootstrap
    draws the same blocks for both. With fewer than ten blocks there is no interval.
    """
    if not len(ours) or theirs.sum() <= 0:
        return None
    times_drawn = draws_of_days(len(ours), draws=draws, seed=seed)
    below = times_drawn @ theirs
    drawn = (times_drawn @ ours)[below > 0] / below[below > 0]
    return Ratio(float(ours.sum() / theirs.sum()), *bounds_of(drawn))


def draws_of_days(blocks: int, *, draws: int = DRAWS, seed: int = 0) -> NDArray[np.int64]:
    """Draw blocks (days) for a bootstrap. Return a (draws, B) array: how often each draw has each block.

    With fewer than ten blocks there are no draws: the shape is (0, B).
    """
    if blocks < MIN_BLOCKS:
        return np.zeros((0, blocks), np.int64)
    return np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)


def bounds_of(drawn: Floats) -> tuple[float, float] | tuple[None, None]:
    """Return the bounds of the 95 % interval of the values in D draws; None if there are no draws."""
    if not drawn.size:
        return None, None
    tail = (1 - CONFIDENCE_FRAC) / 2 * 100
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(low), float(high)


def geometric_mean(ratios: Floats, *, draws: int = DRAWS, seed: int = 0) -> Ratio | None:
    """Return the geometric mean of N ratios, one for each independent sequence of jobs; None if N = 0.

    The interval is from a bootstrap over the sequences. With fewer than ten sequences there is no interval.
    """
    if not len(ratios):
        return None
    logs = np.log(ratios)
    if len(logs) < MIN_BLOCKS:
        return Ratio(float(np.exp(logs.mean())), None, None)
    chosen = np.random.default_rng(seed).integers(0, len(logs), size=(draws, len(logs)))
    tail = (1 - CONFIDENCE_FRAC) / 2 * 100
    low, high = np.exp(np.percentile(logs[chosen].mean(axis=1), [tail, 100 - tail]))
    return Ratio(float(np.exp(logs.mean())), float(low), float(high))


def compare(
    ours: Sequence[JobTable], baseline: Sequence[JobTable], measured: NDArray[np.bool_]
) -> Comparison:
    """Compare a policy with the baseline, by replays of the same jobs on the same cluster, one per seed.

    Jobs in the same queue are not independent, so the bootstrap draws whole days of submissions (blocks).
    With fewer than ten days there is no interval. The interval is valid only for this workload, and too
    narrow if a queue lasts longer than a day.
    """
    both = ended_in_all([*ours, *baseline], measured)
    block = days(ours[0].trace.submit_s[both])
    jct, base_jct, queue, base_queue = (
        np.array([measure(table)[both] for table in tables])
        for measure in (jct_s, queue_s)
        for tables in (ours, baseline)
    )
    jobs = int(np.count_nonzero(both))
    waited = _sums(block, queue), _sums(block, base_queue)

    def of_energy(measure: Callable[[Energy], Floats | None]) -> Ratio | None:
        """Return the policy's total / the baseline's total of a quantity; None if a replay does not have it.

        `measure`: returns the quantity of each job of a replay, for example its energy.
        """
        drawn = [
            [None if one.energy is None else measure(one.energy) for one in side] for side in (ours, baseline)
        ]
        if any(of_jobs is None for side in drawn for of_jobs in side):
            return None
        return ratio_of_sums(*(_sums(block, np.array(side)[:, both]) for side in drawn))

    return Comparison(
        jobs=jobs,
        jct_mean_ratio=ratio_of_sums(_sums(block, jct), _sums(block, base_jct)),
        queue_mean_ratio=ratio_of_sums(*waited),
        wins_frac=float(np.mean(queue < base_queue)) if jobs else 0.0,
        losses_frac=float(np.mean(queue > base_queue)) if jobs else 0.0,
        blocks=int(block[-1]) + 1 if jobs else 0,
        energy_ratio=of_energy(lambda energy: energy.job_j),
        cost_ratio=of_energy(lambda energy: None if energy.cost is None else energy.cost.jobs),
        carbon_ratio=of_energy(lambda energy: None if energy.carbon is None else energy.carbon.jobs),
        waiting_blocks=int(np.count_nonzero(np.add(*waited))),
        **_of_slack(slack_s(ours[0].trace)[both], block, jct, base_jct),
    )


def _of_slack(slack: Floats, block: NDArray[np.int64], jct: Floats, base_jct: Floats) -> dict[str, Any]:
    """Return the fields of `Comparison` about slack; empty if no job has slack.

    Args:
        slack: (J,) slack of each job, seconds.
        block: (J,) block (index of the day of submission) of each job.
        jct: (seeds, J) JCT under the policy, seconds.
        base_jct: (seeds, J) JCT under the baseline, seconds.
    """
    urgent = slack <= 0.0
    if urgent.all():
        return {}
    return {
        "late_frac": float(np.mean((jct - base_jct > slack + LATE_S)[:, ~urgent])),
        "urgent_jct_ratio": ratio_of_sums(*(_sums(block, side * urgent) for side in (jct, base_jct))),
    }


def mean_ratio(
    ours: Sequence[JobTable],
    baseline: Sequence[JobTable],
    measured: NDArray[np.bool_],
    measure: Callable[[JobTable], Floats],
) -> Ratio | None:
    """Return the mean of a measure under the policy / its mean under the baseline, with an interval.

    Both means cover the jobs that ended in all replays. The interval is as in `compare`.

    `measure`: function that returns the measured values of the J jobs of a replay, such as their JCT.
    """
    both = ended_in_all([*ours, *baseline], measured)
    block = days(ours[0].trace.submit_s[both])
    sums = [_sums(block, np.array([measure(table)[both] for table in side])) for side in (ours, baseline)]
    return ratio_of_sums(*sums)


def ended_in_all(tables: Sequence[JobTable], measured: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the (J,) mask of the measured jobs that ended in all of these replays."""
    both = measured.copy()
    for table in tables:
        both &= has_ended(table)
    return both


def days(submit_s: Floats) -> NDArray[np.int64]:
    """Return the (J,) index of each job's day, from the first submission; only days with jobs count."""
    if not len(submit_s):
        return np.zeros(0, dtype=np.int64)
    _, numbers = np.unique(np.floor((submit_s - submit_s[0]) / DAY_S), return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def _sums(block: NDArray[np.int64], values: Floats) -> Floats:
    """Return the (B,) sums of `values` over the jobs of each block (day of submission) and over all seeds.

    `block`: (J,) block of each job. `values`: (seeds, J).
    """
    return np.asarray(np.bincount(block, weights=values.sum(axis=0)), dtype=np.float64)
