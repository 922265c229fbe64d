"""The `ppo` scheduler on real cluster states: network calls, draws, records and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.holds import has_startable
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows.candidates import first_in_order, job_candidates
from rlsched.decide.scheduler import Scheduler
from rlsched.decide.schema import NUM_FEATURES, SCHEMA
from rlsched.errors import CheckpointError
from rlsched_agents.runtime import policy as module
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import load_checkpoint, save_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler, make_ppo

CONFIG = NetworkConfig(width=16, critic_width=8)


def busy_cluster(seed: int = 0, waiting: int = 12) -> ClusterState:
    """Two nodes of 8 GPUs, 3 jobs running, more waiting than fits."""
    rng = np.random.default_rng(seed)
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 8), OrderedQueue(Order(by="area")))
    for gpus in ([0, 1, 2], [8, 9], [10]):
        seq = state.add_job(
            num_gpus=len(gpus), submit_s=0, spread=1.0, predicted_s=float(rng.integers(60, 9000))
        )
        state.start(seq, gpus, 0.0)
    for k in range(waiting):
        state.add_job(
            num_gpus=int(rng.choice([1, 1, 2, 4, 8, 16])),
            submit_s=float(k),
            spread=1.0,
            predicted_s=float(rng.integers(60, 90_000)),
        )
    return state


def scheduler(weights: Weights | None = None, **options: float) -> PpoScheduler:
    return PpoScheduler(initial_weights(CONFIG, 0) if weights is None else weights, CONFIG, **options)  # type: ignore[arg-type]


def lively_weights(seed: int = 4) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in CONFIG.shapes().items()}


def test_untrained_is_the_reference_rule_decision_by_decision() -> None:
    for seed in range(10):
        state = busy_cluster(seed)
        reference = load_scheduler("qssf-backfill")
        for number in range(20):
            if not has_startable(state, 0, 100.0):
                break
            mine = scheduler().decide(state, 0, 100.0 + number)
            assert mine.action == reference.decide(state, 0, 100.0 + number).action
            assert isinstance(mine.action, Start)
            state.start(mine.action.seq, mine.action.gpus, 100.0 + number)
            state.count_decision()
        else:
            pytest.fail("it never ran out of room")


def test_without_contention_jobs_start_without_the_network() -> None:
    state = busy_cluster(waiting=0)
    seq = state.add_job(num_gpus=2, submit_s=5, predicted_s=100, spread=1)
    broken = {name: np.full_like(array, np.nan) for name, array in initial_weights(CONFIG, 0).items()}
    decision = scheduler(broken).decide(state, 0, 10.0, record=True)
    assert decision.source == "automatic"
    assert isinstance(decision.action, Start)
    assert decision.action.seq == seq == first_in_order(state, 0, 100.0)
    assert decision.record is not None
    assert decision.record.halves == []


def test_non_finite_output_is_raised_for_the_guard() -> None:
    broken = {name: np.full_like(array, np.nan) for name, array in initial_weights(CONFIG, 0).items()}
    with pytest.raises(FloatingPointError, match="not finite"):
        scheduler(broken).decide(busy_cluster(), 0, 100.0)


def test_record_has_the_exact_rows_and_logits_and_explains_the_choice() -> None:
    state = busy_cluster()
    policy = scheduler(lively_weights())
    window = job_candidates(state, 0, 100.0)
    decision = policy.decide(state, 0, 100.0, record=True)
    record = decision.record
    assert record is not None
    assert (record.source, record.schema_hash, record.number, record.partition) == (
        "policy",
        SCHEMA.hash,
        0,
        "shared",
    )
    assert record.state_digest == state.digest()
    half = record.halves[0]
    rows = np.frombuffer(half.features, np.float32).reshape(-1, NUM_FEATURES)
    assert (rows == window.features).all()
    assert half.legal == window.legal.tolist()
    assert half.choice == int(np.argmax(np.where(half.legal, half.logits, -np.inf)))
    assert record.value is not None
    assert record.took_us > 0
    if isinstance(decision.action, Start):
        assert decision.action.seq == half.seqs[half.choice]
    assert policy.decide(state, 0, 100.0).action == decision.action, "recording changes nothing"


def test_every_action_is_accepted_by_the_ledger_and_a_wait_marks_passed_over_jobs() -> None:
    waits = starts = 0
    for seed in range(30):
        state = busy_cluster(seed)
        policy = scheduler(lively_weights(seed), temperature=1.0, seed=seed)
        while has_startable(state, 0, 100.0):
            decision = policy.decide(state, 0, 50.0)
            state.count_decision()
            if isinstance(decision.action, Wait):
                assert decision.marks_hold
                waits += 1
                break
            assert isinstance(decision.action, Start)
            state.start(decision.action.seq, decision.action.gpus, 50.0)
            starts += 1
    assert starts > 30
    assert waits > 0


def test_draws_depend_on_the_decision_number_and_survive_a_restart() -> None:
    state = busy_cluster()
    again = [scheduler(lively_weights(), temperature=2.0, seed=5) for _ in range(3)]
    first, second, third = (policy.decide(state, 0, 100.0).action for policy in again)
    assert first == second == third
    seen = set()
    policy = scheduler(lively_weights(), temperature=2.0, seed=5)
    for _ in range(30):
        action = policy.decide(state, 0, 100.0).action
        seen.add(action.seq if isinstance(action, Start) else -1)
        state.count_decision()
    assert len(seen) > 1


def test_names_of_the_default_the_untrained_and_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = lively_weights()
    card = Card(
        name="mine",
        created="",
        rlsched_version="0",
        schema_hash="",
        network=CONFIG,
        timesteps=1,
        seeds=(0,),
        temperature=0.5,
    )
    save_checkpoint(tmp_path / "mine.zip", card, weights)
    policy = make_ppo(Policy.of(f"ppo:{tmp_path / 'mine.zip'}"), 3)
    assert isinstance(policy, Scheduler)
    assert (policy.name, policy.temperature, policy.seed) == (f"ppo:{tmp_path / 'mine.zip'}", 0.5, 3)
    assert policy.policy_id.startswith("mine@")
    found = load_checkpoint(tmp_path / "mine.zip")
    monkeypatch.setattr(module, "load_checkpoint", lambda _: found)
    assert make_ppo(Policy("ppo"), 0).policy_id == policy.policy_id
    untrained = make_ppo(Policy.of("ppo:untrained"), 7)
    assert untrained.name == "ppo:untrained"
    assert untrained.temperature == 0
    assert untrained.policy_id == "untrained-7"


def test_untrained_needs_no_checkpoint_and_a_missing_path_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.delattr(module, "load_checkpoint")
        assert (
            make_ppo(Policy("ppo", checkpoint="untrained"), 0).decide(busy_cluster(), 0, 100.0).source
            == "policy"
        )
    with pytest.raises(CheckpointError, match=r"none\.zip: cannot read this checkpoint"):
        make_ppo(Policy("ppo", checkpoint=str(tmp_path / "none.zip")), 0)
