"""A hold ends in the instant in which another partition starts the job that it is for."""

from __future__ import annotations

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.holds import has_released
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import start_action


class WaitOnceThenStart(Scheduler):
    """Waits at its first decision, then starts the first job in the window."""

    name = policy_id = "wait-once"
    order = Order(by="area")

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        del now_s, record
        self.asked.append(partition)
        if len(self.asked) == 1:
            return Decision(action=Wait(), source="policy", marks_hold=True)
        slots = state.queue(partition)
        for slot in slots:
            action = start_action(state, partition, int(state.arrays.job.seq[slot]))
            try:
                state.check_start(action.seq, action.gpus)
            except Exception:
                continue
            return Decision(action=action, source="policy")
        return Decision(action=Wait(), source="policy", marks_hold=True)


def test_held_job_is_offered_again_at_once() -> None:
    spec = ClusterSpec(name="two", nodes=(NodeGroup(gpus=4, vc="a"), NodeGroup(gpus=8)))
    state = ClusterState.from_spec(spec, OrderedQueue(Order(by="area")))
    filler = state.add_job(num_gpus=3, vc="a", submit_s=0.0, predicted_s=9e4, spread=1.0)
    state.start(filler, [0, 1, 2], 0.0)
    gang = state.add_job(num_gpus=4, vc="a", submit_s=1.0, predicted_s=10.0, spread=1.0)
    small = state.add_job(num_gpus=1, vc="a", submit_s=1.0, predicted_s=1e5, spread=1.0)

    policy = WaitOnceThenStart()
    decisions = list(decide_all(state, policy, 2.0))

    # In "a" the gang is blocked, and the policy holds the small job back for it; "shared" starts the gang.
    assert policy.asked[0] == 0
    started = [decision.action.seq for _, decision in decisions if isinstance(decision.action, Start)]
    assert started[0] == gang
    assert set(started) == {gang, small}
    assert not any(has_released(state, p, 2.0) for p in range(state.num_partitions))
