"""Nearest bursts: what became of the jobs of the same kind that were submitted in the same way.

People and scripts submit in rhythms: a sweep every few seconds, a probe every ten minutes. The gaps to the
submissions before it say much of what a job is, before anything of its own burst has ended.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final
from zlib import crc32

import numpy as np

from rlsched.workload.predict.distribution import BINS, EDGES_S, Floats, bin_of
from rlsched.workload.predict.facts import JobFacts, Key, stem
from rlsched.workload.predict.survival import hazards_to_probabilities, survived_bins

BURST_GAP_S: Final = 60.0
"""Submissions of one key with gaps of at most this are one burst, as in `studies/workload/fit_synth.py`."""
LOOK_BACK: Final = (1, 2, 5, 20)
"""The gaps to these submissions of the key before it are its rhythm."""
NEIGHBOURS: Final = 24
MEMORY: Final = 600
"""Started jobs of a key that are compared with."""
CONTEXT: Final = len(LOOK_BACK) + 3
_PULL: Final = 4.0
_SUBMISSIONS: Final = 96
_NEVER_S: Final = 30 * 86400.0
_MIN_PERIOD_S: Final = 30.0


class Rhythm:
    """The submissions of one key."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=_SUBMISSIONS)
        self._in_burst = 0

    def context(self, now_s: float) -> list[float]:
        """(CONTEXT,) ln gaps, jobs of the burst so far, period and how often it has been kept."""
        at = self._at_s
        gaps = [math.log1p(min(now_s - at[-k], _NEVER_S)) if len(at) >= k else 15.0 for k in LOOK_BACK]
        burst = self._in_burst + 1 if at and now_s - at[-1] <= BURST_GAP_S else 1
        period_s, kept = self._period(now_s)
        return [*gaps, math.log(burst), math.log1p(period_s), float(kept)]

    def submit(self, now_s: float) -> None:
        """A job of the key has been submitted."""
        at = self._at_s
        self._in_burst = self._in_burst + 1 if at and now_s - at[-1] <= BURST_GAP_S else 1
        at.append(now_s)

    def _period(self, now_s: float) -> tuple[float, int]:
        """The lag L with the longest chain of submissions at now - L, now - 2 L, ... (4 at most)."""
        times = list(self._at_s)
        best = (0.0, 0)
        seen = 0.0
        for first in reversed(times):
            lag_s = now_s - first
            if lag_s < max(_MIN_PERIOD_S, seen * 1.01):
                continue
            seen, kept, tolerance_s = lag_s, 1, max(2.0, 0.005 * lag_s)
            while kept < 4:
                target = now_s - (kept + 1) * lag_s
                if bisect_left(times, target - tolerance_s) == bisect_right(times, target + tolerance_s):
                    break
                kept += 1
            if kept > best[1]:
                best = (lag_s, kept)
            if kept == 4 or (len(times) == _SUBMISSIONS and now_s - 2 * lag_s < times[0]):
                break
        return best


class _Past:
    """The started jobs of one key, the latest `MEMORY` of them."""

    def __init__(self) -> None:
        self.context = np.zeros((MEMORY, CONTEXT))
        self.owner = np.zeros((MEMORY, 2), dtype=np.int64)
        self.start_s = np.zeros(MEMORY)
        self.bin = np.zeros(MEMORY, dtype=np.int64)  # of its run time, -1 while it runs
        self.count = 0


class NearestBursts:
    """Nearest neighbours among the started jobs of the same VC and number of GPUs.

    The distribution is the product-limit estimate over the neighbours (Beran, 1981), so that those that
    still run count for as long as they have.
    """

    _WEIGHT = np.array([1.0, 0.7, 0.5, 0.3, 0.7, 0.1, 0.5])
    _STRANGER = 3.0

    def __init__(self) -> None:
        self._past: dict[Key, _Past] = {}

    def start(self, key: Key, job: JobFacts, context: Floats, now_s: float) -> int:
        """A job of the key has started; hand the number that comes back to `end`."""
        past = self._past.setdefault(key, _Past())
        at = past.count % MEMORY
        past.context[at], past.owner[at], past.start_s[at], past.bin[at] = context, _owner(job), now_s, -1
        past.count += 1
        return past.count - 1

    def again(self, key: Key, number: int, now_s: float) -> None:
        """The job that started as this number of its key has started anew."""
        past = self._past[key]
        if number >= past.count - MEMORY:
            past.start_s[number % MEMORY] = now_s

    def end(self, key: Key, number: int, duration_s: float) -> None:
        """The job that started as this number of its key has ended."""
        past = self._past[key]
        if number >= past.count - MEMORY:
            past.bin[number % MEMORY] = bin_of(duration_s)

    def probabilities(
        self, key: Key, job: JobFacts, context: Floats, now_s: float, otherwise: Floats
    ) -> Floats:
        """(BINS,) what the nearest became, pulled towards `otherwise` as by `_PULL` jobs."""
        past = self._past.get(key)
        if past is None:
            return otherwise
        size = min(past.count, MEMORY)
        distance = np.abs(past.context[:size] - context) @ self._WEIGHT
        distance += self._STRANGER * (past.owner[:size] != _owner(job)).sum(axis=1)
        newer = (past.count - 1 - np.arange(size)) % MEMORY
        distance += newer * (2.0 / MEMORY)
        if size > NEIGHBOURS:
            near = np.argpartition(distance, NEIGHBOURS)[:NEIGHBOURS]
        else:
            near = np.arange(size)
        weight = 1.0 / (1.0 + distance[near] - distance[near].min())
        bins = past.bin[near]
        runs = bins < 0
        survived = np.where(
            runs, np.searchsorted(EDGES_S, now_s - past.start_s[near], side="right") - 1, bins
        )
        ends = np.bincount(bins[~runs], weights=weight[~runs], minlength=BINS)
        at_risk = ends + survived_bins(survived, weight)
        left = np.maximum(1.0 - np.concatenate([[0.0], np.cumsum(otherwise)[:-1]]), 1e-9)
        hazards = (ends + _PULL * np.minimum(otherwise / left, 1.0)) / (at_risk + _PULL)
        return np.asarray(hazards_to_probabilities(hazards[None, :])[0])


def _owner(job: JobFacts) -> tuple[int, int]:
    return crc32(job.user.encode()), crc32(stem(job.name).encode())
