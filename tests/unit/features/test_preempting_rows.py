"""Rows that start a job by preempting others: which rows exist, their columns, and the preempted jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster import placement
from rlsched.cluster.choose import choose
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.compiled import for_state
from rlsched.decide.order.gittins import Gittins, job_index
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows import arrays, reasons, windows
from rlsched.decide.rows.candidates import hold, job_candidates
from rlsched.decide.rules.gittins import weigh_victims
from rlsched.decide.rules.victims import find_victims
from rlsched.decide.schema import PREEMPTING_ROWS, SCHEMA
from tests.support.sim.states import NOW_S

MARGIN = Gittins().margin
RULE = load_scheduler("gittins")


@dataclass
class One:
    gpus: int
    predicted_s: float
    stays: bool
    ran_s: float


@st.composite
def one(draw: st.DrawFn) -> One:
    predicted_s = float(draw(st.sampled_from([20, 300, 4000, 50_000])))
    return One(draw(st.integers(1, 6)), predicted_s, draw(st.booleans()), float(draw(st.integers(0, 900))))


def preempting(spec: ClusterSpec) -> ClusterState:
    """A cluster whose queue is ordered by the index, under a policy that may preempt."""
    state = ClusterState.from_spec(spec, OrderedQueue(RULE.order), slots=64)
    state.permit(preemption=True)
    return state


def made(jobs: list[One]) -> ClusterState:
    """Three nodes of 4 GPUs by the index; jobs start while they fit, in order of arrival, and the others
    wait.
    """
    state = preempting(ClusterSpec.uniform(3, 4))
    for job in jobs:
        seq = state.add_job(
            num_gpus=job.gpus,
            submit_s=0.0,
            predicted_s=job.predicted_s,
            spread=1.0,
            preemptible=not job.stays,
        )
        gpus = np.zeros(job.gpus, np.int32)
        if choose(state.arrays, 0, state.slot_of(seq), -1, gpus) >= 0:
            state.start(seq, gpus.tolist(), NOW_S - job.ran_s)
    return state


def column(window: arrays.WindowArrays, row: int, name: str) -> float:
    return float(window.features[row, SCHEMA.column(name)])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(one(), min_size=4, max_size=16))
def test_rows_equal_the_options_of_the_rule(jobs: list[One]) -> None:
    state = made(jobs)
    s, queue = state.arrays, state.queue(0)
    window = arrays.empty_window()
    for_state(windows.job_window, state)(s, 0, NOW_S, window)
    key = np.array([job_index(s, slot, NOW_S) for slot in range(s.job.shape[0])])
    weigh_victims(s, 0, True, NOW_S)
    leave = s.derived.slot.leave.copy()
    assert sorted(queue, key=lambda slot: key[slot]) == list(queue) or len(set(key[queue])) < len(queue)

    expected, tried = {}, set()
    for slot in queue:
        gpus = int(s.job.gpus[slot])
        if placement.fits(s, 0, gpus) or gpus in tried or len(expected) == PREEMPTING_ROWS:
            continue
        tried.add(gpus)
        out, held, lowest = find_victims(s, 0, gpus, leave, key[slot])
        if out >= 0:
            expected[slot] = (out, held, lowest)
    found = {int(slot): row for row, slot in enumerate(window.slot) if window.out[row] >= 0}
    assert found.keys() == expected.keys()
    for slot, row in found.items():
        out, held, lowest = expected[slot]
        assert window.out[row] == out
        assert window.reason[row] == reasons.LEGAL
        assert not s.job.pinned[out]
        assert column(window, row, "by_preempting") == 1
        assert column(window, row, "feasible") == 0
        assert column(window, row, "preempted_gpus_frac") == pytest.approx(held / 12)
        margin = lowest + MARGIN - key[slot]
        assert margin > MARGIN
        assert column(window, row, "preempt_margin") == pytest.approx(min(margin, 6) / 6, rel=1e-5)
    for row in range(1, window.info[0]):
        slot = window.slot[row]
        assert column(window, row, "preempts") == 1
        assert column(window, row, "index_log") == pytest.approx(job_index(s, slot, NOW_S) / 20, rel=1e-5)
        assert column(window, row, "must_stay") == s.job.pinned[slot]

    action = RULE.decide(state, 0, NOW_S).action
    reference = int(window.info[1])
    if isinstance(action, Preempt):
        assert window.out[reference] == state.slot_of(action.seq)
    elif isinstance(action, Start):
        assert window.slot[reference] == state.slot_of(action.seq)
        assert window.out[reference] == -1
    else:
        assert reference == 0


def test_attained_service_is_a_column_and_counts() -> None:
    state = preempting(ClusterSpec.uniform(1, 4))
    seq = state.add_job(num_gpus=4, submit_s=0.0, predicted_s=100.0, spread=1.0)
    other = state.add_job(num_gpus=4, submit_s=0.0, predicted_s=100.0, spread=1.0)
    state.start(seq, [0, 1, 2, 3], 0.0)
    state.preempt(seq, NOW_S)
    rows = job_candidates(state, 0, NOW_S)
    assert rows.seqs.tolist() == [-1, other, seq], "it has used more than its prediction"
    attained = rows.features[:, SCHEMA.column("attained_log")].tolist()
    assert attained == pytest.approx([0.0, 0.0, math.log1p(NOW_S) / 12])


def test_wait_does_not_hold_jobs_that_could_preempt() -> None:
    state = preempting(ClusterSpec.uniform(1, 4))
    long = state.add_job(num_gpus=3, submit_s=0.0, predicted_s=90_000.0, spread=1.0)
    state.start(long, [0, 1, 2], 0.0)
    big = state.add_job(num_gpus=2, submit_s=0.0, predicted_s=10.0, spread=1.0)
    rows = job_candidates(state, 0, NOW_S)
    assert rows.legal.tolist() == [True, True]
    assert not rows.passes_over
    hold(state, rows, NOW_S)
    assert state.arrays.job.held_until_s[state.slot_of(big)] == -math.inf
    small = state.add_job(num_gpus=1, submit_s=0.0, predicted_s=10.0, spread=1.0)
    rows = job_candidates(state, 0, NOW_S)
    assert rows.passes_over
    hold(state, rows, NOW_S)
    assert state.arrays.job.held_until_s[state.slot_of(small)] > NOW_S
    assert state.arrays.job.held_until_s[state.slot_of(big)] == -math.inf
