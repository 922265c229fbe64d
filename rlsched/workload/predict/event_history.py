"""History of all events so far, with models that forecast the run time of a job that is submitted now.

Events must arrive in the order of time: a prediction depends only on earlier events.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rlsched.workload.predict.bursts import CONTEXT, NearestBursts, Rhythm
from rlsched.workload.predict.distribution import BINS, SAID, Floats, lognormal, read_off
from rlsched.workload.predict.facts import LEVELS, JobFacts, Key, keys_of
from rlsched.workload.predict.running_mean import RunningMean
from rlsched.workload.predict.survival import MAX_KEYS, Started, Survival

_PER_LEVEL: Final = ("last_ln", "last_five_ln", "idle_ln", "mean_ln", *(f"longer_{k}" for k in range(4)))
_FIRST_LEVEL: Final = LEVELS.index("vc")
FEATURES: Final = (
    "gpus_ln",
    "hour",
    "weekday",
    *(f"context_{k}" for k in range(CONTEXT)),
    "vc_gap_ln",
    "user_gap_ln",
    "running_ln",
    "newest_age_ln",
    "median_age_ln",
    "near_mean_ln",
    *(f"near_longer_{k}" for k in range(4)),
    *(f"{level}_{name}" for level in LEVELS[_FIRST_LEVEL:] for name in _PER_LEVEL),
)
"""Names of a job's features, in order. A feature is nan if the facts of the job do not contain the value."""
_VC: Final = LEVELS.index("vc")
_VC_GPUS: Final = LEVELS.index("vc_gpus")
_NAME: Final = LEVELS.index("name")
_UNKNOWN: Final = (math.nan, math.nan, math.nan)
_NONE_RUNS: Final = (0.0, math.nan, math.nan)


class SubmissionQuery(NamedTuple):
    """A submission, with the forecasts of all experts (single predictors) except boosting.

    Attributes:
        job: Facts of the job.
        features: (FEATURES,) features of the job, input of boosting, float32.
        running_mean: (BINS,) forecast of the running mean.
        nearest: (BINS,) forecast of the nearest bursts.
        survival: (BINS,) forecast of the survival model.
    """

    job: JobFacts
    features: Floats
    running_mean: Floats
    nearest: Floats
    survival: Floats


@dataclass
class _LiveJob:
    """A job that has not ended."""

    job: JobFacts
    keys: tuple[Key | None, ...]
    context: Floats
    start_s: float = math.nan
    started: Started = ()
    number: int = -1


class _Recent:
    """The latest ended jobs of one key: ln(run time) of at most five jobs, and the time of the last end."""

    def __init__(self) -> None:
        self.logs: deque[float] = deque(maxlen=5)
        self.at_s = 0.0


class EventHistory:
    """History of all events so far: models that each event updates, and the features of submitted jobs."""

    def __init__(self) -> None:
        self.mean = RunningMean()
        self.survival = Survival()
        self.nearest = NearestBursts()
        self._rhythms: dict[Key, Rhythm] = {}
        self._submitted_s: dict[Key, float] = {}
        self._recent: dict[Key, _Recent] = {}
        self._live: dict[str, _LiveJob] = {}

    def submit(self, job: JobFacts, now_s: float) -> SubmissionQuery:
        """Record a submission; return its features and forecasts, computed from earlier events."""
        keys = keys_of(job)
        own = keys[_VC_GPUS]
        assert own is not None
        rhythm = self._rhythm(own)
        context = rhythm.context(now_s)
        levels = self.survival.probabilities(keys, now_s)
        near = self.nearest.probabilities(own, job, context, now_s, levels[_VC_GPUS])
        row = self._features(job, keys, context, now_s, levels, near)
        self._submitted(_LiveJob(job, keys, context), rhythm, now_s)
        mean = lognormal(*self.mean.predict(job.vc, math.ceil(job.gpus)))
        return SubmissionQuery(job, np.array(row, dtype=np.float32), mean, near, levels[-1])

    def resubmit(self, job: JobFacts, now_s: float) -> None:
        """Record a submission whose predictions are already known; no forecasts are computed."""
        keys = keys_of(job)
        own = keys[_VC_GPUS]
        assert own is not None
        rhythm = self._rhythm(own)
        self._submitted(_LiveJob(job, keys, rhythm.context(now_s)), rhythm, now_s)

    def _rhythm(self, key: Key) -> Rhythm:
        rhythm = self._rhythms.get(key)
        if rhythm is None:
            rhythm = self._rhythms[key] = Rhythm()
        return rhythm

    def _submitted(self, live: _LiveJob, rhythm: Rhythm, now_s: float) -> None:
        rhythm.submit(now_s)
        for key in (live.keys[_VC] or ("all",), ("user", live.job.user)):
            self._submitted_s[key] = now_s
        self._live[live.job.job_id] = live

    def start(self, job_id: str, now_s: float) -> None:
        """Record that a job has started. After a preemption, the age of the job counts from the new start."""
        live = self._live[job_id]
        own = live.keys[_VC_GPUS]
        assert own is not None
        live.start_s = now_s
        if live.number >= 0:
            self.survival.drop(job_id, live.keys)
            self.survival.resume(job_id, live.keys, live.started, now_s)
            self.nearest.again(own, live.number, now_s)
            return
        live.started = self.survival.start(job_id, live.keys, now_s)
        live.number = self.nearest.start(own, live.job, live.context, now_s)

    def stop(self, job_id: str, now_s: float) -> None:
        """Record that a job no longer runs and waits to start again."""
        live = self._live[job_id]
        live.start_s = math.nan
        self.survival.drop(job_id, live.keys)
        if live.number >= 0:
            own = live.keys[_VC_GPUS]
            assert own is not None
            self.nearest.again(own, live.number, now_s)

    def end(self, job_id: str, duration_s: float, now_s: float) -> None:
        """Record that a job has ended. If its start was not recorded, record it at `now_s` - `duration_s`."""
        if self._live[job_id].number < 0:
            self.start(job_id, now_s - duration_s)
        live = self._live.pop(job_id)
        self.survival.drop(job_id, live.keys)
        self.survival.end(live.keys, live.started, duration_s)
        own = live.keys[_VC_GPUS]
        assert own is not None
        self.nearest.end(own, live.number, duration_s)
        self.mean.observe(live.job.vc, math.ceil(live.job.gpus), duration_s)
        ln = math.log(max(duration_s, 1.0))
        for key in live.keys[_FIRST_LEVEL:]:
            if key is not None:
                recent = self._recent.pop(key, None) or _Recent()
                self._recent[key] = recent  # moved to the end: removed last
                if len(self._recent) > MAX_KEYS:
                    del self._recent[next(iter(self._recent))]
                recent.logs.append(ln)
                recent.at_s = now_s

    def forget(self, job_id: str) -> None:
        """Remove a job from which no run time can be learned, for example a job cancelled while it waited."""
        live = self._live.pop(job_id)
        self.survival.drop(job_id, live.keys)

    def knows(self, job_id: str) -> bool:
        """Return whether this job has been submitted and has not ended."""
        return job_id in self._live

    def age_s(self, job_id: str, now_s: float) -> float | None:
        """Return the run time of a job so far, seconds; None if the job does not run."""
        live = self._live.get(job_id)
        return None if live is None or math.isnan(live.start_s) else now_s - live.start_s

    def _features(
        self,
        job: JobFacts,
        keys: tuple[Key | None, ...],
        context: Floats,
        now_s: float,
        levels: Floats,
        near: Floats,
    ) -> list[float]:
        vc, own = keys[_VC] or ("all",), keys[_VC_GPUS]
        assert own is not None
        row = [math.log1p(job.gpus), now_s / 3600 % 24, now_s / 86400 % 7, *context.tolist()]
        row += (self._gap_ln(vc, now_s), self._gap_ln(("user", job.user), now_s) if job.user else math.nan)
        ages = self.survival.ages_s(own, now_s)
        if ages:
            row += (math.log1p(len(ages)), math.log1p(ages[0]), math.log1p(sorted(ages)[len(ages) // 2]))
        else:
            row += _NONE_RUNS
        told = len(LEVELS) if any(keys[_NAME:]) else _NAME + 1
        stacked, read = np.empty((1 + told - _FIRST_LEVEL, BINS)), np.empty((1 + told - _FIRST_LEVEL, SAID))
        stacked[0], stacked[1:] = near, levels[_FIRST_LEVEL:told]
        read_off(stacked, read)
        said = iter(read.tolist())
        row += next(said)
        for key, of_level in zip(keys[_FIRST_LEVEL:told], said, strict=True):
            recent = self._recent.get(key) if key is not None else None
            if recent is None:
                row += _UNKNOWN
            else:
                logs = recent.logs
                row += (logs[-1], sum(logs) / len(logs), math.log1p(now_s - recent.at_s))
            row += of_level
        return row + [math.nan] * (len(FEATURES) - len(row))  # nan: the job has no name and no command

    def _gap_ln(self, key: Key, now_s: float) -> float:
        before = self._submitted_s.get(key)
        return math.nan if before is None else math.log1p(now_s - before)
