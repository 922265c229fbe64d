"""How one policy compares with another on the same jobs, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched_agents.evaluate.metrics import ended, jct_s, queue_s

if TYPE_CHECKING:
    from rlsched_envs.sim.job_table import JobTable

Floats = NDArray[np.float64]

CONFIDENCE_FRAC: Final = 0.95
DRAWS: Final = 2000
DAY_S: Final = 86400.0
MIN_BLOCKS: Final = 10
"""A bootstrap over fewer makes too narrow an interval: there is none then."""


class Ratio(msgspec.Struct, frozen=True):
    """A ratio with its 95 % bootstrap interval; below 1 is better than the baseline.

    Attributes:
        ratio: Ours / the baseline's.
        low: Lower end of the interval; None: fewer than ten blocks to draw from.
        high: Upper end; None with `low`.
    """

    ratio: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """`0.812 [0.75, 0.88]`, and `0.812` where there is no interval."""
        if self.low is None or self.high is None:
            return f"{self.ratio:.3f}"
        return f"{self.ratio:.3f} [{self.low:.2f}, {self.high:.2f}]"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One policy against the baseline, over the jobs that ended under both.

    Attributes:
        jobs: Jobs compared.
        jct_mean_ratio: Mean JCT / the baseline's; None where the baseline's is zero.
        queue_mean_ratio: Mean queueing delay / the baseline's; None where the baseline's is zero.
        wins_frac: Share of jobs that waited less than under the baseline.
        losses_frac: Share of jobs that waited longer.
        blocks: Days with submissions, which the intervals are drawn from; None in older reports.
        energy_ratio: Energy of these jobs / under the baseline; None without models.
        waiting_blocks: Of these days, those whose jobs waited under either: an interval of queueing delay
            says nothing where they are few. None in older reports.
    """

    jobs: int
    jct_mean_ratio: Ratio | None
    queue_mean_ratio: Ratio | None
    wins_frac: float
    losses_frac: float
    blocks: int | None = None
    energy_ratio: Ratio | None = None
    waiting_blocks: int | None = None


def ratio_of_sums(ours: Floats, theirs: Floats, *, draws: int = DRAWS, seed: int = 0) -> Ratio | None:
    """Bootstrap over blocks: (B,) sums a block, ratio of the totals; None where the baseline's total is 0.

    Whole blocks are drawn with replacement, the same for both sides. No interval for fewer than ten.
    """
    if not len(ours) or theirs.sum() <= 0:
        return None
    blocks, ratio = len(ours), float(ours.sum() / theirs.sum())
    if blocks < MIN_BLOCKS:
        return Ratio(ratio, None, None)
    times_drawn = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)
    below = times_drawn @ theirs
    drawn = (times_drawn @ ours)[below > 0] / below[below > 0]
    tail = (1 - CONFIDENCE_FRAC) / 2 * 100
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Ratio(ratio, float(low), float(high))


def geometric_mean(ratios: Floats, *, draws: int = DRAWS, seed: int = 0) -> Ratio | None:
    """Geometric mean of (N,) ratios of independent sequences, with a bootstrap over the sequences.

    No interval for fewer than ten sequences. None of nothing.
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
    """Compare replays of the same jobs on the same cluster, one a seed on either side.

    Jobs that wait in the same queue are not independent, so the bootstrap draws blocks of time: a day of
    submissions each. There is no interval where the window has fewer than ten: shorter blocks would depend on
    each other all the more. The interval is of this workload; it knows nothing of other months, and is too
    narrow where a queue lasts longer than a day.
    """
    both = ended_in_all([*ours, *baseline], measured)
    block = _days(ours[0].trace.submit_s[both])
    jct, base_jct, queue, base_queue = (
        np.array([measure(table)[both] for table in tables])
        for measure in (jct_s, queue_s)
        for tables in (ours, baseline)
    )
    jobs = int(np.count_nonzero(both))
    waited = _sums(block, queue), _sums(block, base_queue)
    drawn = [[table.energy.job_j[both] for table in side if table.energy] for side in (ours, baseline)]
    return Comparison(
        jobs=jobs,
        jct_mean_ratio=ratio_of_sums(_sums(block, jct), _sums(block, base_jct)),
        queue_mean_ratio=ratio_of_sums(*waited),
        wins_frac=float(np.mean(queue < base_queue)) if jobs else 0.0,
        losses_frac=float(np.mean(queue > base_queue)) if jobs else 0.0,
        blocks=int(block[-1]) + 1 if jobs else 0,
        energy_ratio=ratio_of_sums(*(_sums(block, np.array(side)) for side in drawn)) if all(drawn) else None,
        waiting_blocks=int(np.count_nonzero(np.add(*waited))),
    )


def mean_ratio(
    ours: Sequence[JobTable],
    baseline: Sequence[JobTable],
    measured: NDArray[np.bool_],
    measure: Callable[[JobTable], Floats],
) -> Ratio | None:
    """Mean of any measure of jobs, (J,), over the baseline's, as `compare` has those of JCT and queueing."""
    both = ended_in_all([*ours, *baseline], measured)
    block = _days(ours[0].trace.submit_s[both])
    sums = [_sums(block, np.array([measure(table)[both] for table in side])) for side in (ours, baseline)]
    return ratio_of_sums(*sums)


def ended_in_all(tables: Sequence[JobTable], measured: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(J,) measured jobs that ended in every one of these replays."""
    both = measured.copy()
    for table in tables:
        both &= ended(table)
    return both


def _days(submit_s: Floats) -> NDArray[np.int64]:
    """Block number of each job, (J,): days from the first submission on, numbered without gaps."""
    if not len(submit_s):
        return np.zeros(0, dtype=np.int64)
    _, numbers = np.unique(np.floor((submit_s - submit_s[0]) / DAY_S), return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def _sums(block: NDArray[np.int64], values: Floats) -> Floats:
    """Sums a block over all seeds; `values` is (seeds, jobs)."""
    return np.asarray(np.bincount(block, weights=values.sum(axis=0)), dtype=np.float64)
