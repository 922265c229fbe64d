"""Speed against CPU cores: limits, and Synergy's profiles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.models.cores import (
    FEWEST_CORES,
    CoreRow,
    cores_needed,
    input_speed,
    throughput,
)

counts = st.floats(0.25, 64.0)


@given(needed=counts, extra=st.floats(0.0, 64.0))
@settings(deadline=None)
def test_enough_cores_are_exactly_full_speed(needed: float, extra: float) -> None:
    assert input_speed(needed + extra, needed) == 1.0


def test_unknown_number_of_cores_is_enough() -> None:
    assert input_speed(0.0, 8.0) == 1.0


def test_half_the_cores_by_hand() -> None:
    assert input_speed(4.0, 8.0) == pytest.approx(0.5**0.83)


@given(few=counts, many=counts, needed=counts)
@settings(deadline=None)
def test_more_cores_are_never_slower(few: float, many: float, needed: float) -> None:
    few, many = min(few, many), max(few, many)
    assert 0.0 < input_speed(few, needed) <= input_speed(many, needed) <= 1.0


def test_cores_needed_where_the_curve_meets_the_gpu() -> None:
    rows = [CoreRow(1, 0.4), CoreRow(3, 1.0), CoreRow(24, 1.15)]
    needed = cores_needed(rows)
    assert throughput(needed, 1.15) == pytest.approx(1.15)
    assert 3.5 < needed < 3.65


def test_language_job_needs_one_core() -> None:
    assert cores_needed([CoreRow(1, 1.0), CoreRow(24, 1.0)]) == FEWEST_CORES


@pytest.mark.parametrize("rows", [[], [CoreRow(1, 0.0)], [CoreRow(1, float("nan"))]])
def test_profile_without_throughput_is_refused(rows: list[CoreRow]) -> None:
    with pytest.raises(ValueError, match="expected at least one row"):
        cores_needed(rows)
