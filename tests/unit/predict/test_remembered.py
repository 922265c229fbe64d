"""Remembered jobs of a fit in arrays: against a plain list, and the memory of an ended job."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from rlsched.workload.predict import predictor as predictors
from rlsched.workload.predict import remembered
from rlsched.workload.predict.event_history import FEATURES
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.predictor import Predictor
from rlsched.workload.predict.remembered import JobsInOrder


class Plain:
    """The same with one object per job."""

    def __init__(self) -> None:
        self.jobs: dict[str, list[float]] = {}  # first feature, start, duration

    def forget_oldest(self, most: int) -> None:
        for job in list(self.jobs)[: max(len(self.jobs) - most, 0)]:
            if not math.isnan(self.jobs[job][2]):
                del self.jobs[job]

    def begun(self) -> list[list[float]]:
        return [job for job in self.jobs.values() if not math.isnan(job[1])]


@pytest.mark.parametrize("seed", range(4))
def test_same_jobs_in_the_same_order_for_any_events(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "BLOCK", 8)
    rng, ours, plain = np.random.default_rng(seed), JobsInOrder(), Plain()
    live: list[str] = []
    for now_s in range(1_500):
        what = rng.integers(7)
        if what <= 2 or not live:
            job = str(now_s)
            live.append(job)
            ours.add(job, np.full(len(FEATURES), now_s, np.float32))
            plain.jobs[job] = [float(now_s), math.nan, math.nan]
        elif what == 3:
            job = live[rng.integers(len(live))]
            at_s = float(now_s) if rng.random() < 0.8 else math.nan
            ours.set_start(job, at_s)
            plain.jobs[job][1] = at_s
        elif what <= 5:
            job = live.pop(rng.integers(len(live)))
            ours.record_end(job, 3.0, float(now_s))
            plain.jobs[job][2] = 3.0
            if math.isnan(plain.jobs[job][1]):
                plain.jobs[job][1] = now_s - 3.0
        else:
            job = live.pop(rng.integers(len(live)))
            ours.remove_job(job)
            del plain.jobs[job]
        if now_s % 100 == 99:
            ours.forget_oldest(150)
            plain.forget_oldest(150)
        assert len(ours) == len(plain.jobs)
    rows, start_s, duration_s = ours.started_jobs()
    features = [float(ours.features(row)[0]) for row in rows.tolist()]
    got = np.array([features, start_s, duration_s]).T
    np.testing.assert_array_equal(got, np.array(plain.begun()))
    assert len(got) > 100
    assert len(ours._blocks) < 1_500 // 8 / 1.5, "blocks of forgotten jobs are freed"


def test_ended_job_leaves_no_object_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its features and two times remain, in arrays, until more jobs have ended than are remembered."""
    monkeypatch.setattr(predictors, "sklearn_installed", lambda: True)
    predictor = Predictor("hedge")
    live = [str(number) for number in range(20)]

    def lives(first: int, jobs: int) -> None:
        for number in range(first, first + jobs):
            now_s = 100.0 + number
            predictor.predict(JobFacts(live[number % 20], 1.0, user="u", name="n", command="c"), now_s)
            predictor.observe_start(live[number % 20], now_s)
            predictor.observe_end(live[number % 20], 0.5, now_s + 0.5)

    lives(0, 1_100)
    before = sys.getallocatedblocks()
    lives(1_100, 2_000)
    assert sys.getallocatedblocks() - before < 0.1 * 2_000
    assert len(predictor._seen) == 3_100
