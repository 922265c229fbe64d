"""Predictions of `Predictor` for the jobs of a trace, each made when the job is submitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.predict.distribution import (
    BINS,
    Floats,
    mean_s,
    p_longer,
    quantile_s,
    spread_around,
)
from rlsched.workload.predict.event_history import SubmissionQuery
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.predictor import EXPERTS, Predictor
from rlsched.workload.trace import Trace

_END, _SUBMIT, _START, _END_AT_ONCE = range(4)
_BATCH: Final = 4000

LONGER: Final = ("10min", "1h", "4h", "1d")
"""Names of the run times in `THRESHOLDS_S`, used in the headers of the columns `x_p_longer_...`."""

Progress = Callable[[float], None]
"""Callback that receives the finished fraction of the trace (0 to 1)."""


@dataclass(frozen=True)
class AtSubmission:
    """Predictions for J jobs, each made when the job is submitted.

    Attributes:
        probabilities: (J, BINS) predicted distribution of each job's run time over the bins of `EDGES_S`.
        experts: (J, EXPERTS, BINS) distribution of each expert (single predictor), float32.
        weights: (J, EXPERTS) weights of the experts at each job's submission.
        limit_s: (J,) time limits of the users, seconds, nan: no limit. Predicted times are at most the limit.
        fits: Number of fits of boosting.
    """

    probabilities: Floats
    experts: NDArray[np.float32]
    weights: Floats
    limit_s: Floats
    fits: int

    @property
    def mean_s(self) -> Floats:
        """(J,) expected run times, s."""
        return np.asarray(np.fmin(mean_s(self.probabilities), self.limit_s))

    @property
    def median_s(self) -> Floats:
        """(J,) median run times, s."""
        return np.asarray(np.fmin(quantile_s(self.probabilities, 0.5), self.limit_s))

    @property
    def p_longer(self) -> Floats:
        """(J, 4) probabilities that the job runs longer than 10 min, 1 h, 4 h, 1 day."""
        return p_longer(self.probabilities)


def with_predictions(trace: Trace, predictions: AtSubmission, point: str = "median") -> Trace:
    """Return the trace with columns for the predictions.

    `point` (`mean` or `median`) selects the value of `predicted_s`; `predicted_spread` is the spread around
    this value. No policy reads the further columns: the median, `x_predicted_median_s`, and the probabilities
    of longer run times, `x_p_longer_10min`, `_1h`, `_4h`, `_1d`.
    """
    predicted_s = predictions.mean_s if point == "mean" else predictions.median_s
    extra = dict(trace.extra)
    extra["x_predicted_median_s"] = np.array([f"{value:.1f}" for value in predictions.median_s.tolist()])
    for name, column in zip(LONGER, predictions.p_longer.T.tolist(), strict=True):
        extra[f"x_p_longer_{name}"] = np.array([f"{value:.4f}" for value in column])
    return replace(
        trace,
        predicted_s=predicted_s.round(1),
        predicted_spread=spread_around(predictions.probabilities, predicted_s).round(3),
        extra=extra,
    )


def facts_of(trace: Trace) -> list[JobFacts]:
    """Return the facts (`JobFacts`, data known at submission) of every job, in order of submission.

    The command line of a job is in the column `x_command`.
    """
    command = trace.extra.get("x_command", np.full(len(trace), ""))
    columns = (
        trace.job_id, trace.num_gpus, trace.vc, trace.user, trace.job_name, command, trace.time_limit_s,
    )  # fmt: skip
    return [JobFacts(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def predict_at_submission(
    trace: Trace,
    end_s: Floats,
    *,
    model: str = "hedge",
    seed: int = 0,
    progress: Progress | None = None,
) -> AtSubmission:
    """Predict the run time of every job at its arrival from the data known at that time.

    Args:
        trace: J jobs.
        end_s: (J,) end of each job in the history, seconds, nan if it never ended. The start of a job is its
            end minus its duration.
        model: One of `MODELS`.
        seed: Seed of the fits.
        progress: Function that is called with the finished fraction of the trace.

    Raises:
        InputError: the model is unknown, or needs scikit-learn, which is not installed.
    """
    return _EventBatches(trace, end_s, Predictor(model, seed), progress).run()


class _EventBatches:
    """Processes the events of a trace in batches.

    Each event updates the history at once. At the end of a batch, boosting predicts all its submissions in
    one call, and then the hedge receives the events of the batch.
    """

    def __init__(
        self,
        trace: Trace,
        end_s: Floats,
        predictor: Predictor,
        progress: Progress | None,
    ) -> None:
        self._facts = facts_of(trace)
        self._duration_s = trace.duration_s.tolist()
        self._limit_s = trace.time_limit_s
        self._predictor = predictor
        self._say = progress
        self._events = _events(trace, end_s)
        self._queries: list[tuple[int, SubmissionQuery]] = []
        self._done: list[tuple[float, int, int]] = []
        self._out = np.empty((len(trace), BINS))
        self._experts = np.empty((len(trace), len(EXPERTS), BINS), np.float32)
        self._weights = np.empty((len(trace), len(EXPERTS)))
        self._fits = 0

    def run(self) -> AtSubmission:
        """Process all events, and return the predictions."""
        predictor = self._predictor
        for count, (now_s, kind, row) in enumerate(self._events):
            if predictor.fit_due():
                self._settle()
                predictor.install(predictor.training(now_s).fit())
                self._fits += 1
            job = self._facts[row]
            if kind == _SUBMIT:
                self._queries.append((row, predictor.enquire(job, now_s)))
            elif kind == _START:
                predictor.note_start(job.job_id, now_s)
            else:
                predictor.note_end(job.job_id, self._duration_s[row], now_s)
            self._done.append((now_s, kind, row))
            if len(self._queries) == _BATCH:
                self._settle()
            if self._say is not None and count % 100 == 0:
                self._say(count / len(self._events))
        self._settle()
        return AtSubmission(self._out, self._experts, self._weights, self._limit_s, self._fits)

    def _settle(self) -> None:
        """End a batch: predict its submitted jobs by boosting in one call, then update the hedge."""
        predictor, hedge = self._predictor, self._predictor.hedge
        if self._queries:
            said = predictor.expert_forecasts([query for _, query in self._queries])
        number = 0
        for now_s, kind, row in self._done:
            hedge.count_outlived(now_s)
            job = self._facts[row]
            if kind == _SUBMIT:
                _, query = self._queries[number]
                self._weights[row] = hedge.weights(job.gpus)
                self._experts[row] = said[number]
                self._out[row] = predictor.mix(query.job, said[number])
                number += 1
            elif kind == _START:
                hedge.start(job.job_id, now_s)
            else:
                hedge.end(job.job_id, self._duration_s[row])
        self._queries.clear()
        self._done.clear()


def _events(trace: Trace, end_s: Floats) -> list[tuple[float, int, int]]:
    """Return (time in seconds, kind of event, index of the job) of each event, sorted by time.

    Events at the same time have this order: ends, submissions, starts, ends of jobs with a run time of 0.
    """
    rows = np.arange(len(trace))
    ran = np.flatnonzero(np.isfinite(end_s))
    start_s = np.maximum(end_s[ran] - trace.duration_s[ran], trace.submit_s[ran])
    at_once = end_s[ran] <= start_s
    time_s = np.concatenate([trace.submit_s, start_s, np.maximum(end_s[ran], start_s)])
    kind = np.concatenate(
        [np.full(len(rows), _SUBMIT), np.full(len(ran), _START), np.where(at_once, _END_AT_ONCE, _END)]
    )
    row = np.concatenate([rows, ran, ran])
    order: NDArray[np.intp] = np.lexsort((row, kind, time_s))
    return list(zip(time_s[order].tolist(), kind[order].tolist(), row[order].tolist(), strict=True))
