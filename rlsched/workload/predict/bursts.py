"""Nearest bursts: predicts from earlier jobs of the same VC and GPU count with similar submission gaps.

Users and scripts submit in regular patterns: a sweep every few seconds, a probe every ten minutes. The gaps
between submissions (the rhythm) help to predict a run time even before a job of the burst ends. Jobs of the
same VC and GPU count have the same *key*.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.predict.compiled import become, rhythm_of
from rlsched.workload.predict.distribution import BINS, Floats, bin_of
from rlsched.workload.predict.facts import JobFacts, Key, stem, words

BURST_GAP_S: Final = 60.0
"""Longest gap between successive submissions of a burst, seconds, as in `studies/workload/fit_synth.py`."""
LOOK_BACK: Final = (1, 2, 5, 20)
"""Earlier submissions of jobs with one key (VC and GPU count), counted back from now: 1 is the last one. The
times since these submissions describe the rhythm of the key."""
NEIGHBOURS: Final = 24
MEMORY: Final = 600
"""Maximum number of jobs with which a new job is compared: the last started jobs of its VC and GPU count."""
CONTEXT: Final = len(LOOK_BACK) + 3
_LOOK_BACK: Final = np.array(LOOK_BACK)
_PULL: Final = 4.0
_SUBMISSIONS: Final = 96
_NEVER_S: Final = 30 * 86400.0
_MIN_PERIOD_S: Final = 30.0


class Rhythm:
    """Submission times of the jobs with one key (VC and GPU count)."""

    def __init__(self) -> None:
        self._at_s = np.zeros(_SUBMISSIONS)  # zeroed, so that snapshots do not depend on uninitialised memory
        self._count = self._in_burst = 0

    def context(self, now_s: float) -> Floats:
        """Return the (CONTEXT,) numbers that describe the rhythm of the key for a job submitted now.

        They are: ln of the times since the submissions in `LOOK_BACK`; ln of the number of jobs in the burst
        so far; ln of the period (the most frequent gap so far); and how often the period was repeated.
        """
        out = np.empty(CONTEXT)
        rhythm_of(
            self._at_s, self._count, self._burst(now_s), _LOOK_BACK, _NEVER_S, _MIN_PERIOD_S, now_s, out
        )
        return out

    def submit(self, now_s: float) -> None:
        """Record the submission of a job with the key."""
        self._in_burst = self._burst(now_s)
        if self._count == _SUBMISSIONS:
            self._at_s[:-1] = self._at_s[1:]
            self._count -= 1
        self._at_s[self._count] = now_s
        self._count += 1

    def _burst(self, now_s: float) -> int:
        """Return the number of jobs in the current burst, including a job that is submitted now."""
        going_on = self._count and now_s - self._at_s[self._count - 1] <= BURST_GAP_S
        return self._in_burst + 1 if going_on else 1


class _Past:
    """Ring buffers with the last `MEMORY` started jobs of one key (VC and GPU count)."""

    def __init__(self) -> None:
        self.context = np.zeros((MEMORY, CONTEXT))
        self.owner = np.zeros((MEMORY, 4), dtype=np.int64)
        self.start_s = np.zeros(MEMORY)
        self.bin = np.zeros(MEMORY, dtype=np.int64)  # bin of the run time, -1 while the job runs
        self.count = 0


class NearestBursts:
    """Predictions from the most similar started jobs (nearest neighbours) of the same VC and GPU count.

    The distribution is the product-limit estimate (Beran, 1981). A neighbour that still runs contributes its
    age as a lower limit of its run time.
    """

    _WEIGHT = np.array([1.0, 0.7, 0.5, 0.3, 0.7, 0.1, 0.5])
    _STRANGER = 3.0

    def __init__(self) -> None:
        self._past: dict[Key, _Past] = {}

    def start(self, key: Key, job: JobFacts, context: Floats, now_s: float) -> int:
        """Record the first start of a job with this key. Return the number of earlier starts with the key.

        The number identifies the job in later calls of `again` and `end`.
        """
        past = self._past.setdefault(key, _Past())
        at = past.count % MEMORY
        past.context[at], past.owner[at], past.start_s[at], past.bin[at] = context, _owner_of(job), now_s, -1
        past.count += 1
        return past.count - 1

    def again(self, key: Key, number: int, now_s: float) -> None:
        """Record that a job starts again; `number` is the result of `start` for this job."""
        past = self._past[key]
        if number >= past.count - MEMORY:
            past.start_s[number % MEMORY] = now_s

    def end(self, key: Key, number: int, duration_s: float) -> None:
        """Record the end of a job; `number` is the result of `start` for this job."""
        past = self._past[key]
        if number >= past.count - MEMORY:
            past.bin[number % MEMORY] = bin_of(duration_s)

    def probabilities(
        self, key: Key, job: JobFacts, context: Floats, now_s: float, otherwise: Floats
    ) -> Floats:
        """Predict the (BINS,) distribution of the run time of a job that is submitted now.

        The result is shrunk towards the distribution `otherwise`, which has the weight of `_PULL` jobs.
        """
        past = self._past.get(key)
        if past is None:
            return otherwise
        out = np.empty(BINS)
        become(
            past.context,
            past.owner,
            past.start_s,
            past.bin,
            past.count,
            context,
            _owner_of(job),
            otherwise,
            self._WEIGHT,
            self._STRANGER,
            _PULL,
            now_s,
            np.empty((3, NEIGHBOURS)),
            out,
        )
        return out


def _owner_of(job: JobFacts) -> NDArray[np.int64]:
    """Return the (4,) checksums of the user, `stem(name)`, `words(name)` and `words(command)` of a job."""
    return _owner(job.user, job.name, job.command)


@lru_cache(maxsize=512)
def _owner(user: str, name: str, command: str) -> NDArray[np.int64]:
    told = (user, stem(name), words(name), words(command))
    return np.array([crc32(text.encode()) for text in told], np.int64)
