"""The states of nodes: transitions, refused changes, counts, and energy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.errors import InputError, NodeStateError
from rlsched.models.node_power import PowerByState
from rlsched.models.power import NodePower
from rlsched.power_down.states import Drain, NodeState, NodeStates, Sleep, Wake

POWER = PowerByState(idle_w=600, asleep_w=10, boot_w=700, boot_s=300, shutdown_s=60)


def asleep(nodes: int, *which: int) -> NodeStates:
    """Nodes of which some have been asleep since second 0."""
    states = NodeStates(nodes, POWER)
    for node in which:
        states.apply(Drain(node), 0.0)
        states.apply(Sleep(node), 0.0)
    return states


def test_draining_node_finishes_its_job_and_then_sleeps() -> None:
    states = NodeStates(2, POWER)
    states.start_job(1, 10.0)
    states.apply(Drain(1), 20.0)
    with pytest.raises(NodeStateError, match="node 1 runs a job and cannot sleep"):
        states.apply(Sleep(1), 30.0)
    with pytest.raises(NodeStateError, match="cannot start a job on node 1: it must be ON, and is DRAINING"):
        states.start_job(1, 30.0)
    assert states.state[1] == NodeState.DRAINING
    assert states.finish_last_job(1, 40.0) == [Sleep(1)]
    assert states.state.tolist() == [NodeState.ON, NodeState.ASLEEP]
    assert states.finish_last_job(0, 50.0) == []


def test_booting_takes_its_time() -> None:
    states = asleep(3, 1, 2)
    states.apply(Wake(2), 1000.0)
    assert states.next_due_s() == 1300.0
    assert states.advance(1299.9) == []
    with pytest.raises(NodeStateError, match="is BOOTING"):
        states.start_job(2, 1299.9)
    assert states.advance(1300.0) == [2]
    assert states.next_due_s() == np.inf
    states.start_job(2, 1300.0)
    assert states.since_s[2] == 1300.0


def test_node_powering_down_finishes_before_it_boots() -> None:
    states = asleep(1, 0)
    states.apply(Wake(0), 20.0)
    assert states.next_due_s() == 60.0 + 300.0


def test_draining_node_returns_at_once_and_counts_as_no_boot() -> None:
    states = NodeStates(1, POWER)
    states.start_job(0, 0.0)
    states.apply(Drain(0), 5.0)
    states.apply(Wake(0), 6.0)
    assert states.state[0] == NodeState.ON
    assert (states.nodes_booted, states.wake_up_events) == (0, 0)


def test_nodes_woken_together_are_one_event() -> None:
    states = asleep(5, 1, 2, 3, 4)
    for node, now_s in ((1, 100.0), (2, 100.0), (3, 100.0), (4, 700.0)):
        states.apply(Wake(node), now_s)
    assert (states.nodes_booted, states.wake_up_events) == (4, 2)


@pytest.mark.parametrize("command", [Sleep(0), Wake(0), Drain(1), Sleep(1), Drain(2), Wake(-1)])
def test_refused_transition_changes_nothing(command: Drain | Sleep | Wake) -> None:
    states = asleep(2, 1)
    before = (states.state.tolist(), states.since_s.tolist(), states.next_due_s())
    with pytest.raises(NodeStateError, match=rf"node {command.node}"):
        states.apply(command, 10.0)
    assert (states.state.tolist(), states.since_s.tolist(), states.next_due_s()) == before


def test_time_does_not_run_backwards() -> None:
    states = NodeStates(1, POWER, 50.0)
    with pytest.raises(NodeStateError, match=r"expected a time of 50\.0 s .*, got 49\.0 s"):
        states.advance(49.0)


def test_energy_by_hand() -> None:
    """One node on for an hour; one sleeps at 0, is down after a minute, woken at 1,800, up at 2,100."""
    states = asleep(2, 1)
    states.apply(Wake(1), 1800.0)
    states.advance(3600.0)
    on = 600 * 3600
    other = 600 * 60 + 10 * (1800 - 60) + 700 * 300 + 600 * (3600 - 2100)
    assert states.energy_j == pytest.approx(on + other, rel=1e-12)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "drain", "sleep", "wake"]), st.integers(0, 3), st.floats(0, 500)
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_no_sleeping_node_works_and_energy_is_independent_of_the_steps(
    steps: list[tuple[str, int, float]], pieces: int
) -> None:
    states, fine, now_s = NodeStates(4, POWER), NodeStates(4, POWER), 0.0
    for verb, node, wait_s in steps:
        for piece in range(1, pieces + 1):
            fine.advance(now_s + wait_s * piece / pieces if piece < pieces else now_s + wait_s)
        now_s += wait_s
        for one in (states, fine):
            try:
                if verb == "start":
                    one.start_job(node, now_s)
                elif verb == "end":
                    one.finish_last_job(node, now_s)
                else:
                    one.apply({"drain": Drain, "sleep": Sleep, "wake": Wake}[verb](node), now_s)
            except NodeStateError:
                pass
        down = np.isin(states.state, (NodeState.ASLEEP, NodeState.BOOTING))
        assert not (states.busy & down).any()
        assert np.array_equal(np.isfinite(states.ready_s), states.state == NodeState.BOOTING)
        assert states.next_due_s() == states.ready_s.min()
    assert np.array_equal(states.state, fine.state)
    assert states.energy_j == pytest.approx(fine.energy_j, rel=1e-9)
    assert states.energy_j <= 4 * 700 * now_s + 1e-6
    assert states.energy_j >= 4 * 10 * now_s - 1e-6


def test_idle_node_equals_the_power_model() -> None:
    """Eight V100 and forty cores: 8 x 41 + 300 + 40 x 2 W; a node of another kind has other figures."""
    usual = PowerByState.from_gpus()
    assert usual.idle_w == usual.boot_w == 708.0
    assert PowerByState.from_gpus(NodePower(boot_s=100, boot_w=900.0), gpus=4, kind="A100").boot_w == 900.0
    assert PowerByState.from_gpus(gpus=4, kind="A100").idle_w == 4 * 51 + 300 + 20 * 2


def test_powers_out_of_range_are_named() -> None:
    with pytest.raises(InputError, match="boot_s must be a finite number >= 0, got -1"):
        PowerByState(idle_w=1, asleep_w=1, boot_w=1, boot_s=-1, shutdown_s=0)
