"""Power-down rules in words, and how a cluster's buffers are split."""

from __future__ import annotations

import pytest

from rlsched.errors import InputError
from rlsched.power_down.plan import PowerDownPlan
from rlsched.power_down.service import KeepRule, PowerDownService
from rlsched.workload.predict.node_demand import Persistence, TrailingMaximum


@pytest.mark.parametrize(
    ("text", "forecast", "rule"),
    [
        ("default", TrailingMaximum(18), KeepRule()),
        ("trailing:3h,10", TrailingMaximum(18), KeepRule(buffer_nodes=10, wake_buffer_nodes=16)),
        ("trailing:1.5h,25", TrailingMaximum(9), KeepRule(buffer_nodes=25, wake_buffer_nodes=40)),
        ("trailing:1d,4,9", TrailingMaximum(144), KeepRule(buffer_nodes=4, wake_buffer_nodes=9)),
        (
            "trailing:30min,4,9,0",
            TrailingMaximum(3),
            KeepRule(buffer_nodes=4, wake_buffer_nodes=9, ramp_nodes=0),
        ),
        (
            "persistence,5,5,1,2",
            Persistence(),
            KeepRule(buffer_nodes=5, wake_buffer_nodes=5, ramp_nodes=1, headroom_nodes=2),
        ),
    ],
)
def test_rules_in_words(text: str, forecast: object, rule: KeepRule) -> None:
    plan = PowerDownPlan.parse(text)
    assert (plan.text, plan.forecast, plan.rule) == (text, forecast, rule)


@pytest.mark.parametrize(
    "text",
    ["", "trailing", "trailing:3h", "trailing:3,10", "trailing:7min,10", "boosting:3h,1", "persistence,-1"],
)
def test_other_words_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(InputError, match="trailing:"):
        PowerDownPlan.parse(text)


def rules_of(plan: PowerDownPlan, sizes: list[int]) -> list[tuple[int, int, int]]:
    services = plan.services(sizes)
    assert all(isinstance(one, PowerDownService) for one in services)
    return [
        (one.rule.buffer_nodes, one.rule.wake_buffer_nodes, one.rule.ramp_nodes)
        for one in services
        if isinstance(one, PowerDownService)
    ]


def test_the_default_scales_with_the_cluster_and_given_nodes_are_split() -> None:
    assert rules_of(PowerDownPlan(), [420]) == [(25, 40, 2)]
    assert rules_of(PowerDownPlan(), [210, 42]) == [(13, 20, 1), (3, 4, 1)]
    assert rules_of(PowerDownPlan.parse("trailing:3h,10,20,4"), [30, 10]) == [(8, 15, 3), (3, 5, 1)]
    assert rules_of(PowerDownPlan.parse("trailing:3h,0,0,0"), [30, 10]) == [(0, 0, 0), (0, 0, 0)]
