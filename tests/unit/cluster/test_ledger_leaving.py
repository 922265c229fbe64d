"""The ledger with slow stops: a preempted job is in no queue until its processes have exited."""

from __future__ import annotations

import pytest

from rlsched.cluster.spec import ClusterSpec, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import AllocationError


def preempted(*, stops_take_time: bool = True) -> ClusterState:
    """One node of four GPUs: job 0 had two of them from 0 s to 10 s; job 1 waits for four."""
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 4), OrderedQueue(Order()), slots=2)
    state.stops_take_time = stops_take_time
    state.add_job(num_gpus=2, submit_s=0.0, predicted_s=60.0, spread=1.0)
    state.add_job(num_gpus=4, submit_s=1.0, predicted_s=60.0, spread=1.0)
    state.start(0, (0, 1), 0.0)
    state.preempt(0, 10.0)
    return state


def test_gpus_of_a_leaving_job_are_free_and_it_is_in_no_queue() -> None:
    state = preempted()
    assert (state.running(), state.waiting(0)) == ([], [1])
    assert state.arrays.node.free.tolist() == [4]
    slot = state.slot_of(0)
    assert state.arrays.job.attained_gpu_s[slot] == 20.0
    assert state.arrays.job.preemptions[slot] == 1
    state.start(1, (0, 1, 2, 3), 10.0)
    with pytest.raises(AllocationError, match="job 0 is not running"):
        state.preempt(0, 11.0)
    with pytest.raises(AllocationError, match="job 0 is not waiting"):
        state.start(0, (0,), 11.0)


def test_state_after_requeueing_equals_an_immediate_requeue() -> None:
    slow, fast = preempted(), preempted(stops_take_time=False)
    assert slow.digest() != fast.digest()
    slow.requeue(0, 14.0)
    assert slow.arrays.job.saved_s[slow.slot_of(0)] == 10.0
    fast.arrays.job.saved_s[fast.slot_of(0)] = 10.0  # as the simulator sets it
    assert slow.digest() == fast.digest()
    assert slow.waiting(0) == fast.waiting(0) == [0, 1]
    assert slow.arrays.job.attempt[slow.slot_of(0)] == 2


def test_run_time_in_all_attempts_revises_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    state, seen = preempted(), list[float]()
    monkeypatch.setattr(OrderedQueue, "update_siblings", lambda *args: seen.append(args[3]))
    state.requeue(0, 14.0)
    state.start(0, (0, 1), 20.0)
    state.release(0, 50.0)
    assert seen == [40.0]


def test_leaving_job_may_end_without_waiting_again() -> None:
    state = preempted()
    state.release(0, 14.0)
    assert (state.running(), state.waiting(0)) == ([], [1])
    with pytest.raises(AllocationError, match="no live job has number 0"):
        state.slot_of(0)
    with pytest.raises(AllocationError, match="job 1 is not running"):
        state.release(1, 14.0)


def test_growing_cluster_keeps_a_leaving_job_apart() -> None:
    state = preempted()
    before = state.digest()
    state.grow()
    assert state.digest() == before
    state.add_node(NodeSpec(name="late", gpus=4, vc=None))
    state.start(1, (4, 5, 6, 7), 12.0)
    assert (state.running(), state.waiting(0)) == ([1], [])
    assert state.arrays.derived.running_len[0] == 1
    state.requeue(0, 14.0)
    assert state.waiting(0) == [0]


def test_job_that_is_not_preemptible_is_pinned_in_every_attempt() -> None:
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 4), OrderedQueue(Order()))
    state.add_job(num_gpus=2, submit_s=0.0, predicted_s=60.0, spread=1.0, preemptible=False)
    state.start(0, (0, 1), 0.0)
    for now_s in (10.0, 30.0):
        with pytest.raises(AllocationError, match="job 0 must not be preempted"):
            state.preempt(0, now_s)
        state.requeue(0, now_s + 5.0)
        state.start(0, (0, 1), now_s + 5.0)
