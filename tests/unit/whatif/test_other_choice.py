"""Another choice at one decision, for a job with preferred GPU types and a plan with and without them."""

from __future__ import annotations

import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import NodeSpec, Placement
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decisions.candidates import candidates
from rlsched_agents.whatif.other_choice import other_decision


@pytest.mark.parametrize(
    ("placement", "gpus", "preferred", "other"),
    [
        ("consolidate", 1, (2,), (0,)),
        ("spread", 3, (2, 3, 4), (0, 2, 3)),  # over both nodes
    ],
)
def test_plan_without_the_preference_can_be_chosen_instead(
    placement: Placement, gpus: int, preferred: tuple[int, ...], other: tuple[int, ...]
) -> None:
    nodes = [NodeSpec(name="a", gpus=2, gpu_type="A100"), NodeSpec(name="h", gpus=4, gpu_type="H100")]
    state = ClusterState(nodes, OrderedQueue(Order()), placement=placement)
    asked = Demand(gpus=gpus, preferred_types=("H100",))
    state.add_job(demand=asked, submit_s=0.0, predicted_s=9.0, spread=1.0)
    policy = RuleScheduler(Policy("fifo"))
    record = policy.decide(state, 0, 1.0, record=True).record
    assert record is not None
    assert record.action == Start(seq=0, gpus=preferred)
    found = [one for one in candidates(record) if record.plans[one.at].how == "free"]
    assert [one.taken for one in found] == [True, False]
    made = [other_decision(policy, record, one, state, 0, 1.0).action for one in found]
    assert [one.gpus for one in made if isinstance(one, Start)] == [preferred, other]
