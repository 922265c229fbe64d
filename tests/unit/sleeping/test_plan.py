"""Plans of power-down as settings, and the division of a cluster's buffers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.power_down.plan import PowerDownPlan
from rlsched.power_down.service import KeepRule, PowerDownService
from rlsched.power_down.states import NodeStates, Sleep
from rlsched.settings import Seconds
from rlsched.workload.predict.node_demand import Persistence, TrailingMaximum
from rlsched_envs.sim.modelling import Models


def read(path: Path, settings: str) -> PowerDownPlan:
    """The plan of a models file with these settings."""
    (path / "models.toml").write_text(f"power_down = {{ {settings} }}\n")
    plan = Models.read(path / "models.toml").power_down
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("settings", "forecast", "rule"),
    [
        ("", TrailingMaximum(18), KeepRule()),
        ("buffer_nodes = 10", TrailingMaximum(18), KeepRule(buffer_nodes=10, wake_buffer_nodes=16)),
        (
            'over = "1.5h", buffer_nodes = 25',
            TrailingMaximum(9),
            KeepRule(buffer_nodes=25, wake_buffer_nodes=40),
        ),
        (
            'over = "1d", buffer_nodes = 4, wake_buffer_nodes = 9',
            TrailingMaximum(144),
            KeepRule(buffer_nodes=4, wake_buffer_nodes=9),
        ),
        (
            'over = "30m", buffer_nodes = 4, wake_buffer_nodes = 9, ramp_nodes = 0',
            TrailingMaximum(3),
            KeepRule(buffer_nodes=4, wake_buffer_nodes=9, ramp_nodes=0),
        ),
        (
            'forecast = "persistence", buffer_nodes = 5, wake_buffer_nodes = 5, ramp_nodes = 1, '
            "headroom_nodes = 2",
            Persistence(),
            KeepRule(buffer_nodes=5, wake_buffer_nodes=5, ramp_nodes=1, headroom_nodes=2),
        ),
    ],
)
def test_plans_as_settings(tmp_path: Path, settings: str, forecast: object, rule: KeepRule) -> None:
    plan = read(tmp_path, settings)
    assert (plan.demand_forecast, plan.rule) == (forecast, rule)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('over = "3"', "power_down.over: expected a time such as 90s, 30m, 12h or 1.5d, got '3'"),
        ('over = "7m"', "power_down: over: expected a multiple of slot (10m)"),
        ('over = "0s"', "power_down: over: expected a multiple of slot (10m)"),
        ('slot = "0s"', "power_down: slot: expected a time above 0"),
        ('falling = "15m"', "power_down: falling: expected 0, or a multiple of slot (10m), got 15m"),
        ('review = "0s"', "power_down: review: expected a time above 0"),
        ('forecast = "boosting"', "power_down.forecast: "),
        ("buffer_nodes = -1", "power_down: buffer_nodes: expected 0 nodes or more, got -1"),
        ("buffer = 1", "unknown setting 'power_down.buffer'; did you mean 'buffer_nodes'?"),
    ],
)
def test_other_settings_are_refused_with_the_expected_ones(
    tmp_path: Path, settings: str, message: str
) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, settings)
    assert message in str(raised.value)


def rules_of(plan: PowerDownPlan, sizes: list[int]) -> list[tuple[int, int, int]]:
    services = plan.services(sizes)
    assert all(isinstance(one, PowerDownService) for one in services)
    return [
        (one.rule.buffer_nodes, one.rule.wake_buffer_nodes, one.rule.ramp_nodes)
        for one in services
        if isinstance(one, PowerDownService)
    ]


def test_default_scales_with_the_cluster_and_given_nodes_are_divided() -> None:
    assert rules_of(PowerDownPlan(), [420]) == [(25, 40, 2)]
    assert rules_of(PowerDownPlan(), [210, 42]) == [(13, 20, 1), (3, 4, 1)]
    given = PowerDownPlan(buffer_nodes=10, wake_buffer_nodes=20, ramp_nodes=4)
    assert rules_of(given, [30, 10]) == [(8, 15, 3), (3, 5, 1)]
    ramp = PowerDownPlan(ramp_nodes=4)
    assert rules_of(ramp, [42]) == [(3, 4, 4)], "only the buffers are scaled"
    assert PowerDownPlan(headroom_nodes=6).rule_for(21, 42).headroom_nodes == 3
    none = PowerDownPlan(buffer_nodes=0, wake_buffer_nodes=0, ramp_nodes=0)
    assert rules_of(none, [30, 10]) == [(0, 0, 0), (0, 0, 0)]


def test_node_sleeps_after_its_idle_time() -> None:
    """Slots of a second, and at any time: the only remaining condition is the node's rest."""
    plan = PowerDownPlan(
        slot=Seconds(1.0), over=Seconds(1.0), falling=Seconds(0.0), idle=Seconds(10.0), buffer_nodes=0
    )
    service, states = plan.service(2, 2), NodeStates(2, now_s=0.0)
    asleep: dict[float, list[int]] = {}
    for now_s in np.arange(0.5, 20.0, 1.0).tolist():
        states.advance(now_s)
        busy = np.array([False, now_s < 5.0])
        states.keep_busy(busy, now_s)
        for command in service.review(now_s, busy, 0, states):
            states.apply(command, now_s)
            if isinstance(command, Sleep):
                asleep.setdefault(now_s, []).append(command.node)
    assert asleep == {10.5: [0], 15.5: [1]}
