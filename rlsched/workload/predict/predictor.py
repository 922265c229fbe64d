"""`Predictor`: predicts the run-time distribution of every submitted job, and learns from each event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.workload.predict.boosting import (
    MIN_ENDED,
    HazardModel,
    chosen_rows,
    require_sklearn,
    sklearn_installed,
)
from rlsched.workload.predict.distribution import BINS, Floats, Forecast, remaining_s
from rlsched.workload.predict.event_history import EventHistory, SubmissionQuery
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.hedge import Hedge
from rlsched.workload.predict.remembered import JobsInOrder

EXPERTS: Final = ("running-mean", "nearest", "survival", "boosting")
MODELS: Final = ("hedge", *EXPERTS)
"""`hedge` is the mixture of all experts (single predictors). The other models are the experts themselves."""
REFIT_GROWTH: Final = 1.5
REFIT_JOBS: Final = 5000
"""A fit is due when, since the last fit, the number of ended jobs has grown by the factor REFIT_GROWTH or by
REFIT_JOBS."""

MAX_SEEN: Final = 200_000
"""Maximum number of ended jobs stored for fits."""
_FORGET_EVERY: Final = 20_000


@dataclass(frozen=True)
class TrainingSet:
    """Data of a fit. Another process can do the fit.

    Attributes:
        rows: N arrays (FEATURES,), the features of each job, in order of submission.
        lasted_s: (N,) run time of each job until its end, or until now if it still runs, seconds.
        ended: (N,) whether the job has ended.
        seed: Seed of the fit.
    """

    rows: list[Floats]
    lasted_s: Floats
    ended: NDArray[np.bool_]
    seed: int

    @property
    def features(self) -> Floats:
        """The rows as one (N, FEATURES) array.

        Built on access, because the broker waits for `Predictor.training`.
        """
        return np.stack(self.rows)

    def arguments(self) -> tuple[Floats, Floats, NDArray[np.bool_], int]:
        """Return the arguments of `HazardModel`, to send them to another process."""
        return self.features, self.lasted_s, self.ended, self.seed

    def fit(self) -> HazardModel:
        """Fit boosting; takes seconds on one core."""
        return HazardModel(*self.arguments())


class SubmissionForecast(NamedTuple):
    """Forecast for a submitted job.

    Attributes:
        probabilities: (BINS,) distribution that the chosen model predicts.
        experts: (EXPERTS, BINS) distribution that each expert predicts.
        features: (FEATURES,) features of the job, input of boosting, float32.
    """

    probabilities: Floats
    experts: Floats
    features: Floats


class Predictor:
    """Predicts the run time of submitted jobs, and learns from submissions, starts and ends.

    Pass events in the order of time. The caller runs the fits, in the foreground or in the background: `if
    p.fit_due(): p.install(p.training(now_s).fit())`. To continue in a later process, store the forecasts of
    the experts (single predictors) for each job, and pass them to `recall`.

    Args:
        model: One of `MODELS`.
        seed: Seed of the fits.

    Raises:
        InputError: the model is unknown, or needs scikit-learn, which is not installed.
    """

    def __init__(self, model: str = "hedge", seed: int = 0) -> None:
        if model not in MODELS:
            raise InputError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
        self._boosts = model in ("hedge", "boosting")
        if self._boosts and not sklearn_installed():
            require_sklearn()
        self.model = model
        self.history = EventHistory()
        self.hedge = Hedge(len(EXPERTS))
        self._seed = seed
        self._boosting: HazardModel | None = None
        self._seen = JobsInOrder()
        self._said: dict[str, Floats] = {}
        self._ended = 0
        self._ended_at_fit = self._ended_at_last = 0

    def predict(self, job: JobFacts, now_s: float) -> Forecast:
        """Predict the run time of a job that is submitted now, and record the submission."""
        return Forecast.from_probabilities(self.foresee([job], now_s)[0].probabilities)

    def foresee(self, jobs: Sequence[JobFacts], now_s: float) -> list[SubmissionForecast]:
        """Predict jobs that are submitted at the same time, and record their submissions in this order."""
        queries = [self.enquire(job, now_s) for job in jobs]
        self.hedge.count_outlived(now_s)
        if not queries:
            return []
        return [
            SubmissionForecast(self.mix(query.job, experts), experts, query.features)
            for query, experts in zip(queries, self.expert_forecasts(queries), strict=True)
        ]

    def recall(self, job: JobFacts, experts: Floats, features: Floats, now_s: float) -> Floats:
        """Record a job that was submitted during an earlier process.

        `experts` and `features`: from the `SubmissionForecast` that the earlier process computed for the job.

        Returns:
            (BINS,) distribution that the chosen model predicts.
        """
        self.note_recalled(job, features, now_s)
        self.hedge.count_outlived(now_s)
        return self.mix(job, experts)

    def observe_start(self, job_id: str, now_s: float) -> None:
        """Record that a job has started."""
        self.note_start(job_id, now_s)
        self.hedge.start(job_id, now_s)

    def observe_stop(self, job_id: str, now_s: float) -> None:
        """Record that a job was stopped, and now waits to start again (for example, its node was lost)."""
        self.history.stop(job_id, now_s)
        self.hedge.stop(job_id)
        if self._boosts:
            self._seen.set_start(job_id, math.nan)

    def observe_end(self, job_id: str, duration_s: float, now_s: float) -> None:
        """Record that a job has ended after running for `duration_s`."""
        self.note_end(job_id, duration_s, now_s)
        self.hedge.count_outlived(now_s)
        self.hedge.end(job_id, duration_s)
        self._said.pop(job_id, None)

    def observe_gone(self, job_id: str) -> None:
        """Remove a job from which no run time can be learned, for example a job cancelled while it waited."""
        self.history.forget(job_id)
        self.hedge.forget(job_id)
        self._seen.remove_job(job_id)
        self._said.pop(job_id, None)

    def restore_num_ended(self, ended: int) -> None:
        """Set the number of jobs that have ended, including the jobs that ended in earlier processes."""
        self._ended = ended

    def remaining_s(self, job_id: str, now_s: float) -> float | None:
        """Return the expected remaining run time of a job, s, given its age; None if the job does not run.

        The time is computed from the distribution predicted at submission, given that the job has reached its
        age.
        """
        age_s = self.history.age_s(job_id, now_s)
        return None if age_s is None else remaining_s(self._said[job_id], age_s)

    @property
    def next_fit_jobs(self) -> int:
        """Number of ended jobs at which the next fit is due."""
        last = self._ended_at_fit
        return math.ceil(max(MIN_ENDED, min(REFIT_GROWTH * last, last + REFIT_JOBS)))

    @property
    def num_ended(self) -> int:
        """Number of jobs that have ended so far."""
        return self._ended

    @property
    def boosted(self) -> bool:
        """Whether forecasts use a fit of boosting."""
        return self._boosting is not None

    def fit_due(self) -> bool:
        """Return whether another fit is due: enough jobs have ended since the last fit."""
        return self._boosts and self._ended >= self.next_fit_jobs

    def training(self, now_s: float) -> TrainingSet:
        """Return the data for a fit at this time. `fit_due` then counts the jobs that end after this call."""
        self._ended_at_last, self._ended_at_fit = self._ended_at_fit, self._ended
        self._seen.forget_oldest(MAX_SEEN)
        begun = self._seen.started_jobs()
        rows, start, duration = (column[chosen_rows(len(begun[0]))] for column in begun)
        ended = ~np.isnan(duration)
        features = [self._seen.features(row) for row in rows.tolist()]
        return TrainingSet(features, np.where(ended, duration, now_s - start), ended, self._seed)

    def install(self, fitted: HazardModel | None) -> None:
        """Use this fit of boosting for later forecasts; None: use the survival model instead."""
        self._boosting = fitted

    def withdraw(self) -> None:
        """Undo the last `training`, because its fit failed: a fit is due again."""
        self._ended_at_fit = self._ended_at_last

    # The methods below are the steps of `predict` and of the `observe_` methods: first the history, then
    # boosting for many jobs together, then the hedge. `at_submission` calls the steps in this order.

    def enquire(self, job: JobFacts, now_s: float) -> SubmissionQuery:
        """Record a submission in the history. Return features and all forecasts except that of boosting."""
        self._check_new(job)
        query = self.history.submit(job, now_s)
        self._remember(job, query.features)
        return query

    def note_recalled(self, job: JobFacts, features: Floats, now_s: float) -> None:
        """Record in the history a job that was submitted during an earlier process.

        `features`: from the `SubmissionForecast` that the earlier process computed for the job.
        """
        self._check_new(job)
        self.history.resubmit(job, now_s)
        self._remember(job, features)

    def _check_new(self, job: JobFacts) -> None:
        if self.history.knows(job.job_id):
            raise ValueError(f"job {job.job_id} was submitted before, and has not ended")

    def _remember(self, job: JobFacts, features: Floats) -> None:
        if self._boosts:
            self._seen.add(job.job_id, features)
            if len(self._seen) > MAX_SEEN and len(self._seen) % _FORGET_EVERY == 0:
                self._seen.forget_oldest(MAX_SEEN)

    def note_start(self, job_id: str, now_s: float) -> None:
        """Record the start of a job in the history, not in the hedge."""
        self.history.start(job_id, now_s)
        if self._boosts:
            self._seen.set_start(job_id, now_s)

    def note_end(self, job_id: str, duration_s: float, now_s: float) -> None:
        """Record the end of a job in the history, not in the hedge."""
        self.history.end(job_id, duration_s, now_s)
        self._ended += 1
        if self._boosts:
            self._seen.record_end(job_id, duration_s, now_s)

    def expert_forecasts(self, queries: Sequence[SubmissionQuery]) -> Floats:
        """Return the (N, EXPERTS, BINS) forecasts of the experts for N submissions.

        Before the first fit, the forecast of boosting is a copy of the forecast of the survival model.
        """
        rows = [row for one in queries for row in (one.running_mean, one.nearest, one.survival, one.survival)]
        out = np.concatenate(rows).reshape(len(queries), len(EXPERTS), BINS)
        if self._boosting is not None:
            out[:, -1] = self._boosting.probabilities(np.stack([query.features for query in queries]))
        return out

    def mix(self, job: JobFacts, said: Floats) -> Floats:
        """Return the (BINS,) forecast of the chosen model; the hedge tracks the job from now on.

        `said`: (EXPERTS, BINS) forecasts of the experts for the job.
        """
        mixed = self.hedge.mix(job.job_id, job.gpus, said)
        chosen = mixed if self.model == "hedge" else np.asarray(said[EXPERTS.index(self.model)])
        self._said[job.job_id] = chosen
        return chosen
