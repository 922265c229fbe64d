"""The setting `slack`: jobs change their place in the queue as they use up their slack."""

from __future__ import annotations

import math

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy, plain_rule
from rlsched.decide.registry import load_scheduler
from rlsched.decide.settings import SlackSettings
from rlsched.errors import InputError

SLACK = SlackSettings(early_weight=0.1, late_weight=5.0, early_until=0.5, late_from=0.8)
ORDERS = {
    "submission": Order(slack=SLACK),
    "area": Order(by="area", slack=SLACK),
    "index": Policy("gittins", slack={"early_weight": 0.1, "late_weight": 5.0}).rule.order,
}


def queued(order: Order, *slacks_s: float) -> ClusterState:
    """Jobs with these slacks on a full node; all of the same size, submitted at second 0, 1, ..."""
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 1), OrderedQueue(order), slots=8)
    for number, slack_s in enumerate(slacks_s):
        state.add_job(num_gpus=1, submit_s=float(number), predicted_s=100.0, spread=1.0, slack_s=slack_s)
    return state


def order_at(state: ClusterState, now_s: float) -> list[int]:
    state.ordering.rank_by_slack(state.arrays, now_s)
    return state.waiting(0)


@pytest.mark.parametrize("name", ORDERS)
def test_a_job_with_slack_comes_last_then_in_its_turn_then_first(name: str) -> None:
    state = queued(ORDERS[name], 0.0, 1000.0, 0.0)
    assert order_at(state, 2.0) == [0, 2, 1]
    assert state.rank_due_s == 501.0
    assert order_at(state, 500.9) == [0, 2, 1]
    assert order_at(state, 501.0) == [0, 1, 2]
    assert state.rank_due_s == 801.0
    assert order_at(state, 801.0) == [1, 0, 2]
    assert state.rank_due_s == math.inf


def test_without_the_setting_slack_does_not_count() -> None:
    state = queued(Order(by="area"), 0.0, 1000.0, 0.0)
    assert [order_at(state, now_s) for now_s in (2.0, 900.0)] == [[0, 1, 2], [0, 1, 2]]
    assert state.rank_due_s == math.inf


def test_jobs_with_slack_keep_the_order_among_themselves() -> None:
    state = queued(ORDERS["area"], 1000.0, 2000.0)
    assert order_at(state, 2.0) == [0, 1]
    state.add_job(num_gpus=1, submit_s=3.0, predicted_s=50.0, spread=1.0, slack_s=1000.0)
    assert order_at(state, 3.0) == [2, 0, 1]
    assert order_at(state, 600.0) == [2, 0, 1]
    assert order_at(state, 900.0) == [2, 0, 1]
    assert state.rank_due_s == 1001.0


def test_a_requeued_job_returns_to_its_place_of_that_time() -> None:
    """Time that the job runs uses up no slack."""
    state = queued(ORDERS["area"], 1000.0, 0.0)
    state.start(0, [0], 10.0)
    state.requeue(0, 700.0)
    assert order_at(state, 700.0) == [1, 0]
    assert state.rank_due_s == 500.0 + 690.0
    assert order_at(state, 1190.0) == [0, 1]
    assert order_at(state, 1490.0) == [0, 1]


def test_a_new_slack_counts_at_once() -> None:
    state = queued(ORDERS["area"], 0.0, 0.0)
    state.set_slack(0, 1000.0, 5.0)
    assert state.waiting(0) == [1, 0]
    assert state.rank_due_s == 500.0
    state.set_slack(0, 0.0, 6.0)
    assert state.waiting(0) == [0, 1]
    assert order_at(state, 500.0) == [0, 1]
    assert state.rank_due_s == math.inf


def test_an_ineligible_job_returns_to_its_place_of_that_time() -> None:
    state = queued(ORDERS["area"], 1000.0, 0.0)
    state.make_ineligible([0])
    assert order_at(state, 600.0) == [1]
    state.make_eligible([0], 850.0)
    assert state.waiting(0) == [0, 1]


def test_a_larger_state_keeps_the_order() -> None:
    state = queued(ORDERS["area"], 1000.0, 0.0)
    state.grow()
    assert order_at(state, 300.0) == [1, 0]
    assert state.rank_due_s == 500.0


def test_fallback_keeps_the_same_queue() -> None:
    scheduler = load_scheduler(Policy("qssf-backfill", slack={}))
    assert scheduler.order.slack == SlackSettings()
    assert plain_rule(Policy("tuned").settings).rule.order.slack == SlackSettings()
    assert scheduler.order.in_words == "predicted run time x GPUs, weighted by slack"
    assert scheduler.order != load_scheduler(Policy("qssf-backfill")).order


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"slack\.late_from: expected 0.5 \(slack.early_until\) or"):
        Policy("tuned", slack={"late_from": 0.2})
    with pytest.raises(InputError, match=r"slack\.early_weight: expected a weight from 1e-6 to 1e6, got 0"):
        Policy("tuned").changed(["slack.early_weight=0"])
    with pytest.raises(InputError, match=r"slack\.early_until: expected a share from 0 to 1, got 1.5"):
        Policy("tuned").changed(["slack.early_until=1.5"])
    assert Policy("tuned").with_settings(slack=None).rule.order.slack is None
