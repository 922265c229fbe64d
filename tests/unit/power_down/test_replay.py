"""Replays of node demand: cases by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.models.node_power import PowerByState
from rlsched.power_down.minutes import replay_states
from rlsched.power_down.series import NodeDemand
from rlsched.power_down.service import KeepRule, PowerDownService
from rlsched.workload.predict.node_demand import Persistence

NOTHING = KeepRule(buffer_nodes=0, wake_buffer_nodes=0, ramp_nodes=0, falling_slots=0)


def minutes(busy: list[int], total: int = 10) -> NodeDemand:
    """A row a minute from second 0."""
    time_s = 60.0 * np.arange(len(busy))
    return NodeDemand(time_s, np.array(busy, float), total)


def test_a_rise_waits_for_the_boot_and_no_longer() -> None:
    """One busy of ten for two hours, then three; eight sleep and boot for five minutes."""
    series = minutes([1] * 120 + [4] * 60)
    rule = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=0, falling_slots=0)
    power = PowerByState(idle_w=600, asleep_w=0, boot_w=600, boot_s=300, shutdown_s=0)
    outcome = replay_states(series, PowerDownService(rule, Persistence()), power, 0.0, 60.0)
    assert outcome.wake_up_events == 1
    assert outcome.node_minutes_short == 5 * 2
    # Asleep: 8 from minute 10 to 120, then 4, of which one more after the first slot at 4: it keeps 5.
    assert outcome.nodes_asleep == pytest.approx((8 * 110 + 4 * 10 + 5 * 50) / 180)


def test_figures_cover_the_rows_since() -> None:
    series = minutes([1] * 120 + [4] * 60)
    outcome = replay_states(
        series, PowerDownService(NOTHING, Persistence()), PowerByState.from_gpus(), 7200.0 + 600, 60.0
    )
    assert (outcome.wake_up_events, outcome.node_minutes_short) == (0, 0.0)
    assert outcome.days == pytest.approx(50 / 1440)


def test_slots_take_the_highest_and_bridge_gaps() -> None:
    series = NodeDemand(np.array([0.0, 540.0, 2100.0]), np.array([3.0, 5.0, 1.0]), 9)
    assert series.slots().tolist() == [5, 5, 5, 1]


def test_a_node_is_busy_while_anything_runs_on_it() -> None:
    spans = {"n1": [(0.0, 300.0), (60.0, 120.0)], "n2": [(0.0, 300.0)], "n3": [(400.0, 520.0)]}
    series = NodeDemand.of_spans(spans, 5)
    assert series.time_s.tolist() == [60.0 * minute for minute in range(10)]
    assert series.busy.tolist() == [2, 2, 2, 2, 2, 0, 0, 1, 1, 0]
    assert series.nodes == 5
    assert series.rows_between(360.0, 480.0).busy.tolist() == [0, 1]
