"""Speed on several nodes and GPUs: limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.models.scaling import node_spread_speed

penalties = st.floats(0.0, 2.0)
sizes = st.integers(1, 512)


@given(penalty=penalties, nodes=sizes)
@settings(deadline=None)
def test_fewest_nodes_are_exactly_full_speed(penalty: float, nodes: int) -> None:
    assert node_spread_speed(penalty, nodes, nodes) == 1.0


@given(penalty=penalties, few=sizes, more=sizes, fewest=sizes)
@settings(deadline=None)
def test_more_nodes_are_never_faster(penalty: float, few: int, more: int, fewest: int) -> None:
    few, more = sorted((few + fewest, more + fewest))
    assert 0.0 < node_spread_speed(penalty, more, fewest) <= node_spread_speed(penalty, few, fewest) <= 1.0


def test_each_doubling_of_nodes_adds_the_same_time() -> None:
    assert [1 / node_spread_speed(0.17, nodes, 2) for nodes in (2, 4, 8)] == pytest.approx([1, 1.17, 1.34])


"""Speed on several nodes and GPUs: limits."""
