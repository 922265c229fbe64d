"""Windows of any number of rows against the same windows in plain Python, on random states."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster import placement
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.compiled import for_state
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.rows import arrays, columns, reasons, windows
from rlsched.decide.schema import (
    FEASIBLE_ROWS,
    GUARD_FREE_FRAC,
    HOLD_S,
    MAX_HOLD_S,
    NUM_CRITIC,
    NUM_FEATURES,
    OLDEST_ROWS,
    WINDOW_ROWS,
)
from tests.support.sim.states import NOW_S, add, run

BUFFERS = {rows: arrays.empty_window(rows) for rows in (8, 24, 64)}
"""Reused as in an environment: leftovers of one state must not show in the next."""


@dataclass
class Waiting:
    gpus: int
    predicted_s: float
    submit_s: float
    held_since_s: float
    held_until_s: float
    seq: int = -1


@st.composite
def waiting(draw: st.DrawFn) -> Waiting:
    submit_s = draw(st.floats(0, NOW_S))
    held = draw(st.sampled_from(("never", "now", "over", "long ago")))
    ago_s = {"never": math.nan, "now": 60.0, "over": 2000.0, "long ago": MAX_HOLD_S}[held]
    until_s = NOW_S - ago_s + HOLD_S if held in ("now", "over") else -math.inf
    return Waiting(draw(st.integers(1, 10)), draw(st.integers(1, 100_000)), submit_s, NOW_S - ago_s, until_s)


def made(taken: list[int], jobs: list[Waiting]) -> ClusterState:
    """Three nodes of 4 GPUs of which this many are taken, and waiting jobs."""
    state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), OrderedQueue(Order(by="area")), slots=256)
    for node, count in enumerate(taken):
        for gpu in range(count):
            run(state, [4 * node + gpu], predicted_s=100.0 * (gpu + 1), start_s=NOW_S - 30.0 * node)
    for job in jobs:
        job.seq = add(state, job.gpus, job.predicted_s, submit_s=job.submit_s)
        slot = state.slot_of(job.seq)
        state.arrays.job.held_since_s[slot] = job.held_since_s
        state.arrays.job.held_until_s[slot] = job.held_until_s
    return state


def fill(state: ClusterState, now_s: float, window: arrays.WindowArrays) -> None:
    for_state(windows.job_window, state)(state.arrays, 0, now_s, window)


def log(x: float, scale: float) -> float:
    return math.log1p(x) / scale


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(BUFFERS)),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
    st.lists(waiting(), max_size=90),
)
def test_windows_match_the_schema(rows: int, taken: list[int], jobs: list[Waiting]) -> None:
    state = made(taken, jobs)
    free, half_free = 12 - sum(taken), 12 - sum(taken) >= GUARD_FREE_FRAC * 12
    order = sorted(jobs, key=lambda job: (job.predicted_s * job.gpus, job.seq))
    fits = {job.seq: bool(placement.fits(state.arrays, 0, job.gpus)) for job in jobs}
    held = {job.seq: fits[job.seq] and job.held_until_s > NOW_S and not half_free for job in jobs}
    can = {seq: fits[seq] and not held[seq] for seq in fits}
    late = {job.seq: can[job.seq] and NOW_S - job.held_since_s >= MAX_HOLD_S for job in jobs}

    shown = [job for job in order if can[job.seq]][: rows * FEASIBLE_ROWS // WINDOW_ROWS]
    first = len(shown)
    by_age = sorted(jobs, key=lambda job: (not late[job.seq], job.seq))[: rows * OLDEST_ROWS // WINDOW_ROWS]
    shown += [job for job in by_age if job not in shown]
    shown += [job for job in order if not can[job.seq] and job not in shown][: rows - 1 - len(shown)]

    window = BUFFERS[rows]
    arrays.nobody(window.own)  # job numbers restart with every state
    fill(state, NOW_S, window)
    used = int(window.info[0])
    seqs = np.where(window.slot >= 0, state.arrays.job.seq[window.slot], -1)
    assert seqs[:used].tolist() == [-1, *(job.seq for job in shown)]
    assert not window.features[used:].any()
    assert (window.reason[used:] == reasons.PADDING).all()

    overdue = any(late[job.seq] for job in shown)
    blocked = next((job for job in order if not fits[job.seq]), None)
    work = sum(job.predicted_s * job.gpus for job in jobs)
    for row, job in enumerate(shown, start=1):
        expected = {
            columns.IS_JOB: 1.0,
            columns.FEASIBLE: float(can[job.seq]),
            columns.PREDICTED: log(job.predicted_s, 12),
            columns.GPU_TIME: log(job.predicted_s * job.gpus, 15),
            columns.GPUS: math.log2(1 + job.gpus) / 8,
            columns.GPUS_FRAC: job.gpus / 12,
            columns.WAITED: log(NOW_S - job.submit_s, 12),
            columns.HELD: 0.0 if math.isnan(job.held_since_s) else log(NOW_S - job.held_since_s, 12),
            columns.RANK: log(order.index(job), 8),
            columns.FREE_AFTER: (free - job.gpus * can[job.seq]) / 12,
            columns.QUEUE: log(len(jobs), 8),
            columns.DEMAND: log(sum(other.gpus for other in jobs) / 12, 4),
            columns.WORK: log(work / 12, 15),
            columns.INFEASIBLE_AHEAD: log(sum(not fits[o.seq] for o in order[: order.index(job)]), 8)
            if row <= first
            else 0.0,
            columns.BLOCKED_GPUS: math.log2(1 + blocked.gpus) / 8 if blocked else 0.0,
            columns.BLOCKED_WAITED: log(NOW_S - blocked.submit_s, 12) if blocked else 0.0,
        }
        found = {column: float(window.features[row, column]) for column in expected}
        assert found == pytest.approx(expected, abs=2e-7), row
        reason = reasons.LEGAL if can[job.seq] else reasons.HELD if held[job.seq] else reasons.NO_HOLE
        if not fits[job.seq] and job.gpus > free:
            reason = reasons.TOO_FEW_FREE
        if reason == reasons.LEGAL and overdue and not late[job.seq]:
            reason = reasons.GUARD_HOLD
        assert window.reason[row] == reason, row
    reference = window.features[:, columns.IS_REFERENCE]
    assert reference.sum() == 1.0
    assert reference[window.info[1]] == 1.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=3), st.lists(waiting(), min_size=1, max_size=40))
def test_cached_columns_change_nothing(taken: list[int], jobs: list[Waiting]) -> None:
    """A window with a cache of jobs, one whose cache holds two of them, and a new one: the same bytes."""
    state = made(taken, jobs)
    remembers, forgets = arrays.empty_window(24, 64), arrays.empty_window(24, 2)
    for now_s in (NOW_S, NOW_S + 1.5, NOW_S + 4000.0):
        fresh = arrays.empty_window()
        for window in (remembers, forgets, fresh):
            fill(state, now_s, window)
        assert remembers.features.tobytes() == forgets.features.tobytes() == fresh.features.tobytes()
        assert remembers.reason.tolist() == forgets.reason.tolist() == fresh.reason.tolist()


def test_columns_after_the_actor_s_belong_to_the_caller() -> None:
    state = made([4, 4, 3], [Waiting(1, 60.0, 0.0, math.nan, -math.inf) for _ in range(30)])
    wide = arrays.empty_window(24)._replace(features=np.zeros((24, NUM_FEATURES + NUM_CRITIC), np.float32))
    fill(state, NOW_S, wide)
    wide.features[: wide.info[0], NUM_FEATURES:] = 7.0
    fill(state, NOW_S, wide)
    assert (wide.features[: wide.info[0], NUM_FEATURES:] == 7.0).all()
    for seq in state.waiting(0)[2:]:
        state.remove_waiting(seq)
    fill(state, NOW_S, wide)
    assert wide.info[0] == 3
    assert not wide.features[3:].any()
