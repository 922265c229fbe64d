"""The table of what it is worth to change running jobs' clocks: known points in, known ratios out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.policy.dial_tables import Point
from studies.policy.reclock import Pair, interval, table


def test_ratios_of_a_pair() -> None:
    jct, energy, weighed = Pair(0.25, Point(0.8, 0.9), Point(0.4, 0.99)).ratios
    assert jct == pytest.approx(math.log(0.5))
    assert energy == pytest.approx(math.log(1.1))
    assert weighed == pytest.approx(math.log((0.75 * 0.4 + 0.25 * 0.99) / (0.75 * 0.8 + 0.25 * 0.9)))


def test_an_interval_holds_the_mean_and_closes_where_cases_agree() -> None:
    mean, low, high = interval(np.log(np.array([0.9, 0.95, 1.0, 1.05])))
    assert low < mean < high
    assert interval(np.log(np.full(5, 0.8))) == pytest.approx((0.8, 0.8, 0.8))


def test_the_table_has_a_line_for_each_weight_and_one_over_all() -> None:
    better = [Pair(0.25, Point(1.0, 1.0), Point(0.5, 1.0)), Pair(0.75, Point(1.0, 1.0), Point(1.0, 0.5))]
    lines = table({"fifo": {"a": better, "b": better}})[2:]
    assert lines[0] == "| `fifo` | 0.25 | 2 | 0.500 | 1.000 | 0.625 |"
    assert lines[1] == "| `fifo` | 0.75 | 2 | 1.000 | 0.500 | 0.625 |"
    assert lines[2].startswith("| `fifo` | all | 2 | 0.707 [0.707, 0.707] | 0.707 [0.707, 0.707] | 0.625 [")
