"""A network that migrates jobs: starts while a moved job is leaving must keep its promise."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision, permit
from rlsched.decide.settings import Migrate
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler

CONFIG = NetworkConfig()


def leaving(*sizes: int, energy: float = 0.0) -> ClusterState:
    """Job 0 leaves node 0 for gang 2, and was promised one of the three free GPUs of node 1.

    Then jobs of these sizes arrive, each with a hundred times the predicted time of the one before.
    """
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order(by="index")))
    state.stops_take_time = True
    for gpus in (1, 1, 4):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=1e5, spread=1.0)
    state.start(0, (0,), 0.0)
    state.start(1, (4,), 0.0)
    state.preempt(0, 500.0, moved_for=2)
    state.start(2, (0, 1, 2, 3), 500.0)
    for k, gpus in enumerate(sizes):
        state.add_job(num_gpus=gpus, submit_s=501.0, predicted_s=10.0 * 100**k, spread=1.0)
    if energy > 0.0:
        LedgerModels(state).weigh(energy)
    return state


def decided(state: ClusterState, weights: Weights | None = None) -> Decision:
    weights = initial_weights(CONFIG, 0) if weights is None else weights
    network = PpoScheduler(weights, CONFIG, permissions=Permissions(preemption=True), migrate=Migrate())
    permit(state, network)
    return network.decide(state, 0, 502.0, record=True)


@pytest.mark.parametrize("energy", [0.0, 0.5])
@pytest.mark.parametrize(("sizes", "seq"), [((3, 2), 4), ((3, 1), 4), ((2, 3), 3), ((3, 3, 2, 1), 5)])
def test_next_job_starts_where_the_first_would_break_the_promise(
    sizes: tuple[int, ...], seq: int, energy: float
) -> None:
    decision = decided(leaving(*sizes, energy=energy))
    assert isinstance(decision.action, Start)
    assert decision.action.seq == seq
    assert decision.record is not None
    assert [half.seqs[half.choice] for half in decision.record.halves if half.kind == "job"] == [seq]
    rule = RuleScheduler(Policy("gittins", migrate={}))
    says = rule.decide(leaving(*sizes), 0, 502.0).action
    assert isinstance(says, Start)
    assert (says.seq, says.gpus) == (seq, decision.action.gpus)


def test_best_scored_of_several_jobs_starts() -> None:
    """The network prefers any one row of the window to all others, by their features."""
    seen = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        weights = {
            name: (array + rng.normal(0.0, 0.5, array.shape)).astype(array.dtype)
            for name, array in initial_weights(CONFIG, seed).items()
        }
        decision = decided(leaving(3, 2, 1), weights)
        assert decision.record is not None
        (half, *_) = decision.record.halves
        scores = dict(zip(half.seqs, half.logits, strict=True))
        legal = [other for other, may in zip(half.seqs, half.legal, strict=True) if may]
        if isinstance(decision.action, Wait):
            assert max(legal, key=lambda other: scores[other]) == -1
            continue
        assert isinstance(decision.action, Start)
        best = max((4, 5), key=lambda other: scores[other])
        assert decision.action.seq == best
        if max(legal, key=lambda other: scores[other]) == 3:
            seen.add(best)
    assert seen == {4, 5}


@pytest.mark.parametrize("energy", [0.0, 0.5])
@pytest.mark.parametrize("sizes", [(3,), (3, 3)])
def test_no_job_starts_where_all_would_break_the_promise(sizes: tuple[int, ...], energy: float) -> None:
    """The record has no choice among start options, as no job starts; and no job is held."""
    decision = decided(leaving(*sizes, energy=energy))
    assert isinstance(decision.action, Wait)
    assert not decision.marks_hold
    assert decision.record is not None
    assert [(half.kind, half.choice) for half in decision.record.halves] in ([], [("job", 0)])


def test_no_job_is_preempted_meanwhile() -> None:
    """A short gang of 4 could preempt; it does not while job 0 is leaving."""
    decision = decided(leaving(4))
    assert not isinstance(decision.action, Preempt)
