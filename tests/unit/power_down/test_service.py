"""The service on scripted sequences: who sleeps, who wakes, and when nothing happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.errors import InputError
from rlsched.models.node_power import PowerByState
from rlsched.power_down.service import KeepRule, PowerDownService
from rlsched.power_down.states import Command, Drain, NodeState, NodeStates, Sleep, Wake
from rlsched.workload.predict.node_demand import DemandForecast, Persistence, TrailingMaximum

AT_ONCE = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=0, falling_slots=0)
ON, DRAINING, ASLEEP, BOOTING = NodeState
FAST = PowerByState(idle_w=600, asleep_w=10, boot_w=600, boot_s=300, shutdown_s=0)


class Cluster:
    """Five nodes, and what the service did to them."""

    def __init__(self, rule: KeepRule, nodes: int = 5, forecast: DemandForecast | None = None) -> None:
        self.service = PowerDownService(rule, forecast or Persistence())
        self.states = NodeStates(nodes, FAST)

    def review(self, now_s: float, busy: set[int], waiting: int = 0, paused: int = 0) -> list[Command]:
        """Nodes run and end jobs as said, then the service is asked and obeyed."""
        self.states.advance(now_s)
        for node in range(len(self.states.state)):
            if node in busy and not self.states.busy[node]:
                self.states.start_job(node, now_s)
            elif node not in busy and self.states.busy[node]:
                self.states.finish_last_job(node, now_s)
        commands = self.service.review(now_s, self.states.busy, waiting, self.states, paused)
        for command in commands:
            self.states.apply(command, now_s)
        return commands


def test_a_scripted_day() -> None:
    """Idle nodes sleep from the highest down; jobs that wait wake the lowest; boots are counted."""
    cluster = Cluster(AT_ONCE)
    assert cluster.review(0, {0, 1}) == []  # no slot has ended
    assert cluster.review(600, {0, 1}) == [Drain(4), Sleep(4), Drain(3), Sleep(3)]
    assert cluster.review(1200, {0, 1}) == []  # two busy and a buffer of one
    assert cluster.review(1800, {0, 1, 2}) == []  # all awake ones are busy, none waits
    assert cluster.review(2400, {0, 1, 2}, waiting=1) == [Wake(3), Wake(4)]
    assert cluster.states.next_due_s() == 2700.0
    assert cluster.review(2460, {0, 1, 2}, waiting=1) == []  # they boot: not woken again
    assert cluster.states.state.tolist() == [ON, ON, ON, BOOTING, BOOTING]
    assert cluster.review(2700, {0, 1, 2, 3}) == []
    assert (cluster.states.wake_up_events, cluster.states.nodes_booted) == (1, 2)


def test_more_is_woken_than_waits_but_no_more_than_sleeps() -> None:
    cluster = Cluster(AT_ONCE, nodes=8)
    cluster.review(0, {0})
    assert len(cluster.review(600, {0})) == 2 * 6
    assert cluster.review(660, {0, 1}, waiting=1) == [Wake(2), Wake(3), Wake(4)]  # 3 wanted and 2, 2 awake
    assert cluster.review(720, {0, 1}, waiting=50) == [Wake(5), Wake(6), Wake(7)]


@pytest.mark.parametrize(("paused", "sleep"), [(0, 0), (2, 1), (4, 3)])
def test_nodes_of_paused_jobs_sleep_although_demand_was_high(paused: int, sleep: int) -> None:
    """The forecast is the maximum of three hours, and one node may sleep per review."""
    rule = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=1, falling_slots=6)
    cluster = Cluster(rule, forecast=TrailingMaximum(18))
    for slot in range(8):
        assert cluster.review(600.0 * slot, {0, 1, 2, 3, 4}) == []
    assert cluster.review(4_700.0, {0}, paused=paused) == [], "within a slot"
    commands = cluster.review(4_800.0, {0}, paused=paused)
    assert [one for one in commands if isinstance(one, Sleep)] == [Sleep(4 - k) for k in range(sleep)]


def test_busy_nodes_are_left_alone_whatever_their_number() -> None:
    cluster = Cluster(KeepRule(buffer_nodes=0, wake_buffer_nodes=0, ramp_nodes=0, falling_slots=0))
    cluster.review(0, {4})
    assert cluster.review(600, {4}) == [command for n in (3, 2, 1, 0) for command in (Drain(n), Sleep(n))]
    assert cluster.states.state.tolist() == [ASLEEP] * 4 + [ON]


def test_a_node_that_was_drained_by_hand_sleeps_once_it_is_idle_and_is_taken_back_first() -> None:
    cluster = Cluster(AT_ONCE)
    cluster.review(0, {0, 1, 2, 3})
    cluster.states.apply(Drain(3), 10.0)
    assert cluster.review(20, {0, 1, 2, 3}) == []  # it runs a job
    assert cluster.review(30, {0, 1, 2, 3}, waiting=1) == [Wake(3)]
    cluster.states.apply(Drain(4), 35.0)
    assert cluster.review(40, {0, 1}) == [Sleep(4)]


def test_the_ramp_limits_what_falls_asleep() -> None:
    cluster = Cluster(KeepRule(buffer_nodes=0, ramp_nodes=2, falling_slots=0), nodes=9)
    cluster.review(0, set())
    slept = [len(cluster.review(600.0 * slot, set())) // 2 for slot in range(1, 7)]
    assert slept == [2, 2, 2, 2, 1, 0]


def test_nodes_sleep_while_demand_falls_or_does_not_change() -> None:
    rule = KeepRule(buffer_nodes=0, wake_buffer_nodes=0, ramp_nodes=0, falling_slots=2)
    cluster = Cluster(rule)
    assert cluster.review(0, {0}) == []
    assert cluster.review(600, {0}) == []  # one slot: falling is not known
    assert cluster.review(1200, {0, 1}) == [Drain(4), Sleep(4), Drain(3), Sleep(3), Drain(2), Sleep(2)]
    assert cluster.review(1800, {0}) == []  # 1, 2: rising
    assert cluster.review(2400, {0}) == [Drain(1), Sleep(1)]  # 2, 1


def test_headroom_wakes_before_jobs_wait() -> None:
    rule = KeepRule(buffer_nodes=2, wake_buffer_nodes=3, ramp_nodes=0, falling_slots=0, headroom_nodes=1)
    cluster = Cluster(rule)
    cluster.review(0, {0})
    assert cluster.review(600, {0}) == [Drain(4), Sleep(4), Drain(3), Sleep(3)]
    assert cluster.review(660, {0, 1}) == []  # one free node left
    assert cluster.review(720, {0, 1, 2}) == [Wake(3), Wake(4)]


def test_reviews_within_a_slot_count_by_their_highest() -> None:
    cluster = Cluster(AT_ONCE)
    cluster.review(0, {0})
    cluster.review(60, {0, 1, 2})
    cluster.review(120, {0})
    assert cluster.review(600, {0}) == [Drain(4), Sleep(4)]  # three were busy, and a buffer of one


def test_slots_without_a_review_repeat_the_one_before() -> None:
    service = PowerDownService(AT_ONCE, TrailingMaximum(2))
    states = NodeStates(5)
    busy = np.array([True, True, True, False, False])
    assert service.review(0, busy, 0, states) == []
    assert service.review(3000, busy & False, 0, states) == [Drain(4), Sleep(4)]


def test_history_has_the_slots_of_the_rule_and_the_forecast() -> None:
    """A hundred days between two reviews: three slots are kept, and the peak of the last two."""
    rule = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=0, falling_slots=3)
    service, states = PowerDownService(rule, TrailingMaximum(2)), NodeStates(5)
    busy = np.ones(5, dtype=np.bool_)
    for day, nodes in ((0, 5), (99, 3), (100, 2)):
        service.review(86400.0 * day, busy & (np.arange(5) < nodes), 0, states)
    assert len(service._demand) == 3


def test_falling_by_hand() -> None:
    demand, rule = np.array([5.0, 5.0, 4.9, 4.5, 5.0]), KeepRule(falling_slots=2)
    assert [rule.permits_sleep(demand[: 1 + slot]) for slot in range(5)] == [False, True, False, True, False]
    assert KeepRule(falling_slots=0).permits_sleep(demand)


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([30.0, 60.0, 600.0, 4000.0])), max_size=80))
@settings(max_examples=80, deadline=None)
def test_commands_are_legal_and_no_node_with_a_job_sleeps(steps: list[tuple[int, float]]) -> None:
    """Ten nodes, any demand: `NodeStates` refuses nothing, and every review sees the waiting jobs."""
    rule = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=3, falling_slots=2, headroom_nodes=1)
    service, states, now_s = PowerDownService(rule, TrailingMaximum(3)), NodeStates(10), 0.0
    for demand, wait_s in steps:
        now_s += wait_s
        states.advance(now_s)
        running = np.flatnonzero(states.busy)
        for node in running[demand:].tolist():
            states.finish_last_job(node, now_s)
        free = np.flatnonzero((states.state == ON) & ~states.busy)
        for node in free[: max(demand - len(running), 0)].tolist():
            states.start_job(node, now_s)
        waiting = max(demand - int(states.busy.sum()), 0)
        for command in service.review(now_s, states.busy, waiting, states):
            states.apply(command, now_s)
        if waiting:
            coming = states.count(ON, BOOTING)
            assert coming >= min(demand, 10)


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(InputError, match="ramp_nodes must be a finite number >= 0, got -1"):
        KeepRule(ramp_nodes=-1)
