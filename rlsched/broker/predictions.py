"""What the broker predicts of a job that is submitted, learnt from its own journal, live and after a restart.

The `Predictor` is the one of `rlsched trace predict`. Its predictions are journalled with the submission, and
so is what each of its parts said. A restart reads both: predictions and the hedge's weights are as they
were. Only boosting starts unfitted, and is fitted anew in the background.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rlsched.broker.entries import JobSubmitted
from rlsched.wire.messages import PredictionReport, PredictionScore, RecentPredictions
from rlsched.workload.predict import RunningMean
from rlsched.workload.predict.boosting import HazardModel, sklearn_installed
from rlsched.workload.predict.distribution import (
    BINS,
    Floats,
    lognormal,
    point_and_spread,
    remaining_median_s,
)
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.hedge import SIZES
from rlsched.workload.predict.history import FEATURES
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN, chosen_kind
from rlsched.workload.predict.predictor import EXPERTS, Foreseen, Predictor, TrainingSet
from rlsched.workload.predict.recent import Compared, Recent

_MEAN: Final = EXPERTS.index("running-mean")
_SAID_BYTES: Final = (1 + len(EXPERTS)) * BINS * 8
_FEATURES_BYTES: Final = len(FEATURES) * 4


_CURVES: Final = ("median_abs_ln", "spearman_mean", "longer_than_median_frac")


class _Open(NamedTuple):
    """A job that has not ended: what was said of it, and what the running mean said."""

    predicted: Floats  # (BINS,)
    mean: Floats


class Predictions:
    """Told by the `Book` what happens, in the order of the journal.

    Args:
        kind: `running-mean`: its median and spread, as in a simulator where the trace has no predictions;
            `hedge`: the hedge's median and spread, as `rlsched trace predict` writes them. None:
            the hedge where scikit-learn is installed.

    Attributes:
        recent: Ended jobs against their predictions.

    Raises:
        InputError: an unknown kind, or the hedge without scikit-learn.
    """

    def __init__(self, kind: str | None = None) -> None:
        self.kind = chosen_kind(kind)
        self._note = (
            ""
            if sklearn_installed()
            else "the running mean alone: scikit-learn (extra predict) is not installed"
        )
        self._predictor = Predictor("hedge") if self.kind == HEDGE else None
        self._mean = self._predictor.history.mean if self._predictor else RunningMean()
        self._open: dict[int, _Open] = {}
        self.recent = Recent()
        self._fits = 0
        self._fitted: tuple[float, int] | None = None
        self._fitting: int | None = None
        self._fit_error: str | None = None
        self._drawn = 0

    # ---- predictions -------------------------------------------------------------------------------------

    def predict(self, drafts: Sequence[JobSubmitted], now_s: float) -> list[JobSubmitted]:
        """Submissions of one instant, with their predictions, in order; `submitted` has to follow each."""
        if self._predictor is None:
            return [self._by_mean(draft) for draft in drafts]
        foreseen = self._predictor.foresee([_facts(draft) for draft in drafts], now_s)
        out = []
        for draft, one in zip(drafts, foreseen, strict=True):
            mixed = one.probabilities
            predicted_s, spread = point_and_spread(mixed[None, :], np.array([_facts(draft).limit_s]))
            self._open[draft.job] = _Open(mixed, one.experts[_MEAN])
            out.append(
                msgspec.structs.replace(
                    draft,
                    predicted_s=float(predicted_s[0]),
                    spread=float(spread[0]),
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

    def remaining_s(self, job: int, age_s: float) -> float:
        """Time that a job of this age still runs, with even odds, given that it has lasted so long."""
        return remaining_median_s(self._open[job].predicted, age_s)

    # ---- what happens, told by the book -------------------------------------------------------------

    def submitted(self, entry: JobSubmitted, now_s: float) -> None:
        """A job is in the journal; its prediction is what that says."""
        known = _unpacked(entry)
        if self._predictor is not None and entry.job not in self._open:
            if known is None:
                self._predictor.foresee([_facts(entry)], now_s)
            else:
                said, features = known
                self._predictor.recall(_facts(entry), said[1:], features, now_s)
        if known is None:
            predicted = lognormal(entry.predicted_s, entry.spread)
            self._open[entry.job] = _Open(predicted, predicted)
        else:
            self._open[entry.job] = _Open(known[0][0], known[0][1 + _MEAN])
        if entry.rejected:
            self.gone(entry.job)

    def started(self, job: int, now_s: float) -> None:
        """A job has its GPUs, for the first time or again."""
        if self._predictor is not None:
            self._predictor.observe_start(str(job), now_s)

    def stopped(self, job: int, now_s: float) -> None:
        """A job is queued again."""
        if self._predictor is not None:
            self._predictor.observe_stop(str(job), now_s)

    def ended(self, spec: JobSubmitted, duration_s: float, now_s: float) -> None:
        """A job has run to its own end, for `duration_s`."""
        if self._predictor is not None:
            self._predictor.observe_end(str(spec.job), duration_s, now_s)
        else:
            self._mean.observe(spec.vc, spec.num_gpus, duration_s)
        known = self._open.pop(spec.job)
        self.recent.add(now_s, duration_s, spec.num_gpus, known.predicted, known.mean)

    def gone(self, job: int) -> None:
        """A job is over without a run time that says anything."""
        del self._open[job]
        if self._predictor is not None:
            self._predictor.observe_gone(str(job))

    # ---- fits, made elsewhere -----------------------------------------------------------------------

    def fit_due(self) -> bool:
        """Whether boosting wants another fit, and none is under way."""
        return self._predictor is not None and self._fitting is None and self._predictor.fit_due()

    def training(self, now_s: float) -> TrainingSet:
        """What a fit needs; `install` or `fit_failed` has to follow."""
        assert self._predictor is not None
        self._fitting = self._predictor.ended
        return self._predictor.training(now_s)

    def install(self, fitted: HazardModel, now_s: float) -> None:
        """The fit is there: use it from now on."""
        assert self._predictor is not None
        assert self._fitting is not None
        self._predictor.install(fitted)
        self._fits += 1
        self._fitted, self._fitting, self._fit_error = (now_s, self._fitting), None, None

    def fit_failed(self, why: str) -> None:
        """The fit came to nothing; the one before stays, and another is due."""
        assert self._predictor is not None
        self._predictor.withdraw()
        self._fitting, self._fit_error = None, why

    # ---- report -------------------------------------------------------------------------------------

    def report(self, now_s: float) -> PredictionReport:
        """Who predicts, and how well that went lately."""
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
        """Scalars for TensorBoard, of the last jobs; empty before enough have ended, or if none has since."""
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
            return self._note
        if self._fitting is not None:
            return "boosting is being fitted; the survival model speaks in its place"
        return (
            f"boosting is not fitted yet ({self._predictor.ended} of {self._predictor.next_fit_jobs} jobs "
            "have ended); the survival model speaks in its place"
        )


def _facts(job: JobSubmitted) -> JobFacts:
    return JobFacts(
        job_id=str(job.job),
        gpus=job.num_gpus,
        vc=job.vc,
        user=job.user,
        name=job.name,
        command=shlex.join(job.command),
        limit_s=math.nan if job.time_limit_s is None else job.time_limit_s,
    )


def _packed(mixed: Floats, foreseen: Foreseen) -> bytes:
    said = np.vstack([mixed, foreseen.experts]).astype("<f8")
    return said.tobytes() + foreseen.features.astype("<f4").tobytes()


def _unpacked(entry: JobSubmitted) -> tuple[Floats, Floats] | None:
    """((1 + EXPERTS, BINS) what was said, features); None where nothing was, or by another kind of hedge."""
    if len(entry.said) != _SAID_BYTES + _FEATURES_BYTES:
        return None
    said = np.frombuffer(entry.said[:_SAID_BYTES], "<f8").reshape(1 + len(EXPERTS), BINS)
    return said, np.frombuffer(entry.said[_SAID_BYTES:], "<f4")


def _weights(predictor: Predictor) -> dict[str, dict[str, float]]:
    return {
        size: dict(zip(EXPERTS, predictor.hedge.weights(gpus).tolist(), strict=True))
        for size, gpus in SIZES.items()
    }


def _wired(compared: Compared) -> RecentPredictions:
    scores = (compared.predicted, compared.running_mean)
    predicted, mean = (score and msgspec.convert(score, PredictionScore) for score in scores)
    return RecentPredictions(
        jobs=compared.jobs, since_s=compared.since_s, predicted=predicted or None, running_mean=mean or None
    )
