"""Drift: observations of a trained policy are compared with its training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.drift import DriftWatch, Familiar, unlike
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue

A, B = "a", "b"
KNOWN = Familiar(columns={A: (0.0, 1.0), B: (2.0, 2.0)})


def window(a: float = 0.5, b: float = 2.0, rows: int = 3) -> np.ndarray:
    return np.tile(np.array([a, b], np.float32), (rows, 1))


def watch(remembered: int = 8) -> DriftWatch:
    return DriftWatch(KNOWN, (A, B), remembered)


def test_drift_begins_above_half_of_a_full_memory_and_ends_at_a_quarter() -> None:
    one = watch(8)
    for number in range(1, 13):
        one.observe_rows(window(a=5.0) if number > 3 else window())
        assert one.active == (number >= 8), (
            "eight observations are remembered, and five of the first eight are outside"
        )
    for left in range(7, -1, -1):
        one.observe_rows(window())
        assert one.active == (left > 2), f"{left} of 8 are outside"


def test_exactly_half_is_no_drift() -> None:
    one = watch(8)
    for number in range(64):
        one.observe_rows(window(a=5.0) if number % 2 else window())
    assert not one.active


@pytest.mark.parametrize(
    ("a", "b", "outside"),
    [
        (1.09, 2.0, []),
        (1.11, 2.0, [A]),
        (-0.09, 2.0, []),
        (-0.11, 2.0, [A]),
        (0.5, 2.0 + 1e-6, []),
        (0.5, 2.001, [B]),
        (math.nan, 2.0, [A]),
        (math.inf, -math.inf, [A, B]),
    ],
)
def test_range_has_a_margin_of_a_tenth_and_a_constant_none(a: float, b: float, outside: list[str]) -> None:
    one = watch()
    one.observe_rows(window(a, b))
    assert [found.column for found in one.outside()] == outside


def test_column_counts_if_more_than_half_of_the_rows_are_outside() -> None:
    one = watch()
    rows = window(rows=4)
    rows[:2, 0] = 9.0
    one.observe_rows(rows)
    assert one.outside() == []
    rows[2, 0] = 7.0
    one.observe_rows(rows)
    (found,) = one.outside()
    assert (found.column, found.share_frac, found.value, found.low, found.high) == (A, 0.5, 8.0, 0.0, 1.0)
    assert found.in_words == "a is 8, trained on 0 to 1 (outside in 50%)"


def test_column_without_a_range_is_not_watched() -> None:
    one = DriftWatch(KNOWN, (A, "new", B), 2)
    for _ in range(3):
        one.observe_rows(np.array([[0.5, 1e9, 2.0]]))
    assert not one.active


def test_column_of_the_cluster_s_configuration_is_shown_and_is_no_drift() -> None:
    one = DriftWatch(KNOWN, (A, B), 4, fixed=(A,))
    for _ in range(5):
        one.observe_rows(window(a=5.0))
    assert (one.active, one.in_words) == (False, "")
    (found,) = one.outside()
    assert (found.column, found.share_frac, found.only_warns) == (A, 1.0, True)
    for _ in range(3):
        one.observe_rows(window(a=5.0, b=3.0))
    assert one.active
    assert [(odd.column, odd.only_warns) for odd in one.outside()] == [(B, False), (A, True)]
    assert one.in_words.startswith("b is 3")


def test_cluster_outside_the_training_ranges_has_a_line_for_each_difference() -> None:
    state = ClusterState.from_spec(ClusterSpec.uniform(6, 4), OrderedQueue(Order(by="area")))
    like = Familiar(nodes=(4, 8), gpus=(16, 32))
    assert unlike(like, state) == []
    other = Familiar(nodes=(8, 16), gpus=(1, 8), gpu_types=("V100",))
    (kind,) = state.kind_names
    (partition,) = state.partition_names
    assert unlike(other, state) == [
        f"partition {partition} has 6 nodes, trained on 8 to 16",
        f"partition {partition} has 24 GPUs, trained on 1 to 8",
        f"GPU type {kind}, trained on V100",
    ]
    assert unlike(Familiar(), state) == [], "an empty card gives no line"
