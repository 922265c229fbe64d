"""Ineligible jobs: kept out of the ledger's queues, for one reason or for several, and returned."""

from __future__ import annotations

import pytest

from rlsched.broker.base.eligibility import Eligibility
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.errors import AllocationError


def queued(count: int, order: Order | None = None) -> ClusterState:
    """Jobs of one GPU each on two nodes of four; later ones are predicted shorter."""
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(order or Order()), slots=4)
    for number in range(count):
        state.add_job(num_gpus=1, submit_s=float(number), predicted_s=100.0 - number, spread=1.0)
    return state


def test_job_returns_to_its_place() -> None:
    state = queued(5)
    eligibility = Eligibility(state)
    before = state.digest()
    eligibility.bar([1, 3], "Quota")
    assert state.waiting(0) == [0, 2, 4]
    assert state.digest() != before
    assert eligibility.barring_reasons(3) == {"Quota"}
    eligibility.clear([3, 1], "Quota", 50.0)
    assert state.waiting(0) == [0, 1, 2, 3, 4]
    assert state.digest() == before
    assert eligibility.barring_reasons(3) == frozenset()


def test_job_returns_when_the_last_reason_ends() -> None:
    state = queued(3)
    eligibility = Eligibility(state)
    eligibility.bar([0, 1], "Quota")
    eligibility.bar([1, 2], "Held")  # type: ignore[arg-type]
    assert state.waiting(0) == []
    assert eligibility.barring_reasons(1) == {"Quota", "Held"}
    eligibility.clear([0, 1], "Quota", 5.0)
    assert state.waiting(0) == [0]
    eligibility.clear([1, 2], "Held", 5.0)  # type: ignore[arg-type]
    assert state.waiting(0) == [0, 1, 2]


def test_ineligible_job_is_not_started_and_may_be_removed() -> None:
    state = queued(2)
    Eligibility(state).bar([0], "Quota")
    with pytest.raises(AllocationError, match="job 0 is not waiting"):
        state.start(0, [0], 5.0)
    with pytest.raises(AllocationError, match="only 0 of these 1 jobs are waiting"):
        state.make_ineligible([0])
    with pytest.raises(AllocationError, match="only 0 of these 1 jobs are ineligible"):
        state.make_eligible([1], 5.0)
    state.remove_waiting(0)
    assert state.waiting(0) == [1]
    with pytest.raises(AllocationError, match="no live job"):
        state.slot_of(0)


def test_more_jobs_and_nodes_keep_jobs_ineligible() -> None:
    state = queued(4)
    state.make_ineligible([1, 2])
    for number in range(4, 9):
        state.add_job(num_gpus=1, submit_s=float(number), predicted_s=100.0, spread=1.0)
    state.fail_node(0)
    state.resume_node(0)
    assert state.waiting(0) == [0, 3, 4, 5, 6, 7, 8]
    state.make_eligible([1, 2], 10.0)
    assert state.waiting(0) == list(range(9))


def test_place_follows_the_current_prediction() -> None:
    """Jobs of one burst learn from each other's ends, also one that was ineligible meanwhile."""
    order = Policy.of("tuned").rule.order
    assert order.revised
    kept, never = queued(6, order), queued(6, order)
    kept.make_ineligible([4, 5])
    for state in (kept, never):
        for seq in (0, 1):
            state.start(seq, [seq], 10.0)
        for seq in (0, 1):
            state.release(seq, 4000.0)
    kept.make_eligible([4, 5], 4000.0)
    assert kept.waiting(0) == never.waiting(0)
    assert kept.digest() == never.digest()
