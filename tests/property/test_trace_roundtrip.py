"""Every format reads back any trace unchanged."""

from __future__ import annotations

import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.workload.trace import Trace

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
SECONDS = st.floats(min_value=0, max_value=1e12, allow_nan=False)
MAYBE = st.one_of(st.just(float("nan")), SECONDS)
GPUS = st.one_of(st.integers(0, 512).map(float), st.floats(min_value=0, max_value=1))
ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ORIGIN = st.none() | st.datetimes(timezones=ZONES)
JOB = st.tuples(SECONDS, SECONDS, GPUS, TEXT, TEXT, MAYBE, MAYBE, TEXT)


@settings(max_examples=60, deadline=None)
@given(st.lists(JOB, min_size=1, max_size=8), st.sampled_from([".csv", ".csv.gz", ".parquet"]), ORIGIN)
def test_roundtrip(
    jobs: list[tuple[float, float, float, str, str, float, float, str]], suffix: str, origin: datetime | None
) -> None:
    columns = (list(cells) for cells in zip(*jobs, strict=True))
    submit, duration, gpus, user, name, predicted, cpus, note = columns
    trace = Trace.from_columns(
        name="t",
        submit_s=submit,
        duration_s=duration,
        num_gpus=gpus,
        user=user,
        job_name=name,
        predicted_s=predicted,
        num_cpus=cpus,
        extra={"x_note": note},
        origin=origin,
    )
    assert (np.diff(trace.submit_s) >= 0).all()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        trace.write(path)
        back = Trace.read(path)
    assert back.origin == trace.origin == trace.select([0]).origin == origin
    assert back.columns().keys() == trace.columns().keys()
    for header, cells in trace.columns().items():
        np.testing.assert_array_equal(back.columns()[header], cells, err_msg=header)
