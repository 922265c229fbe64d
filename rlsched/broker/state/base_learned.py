"""Observations of ended and live jobs that a base stores, so that new predictors can learn from them.

A base is the state that begins a compacted journal. `Noting` records the observations. `replay_learned`
trains new predictors with them.
"""

from __future__ import annotations

import math
import shlex
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.state.base import BaseJob, Learned, PredictorSample
from rlsched.broker.state.predictions import FEATURES_BYTES, Predictions
from rlsched.workload.predict.facts import JobFacts, stem
from rlsched.workload.predict.hedge import SIZES
from rlsched.workload.predict.predictor import EXPERTS, Predictor

MOST_PAST: Final = 20_000
"""Maximum number of ended jobs that a base stores for predictors; only the latest are kept."""
_MOST_MOVES: Final = 4


class _ObservedJob(NamedTuple):
    entry: JobSubmitted
    submit_s: float
    moves: list[tuple[str, float]]


class _Event(NamedTuple):
    at_s: float
    place: int
    happens: Callable[[], object]


class Noting(Predictions):
    """Run-time predictions that also record the jobs from which predictors learn, for a base (stored state).

    Attributes:
        past: Latest jobs that ended by themselves.
        live: Jobs that have not ended, by job number.
    """

    def __init__(self, kind: str | None = None) -> None:
        super().__init__(kind)
        self.past: deque[PredictorSample] = deque(maxlen=MOST_PAST)
        self.live: dict[int, _ObservedJob] = {}
        self._count = 0

    def record_submission(self, entry: JobSubmitted, now_s: float) -> None:
        """Record a journalled submission."""
        if not entry.rejected:
            self.live[entry.job] = _ObservedJob(entry, now_s, [])
        super().record_submission(entry, now_s)

    def record_start(self, job: int, now_s: float) -> None:
        """Record a start of a job."""
        self._move(job, "start", now_s)
        super().record_start(job, now_s)

    def record_requeue(self, job: int, now_s: float) -> None:
        """Record that a job was queued again."""
        self._move(job, "stop", now_s)
        super().record_requeue(job, now_s)

    def _move(self, job: int, what: str, now_s: float) -> None:
        moves = self.live[job].moves
        moves.append((what, now_s))
        if len(moves) > _MOST_MOVES:
            del moves[1:3]  # keep the first start, and the latest starts and requeues

    def record_run_time(self, spec: JobSubmitted, duration_s: float, now_s: float) -> None:
        """Record the run time of a job that ended by itself."""
        entry, submit_s, moves = self.live.pop(spec.job)
        self._count += 1
        self.past.append(
            PredictorSample(
                entry.vc,
                entry.user,
                entry.name,
                stem(shlex.join(entry.command)),
                entry.num_gpus,
                math.nan if entry.time_limit_s is None else entry.time_limit_s,
                submit_s,
                moves[0][1] if moves else math.nan,
                duration_s,
                now_s,
                entry.said[-FEATURES_BYTES:] if entry.said else b"",
            )
        )
        super().record_run_time(spec, duration_s, now_s)

    def discard_job(self, job: int) -> None:
        """Remove a job that finished without a usable run time."""
        self.live.pop(job, None)
        super().discard_job(job)

    def learned(self, before: Learned) -> Learned:
        """Return the observations from which predictors learn, as a new base stores them.

        `before`: the observations in the base that begins the journal. The result also contains the jobs that
        have ended since then.
        """
        predictor = self.predictor
        losses = before.losses
        if predictor is not None:
            losses = {
                size: dict(zip(EXPERTS, row.tolist(), strict=True))
                for size, row in zip(SIZES, predictor.hedge.losses, strict=True)
            }
        past = [*before.past, *self.past][-MOST_PAST:]
        return Learned(
            ended=before.ended + self._count if predictor is None else predictor.num_ended,
            run_times=[(vc, gpus, *sums) for (vc, gpus), sums in self.mean.sums.items()],
            losses=losses,
            past=past,
        )


def replay_learned(predictions: Predictions, learned: Learned, jobs: list[BaseJob]) -> None:
    """Train new predictors with the ended jobs (`learned.past`) and the live jobs (`jobs`) of a base.

    The sums of the running mean and the losses of the hedge (a weighted average of several predictors) are
    restored exactly. Predictors that learn from single jobs learn only from the jobs in the base.
    """
    predictor = predictions.predictor
    events: list[_Event] = []
    if predictor is not None:
        for number, past in enumerate(learned.past):
            events += _past_events(predictor, f"past {number}", past)
    for job in jobs:
        events += _live_events(predictions, job)
    events.sort(key=lambda event: event[:2])
    for event in events:
        event.happens()
    predictions.mean.restore_sums(
        {(vc, gpus): (count, total, squares) for vc, gpus, count, total, squares in learned.run_times}
    )
    if predictor is not None:
        predictor.restore_num_ended(learned.ended)
        losses = predictor.hedge.losses
        for row, size in enumerate(SIZES):
            known = learned.losses.get(size, {})
            if known.keys() >= set(EXPERTS):
                losses[row] = [known[name] for name in EXPERTS]
            else:  # the losses are of other predictors: start with equal weights
                losses[row] = 0.0
        predictor.hedge.restore_losses(losses)


_ENDS, _COMES, _STARTS, _AFTER_ALL = 0, 1, 2, 100
"""Sort keys of events with equal times, in the order of the broker's loop: ends, submissions, starts, and
`_AFTER_ALL`, the end of a job that ends at the time of its start.
"""


def _past_events(predictor: Predictor, job_id: str, past: PredictorSample) -> list[_Event]:
    """Return the events of a past job: its submission, its start if known, and its end.

    The events add the job to the history from which the predictors learn. The hedge (a weighted average of
    predictors) does not count the errors of this job's predictions: the base stores sums that contain them.
    At each event, the hedge only counts the time that running jobs have lasted by then.
    """
    facts = JobFacts(job_id, past.gpus, past.vc, past.user, past.name, past.command, past.limit_s)

    def comes() -> None:
        predictor.hedge.count_outlived(past.submit_s)
        if len(past.features) == FEATURES_BYTES:
            predictor.note_recalled(facts, np.frombuffer(past.features, "<f4"), past.submit_s)
        else:
            predictor.enquire(facts, past.submit_s)

    def ends() -> None:
        predictor.hedge.count_outlived(past.end_s)
        predictor.note_end(job_id, past.duration_s, past.end_s)

    began_s = past.submit_s if math.isnan(past.start_s) else past.start_s
    events = [
        _Event(past.submit_s, _COMES, comes),
        _Event(past.end_s, _ENDS if past.end_s > began_s else _AFTER_ALL, ends),
    ]
    if not math.isnan(past.start_s):
        events.append(_Event(past.start_s, _STARTS, lambda: predictor.note_start(job_id, past.start_s)))
    return events


def _live_events(predictions: Predictions, job: BaseJob) -> list[_Event]:
    entry, submit_s = job.submitted, float(job.job["submit_s"])
    events = [_Event(submit_s, _COMES, lambda: predictions.record_submission(entry, submit_s))]
    for place, (what, when_s) in enumerate(job.moves):
        tell_of = predictions.record_start if what == "start" else predictions.record_requeue
        events.append(_Event(when_s, _STARTS + place, partial(tell_of, entry.job, when_s)))
    return events
