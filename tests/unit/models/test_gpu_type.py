"""The GPU type of a start: computed by hand from the speeds of the catalogue."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.placement import BY_RULE
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.compiled import for_state
from rlsched.decide.options import PLAIN_START, StartOptions
from rlsched.decide.plans.plan import node_to_place, type_worth
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.modelling import Models
from tests.support.sim.board import CATALOGUE, add, modelled, node, running

FASTEST = PLAIN_START._replace(chooses_type=True)
BY_GAIN = FASTEST._replace(type_price=1.0)


def cluster() -> ClusterState:
    """Node 0 has P100s, node 1 V100s, node 2 A100s; run times are of V100s."""
    return modelled(node("p", 4, "P100"), node("v", 4, "V100"), node("a", 4, "A100"))


def waiting(state: ClusterState, workload: str, gpus: int = 1) -> int:
    seq = add(state, workload, gpus)
    state.arrays.job.reference_kind[state.slot_of(seq)] = state.kind_names.index("V100")
    return seq


def chosen(state: ClusterState, seq: int, o: StartOptions) -> int:
    return int(for_state(node_to_place, state)(state.arrays, 0, state.slot_of(seq), o, BY_RULE))


def speed(state: ClusterState, workload: str, kind: str) -> float:
    """Speed of a workload on a type, relative to V100s."""
    table = state.arrays.models.trait.speed[CATALOGUE.number(workload)]
    return float(table[state.kind_names.index(kind)] / table[state.kind_names.index("V100")])


def test_fastest_first() -> None:
    state = cluster()
    seq = waiting(state, "resnet50-imagenet-b64")
    assert speed(state, "resnet50-imagenet-b64", "A100") > 1 > speed(state, "resnet50-imagenet-b64", "P100")
    assert chosen(state, seq, FASTEST) == 2
    running(state, "resnet50-imagenet-b64", [8, 9, 10, 11])
    assert chosen(state, seq, FASTEST) == 1, "the A100s are taken"


def test_without_the_setting_the_placement_rule_chooses() -> None:
    state = cluster()
    assert chosen(state, waiting(state, "resnet50-imagenet-b64"), PLAIN_START) == -1


def test_at_a_price_of_1_a_job_uses_the_type_of_its_relative_gain() -> None:
    state = cluster()
    kinds = state.kind_names
    for workload in ("resnet50-imagenet-b64", "a2c-b64", "gpt2-b4"):
        seq = waiting(state, workload)
        usual = [
            float(np.mean(np.log(np.maximum(state.arrays.models.trait.speed[1:, k], 1e-3))))
            for k in range(len(kinds))
        ]
        values = [math.log(speed(state, workload, name)) - usual[k] for k, name in enumerate(kinds)]
        found = [
            math.log(for_state(type_worth, state)(state.arrays, 0, state.slot_of(seq), k, BY_GAIN))
            for k in range(len(kinds))
        ]
        assert found == pytest.approx(values)
        assert (
            kinds[int(state.arrays.node.kind[chosen(state, seq, BY_GAIN)])] == kinds[int(np.argmax(values))]
        )
        assert np.log(state.arrays.models.gpu.usual_speed) == pytest.approx(usual)


def test_fullest_fitting_node_of_the_type_is_used() -> None:
    state = modelled(node("a0", 4, "A100"), node("a1", 4, "A100"), node("v", 4, "V100"))
    running(state, "resnet50-imagenet-b64", [4, 5])
    assert chosen(state, waiting(state, "resnet50-imagenet-b64", 2), FASTEST) == 1
    assert chosen(state, waiting(state, "resnet50-imagenet-b64", 3), FASTEST) == 0


def test_gang_of_several_nodes_is_left_to_the_placement_rule() -> None:
    state = cluster()
    assert chosen(state, waiting(state, "resnet50-imagenet-b64", 8), FASTEST) == -1


def test_price_out_of_range() -> None:
    with pytest.raises(InputError, match=r"types\.price: expected a price from 0 to 4, got -1"):
        Policy("tuned", types={"price": -1})


@pytest.mark.parametrize("price", [0.0, 0.5])
def test_compiled_equals_one_decision_at_a_time(price: float) -> None:
    trace, _ = synthesize("helios", jobs=300, load=1.0, gpus=32, seed=5)
    groups = [NodeGroup(count=2, gpus=8, gpu_type=kind, cpus=48) for kind in ("V100", "A100")]
    spec = ClusterSpec(name="mixed", nodes=tuple(groups))
    policy = Policy("tuned", types={"price": price})

    def engine() -> Engine:
        return Engine(
            trace, spec, order=policy.rule.order, predictions=predict_trace(trace, spec), models=Models()
        )

    one, two = engine().run_rule(policy.rule), engine().run(RuleScheduler(policy))
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.gpus == two.gpus
