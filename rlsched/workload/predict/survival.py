"""The survival model: hazards by bin (range of run times) and key (a group of similar jobs).

The hazard of a bin is the number of jobs that ended in the bin, divided by the number of jobs at risk: jobs
that reached the bin (Kaplan and Meier, 1958). A running job is at risk in the bins that it has outlived.
Without running jobs, run times would be underestimated, because short jobs end first. The hazards of a key
with few jobs are shrunk towards the next wider key, and the weights of old jobs decay. A job has a key at
each level, from wide (all jobs) to narrow (jobs with the same command); see `facts.LEVELS`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np

from rlsched.workload.predict.compiled import count_end, fade_rows, survive
from rlsched.workload.predict.distribution import BINS, Floats, bin_of
from rlsched.workload.predict.facts import LEVELS, Key

MEMORY_JOBS: Final = (1000.0, 500.0, 300.0, 200.0, 100.0, 30.0, 30.0, 30.0, 30.0)
"""For each level of keys (`facts.LEVELS`): number of later starts of jobs with the same key after which an
ended job has the weight 1/e."""
_FADE: Final = tuple(1.0 - 1.0 / jobs for jobs in MEMORY_JOBS)
_FADES: Final = np.array(_FADE)
Started = tuple[int, ...]
"""Position of a job's start among all starts of jobs with the same key; one number for each level of keys."""
PULL_JOBS: Final = (4.0, 4.0, 4.0, 4.0, 8.0, 2.0, 2.0, 2.0, 2.0)
"""For each level of keys: weight with which hazards are shrunk towards the next wider key, in jobs at risk.

The value of level `user` is the highest, because jobs of one user vary more than jobs with one name.
"""
_PULLS: Final = np.array(PULL_JOBS)
MAX_KEYS: Final = 30_000
"""Maximum number of stored keys (groups of similar jobs). The keys whose last start is the oldest are removed
first. A limit is needed, because job names that contain a time give new keys.
"""
MAX_RUNNING: Final = 64
"""Maximum number of running jobs of a key (group of similar jobs) that are used: the last started ones."""
_CENSORED_FROM: Final = LEVELS.index("vc_gpus")
_PRIOR: Final = np.linspace(0.1, 0.5, BINS)
_NARROW_FROM: Final = LEVELS.index("user")


def _near_bins() -> Floats:
    """Return the counts that a job adds to keys of level `user` or narrower, by bin of its run time.

    The shape is (BINS, 2, BINS). Index 0 of the second axis is the number of ended jobs in each bin, index 1
    the number of jobs at risk.

    The next job of a narrow key often ends in an adjacent bin. An end is therefore spread by two random
    steps; in each, the bin and the two adjacent bins have probability 1/3 each.
    """
    step = np.zeros((BINS, BINS))
    for bin_ in range(BINS):
        step[bin_, bin_] += 1.0 - _NEAR
        for other in (bin_ - 1, bin_ + 1):
            step[bin_, min(max(other, 0), BINS - 1)] += _NEAR / 2
    ends = step @ step
    return np.stack([ends, ends[:, ::-1].cumsum(axis=1)[:, ::-1]], axis=1)


_NEAR: Final = 2 / 3
_NEAR_BINS: Final = _near_bins()


class Survival:
    """Counts of ends and of jobs at risk, for each key and bin."""

    def __init__(self) -> None:
        self._index: dict[Key, int] = {}
        self._counts = np.zeros((64, 2, BINS))  # ends, at risk; decayed
        self._starts: list[int] = []
        self._running: dict[Key, dict[str, tuple[float, int]]] = {}

    def start(self, job_id: str, keys: tuple[Key | None, ...], now_s: float) -> Started:
        """Record that a job has started. Return its sequence numbers, which `resume` and `end` need."""
        numbers, rows = [], []
        for level, key in enumerate(keys):
            if key is None:
                numbers.append(0)
                rows.append(-1)
                continue
            row = self._row(key)
            self._starts[row] += 1
            numbers.append(self._starts[row])
            rows.append(row)
            if level >= _CENSORED_FROM:
                self._running.setdefault(key, {})[job_id] = (now_s, self._starts[row])
        fade_rows(self._counts, np.array(rows), _FADES)
        return tuple(numbers)

    def resume(self, job_id: str, keys: tuple[Key | None, ...], started: Started, now_s: float) -> None:
        """Record that a job that was stopped (`drop`) runs again; its age counts from `now_s`.

        `started` is the result of `start` for this job.
        """
        for level in range(_CENSORED_FROM, len(keys)):
            key = keys[level]
            if key is not None:
                self._running.setdefault(key, {})[job_id] = (now_s, started[level])

    def drop(self, job_id: str, keys: tuple[Key | None, ...]) -> None:
        """Record that a job no longer runs, without counting an end."""
        for key in keys[_CENSORED_FROM:]:
            if key is not None:
                self._running.get(key, {}).pop(job_id, None)

    def end(self, keys: tuple[Key | None, ...], started: Started, duration_s: float) -> None:
        """Record that a job has ended.

        The weight of the job falls with each start of a job with the same key after its own start.
        """
        bin_ = bin_of(duration_s)
        rows = [-1 if key is None else self._index.get(key, -1) for key in keys]
        weights = [
            0.0 if row < 0 else fade ** max(self._starts[row] - number, 0)
            for row, fade, number in zip(rows, _FADE, started, strict=True)
        ]
        near = _NEAR_BINS[bin_]
        count_end(self._counts, np.array(rows), np.array(weights), _NARROW_FROM, near, bin_)

    def ages_s(self, key: Key, now_s: float) -> list[float]:
        """Return the ages, s, of the last `MAX_RUNNING` running jobs with this key, latest start first."""
        running = self._running.get(key)
        return [now_s - s for s, _ in islice(reversed(running.values()), MAX_RUNNING)] if running else []

    def probabilities(self, keys: tuple[Key | None, ...], now_s: float) -> Floats:
        """Return the (LEVELS, BINS) distributions of a job's run time, one for each level.

        `keys`: the job's key at each level (`facts.keys_of`). If the job has no key at a level, the
        distribution is that of the next wider level.
        """
        levels: list[int] = []
        running: list[float] = []  # for each running job: start time, start number
        for level, key in enumerate(keys):
            row = -1 if key is None else self._index.get(key, -1)
            if key is None or row < 0:
                levels += (-1, 0, len(running) // 2)
                continue
            if level >= _CENSORED_FROM and (live := self._running.get(key)):
                for one in islice(reversed(live.values()), MAX_RUNNING):
                    running += one
            levels += (row, self._starts[row], len(running) // 2)
        out = np.empty((len(LEVELS), BINS))
        survive(
            self._counts,
            np.array(levels).reshape(-1, 3),
            np.array(running, np.float64).reshape(-1, 2),
            _FADES,
            _PRIOR,
            _PULLS,
            now_s,
            out,
        )
        return out

    def _row(self, key: Key) -> int:
        """Return the row of a key in the counts, and mark it as most recently used; add the key if new."""
        row = self._index.pop(key, None)
        if row is None:
            row = self._new_row()
        self._index[key] = row
        return row

    def _new_row(self) -> int:
        if len(self._index) >= MAX_KEYS:
            oldest = next(iter(self._index))
            row = self._index.pop(oldest)
            self._running.pop(oldest, None)
            self._counts[row], self._starts[row] = 0.0, 0
            return row
        row = len(self._starts)
        self._starts.append(0)
        if row == len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return row
