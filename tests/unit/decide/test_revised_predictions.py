"""Predictions of waiting jobs follow the run times of jobs in their burst: by hand, and by another
integration.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.bursts import FIRST_COUNT, FIRST_SHARE, SHIFT_STEP, SIBLING_GAP_S, heard_age_s
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue

STAMP_S = 600.0
SPREAD = 1.5


def cluster(*, revises: bool = True) -> ClusterState:
    """Two nodes of four GPUs; the shortest prediction is first."""
    order = Order(by="area", gpus_power=0.0, revised=revises)
    return ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(order), slots=4)


def add(
    state: ClusterState, submit_s: float, *, gpus: int = 1, vc: str = "", limit_s: float = math.nan
) -> int:
    return state.add_job(
        num_gpus=gpus, vc=vc, submit_s=submit_s, predicted_s=STAMP_S, spread=SPREAD, time_limit_s=limit_s
    )


def predicted_s(state: ClusterState, seq: int) -> float:
    return float(state.arrays.job.predicted_s[state.slot_of(seq)])


def shift(state: ClusterState, seq: int) -> float:
    return math.log(predicted_s(state, seq) / STAMP_S)


def burst_of(count: int, **options: bool) -> ClusterState:
    """A burst of one-GPU jobs, a second apart; the first starts on arrival."""
    state = cluster(**options)
    for k in range(count):
        add(state, float(k))
    state.start(0, (0,), 0.0)
    return state


def test_short_sibling_shortens_waiting_jobs() -> None:
    state = burst_of(3)
    state.release(0, 6.0)
    assert predicted_s(state, 1) == predicted_s(state, 2) < 0.5 * STAMP_S


def test_old_running_sibling_lengthens_waiting_jobs() -> None:
    state = burst_of(3)
    add(state, 120.0, gpus=4)  # another event
    assert predicted_s(state, 1) == STAMP_S
    add(state, 40 * STAMP_S, gpus=4)
    assert predicted_s(state, 1) == predicted_s(state, 2) > 3 * STAMP_S


def test_cancelled_jobs_teach_nothing() -> None:
    state = burst_of(3)
    state.release(0, 6.0, ended=False)
    assert predicted_s(state, 1) == STAMP_S


def test_preempted_jobs_teach_their_run_time_in_all_attempts() -> None:
    whole, parts = burst_of(3), burst_of(3)
    whole.release(0, 6.0)
    parts.stops_take_time = True
    parts.preempt(0, 4.0)
    parts.requeue(0, 4.0)
    parts.start(0, (0,), 4.0)
    parts.release(0, 6.0)
    assert predicted_s(parts, 1) == predicted_s(whole, 1) < STAMP_S


@pytest.mark.parametrize("stopped", ["requeue", "preempt"])
def test_requeued_job_waits_with_the_current_prediction(stopped: str) -> None:
    state = burst_of(3)
    state.start(1, (1,), 2.0)
    state.release(0, 6.0)
    assert predicted_s(state, 1) == STAMP_S, "it runs, with the prediction of its start"
    getattr(state, stopped)(1, 7.0)
    assert predicted_s(state, 1) == predicted_s(state, 2) < 0.5 * STAMP_S
    assert state.waiting(0) == [1, 2]


def test_switched_off_nothing_changes() -> None:
    state = burst_of(3, revises=False)
    state.start(1, (1,), 5.0)
    state.requeue(1, 6.0)
    state.release(0, 6.0)
    add(state, 40 * STAMP_S, gpus=4)
    assert [predicted_s(state, seq) for seq in (1, 2)] == [STAMP_S, STAMP_S]


def test_jobs_of_another_request_vc_or_time_are_no_siblings() -> None:
    state = cluster()
    add(state, 0.0, vc="a")
    for seq, (submit_s, gpus, vc) in enumerate([(1.0, 2, "a"), (2.0, 1, "b"), (3.0, 1, "a")], start=1):
        assert add(state, submit_s, gpus=gpus, vc=vc) == seq
    late = add(state, 3.1 + SIBLING_GAP_S, vc="a")
    state.start(0, (0,), 4.0)
    state.release(0, 10.0)
    found = [predicted_s(state, seq) for seq in (1, 2, 3, late)]
    assert found[0] == found[1] == found[3] == STAMP_S
    assert found[2] < STAMP_S, "though a job of another VC came in between"


def test_burst_outlives_its_jobs_and_revises_later_ones() -> None:
    state = cluster()
    add(state, 0.0)
    state.start(0, (0,), 0.0)
    state.release(0, 6.0)
    assert predicted_s(state, add(state, 100.0)) < 0.7 * STAMP_S
    assert predicted_s(state, add(state, 101.0 + SIBLING_GAP_S)) == STAMP_S


def test_queue_order_follows() -> None:
    state = burst_of(3)
    state.add_job(num_gpus=2, submit_s=3.0, predicted_s=0.8 * STAMP_S, spread=SPREAD)
    assert state.waiting(0) == [3, 1, 2]
    state.release(0, 6.0)
    assert state.waiting(0) == [1, 2, 3]


def test_no_prediction_exceeds_the_time_limit() -> None:
    state = cluster()
    for k in range(2):
        add(state, float(k), limit_s=2 * STAMP_S)
    state.start(0, (0,), 0.0)
    add(state, 40 * STAMP_S, gpus=4)
    assert predicted_s(state, 1) == 2 * STAMP_S


@pytest.mark.parametrize("ran_s", [(30.0,), (5000.0, 300.0), ()])
@pytest.mark.parametrize("runs", [0, 1, 3])
def test_revision_equals_the_posterior_mean(ran_s: tuple[float, ...], runs: int) -> None:
    """Against the same posterior on a fine grid, with the variances known by then."""
    state = cluster()
    for k in range(len(ran_s) + runs + 1):
        add(state, float(k))
    started_s = 20.0
    for k in range(len(ran_s) + runs):
        state.start(k, (k,), started_s)
    for k in np.argsort(ran_s).tolist():
        state.release(k, started_s + ran_s[k])
    now_s = 20_000.0
    last = len(ran_s) + runs
    add(state, now_s, gpus=4)
    demand = state.arrays.demand[state.demand_number(Demand(gpus=1))]
    slots = [state.slot_of(k) for k in range(len(ran_s), last)]
    ages_s = [heard_age_s(state.arrays, slot, now_s) for slot in slots]
    assert all(0.5 * (now_s - started_s) < age_s <= now_s - started_s for age_s in ages_s)
    errors = np.log(np.array(ran_s) / STAMP_S)
    first = SPREAD**2
    total = (demand.error_square + FIRST_COUNT * first) / (demand.error_count + FIRST_COUNT)
    own = (demand.own_square + FIRST_COUNT * FIRST_SHARE * first) / (demand.own_count + FIRST_COUNT)
    u = np.linspace(-4.5, 4.5, 4001) * math.sqrt(total - own)
    log_weight = -0.5 * u**2 / (total - own)
    for error in errors:
        log_weight -= 0.5 * (error - u) ** 2 / own
    for age_s in ages_s:
        above = (math.log(age_s / STAMP_S) - u) / math.sqrt(2.0 * own)
        log_weight += np.log([0.5 * math.erfc(one) for one in above])
    weight = np.exp(log_weight - log_weight.max())
    mean = float((weight * u).sum() / weight.sum())
    assert shift(state, last) == pytest.approx(mean, abs=0.5 * SHIFT_STEP + 0.03)


def test_equal_siblings_raise_the_common_share_of_the_error() -> None:
    """The same observation has more effect where earlier bursts had equal errors."""

    def after(spoiled: bool) -> float:
        state = cluster()
        for burst in range(12):
            begin_s = burst * 10_000.0
            for k in range(3):
                seq = add(state, begin_s + k)
                state.start(seq, (k,), begin_s + k)
            long = burst % 2
            for k in range(3):
                other = (burst + k) % 2 if spoiled else long
                state.release(burst * 3 + k, begin_s + 100.0 + k + 3000.0 * other)
        seqs = [add(state, 500_000.0 + k) for k in range(2)]
        state.start(seqs[0], (0,), 500_001.0)
        state.release(seqs[0], 500_061.0)
        return shift(state, seqs[1])

    assert after(spoiled=False) < after(spoiled=True) < 0.0
