"""Observations of a policy that sets dials, and their times: computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.dials import NO_CONTROLLER, OUTSIDE, dials_of
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.compiled import for_state
from rlsched.decide.dials.counting import EVERY_ARRIVALS, EVERY_S, REMEMBERED_ENDS
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy, dial_arrays
from rlsched.decide.dials.turning import RANGES, set_dials, turn_due
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue

HOUR_S = 3600.0
STILL = [np.zeros((NUM_DIALS, NUM_COLUMNS + 1))]


def cluster(*nodes: NodeSpec, controller: int = OUTSIDE) -> ClusterState:
    """An idle cluster of 8 GPUs, or of these nodes, with dials set from outside."""
    state = ClusterState(list(nodes) or [NodeSpec(name="n0", gpus=8)], OrderedQueue(Order()), slots=64)
    state.set_dials(dial_arrays(state.num_partitions, controller, STILL))
    return state


def observation(state: ClusterState, now_s: float, partition: int = 0) -> dict[str, float]:
    """Current observation of a partition."""
    state.arrays.dials.dial.due[partition] = 1
    for_state(turn_due, state)(state.arrays, now_s)
    return dict(zip(NAMES, state.arrays.dials.seen[partition].tolist(), strict=True))


def job(state: ClusterState, at_s: float, predicted_s: float = HOUR_S, gpus: int = 1, **more: object) -> int:
    return state.add_job(num_gpus=gpus, submit_s=at_s, predicted_s=predicted_s, spread=0.5, **more)


def test_idle_cluster() -> None:
    found = observation(cluster(), 0.0)
    assert (found["free"], found["largest_hole"], found["whole_nodes"]) == (1.0, 1.0, 1.0)
    assert found["waiting_jobs"] == found["waiting_per_gpu"] == found["sharing"] == 0.0
    assert found["gpus"] == pytest.approx(math.log(8) / 8)
    assert found["node_gpus"] == 1.0


def test_waiting_jobs() -> None:
    state = cluster()
    for gpus, predicted_s in ((1, 300.0), (4, HOUR_S), (8, 10 * HOUR_S), (8, HOUR_S)):
        job(state, 0.0, predicted_s, gpus, preemptible=gpus != 4)
    found = observation(state, HOUR_S)
    assert found["waiting_per_gpu"] == pytest.approx(1 - math.exp(-4 * 4 / 8))
    assert found["waiting_jobs"] == pytest.approx(math.log(5) / 5)
    assert found["waiting_gpus"] == pytest.approx(math.log(1 + 21 / 8))
    assert found["waiting_hours"] == pytest.approx(math.log(1 + (300 / 3600 + 4 + 80 + 8) / 8) / 3)
    assert [found[f"waiting_{size}"] for size in ("1_gpu", "2_to_4_gpus", "5_to_8_gpus", "over_8_gpus")] == [
        0.25,
        0.25,
        0.5,
        0.0,
    ]
    assert [found[f"waiting_{size}"] for size in ("under_10_min", "under_1_h", "under_6_h", "over_6_h")] == [
        0.25,
        0.0,
        0.5,
        0.25,
    ]
    assert found["oldest_wait"] == found["mean_wait"] == pytest.approx(math.log(2) / 3)
    assert found["waiting_must_stay"] == 0.25
    assert found["head_gpus"] == 1 / 8


def test_running_jobs() -> None:
    state = cluster(NodeSpec(name="n0", gpus=4), NodeSpec(name="n1", gpus=4))
    one = job(state, 0.0, 2 * HOUR_S, 2, preemptible=False)
    other = job(state, 0.0, 300.0, 1)
    state.start(one, [0, 1], 0.0)
    state.start(other, [2], 0.0)
    found = observation(state, 60.0)
    assert found["running_per_gpu"] == 2 / 8 - 1
    assert found["free"] == 5 / 8
    assert (found["largest_hole"], found["whole_nodes"]) == (1.0, 0.5)
    assert found["running_must_stay"] == 0.5
    assert found["ends_in_10_min"] == pytest.approx(1 / 3)
    assert (found["ends_in_1_h"], found["ends_in_6_h"]) == (pytest.approx(1 / 3), 1.0)
    assert found["tenants"] == 0.0
    assert found["mean_clock"] == 0.0
    assert found["mean_age"] == pytest.approx(math.log(1 + 60 / 3600) / 3)


def test_arrivals_are_relative_to_the_week() -> None:
    state, day_s = cluster(), 86_400.0
    for k in range(14):  # one every twelve hours for a week
        job(state, 1.0 + k * day_s / 2)
    steady = observation(state, 1.0 + 6.5 * day_s)
    for _ in range(20):
        job(state, 1.0 + 6.5 * day_s)
    rush = observation(state, 1.0 + 6.5 * day_s)
    assert abs(steady["jobs_1_d"]) < 0.1
    assert rush["jobs_1_h"] > rush["jobs_1_d"] > steady["jobs_1_d"]
    assert rush["load_1_h"] > steady["load_1_h"]


def test_prediction_errors() -> None:
    state = cluster()
    pairs = [(HOUR_S, 2 * HOUR_S), (600.0, 1200.0), (60.0, 120.0)]
    for predicted_s, run_s in pairs:
        one = job(state, 1.0, predicted_s)
        state.start(one, [0], 1.0)
        state.release(one, 1.0 + run_s, ended=True)
    found = observation(state, 10_000.0)
    assert found["prediction_bias"] == pytest.approx(math.log(2) / 3, abs=1e-5)
    assert found["prediction_sd"] == pytest.approx(0.0, abs=1e-2)
    assert found["prediction_corr"] == pytest.approx(1.0)
    left = 1 - 1 / REMEMBERED_ENDS
    assert found["prediction_ends"] == pytest.approx(math.log(1 + 1 + left + left**2) / 5)


def test_ends_of_one_instant_count_in_any_order() -> None:
    runs = [(100.0, 33.3), (7.0, 123.4), (900.0, 1e5), (55.5, 1.0), (3000.0, 77.7)]
    told = []
    for order in (runs, runs[::-1]):
        state = cluster()
        numbers = {run_s: job(state, 1.0, predicted_s) for predicted_s, run_s in runs}
        for k, run_s in enumerate(numbers):
            state.start(numbers[run_s], [k], 2e5 - run_s)
        for _, run_s in order:
            state.release(numbers[run_s], 2e5, ended=True)
        observation(state, 2e5)
        told.append(state.arrays.dials.counted.tobytes())
    assert told[0] == told[1]


def test_dials_are_due_after_ten_minutes_or_enough_arrivals() -> None:
    state = cluster()
    dial = state.arrays.dials.dial

    def due() -> bool:
        was = bool(dial.due[0])
        for_state(turn_due, state)(state.arrays, now_s)
        return was

    now_s = 1000.0
    job(state, now_s)
    assert due(), "at the first event"
    for _ in range(EVERY_ARRIVALS - 1):
        job(state, now_s)
        assert not due()
    job(state, now_s)
    assert due(), "after enough arrivals"
    now_s += EVERY_S - 1.0
    job(state, now_s)
    assert not due()
    now_s += 1.0
    job(state, now_s)
    assert due(), "after ten minutes"


def test_no_statistics_without_dials() -> None:
    state = cluster(controller=NO_CONTROLLER)
    job(state, 5.0)
    assert state.arrays.dials.counted.jobs.sum() == 0.0
    assert state.arrays.dials.dial.due[0] == 0


def test_dials_stay_within_their_ranges() -> None:
    state = cluster()
    for sign in (-1.0, 1.0):
        for_state(set_dials, state)(state.arrays, 0, np.full(NUM_DIALS, sign))
        for name, span in RANGES.items():
            assert state.arrays.dials.dial[name][0] == sign * span


def test_constant_network_sets_dials() -> None:
    state = cluster()
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[:, -1] = np.arctanh(np.linspace(-0.9, 0.9, NUM_DIALS))
    state.set_dials(Strategy.from_layers(weights).arrays(1))
    observation(state, 7.0)
    found = [float(state.arrays.dials.dial[name][0]) for name in RANGES]
    assert found == pytest.approx(np.linspace(-0.9, 0.9, NUM_DIALS) * np.array(list(RANGES.values())))


def test_partitions_keep_their_dials_where_others_join() -> None:
    before = dial_arrays(2, OUTSIDE, STILL)
    before.dial.gate_pair[:] = 0.1, 0.2
    before.seen[1, 0] = 7.0
    after = dials_of(before, ["a", "shared"], ["0", "a", "shared"])
    assert after.dial.gate_pair.tolist() == [0.0, 0.1, 0.2]
    assert after.seen[:, 0].tolist() == [0.0, 0.0, 7.0]


def test_cluster_whose_first_node_joins_later() -> None:
    """As a broker's: its strategy is loaded before any node joins."""
    state = ClusterState.empty(OrderedQueue(Order()))
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[:, -1] = 1.0
    state.set_dials(Strategy.from_layers(weights).arrays(state.num_partitions))
    state.add_node(NodeSpec(name="n0", gpus=8))
    job(state, 3.0)
    for_state(turn_due, state)(state.arrays, 3.0)
    assert state.arrays.dials.dial.margin[0] == pytest.approx(np.tanh(1.0) * RANGES["margin"])


def test_node_of_a_new_vc_joins() -> None:
    state = cluster(NodeSpec(name="n0", gpus=8))
    job(state, 3.0)
    state.arrays.dials.dial.margin[0] = 0.25
    state.add_node(NodeSpec(name="n1", gpus=8, vc="a"))
    names = list(state.partition_names)
    assert state.arrays.dials.dial.margin[names.index("shared")] == 0.25
    assert state.arrays.dials.dial.margin[names.index("a")] == 0.0
    assert state.arrays.dials.counted.jobs[names.index("shared"), 0] == 1.0
