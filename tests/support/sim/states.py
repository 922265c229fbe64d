"""Hand-made states of a cluster, and expected rows of features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.rows.candidates import CandidateRows
from rlsched.decide.schema import ACTOR_FEATURES

NOW_S = 1000.0


def add(
    state: ClusterState, gpus: int, predicted_s: float, submit_s: float = 0.0, spread: float = 1.0
) -> int:
    return state.add_job(num_gpus=gpus, submit_s=submit_s, predicted_s=predicted_s, spread=spread)


def run(state: ClusterState, gpus: Sequence[int], predicted_s: float = 100.0, start_s: float = 0.0) -> int:
    seq = add(state, len(gpus), predicted_s)
    state.start(seq, gpus, start_s)
    return seq


def set_held_since(state: ClusterState, seq: int, since_s: float) -> None:
    state.arrays.job.held_since_s[state.slot_of(seq)] = since_s


def log(x: float, scale: float) -> float:
    return math.log(1 + x) / scale


def row_is(window: CandidateRows, row: int, expected: dict[str, float]) -> None:
    """A row has these values by name, and zero in every other column."""
    found = dict(zip([name for name, _ in ACTOR_FEATURES], window.features[row].tolist(), strict=True))
    assert found == pytest.approx({name: expected.get(name, 0.0) for name in found}, rel=1e-6, abs=1e-7)


def crowded() -> ClusterState:
    """Two nodes of 4 GPUs with 3 free; jobs 1 to 40, the odd of 1 GPU fit, the even of 4 do not.

    By key: 39, 37, ..., 1, then 40, 38, ..., 2.
    """
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order(by="area")))
    run(state, [0, 1, 2, 3, 4])
    for seq in range(1, 41):
        assert add(state, 1 if seq % 2 else 4, 1000 - seq, submit_s=float(seq)) == seq
    return state
