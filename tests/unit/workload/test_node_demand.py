"""Forecasts of node demand on series whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.workload.predict.node_demand import Persistence, TrailingMaximum


def test_known_answers() -> None:
    demand = np.array([3.0, 7.0, 5.0, 1.0, 1.0, 2.0])
    series = [demand[: 1 + slot] for slot in range(6)]
    assert [Persistence().peak(one) for one in series] == demand.tolist()
    assert [TrailingMaximum(3).peak(one) for one in series] == [3, 7, 7, 7, 5, 2]


def test_a_window_without_slots_is_rejected() -> None:
    with pytest.raises(InputError, match="at least one slot, got 0"):
        TrailingMaximum(0)
