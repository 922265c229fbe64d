"""`studies/models/nearest_by_pairs.py`: the broker's limit is nearly the best, on both GPU types."""

from __future__ import annotations

import pytest

from rlsched.broker.state.job_requests import MOST_FOR_PAIRS
from studies.models.nearest_by_pairs import GPU_TYPES, LIMITS, errors


@pytest.mark.parametrize("gpu_type", GPU_TYPES)
def test_observed_pairs_lower_the_error_of_predicted_speeds(gpu_type: str) -> None:
    found = {one.limit: one for one in errors(gpu_type, 4)}
    assert list(found) == list(LIMITS)
    assert found[MOST_FOR_PAIRS].speed < 0.7 * found[0.0].speed
    assert found[MOST_FOR_PAIRS].speed < 1.1 * min(one.speed for one in found.values())
    assert found[MOST_FOR_PAIRS].util < 0.1
