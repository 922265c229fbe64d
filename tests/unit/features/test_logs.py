"""Logarithms eight at a time equal the standard library's, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsched.decide.rows.logs import log_arrays, scaled_log1p

SCRATCH = log_arrays(64)


def logs(x: list[float], scale: float) -> list[float]:
    SCRATCH.x[: len(x)] = x
    scaled_log1p(SCRATCH, 0, len(x), scale)
    return SCRATCH.out[: len(x)].tolist()


@pytest.mark.parametrize("scale", [12.0, 1.0])
def test_whole_seconds_and_others(scale: float) -> None:
    rng = np.random.default_rng(0)
    for k in range(500):
        x = np.exp(rng.uniform(0, 25, 64)) - (1 if k % 3 == 0 else 0)
        x = (np.floor(x) if k % 2 else x).clip(0)
        assert logs(x.tolist(), scale) == [float(np.float32(math.log1p(one) / scale)) for one in x]


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=64))
def test_any_number(x: list[float]) -> None:
    assert logs(x, 12.0) == [float(np.float32(math.log1p(one) / 12.0)) for one in x]


def test_only_the_requested_entries() -> None:
    scratch = log_arrays(8)
    scratch.x[:] = 1.0
    scaled_log1p(scratch, 2, 5, 1.0)
    assert np.flatnonzero(scratch.out).tolist() == [2, 3, 4]
