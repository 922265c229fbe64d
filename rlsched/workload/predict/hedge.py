"""The hedge: a mixture of predictors, each weighted by its recent accuracy.

The loss of a predictor is its logarithmic score. A job that outlives a threshold (`THRESHOLDS_S`) adds -ln
P(job outlives this threshold | job outlived the previous threshold). A job that ends adds -ln P(job ends in
its bin | job outlived the last threshold). Running jobs therefore add losses too. Otherwise short jobs, which
end first, would dominate.

A weight is exponential in the discounted loss, and has a minimum, as in the algorithm of Herbster and
Warmuth, 1998 (fixed share). The loss of the mixture stays close to the loss of the recently best predictor.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlsched.workload.predict.compiled import hedged, weigh
from rlsched.workload.predict.distribution import SAID, THRESHOLDS_S, Floats, bin_of, clip

MEMORY: Final = 600.0
"""After this number of later losses, a loss counts 1/e of its value."""
RATE: Final = 0.25
"""Weights are exp(-RATE x discounted loss in nats)."""
FLOOR: Final = 0.01
"""Minimum weight of a predictor."""
SIZES: Final = {"1": 1.0, "2-7": 2.0, "8+": 8.0}
"""Size classes with separate weights: name (the range of GPU counts) -> one GPU count in this range."""
_LEAST: Final = 1e-4
_SPARE: Final = 64
_CLASSES: Final = (1.0, 7.0)


@dataclass
class _Tracked:
    said: Floats  # (E, BINS)
    tails: Floats  # (E, thresholds)
    group: int
    start_s: float = math.nan
    passed: int = 0


class Hedge:
    """Weights of E predictors, separate for jobs of at most 1 GPU, of 2 to 7 GPUs, and of 8 or more GPUs.

    The hedge *tracks* a job from `mix` until its end: it keeps the job's distributions and adds losses.

    Args:
        experts: Number of predictors.
    """

    def __init__(self, experts: int) -> None:
        self._loss = np.zeros((len(_CLASSES) + 1, experts))
        self._tracked: dict[str, _Tracked] = {}
        self._due: list[tuple[float, str]] = []

    def weights(self, gpus: float) -> Floats:
        """Return the (E,) weights of the predictors for a job with `gpus` GPUs; their sum is 1."""
        out = np.empty(self._loss.shape[1])
        weigh(self._loss[_group(gpus)], RATE, FLOOR, out)
        return out

    @property
    def losses(self) -> Floats:
        """(SIZES, E) current discounted loss of each predictor for each size of jobs, nats."""
        return self._loss.copy()

    def restore_losses(self, losses: Floats) -> None:
        """Replace the (SIZES, E) losses by values that the property `losses` had in an earlier process."""
        self._loss[:] = losses

    def mix(self, job_id: str, gpus: float, said: Floats) -> Floats:
        """Return the (BINS,) mixture of a job's (E, BINS) distributions `said`.

        The job is tracked from now on.
        """
        group = _group(gpus)
        said, read, mixed = said.astype(np.float64), np.empty((len(said), SAID)), np.empty(said.shape[1])
        hedged(self._loss[group], RATE, FLOOR, _LEAST, said, read, mixed)
        self._tracked[job_id] = _Tracked(said, read[:, 1:], group)
        return mixed

    def start(self, job_id: str, now_s: float) -> None:
        """Record that a tracked job starts, for the first time or again.

        After a restart, a threshold that the job outlived in an earlier attempt adds no second loss.
        """
        job = self._tracked.get(job_id)
        if job is not None:
            job.start_s = now_s
            if job.passed < len(THRESHOLDS_S):
                heapq.heappush(self._due, (now_s + THRESHOLDS_S[job.passed], job_id))

    def stop(self, job_id: str) -> None:
        """Record that a tracked job was stopped, and now waits to start again."""
        job = self._tracked.get(job_id)
        if job is not None:
            job.start_s = math.nan

    def end(self, job_id: str, duration_s: float) -> None:
        """Record that a tracked job has ended."""
        job = self._forget(job_id)
        if job is not None:
            self._learn(job, job.said[:, bin_of(duration_s)] / self._so_far(job))

    def forget(self, job_id: str) -> None:
        """Stop tracking a job without counting a loss."""
        self._forget(job_id)

    def _forget(self, job_id: str) -> _Tracked | None:
        """Stop tracking a job. If the heap `_due` is too long, remove its entries for untracked jobs."""
        job = self._tracked.pop(job_id, None)
        if len(self._due) > 2 * len(self._tracked) + _SPARE:
            self._due = [due for due in self._due if due[1] in self._tracked]
            heapq.heapify(self._due)
        return job

    def count_outlived(self, now_s: float) -> None:
        """Add the losses for the thresholds that running jobs have outlived by `now_s`."""
        while self._due and self._due[0][0] <= now_s:
            due_s, job_id = heapq.heappop(self._due)
            job = self._tracked.get(job_id)
            if job is None or due_s != job.start_s + THRESHOLDS_S[job.passed]:
                continue
            self._learn(job, job.tails[:, job.passed] / self._so_far(job))
            job.passed += 1
            if job.passed < len(THRESHOLDS_S):
                heapq.heappush(self._due, (job.start_s + THRESHOLDS_S[job.passed], job_id))

    def _so_far(self, job: _Tracked) -> Floats:
        return job.tails[:, job.passed - 1] if job.passed else np.ones(len(job.tails))

    def _learn(self, job: _Tracked, likelihood: Floats) -> None:
        loss = self._loss[job.group]
        loss *= 1.0 - 1.0 / MEMORY
        loss -= np.log(clip(likelihood, _LEAST, 1.0))


def _group(gpus: float) -> int:
    return bisect_left(_CLASSES, gpus)
