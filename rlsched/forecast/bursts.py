"""Models the similar run times of a burst's jobs by a common factor.

A burst is a series of jobs that one VC submits in a row with equal requests. The score of a job is the
position of its run time in its predicted distribution, as a normal quantile. The score of job i of a burst is
modelled as sqrt(c) u + sqrt(1 - c) e_i. The factor u is common to the burst, e_i belongs to the job, and both
are standard normal (a Gaussian copula with one factor). c, the fraction of the variance that is common to a
burst, is learned from bursts in which several jobs have ended.

An ended job reveals its score, and a running job reveals a lower bound of its score. Both change the
predictions of the burst's waiting jobs. A running job keeps its own distribution, given its age.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.order.bursts import SIBLING_GAP_S
from rlsched.forecast.lengths import LEAST_SPREAD, Lengths
from rlsched.forecast.record import SIZES, size_classes
from rlsched.forecast.run_time_draws import strata

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

FIRST_SHARE: Final = 0.5
"""Initial value of c, the fraction of the variance that is common to a burst."""
FIRST_PAIRS: Final = 20.0
"""Weight of the initial value `FIRST_SHARE` in the mean that estimates c. In each burst, every ended job
except one has weight 1."""
MOST_SHARE: Final = 0.9
_U: Final = np.linspace(-4.0, 4.0, 81)
_HALF: Final = 0.5 * (_U[1] - _U[0])
MOST_HEARD: Final = 1.0
"""Maximum total weight of a burst's running jobs in the estimate of the burst's common factor u. Their scores
are not independent, so they count together at most as much as one ended job (weight 1)."""
_MOST: Final = 5.0
"""Maximum absolute value of a score."""
_Z: Final = np.linspace(-12.0, 12.0, 4801)
_OVER: Final = np.array([0.5 * math.erfc(z / math.sqrt(2.0)) for z in _Z.tolist()])
_LN_OVER: Final = np.log(_OVER)


def normal_score(share: Floats) -> Floats:
    """Return the standard normal quantile of each probability, limited to the range -5 to 5."""
    return np.clip(np.interp(share, 1.0 - _OVER, _Z), -_MOST, _MOST)


def _ln_over(score: Floats) -> Floats:
    """Return the natural logarithm of the probability that a standard normal value exceeds each score."""
    return np.asarray(np.interp(score, _Z, _LN_OVER))


class Bursts:
    """The bursts that N recent jobs belong to. The module describes scores and c.

    Args:
        vc: (N,) index of each job's VC.
        demand: (N,) demand class of each job.
        submit_s: (N,) submission time of each job.
        gpus: (N,) GPUs of each job.
        score: (N,) score of each job; nan: unknown.

    Attributes:
        shares: Learned value of c for each size class in `SIZES`.
    """

    def __init__(self, vc: Whole, demand: Whole, submit_s: Floats, gpus: Floats, score: Floats) -> None:
        order = np.lexsort((submit_s, demand, vc))
        begins = np.ones(len(order), bool)
        begins[1:] = (np.diff(vc[order]) != 0) | (np.diff(demand[order]) != 0)
        begins[1:] |= np.diff(submit_s[order]) > SIBLING_GAP_S
        self._burst = np.empty(len(order), np.int64)
        self._burst[order] = np.cumsum(begins) - 1
        firsts = order[begins]
        self._luck = submit_s[firsts].view(np.int64) ^ (vc[firsts] << 20) ^ demand[firsts]
        ended = ~np.isnan(score)
        burst, known = self._burst[ended], np.clip(score[ended], -_MOST, _MOST)
        self._ended = np.bincount(burst, minlength=len(firsts)).astype(np.float64)
        self._sum = np.bincount(burst, known, minlength=len(firsts))
        square = np.bincount(burst, known * known, minlength=len(firsts))
        self.shares = self._learned(np.asarray(square, np.float64), gpus[firsts])

    @classmethod
    def of_past(cls, past: NDArray[np.void], gpus: Floats, like: Lengths) -> Bursts:
        """Find the bursts of recent jobs, and compute the jobs' scores.

        Args:
            past: (N,) recent jobs, CAME.
            gpus: (N,) GPUs of the jobs.
            like: Distributions of recent run times, from which the scores are computed.
        """
        run_s, predicted_s, spread = past["run_s"], past["predicted_s"], past["spread"]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            plain = np.log(run_s / predicted_s) / spread
        share = like.shares(gpus, plain)
        score = np.where(np.isnan(share), plain, normal_score(np.nan_to_num(share, nan=0.5)))
        tells = (run_s > 0.0) & (predicted_s > 0.0) & (spread >= LEAST_SPREAD)
        vc, demand = past["vc"].astype(np.int64), past["demand"].astype(np.int64)
        return cls(vc, demand, past["submit_s"], gpus, np.where(tells, score, np.nan))

    def _learned(self, square: Floats, gpus: Floats) -> Floats:
        """Estimate c (see the module) by size class: the intraclass correlation of ended jobs' scores."""
        several = self._ended > 1.0
        ended, total = self._ended[several], self._sum[several]
        size = size_classes(gpus[several])
        alike = np.bincount(size, (total * total - square[several]) / ended, minlength=len(SIZES))
        pairs = np.bincount(size, ended - 1.0, minlength=len(SIZES))
        share = (alike + FIRST_PAIRS * FIRST_SHARE) / (pairs + FIRST_PAIRS)
        return np.asarray(np.clip(share, 0.0, MOST_SHARE))

    def places(self, rows: Whole, seqs: Whole, gpus: Floats, outlived: Floats, samples: int) -> Floats:
        """Draw (L, samples) positions, 0 to 1, in the distributions of the jobs' remaining run times.

        Args:
            rows: (L,) position of each job among the N recent jobs; -1: the job belongs to no burst.
            seqs: (L,) sequence number of each job.
            gpus: (L,) GPUs of each job.
            outlived: (L,) predicted probability that the run time is below the job's age; 0: the job waits.
            samples: Number of futures.
        """
        burst = -1 - np.arange(len(rows), dtype=np.int64)
        burst[rows >= 0] = self._burst[rows[rows >= 0]]
        ids, first, member = np.unique(burst, return_index=True, return_inverse=True)
        known, count = ids >= 0, np.bincount(member)
        alone = (count == 1) & ~known
        alone[known] = (count[known] == 1) & (self._ended[ids[known]] == 0.0)
        share = np.where(alone[member], 0.0, self.shares[size_classes(gpus)])
        luck = ~seqs[first]
        luck[known] = self._luck[ids[known]]
        root, rest = np.sqrt(share)[:, None], np.sqrt(1.0 - share)[:, None]
        runs = outlived > 0.0
        below = self._believed(ids, share[first], member, outlived, root, rest)
        lucks = strata(luck, samples)
        u = np.empty((len(ids), samples))
        for row, at in enumerate(lucks):
            u[row] = np.interp(at, below[row], _U + _HALF)
        common = np.where(runs[:, None], normal_score(lucks)[member], u[member])
        return 1.0 - np.exp(_ln_over(root * common + rest * normal_score(strata(seqs, samples))))

    def _believed(
        self, ids: Whole, share: Floats, member: Whole, outlived: Floats, root: Floats, rest: Floats
    ) -> Floats:
        """Return the distribution of the common factor u of each burst, given its ended and running jobs.

        Element [b, i] is the probability that u of burst b is at most `_U[i]`.
        """
        ended, total = np.zeros((2, len(ids)))
        known = ids >= 0
        ended[known], total[known] = self._ended[ids[known]], self._sum[ids[known]]
        ln_weight = -0.5 * _U[None, :] ** 2 * (1.0 + ended * share / (1.0 - share))[:, None]
        ln_weight += (np.sqrt(share) * total / (1.0 - share))[:, None] * _U[None, :]
        runs = np.flatnonzero(outlived > 0.0)
        count = np.bincount(member[runs], minlength=len(ids))
        heard = np.minimum(1.0, MOST_HEARD / np.maximum(count, 1.0))[member[runs], None]
        left = _ln_over((normal_score(outlived[runs])[:, None] - root[runs] * _U[None, :]) / rest[runs])
        np.add.at(ln_weight, member[runs], heard * left)
        weight = np.exp(ln_weight - ln_weight.max(axis=1, keepdims=True))
        below = np.cumsum(weight, axis=1)
        return np.asarray(below / below[:, -1:])
