"""Nearest bursts: rhythms by hand, and the weight of jobs submitted in a similar way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.workload.predict.bursts import CONTEXT, MEMORY, NearestBursts, Rhythm
from rlsched.workload.predict.distribution import BINS, bin_of
from rlsched.workload.predict.facts import JobFacts

KEY = ("vc_gpus", "", "1")
EVEN = np.full(BINS, 1 / BINS)


def after(times_s: list[float], now_s: float) -> list[float]:
    rhythm = Rhythm()
    for at_s in times_s:
        rhythm.submit(at_s)
    return rhythm.context(now_s).tolist()


def test_gaps_and_the_burst_by_hand() -> None:
    got = after([0.0, 1000.0, 1010.0, 1040.0], 1050.0)
    assert len(got) == CONTEXT
    assert got[:2] == [math.log1p(10.0), math.log1p(40.0)]
    assert got[4] == math.log(4), "1000, 1010, 1040 and this one"
    assert after([0.0], 61.0)[4] == 0.0
    assert after([], 5.0)[0] == 15.0


def test_regular_period_is_found() -> None:
    probes = [600.0 * k for k in range(10)]
    noise = [1111.0, 1120.0, 3456.0, 4000.0]
    *_, period, kept = after(sorted(probes + noise), 6001.0)
    assert math.expm1(period) == pytest.approx(601.0, abs=2.0)
    assert kept == 4.0


def test_no_period_is_found_in_irregular_gaps() -> None:
    *_, kept = after([0.0, 100.0, 350.0, 1000.0], 2500.0)
    assert kept < 4.0


class TestNearest:
    def fed(self) -> NearestBursts:
        """Jobs after a pause run for a day, jobs of a sweep for a minute; two thirds are of the sweep."""
        model = NearestBursts()
        for k in range(90):
            pause = k % 3 == 0
            number = model.start(KEY, JobFacts(str(k), 1), self.context(pause), 0.0)
            model.end(KEY, number, 100_000.0 if pause else 70.0)
        return model

    @staticmethod
    def context(pause: bool) -> np.ndarray:
        return np.array(
            [9.0, 9.5, 10.0, 11.0, 0.0, 0.0, 0.0] if pause else [1.0, 1.5, 2.5, 4.0, 2.0, 0.0, 0.0]
        )

    def test_jobs_submitted_alike_count(self) -> None:
        model = self.fed()
        long = model.probabilities(KEY, JobFacts("x", 1), self.context(True), 1e6, EVEN)
        short = model.probabilities(KEY, JobFacts("x", 1), self.context(False), 1e6, EVEN)
        assert long[bin_of(100_000.0)] > 0.7
        assert short[bin_of(70.0)] > 0.7
        assert long.sum() == pytest.approx(1.0)

    def test_unknown_key_gives_no_prediction(self) -> None:
        got = self.fed().probabilities(("other",), JobFacts("x", 1), self.context(True), 1e6, EVEN)
        assert got.tolist() == EVEN.tolist()

    def test_jobs_of_the_same_user_are_nearer(self) -> None:
        model = NearestBursts()
        for k in range(80):
            job = JobFacts(str(k), 1, user="ann" if k % 4 else "bob")
            model.end(KEY, model.start(KEY, job, self.context(False), 0.0), 50_000.0 if k % 4 else 70.0)
        got = model.probabilities(KEY, JobFacts("x", 1, user="bob"), self.context(False), 1e6, EVEN)
        assert got[bin_of(70.0)] > 0.6

    def test_running_neighbour_counts_with_its_age(self) -> None:
        model = NearestBursts()
        for k in range(40):
            number = model.start(KEY, JobFacts(str(k), 1), self.context(False), 0.0)
            if k % 2:
                model.end(KEY, number, 70.0)
        got = model.probabilities(KEY, JobFacts("x", 1), self.context(False), 90_000.0, EVEN)
        assert got[bin_of(90_000.0) :].sum() == pytest.approx(0.5, abs=0.15)

    def test_end_after_its_place_was_reused_is_ignored(self) -> None:
        model = NearestBursts()
        first = model.start(KEY, JobFacts("first", 1), self.context(True), 0.0)
        for k in range(MEMORY):
            model.end(KEY, model.start(KEY, JobFacts(str(k), 1), self.context(True), 0.0), 70.0)
        model.end(KEY, first, 2e6)
        got = model.probabilities(KEY, JobFacts("x", 1), self.context(True), 1e6, EVEN)
        assert got[-1] < 0.05
