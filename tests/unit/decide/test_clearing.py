"""The clearing time of a partition, and `price.spare`: jobs return to the queue in time for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rlsched.cluster.arrays import DEFERRED
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.clearing import STEP_S, latest_wait_s, sum_work
from rlsched.decide.compiled import for_state
from rlsched.decide.options import NO_PRICE, PriceOptions
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.price import defer_jobs, next_to_pause
from rlsched.energy.series import HOUR_S
from rlsched.errors import InputError

NODES = (NodeGroup(count=1, gpus=4), NodeGroup(count=1, gpus=2, vc="team"))
SLACK_S = 10 * HOUR_S


def cluster() -> ClusterState:
    return ClusterState.from_spec(
        ClusterSpec(name="two partitions", nodes=NODES), OrderedQueue(Order()), slots=16
    )


def add(state: ClusterState, hours: float, **more: object) -> int:
    """Add a job of 2 GPUs that is predicted to run for some hours, submitted at second 0; return its slot."""
    given: dict[str, Any] = {"num_gpus": 2, "submit_s": 0.0, "spread": 0.1, **more}
    return state.slot_of(state.add_job(predicted_s=hours * HOUR_S, **given))


def work_h(state: ClusterState, now_s: float) -> list[float]:
    """The GPU-hours of work of each partition, by `sum_work` after a change of the state."""
    state.arrays.scratch[0].summed_s = -math.inf
    sum_work(state.arrays, now_s)
    return (state.arrays.derived.part.work_gpu_ms / 1000.0 / HOUR_S).tolist()


def partition(state: ClusterState, slot: int) -> int:
    own = int(state.arrays.job.own_partition[slot])
    return own if own >= 0 else int(state.arrays.job.shared_partition[slot])


def test_work_of_waiting_and_running_jobs_counts_in_their_partitions() -> None:
    state = cluster()
    shared, own = add(state, 3.0), add(state, 1.0, vc="team")
    saved = add(state, 5.0)
    add(state, 1.0, demand=Demand(gpus=1, share_milli=250))
    add(state, 9.0, demand=Demand(gpus=0, cpu_milli=1000))
    state.arrays.job.saved_s[saved] = 4 * HOUR_S
    at, team = partition(state, shared), partition(state, own)
    assert at != team
    work = work_h(state, 0.0)
    assert (work[at], work[team]) == pytest.approx((2 * 3.0 + 2 * 1.0 + 0.25, 2 * 1.0))
    state.start(int(state.arrays.job.seq[shared]), [0, 1], 0.0)
    assert work_h(state, HOUR_S)[at] == pytest.approx(work[at] - 2.0), "an hour of the running job is done"
    assert work_h(state, 4 * HOUR_S)[at] == pytest.approx(work[at] - 6.0 + 4.0), (
        "half of the time run is left"
    )


def test_the_sum_holds_for_the_whole_instant() -> None:
    state = cluster()
    slot = add(state, 3.0)
    before = work_h(state, 5.0)
    add(state, 7.0)
    sum_work(state.arrays, 5.0)
    assert (state.arrays.derived.part.work_gpu_ms / 1000.0 / HOUR_S).tolist() == before
    sum_work(state.arrays, 6.0)
    assert state.arrays.derived.part.work_gpu_ms[partition(state, slot)] == 20 * HOUR_S * 1000


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_sum_does_not_depend_on_the_order_of_the_jobs(order: tuple[int, ...]) -> None:
    hours, state = (0.1, 1e4 / 3.0, 1.0 / 3.0), cluster()
    for k in order:
        add(state, hours[k])
    work_h(state, 0.0)
    seconds = sum(math.ceil(one * HOUR_S) for one in hours)
    assert state.arrays.derived.part.work_gpu_ms.sum() == seconds * 2000


@pytest.mark.parametrize("spare", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("frac", [0.1, 0.8])
def test_a_job_returns_to_the_queue_in_time_for_the_drain(spare: float, frac: float) -> None:
    state = cluster()
    slot = add(state, 1.0, slack_s=SLACK_S)
    add(state, 7.123)
    work_h(state, 0.0)
    clearing_s = 2 * (1.0 + 7.123) * HOUR_S / 4
    until_s = latest_wait_s(state.arrays, slot, frac, spare, 0.0)
    ends_s = SLACK_S - math.ceil(spare * clearing_s / STEP_S) * STEP_S
    assert until_s == (min(frac * SLACK_S, ends_s) if spare else frac * SLACK_S)


def test_nodes_that_are_down_do_not_count() -> None:
    state = cluster()
    slot = add(state, 1.0, slack_s=SLACK_S)
    work_h(state, 0.0)
    up_s = latest_wait_s(state.arrays, slot, 1.0, 1.0, 0.0)
    state.fail_node(0)
    assert latest_wait_s(state.arrays, slot, 1.0, 1.0, 0.0) < up_s
    assert np.isfinite(latest_wait_s(state.arrays, slot, 1.0, 1.0, 0.0))


SPARED = NO_PRICE._replace(defer=5.0, pause=5.0, spare=1.0)


def dear(state: ClusterState) -> None:
    state.set_price(3.0, (), 100 * HOUR_S)


def is_deferred(state: ClusterState, slot: int, options: PriceOptions, now_s: float) -> bool:
    state.arrays.scratch[0].summed_s = -math.inf
    for_state(defer_jobs, state)(state.arrays, options, True, now_s)
    return bool(state.arrays.job.status[slot] == DEFERRED)


def test_an_arrival_ends_deferrals_and_the_end_of_a_job_begins_them() -> None:
    state = cluster()
    dear(state)
    waits = add(state, 1.0, slack_s=SLACK_S)
    assert is_deferred(state, waits, SPARED, 0.0)
    assert state.arrays.scratch[0].defer_s == 0.8 * SLACK_S
    large = add(state, 17.0)
    assert is_deferred(state, waits, SPARED, 1.0)
    assert state.arrays.scratch[0].defer_s == SLACK_S - 9 * HOUR_S
    assert not is_deferred(state, waits, SPARED, HOUR_S)
    assert is_deferred(state, waits, SPARED._replace(spare=0.0), HOUR_S)
    state.remove_waiting(int(state.arrays.job.seq[large]))
    assert is_deferred(state, waits, SPARED, 2 * HOUR_S)


def test_a_job_does_not_pause_if_the_queue_needs_the_rest_of_its_slack() -> None:
    state = cluster()
    slot = add(state, 5.0, slack_s=SLACK_S)
    state.start(int(state.arrays.job.seq[slot]), [0, 1], 0.0)
    dear(state)
    for spare, found in ((1.0, slot), (6.0, -1)):
        options = SPARED._replace(spare=spare)
        is_deferred(state, slot, options, HOUR_S)
        pause = for_state(next_to_pause, state)
        assert pause(state.arrays, partition(state, slot), options, True, HOUR_S) == found


def test_the_setting_has_a_range_and_a_default() -> None:
    assert Policy("tuned", price={"defer": 1.0}).rule.options.start.price.spare == 0.0
    assert Policy("priced").rule.options.start.price.spare == 0.5
    with pytest.raises(InputError, match=r"price\.spare: expected a factor from 0 to 10, got 11"):
        Policy("tuned", price={"defer": 1.0, "spare": 11.0})
