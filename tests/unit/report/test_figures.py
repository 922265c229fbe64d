"""Points of two costs: which of them are the best."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("matplotlib")
from rlsched.report.figures import Canvas, Point, front_of

POINTS = [
    Point("a", 100.0, 9.0),
    Point("b", 200.0, 5.0),
    Point("dearer than b, and as fast", 200.0, 6.0),
    Point("slower than b, and as dear", 300.0, 5.0),
    Point("like b", 200.0, 5.0),
    Point("c", 400.0, 1.0),
]


def test_front_has_the_points_that_no_other_beats() -> None:
    assert [point.label for point in front_of(POINTS)] == ["a", "b", "like b", "c"]
    assert front_of(POINTS[:1]) == POINTS[:1]


def test_all_points_are_drawn_with_their_names() -> None:
    plot = Canvas().front(POINTS, "Costs.", "mean wait", "cost, EUR")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", plot.svg)
    assert {"a", "b", "like b", "c", "mean wait, minutes", "cost, EUR"} <= set(texts)
    assert plot.svg.count("PathCollection") == len(POINTS)
