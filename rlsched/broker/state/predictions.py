"""Predictions of run times for submitted jobs, learnt from the broker's own journal.

The hedge, a weighted average of several predictors (experts), is also the predictor of `rlsched trace
predict`. The journal stores each submission with the prediction of the hedge and of each expert. A restarted
broker computes the hedge's weights from them again. Boosting, one of the experts, is fitted in the
background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.profiles import command_line
from rlsched.wire.messages import PredictionReport, PredictionScore, RecentPredictions
from rlsched.workload.predict import RunningMean
from rlsched.workload.predict.boosting import HazardModel
from rlsched.workload.predict.distribution import (
    BINS,
    Floats,
    lognormal,
    point_and_spread,
    remaining_median_s,
)
from rlsched.workload.predict.event_history import FEATURES
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.hedge import SIZES
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN, chosen_kind, require
from rlsched.workload.predict.predictor import EXPERTS, Predictor, SubmissionForecast, TrainingSet
from rlsched.workload.predict.recent import PredictorComparison, Recent

if TYPE_CHECKING:
    from rlsched.broker.base.past_jobs import PastJobs

_MEAN: Final = EXPERTS.index("running-mean")
_SAID_BYTES: Final = (1 + len(EXPERTS)) * BINS * 8
FEATURES_BYTES: Final = len(FEATURES) * 4
_F4, _F8 = np.dtype("<f4"), np.dtype("<f8")
"""Data types of stored predictions."""
_CURVES: Final = ("median_abs_ln", "spearman_mean", "longer_than_median_frac")


class _PredictedJob(NamedTuple):
    """Predicted run times of an unfinished job: the prediction in use, and that of `RunningMean`."""

    predicted: Floats  # (BINS,)
    mean: Floats


class Predictions:
    """Predictions of jobs. The `BrokerState` calls the methods in the order of the journal.

    Args:
        kind: Predictor that provides the median and spread. `running-mean`: the predictor that a simulator
            uses if the trace has no predictions. `hedge`: the predictor of `rlsched trace predict`. None: the
            default kind.
        past: Jobs that ended before the journal begins. The predictor learns from them first. Pass the same
            jobs at every start of the broker.

    Attributes:
        made_for: Text that identifies the kind and the past jobs. A snapshot is used only if it was made with
            the same text.
        recent: Ended jobs compared with their predictions.

    Raises:
        InputError: the kind is unknown, or the hedge is requested without scikit-learn.
    """

    def __init__(self, kind: str | None = None, past: PastJobs | None = None) -> None:
        self.kind = chosen_kind(kind)
        require(self.kind)
        self.made_for = self.kind if past is None else f"{self.kind} {past.digest}"
        self._predictor = Predictor("hedge") if self.kind == HEDGE else None
        self._mean = self._predictor.history.mean if self._predictor else RunningMean()
        if past is not None and self._predictor is not None:
            past.replay_into(self._predictor)
        elif past is not None:
            past.tell_mean(self._mean)
        self._open: dict[int, _PredictedJob] = {}
        self.recent = Recent()
        self._fits = 0
        self._fitted: tuple[float, int] | None = None
        self._fitting: int | None = None
        self._fit_error: str | None = None
        self._drawn = 0

    @staticmethod
    def warm_up(kind: str | None) -> None:
        """Predict made-up jobs, so that kernels are compiled before the first real prediction."""
        said = lognormal(60.0, 1.0)
        if chosen_kind(kind) == HEDGE:
            toy = Predictor("hedge")
            for job in ("1", "2"):
                said = toy.foresee([JobFacts(job, 1.0)], 60.0)[0].probabilities
                toy.observe_start(job, 60.0)
            toy.observe_end(job, 60.0, 120.0)
        point_and_spread(said[None, :], np.array([math.nan]))

    # ---- predictions -------------------------------------------------------------------------------------

    def predict(self, drafts: Sequence[JobSubmitted], now_s: float) -> list[JobSubmitted]:
        """Add predictions to submissions of the same instant, in order, and return the submissions.

        The caller must call `record_submission` for each returned submission.
        """
        if self._predictor is None:
            return [self._by_mean(draft) for draft in drafts]
        facts = [_facts(draft) for draft in drafts]
        for fact in facts:
            if self._predictor.history.knows(fact.job_id):  # an earlier submission with this number failed
                self._predictor.observe_gone(fact.job_id)
        foreseen = self._predictor.foresee(facts, now_s)
        points = point_and_spread(
            np.array([one.probabilities for one in foreseen]), np.array([fact.limit_s for fact in facts])
        )
        predicted_s, spreads = (some.tolist() for some in points)
        out = []
        for place, (draft, one) in enumerate(zip(drafts, foreseen, strict=True)):
            mixed = one.probabilities
            self._open[draft.job] = _PredictedJob(mixed, one.experts[_MEAN])
            out.append(
                msgspec.structs.replace(
                    draft,
                    predicted_s=predicted_s[place],
                    spread=spreads[place],
                    predicted_by=HEDGE,
                    said=_packed(mixed, one),
                )
            )
        return out

    def _by_mean(self, draft: JobSubmitted) -> JobSubmitted:
        predicted_s, spread = self._mean.predict(draft.vc, draft.num_gpus)
        if draft.time_limit_s is not None:
            predicted_s = min(predicted_s, draft.time_limit_s)
        return msgspec.structs.replace(
            draft, predicted_s=float(predicted_s), spread=float(spread), predicted_by=RUNNING_MEAN
        )

    def chances(self, job: int) -> Floats | None:
        """Return the predicted run-time distribution of a live job: the probability of each bin, (BINS,).

        Return None if the distribution is lognormal, with the median and spread in the submission.
        """
        known = self._open.get(job)
        return None if known is None or known.predicted is known.mean else known.predicted

    def remaining_s(self, job: int, age_s: float) -> float:
        """Return the median remaining run time of a job that has run for `age_s` seconds, in seconds."""
        return remaining_median_s(self._open[job].predicted, age_s)

    # ---- events, sent by the broker's state ----------------------------------------------------------

    def record_submission(self, entry: JobSubmitted, now_s: float) -> None:
        """Record a journalled submission, which contains its prediction."""
        if self._predictor is None or entry.job not in self._open:  # else `predict` has just added it
            self._recall(entry, now_s)
        if entry.rejected:
            self.discard_job(entry.job)

    def _recall(self, entry: JobSubmitted, now_s: float) -> None:
        known = _unpacked(entry)
        if known is None:
            if self._predictor is not None:
                self._predictor.foresee([_facts(entry)], now_s)
            predicted = lognormal(entry.predicted_s, entry.spread)
            self._open[entry.job] = _PredictedJob(predicted, predicted)
        else:
            said, features = known
            if self._predictor is not None:
                self._predictor.recall(_facts(entry), said[1:], features, now_s)
            self._open[entry.job] = _PredictedJob(said[0], said[1 + _MEAN])

    def record_start(self, job: int, now_s: float) -> None:
        """Record a start of a job, the first or a later one."""
        if self._predictor is not None:
            self._predictor.observe_start(str(job), now_s)

    def record_requeue(self, job: int, now_s: float) -> None:
        """Record that a job was queued again."""
        if self._predictor is not None:
            self._predictor.observe_stop(str(job), now_s)

    def record_run_time(self, spec: JobSubmitted, duration_s: float, now_s: float) -> None:
        """Record the end of a job that ended by itself after a run time of `duration_s` seconds."""
        if self._predictor is not None:
            self._predictor.observe_end(str(spec.job), duration_s, now_s)
        else:
            self._mean.observe(spec.vc, spec.num_gpus, duration_s)
        known = self._open.pop(spec.job)
        self.recent.add(now_s, duration_s, spec.num_gpus, known.predicted, known.mean)

    def discard_job(self, job: int) -> None:
        """Remove a job that finished without a usable run time."""
        del self._open[job]
        if self._predictor is not None:
            self._predictor.observe_gone(str(job))

    @property
    def predictor(self) -> Predictor | None:
        """The hedge and its predictors; None if only the running mean predicts."""
        return self._predictor

    @property
    def mean(self) -> RunningMean:
        """The running mean."""
        return self._mean

    # ---- fits by another process --------------------------------------------------------------------

    def fit_due(self) -> bool:
        """Return whether the boosting expert must be fitted again, and no fit is in progress."""
        return self._predictor is not None and self._fitting is None and self._predictor.fit_due()

    def training(self, now_s: float) -> TrainingSet:
        """Begin a fit of the boosting expert: return its training data.

        The caller must call `install` or `fit_failed` after the fit.
        """
        assert self._predictor is not None
        self._fitting = self._predictor.num_ended
        return self._predictor.training(now_s)

    def install(self, fitted: HazardModel, now_s: float) -> None:
        """Use a fitted boosting model for predictions from now on."""
        assert self._predictor is not None
        assert self._fitting is not None
        self._predictor.install(fitted)
        self._fits += 1
        self._fitted, self._fitting, self._fit_error = (now_s, self._fitting), None, None

    def fit_failed(self, why: str) -> None:
        """Record a failed fit: the previous fitted model stays in use, and another fit becomes due."""
        assert self._predictor is not None
        self._predictor.withdraw()
        self._fitting, self._fit_error = None, why

    # ---- report -------------------------------------------------------------------------------------

    def report(self, now_s: float) -> PredictionReport:
        """Return a report of the predictors in use and their recent accuracy."""
        last, week = self.recent.compared(now_s)
        predictor = self._predictor
        hedges = predictor is not None
        return PredictionReport(
            model=self.kind,
            note=self._what_is_missing(),
            ended=self.recent.count,
            last_jobs=_wired(last),
            last_week=_wired(week),
            fits=self._fits if hedges else None,
            fitted_s=self._fitted[0] if self._fitted else None,
            fitted_jobs=self._fitted[1] if self._fitted else None,
            next_fit_jobs=predictor.next_fit_jobs if predictor else None,
            fitting=self._fitting is not None if hedges else None,
            fit_error=self._fit_error,
            weights=_weights(predictor) if predictor else None,
        )

    def curves(self, now_s: float) -> dict[str, float]:
        """Return TensorBoard scalars about the accuracy of recent predictions, by tag.

        The result is empty if too few jobs have ended, or if no job has ended since the last call.
        """
        last, _ = self.recent.compared(now_s)
        if self.recent.count == self._drawn or last.predicted is None or last.running_mean is None:
            return {}
        self._drawn = self.recent.count
        scores = (("", last.predicted), ("_running_mean", last.running_mean))
        found = {f"prediction/{name}{whose}": score[name] for whose, score in scores for name in _CURVES}
        if self._predictor is not None:
            for size, weights in _weights(self._predictor).items():
                found |= {f"prediction_weight/{size}_gpus/{name}": value for name, value in weights.items()}
        return {tag: value for tag, value in found.items() if value is not None}

    def _what_is_missing(self) -> str:
        if self._predictor is None or self._predictor.boosted:
            return ""
        if self._fitting is not None:
            return "boosting is being fitted; the survival model is used instead"
        return (
            f"boosting is not fitted yet ({self._predictor.num_ended} of {self._predictor.next_fit_jobs} "
            "jobs have ended); the survival model is used instead"
        )


def _facts(job: JobSubmitted) -> JobFacts:
    return JobFacts(
        job_id=str(job.job),
        gpus=job.num_gpus,
        vc=job.vc,
        user=job.user,
        name=job.name,
        command=command_line(job.command),
        limit_s=math.nan if job.time_limit_s is None else job.time_limit_s,
    )


def _packed(mixed: Floats, foreseen: SubmissionForecast) -> bytes:
    parts = (mixed, _F8), (foreseen.experts, _F8), (foreseen.features, _F4)
    return b"".join([part.astype(kind, copy=False).tobytes() for part, kind in parts])


def _unpacked(entry: JobSubmitted) -> tuple[Floats, Floats] | None:
    """Return (predictions, features) of a job, as its submission stores them.

    The predictions have a row for the hedge and a row for each of its predictors (experts). A row has the
    probability of each bin of run times. The result is None if the submission has no predictions, or if
    another version of the hedge made them.
    """
    if len(entry.said) != _SAID_BYTES + FEATURES_BYTES:
        return None
    said = np.frombuffer(entry.said[:_SAID_BYTES], "<f8").reshape(1 + len(EXPERTS), BINS)
    return said, np.frombuffer(entry.said[_SAID_BYTES:], "<f4")


def _weights(predictor: Predictor) -> dict[str, dict[str, float]]:
    return {
        size: dict(zip(EXPERTS, predictor.hedge.weights(gpus).tolist(), strict=True))
        for size, gpus in SIZES.items()
    }


def _wired(compared: PredictorComparison) -> RecentPredictions:
    scores = (compared.predicted, compared.running_mean)
    predicted, mean = (score and msgspec.convert(score, PredictionScore) for score in scores)
    return RecentPredictions(
        jobs=compared.jobs, since_s=compared.since_s, predicted=predicted or None, running_mean=mean or None
    )
