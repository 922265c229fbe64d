"""The survival model: hazards by bin and key, from the ended jobs and from those that still run.

A job that runs has survived the bins below its age: that is counted, so that a key whose short jobs ended
first does not look short (Kaplan and Meier, 1958: the hazard of a bin is its ends over the jobs at risk in
it). A key with few jobs is pulled towards the next wider key, and old jobs fade.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.predict.distribution import BINS, EDGES_S, Floats, bin_of, clip
from rlsched.workload.predict.facts import LEVELS, Key

MEMORY_JOBS: Final = (1000.0, 500.0, 300.0, 200.0, 100.0, 30.0)
"""By level: a job counts 1/e after so many later starts of its key."""
_FADE: Final = tuple(1.0 - 1.0 / jobs for jobs in MEMORY_JOBS)
Started = tuple[int, ...]
"""The number of a start among those of its key, by level."""
PULL_JOBS: Final = 4.0
"""The next wider key counts as so many jobs at risk."""
MAX_RUNNING: Final = 64
"""The running jobs of a key that are looked at: the latest to start."""
_CENSORED_FROM: Final = LEVELS.index("vc_gpus")
_PRIOR: Final = np.linspace(0.1, 0.5, BINS)


class Survival:
    """Ends and jobs at risk by key and bin."""

    def __init__(self) -> None:
        self._index: dict[Key, int] = {}
        self._counts = np.zeros((64, 2, BINS))  # ends, at risk; faded
        self._starts: list[int] = []
        self._running: dict[Key, dict[str, tuple[float, int]]] = {}

    def start(self, job_id: str, keys: tuple[Key | None, ...], now_s: float) -> Started:
        """A job has started; hand what comes back to `drop` and `end`."""
        numbers = []
        for level, key in enumerate(keys):
            if key is None:
                numbers.append(0)
                continue
            row = self._row(key)
            self._starts[row] += 1
            self._counts[row] *= _FADE[level]
            numbers.append(self._starts[row])
            if level >= _CENSORED_FROM:
                self._running.setdefault(key, {})[job_id] = (now_s, self._starts[row])
        return tuple(numbers)

    def resume(self, job_id: str, keys: tuple[Key | None, ...], started: Started, now_s: float) -> None:
        """A job that was dropped runs again; it keeps its numbers, and its age counts from now."""
        for level in range(_CENSORED_FROM, len(keys)):
            key = keys[level]
            if key is not None:
                self._running.setdefault(key, {})[job_id] = (now_s, started[level])

    def drop(self, job_id: str, keys: tuple[Key | None, ...]) -> None:
        """A job no longer runs."""
        for key in keys[_CENSORED_FROM:]:
            if key is not None:
                self._running.get(key, {}).pop(job_id, None)

    def end(self, keys: tuple[Key | None, ...], started: Started, duration_s: float) -> None:
        """A job has run to its end; it fades from its start on, so that a long job counts no longer."""
        bin_ = bin_of(duration_s)
        for level, key in enumerate(keys):
            if key is not None:
                row = self._index[key]
                weight = _FADE[level] ** (self._starts[row] - started[level])
                counts = self._counts[row]
                counts[0, bin_] += weight
                counts[1, : bin_ + 1] += weight

    def ages_s(self, key: Key, now_s: float) -> list[float]:
        """How long the key's running jobs have run, the latest to start first."""
        running = self._running.get(key)
        return [now_s - s for s, _ in islice(reversed(running.values()), MAX_RUNNING)] if running else []

    def probabilities(self, keys: tuple[Key | None, ...], now_s: float) -> Floats:
        """(LEVELS, BINS) the distribution at every level; a level without a key repeats the wider one."""
        hazards = np.empty((len(LEVELS), BINS))
        wider = _PRIOR
        for level, key in enumerate(keys):
            row = self._index.get(key) if key is not None else None
            if key is not None and row is not None:
                ends, at_risk = self._counts[row]
                if level >= _CENSORED_FROM and self._running.get(key):
                    at_risk = at_risk + self._running_at_risk(level, key, row, now_s)
                wider = (ends + PULL_JOBS * wider) / (at_risk + PULL_JOBS)
            hazards[level] = wider
        return hazards_to_probabilities(hazards)

    def _running_at_risk(self, level: int, key: Key, row: int, now_s: float) -> Floats:
        """(BINS,) running jobs that have survived each bin, faded as the ended ones are."""
        latest = np.array(list(islice(reversed(self._running[key].values()), MAX_RUNNING)))
        survived = np.searchsorted(EDGES_S, now_s - latest[:, 0], side="right") - 1
        weight = _FADE[level] ** (self._starts[row] - latest[:, 1])
        return survived_bins(survived, weight)

    def _row(self, key: Key) -> int:
        row = self._index.setdefault(key, len(self._index))
        if row == len(self._starts):
            self._starts.append(0)
            if row == len(self._counts):
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return row


def survived_bins(survived: NDArray[np.intp], weight: Floats) -> Floats:
    """(N,) how many bins each job has outlived, (N,) weights -> (BINS,) weight of those past each bin."""
    counts = np.bincount(clip(survived, 0, BINS), weights=weight, minlength=BINS + 1)
    return np.asarray(counts[::-1].cumsum()[::-1][1:])


def hazards_to_probabilities(hazards: Floats) -> Floats:
    """(N, BINS) P(end in the bin | reached it) -> (N, BINS) P(end in the bin); the last takes the rest."""
    left = np.cumprod(1.0 - hazards[:, :-1], axis=1)
    out = np.empty_like(hazards)
    out[:, 0] = hazards[:, 0]
    out[:, 1:-1] = hazards[:, 1:-1] * left[:, :-1]
    out[:, -1] = left[:, -1]
    return out
