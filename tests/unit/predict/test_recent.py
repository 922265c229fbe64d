"""Recent quality of predictions: recently ended jobs, without figures where there are few."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.workload.predict.distribution import lognormal
from rlsched.workload.predict.quality import MIN_JOBS
from rlsched.workload.predict.recent import LAST_JOBS, MAX_JOBS, WEEK_S, Recent

GOOD, BAD = lognormal(1000.0, 0.1), lognormal(30.0, 0.1)


def filled(jobs: int, gap_s: float) -> Recent:
    recent = Recent()
    for k in range(jobs):
        recent.add(k * gap_s, 1000.0 + k % 7, 1, GOOD, BAD)
    return recent


def test_no_figures_for_fewer_than_twenty_jobs() -> None:
    for one in Recent().compared(0.0):
        assert one == (0, None, None, None)
    last, week = filled(MIN_JOBS - 1, 1.0).compared(100.0)
    assert last == week == (MIN_JOBS - 1, 0.0, None, None)


def test_last_jobs_and_the_last_week() -> None:
    recent = filled(400, 3600.0)
    now_s = 400 * 3600.0
    last, week = recent.compared(now_s)
    assert (last.jobs, last.since_s) == (LAST_JOBS, 200 * 3600.0)
    assert (week.jobs, week.since_s) == (WEEK_S / 3600, now_s - WEEK_S)
    assert last.predicted is not None
    assert last.running_mean is not None
    assert last.predicted["median_abs_ln"] < 0.2
    assert last.running_mean["median_abs_ln"] == pytest.approx(np.log(1000 / 30), abs=0.7)
    assert last.running_mean["longer_than_median_frac"] == 1.0


def test_figures_are_updated_when_a_job_ends_and_when_time_passes() -> None:
    recent = filled(MIN_JOBS, 1.0)
    first = recent.compared(30.0)
    assert recent.compared(31.0) is first
    recent.add(31.0, 5.0, 1, BAD, BAD)
    assert recent.compared(31.0)[0].jobs == MIN_JOBS + 1
    assert recent.compared(30.0 + WEEK_S)[1].jobs == 1


def test_old_jobs_are_forgotten() -> None:
    assert filled(MAX_JOBS + 10, 0.001).compared(10.0)[1].jobs == MAX_JOBS
