"""`Predictor`: a distribution for every job that is submitted, learnt from plain facts as they come in."""

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
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.hedge import Hedge
from rlsched.workload.predict.history import History, Query
from rlsched.workload.predict.remembered import Remembered

EXPERTS: Final = ("running-mean", "nearest", "survival", "boosting")
MODELS: Final = ("hedge", *EXPERTS)
"""`hedge` mixes all of the experts; each of them may be asked for alone."""
REFIT_GROWTH: Final = 1.5
REFIT_JOBS: Final = 5000
"""A fit is due when so many times as many jobs have ended as at the last one, or so many more."""

MAX_SEEN: Final = 200_000
"""Ended jobs are remembered for fits until so many are."""
_FORGET_EVERY: Final = 20_000


@dataclass(frozen=True)
class TrainingSet:
    """What a fit needs, cut loose from the predictor, so that it may be fitted elsewhere.

    Attributes:
        rows: N features of jobs, (FEATURES,) each, in order of submission.
        lasted_s: (N,) how long the jobs have run so far, or ran to their end.
        ended: (N,) whether they have ended.
        seed: Of the fit.
    """

    rows: list[Floats]
    lasted_s: Floats
    ended: NDArray[np.bool_]
    seed: int

    @property
    def features(self) -> Floats:
        """(N, FEATURES); put together here, not in `Predictor.training`: a broker's loop waits for that."""
        return np.stack(self.rows)

    def arguments(self) -> tuple[Floats, Floats, NDArray[np.bool_], int]:
        """What `HazardModel` takes: a few arrays to send to another process."""
        return self.features, self.lasted_s, self.ended, self.seed

    def fit(self) -> HazardModel:
        """Fit boosting; seconds of one core."""
        return HazardModel(*self.arguments())


class Foreseen(NamedTuple):
    """What is said of a submission.

    Attributes:
        probabilities: (BINS,) the chosen model's forecast.
        experts: (EXPERTS, BINS) what each predictor said.
        features: (FEATURES,) float32, what boosting saw of it.
    """

    probabilities: Floats
    experts: Floats
    features: Floats


class Predictor:
    """Learns from submissions, starts and ends, told in the order of time, and predicts submissions.

    Fits are the caller's to make, at once or in the background:
    `if p.fit_due(): p.install(p.training(now_s).fit())`. What the experts said of a job may be kept, and
    handed to `recall` in a later life: the hedge's weights are then those of this one, fit by fit.

    Args:
        model: One of `MODELS`.
        seed: Of the fits.

    Raises:
        InputError: an unknown model, or one that needs scikit-learn where that is not installed.
    """

    def __init__(self, model: str = "hedge", seed: int = 0) -> None:
        if model not in MODELS:
            raise InputError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
        self._boosts = model in ("hedge", "boosting")
        if self._boosts and not sklearn_installed():
            require_sklearn()
        self.model = model
        self.history = History()
        self.hedge = Hedge(len(EXPERTS))
        self._seed = seed
        self._boosting: HazardModel | None = None
        self._seen = Remembered()
        self._said: dict[str, Floats] = {}
        self._ended = 0
        self._ended_at_fit = self._ended_at_last = 0

    def predict(self, job: JobFacts, now_s: float) -> Forecast:
        """A job is submitted: what its run time will be. It counts as submitted from here on."""
        return Forecast.of(self.foresee([job], now_s)[0].probabilities)

    def foresee(self, jobs: Sequence[JobFacts], now_s: float) -> list[Foreseen]:
        """Jobs are submitted at once, in this order: what `predict` says of each, and who said what."""
        queries = [self.enquire(job, now_s) for job in jobs]
        self.hedge.settle(now_s)
        if not queries:
            return []
        return [
            Foreseen(self.mix(query.job, experts), experts, query.features)
            for query, experts in zip(queries, self.said(queries), strict=True)
        ]

    def recall(self, job: JobFacts, experts: Floats, features: Floats, now_s: float) -> Floats:
        """A job was submitted in an earlier life; `experts` and `features` are what `Foreseen` had then.

        Returns:
            (BINS,) the forecast that they give.
        """
        self._check_new(job)
        self.history.resubmit(job, now_s)
        self._remember(job, features)
        self.hedge.settle(now_s)
        return self.mix(job, experts)

    def observe_start(self, job_id: str, now_s: float) -> None:
        """A job has started."""
        self.note_start(job_id, now_s)
        self.hedge.start(job_id, now_s)

    def observe_stop(self, job_id: str, now_s: float) -> None:
        """A job no longer runs, and waits to start again (its node was lost, say)."""
        self.history.stop(job_id, now_s)
        self.hedge.stop(job_id)
        if self._boosts:
            self._seen.started(job_id, math.nan)

    def observe_end(self, job_id: str, duration_s: float, now_s: float) -> None:
        """A job has ended after running for `duration_s`."""
        self.note_end(job_id, duration_s, now_s)
        self.hedge.settle(now_s)
        self.hedge.end(job_id, duration_s)
        self._said.pop(job_id, None)

    def observe_gone(self, job_id: str) -> None:
        """A job has gone without a run time that says anything (cancelled while it waited, say)."""
        self.history.forget(job_id)
        self.hedge.forget(job_id)
        self._seen.gone(job_id)
        self._said.pop(job_id, None)

    def take_up(self, ended: int) -> None:
        """So many jobs have ended in an earlier life, though fewer were told."""
        self._ended = ended

    def remaining_s(self, job_id: str, now_s: float) -> float | None:
        """Expected time that a job still runs, given that it has lasted this long; None: it does not run.

        The distribution of its arrival, conditioned on its age: those predictors that held so long a run for
        likely weigh more.
        """
        age_s = self.history.age_s(job_id, now_s)
        return None if age_s is None else remaining_s(self._said[job_id], age_s)

    @property
    def next_fit_jobs(self) -> int:
        """So many jobs must have ended for the next fit."""
        last = self._ended_at_fit
        return math.ceil(max(MIN_ENDED, min(REFIT_GROWTH * last, last + REFIT_JOBS)))

    @property
    def ended(self) -> int:
        """Jobs that have ended so far."""
        return self._ended

    @property
    def boosted(self) -> bool:
        """Whether a fit is in use."""
        return self._boosting is not None

    def fit_due(self) -> bool:
        """Whether enough jobs have ended since the last fit for another one."""
        return self._boosts and self._ended >= self.next_fit_jobs

    def training(self, now_s: float) -> TrainingSet:
        """What is known by now, as a fit wants it; the next fit is due after this one."""
        self._ended_at_last, self._ended_at_fit = self._ended_at_fit, self._ended
        self._seen.forget_oldest(MAX_SEEN)
        begun = self._seen.begun()
        rows, start, duration = (column[chosen_rows(len(begun[0]))] for column in begun)
        ended = ~np.isnan(duration)
        features = [self._seen.features(row) for row in rows.tolist()]
        return TrainingSet(features, np.where(ended, duration, now_s - start), ended, self._seed)

    def install(self, fitted: HazardModel | None) -> None:
        """Use this fit from now on; None: survival in its place."""
        self._boosting = fitted

    def withdraw(self) -> None:
        """The fit of the last `training` came to nothing: another one is due."""
        self._ended_at_fit = self._ended_at_last

    # What `predict` and the observers do, apart: models of history first, then boosting for many at once,
    # then the hedge. `at_submission` drives them so.

    def enquire(self, job: JobFacts, now_s: float) -> Query:
        """Tell the history of a submission; what boosting and the hedge want to know of it."""
        self._check_new(job)
        query = self.history.submit(job, now_s)
        self._remember(job, query.features)
        return query

    def _check_new(self, job: JobFacts) -> None:
        if self.history.knows(job.job_id):
            raise ValueError(f"job {job.job_id} was submitted before, and has not ended")

    def _remember(self, job: JobFacts, features: Floats) -> None:
        if self._boosts:
            self._seen.add(job.job_id, features)
            if len(self._seen) > MAX_SEEN and len(self._seen) % _FORGET_EVERY == 0:
                self._seen.forget_oldest(MAX_SEEN)

    def note_start(self, job_id: str, now_s: float) -> None:
        """Tell the history of a start."""
        self.history.start(job_id, now_s)
        if self._boosts:
            self._seen.started(job_id, now_s)

    def note_end(self, job_id: str, duration_s: float, now_s: float) -> None:
        """Tell the history of an end."""
        self.history.end(job_id, duration_s, now_s)
        self._ended += 1
        if self._boosts:
            self._seen.ended(job_id, duration_s, now_s)

    def said(self, queries: Sequence[Query]) -> Floats:
        """(N, EXPERTS, BINS) what each predictor says; boosting repeats survival until its first fit."""
        out = np.empty((len(queries), len(EXPERTS), BINS))
        for rows, one in zip(out, queries, strict=True):
            rows[0], rows[1], rows[2], rows[3] = one.running_mean, one.nearest, one.survival, one.survival
        if self._boosting is not None:
            out[:, -1] = self._boosting.probabilities(np.stack([query.features for query in queries]))
        return out

    def mix(self, job: JobFacts, said: Floats) -> Floats:
        """(EXPERTS, BINS) -> (BINS,): the chosen model's distribution; the hedge tracks the job."""
        mixed = self.hedge.mix(job.job_id, job.gpus, said)
        chosen = mixed if self.model == "hedge" else np.asarray(said[EXPERTS.index(self.model)])
        self._said[job.job_id] = chosen
        return chosen
