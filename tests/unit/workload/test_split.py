"""The split by time: known cuts, no job lost or repeated."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.errors import TraceError
from rlsched.workload.split import time_split
from rlsched.workload.trace import Trace


def make_trace(submit_s: list[float]) -> Trace:
    return Trace.from_columns(
        name="t", submit_s=submit_s, duration_s=[1.0] * len(submit_s), num_gpus=[1.0] * len(submit_s)
    )


def test_cuts_are_in_time_not_in_jobs() -> None:
    split = time_split(make_trace([50.0, 51.0, 52.0, 53.0, 120.0, 125.0, 150.0]))
    assert split.train == pytest.approx((50.0, 120.0))
    assert split.validation == pytest.approx((120.0, 130.0))
    assert split.test[0] == pytest.approx(130.0)


def test_every_job_is_in_exactly_one_part() -> None:
    trace = make_trace(sorted(np.random.default_rng(0).uniform(3.0, 9e6, 500).tolist()))
    split = time_split(trace)
    times = np.array(
        [
            ((since <= trace.submit_s) & (trace.submit_s < until))
            for since, until in (split.train, split.validation, split.test)
        ]
    )
    assert (times.sum(axis=0) == 1).all()


def test_single_job_is_for_testing() -> None:
    split = time_split(make_trace([5.0]))
    assert split.test[0] <= 5.0 < split.test[1]


def test_no_jobs() -> None:
    empty = make_trace([1.0]).select(slice(0, 0))
    with pytest.raises(TraceError, match="without jobs"):
        time_split(empty)
