"""Permitted inputs of the torch network; agreement with numpy: `property/test_forward_agrees.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlsched.decide.rows.columns import IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched_agents.ppo.network import CandidateNetwork
from rlsched_agents.runtime.forward import Forward
from rlsched_agents.runtime.network import NetworkConfig, Weights

CONFIG = NetworkConfig()
Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(5)


def some_weights(rng: Rng) -> Weights:
    """As large as after training, biases included."""
    return {
        name: (rng.normal(0, 1, shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in CONFIG.shapes().items()
    }


def observations(rng: Rng, batch: int, rows: int) -> NDArray[np.float32]:
    """Random windows: some of jobs, some of variants, padding in random places, at least one real row."""
    found = rng.random((batch, rows, NUM_FEATURES + NUM_CRITIC)).astype(np.float32)
    found[:, :, [IS_WAIT, IS_JOB, IS_VARIANT, IS_REFERENCE]] = 0
    found[:, :, NUM_FEATURES:] = rng.random((batch, 1, NUM_CRITIC))
    for window in found:
        window[:, IS_JOB if rng.random() < 0.5 else IS_VARIANT] = 1
        real = rng.random(rows) < 0.7
        real[rng.integers(rows)] = True
        window[rng.choice(np.flatnonzero(real)), IS_REFERENCE] = 1
        window[~real] = 0
    return found


def network_of(weights: Weights) -> CandidateNetwork:
    network = CandidateNetwork(CONFIG)
    network.load_weights(weights)
    return network


def test_critic_columns_do_not_change_the_logits(rng: Rng) -> None:
    weights = some_weights(rng)
    network = network_of(weights)
    batch = observations(rng, 8, 24)
    changed = batch.copy()
    changed[:, :, NUM_FEATURES:] = rng.normal(0, 100, changed[:, :, NUM_FEATURES:].shape)
    with torch.no_grad():
        before, value_before = network(torch.from_numpy(batch))
        after, value_after = network(torch.from_numpy(changed))
    assert torch.equal(before, after)
    assert not torch.equal(value_before, value_after)
    forward = Forward(weights, CONFIG)
    assert (forward.logits(batch[0]) == forward.logits(changed[0])).all()


def test_logits_follow_permuted_rows(rng: Rng) -> None:
    network = network_of(some_weights(rng))
    batch = torch.from_numpy(observations(rng, 4, 24))
    order = torch.from_numpy(rng.permutation(24))
    with torch.no_grad():
        logits, values = network(batch)
        moved, moved_values = network(batch[:, order])
    torch.testing.assert_close(moved, logits[:, order], atol=1e-5, rtol=0)
    torch.testing.assert_close(moved_values, values, atol=1e-5, rtol=0)


def test_other_states_of_the_batch_change_nothing(rng: Rng) -> None:
    network = network_of(some_weights(rng))
    batch = torch.from_numpy(observations(rng, 6, 24))
    with torch.no_grad():
        together = network(batch)[0]
        alone = torch.cat([network(batch[i : i + 1])[0] for i in range(6)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_state_of_only_padding_stays_finite_and_has_a_gradient() -> None:
    network = CandidateNetwork(CONFIG)
    logits, values = network(torch.zeros(2, 24, NUM_FEATURES + NUM_CRITIC))
    assert torch.equal(logits, torch.zeros(2, 24))
    (logits.sum() + values.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_actor_and_critic_share_no_parameter(rng: Rng) -> None:
    network = network_of(some_weights(rng))
    network.forward_actor(torch.from_numpy(observations(rng, 4, 24))).square().sum().backward()
    assert all(p.grad is None for p in network.critic.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.actor.parameters())


def test_sizes_equal_the_recipe() -> None:
    network = CandidateNetwork(CONFIG)
    wide, narrow = CONFIG.width, CONFIG.critic_width
    actor = NUM_FEATURES * wide + 5 * wide**2 + 5 * wide  # row1; row2, context, mixes; four biases, score
    critic = (NUM_FEATURES + NUM_CRITIC) * narrow + 3 * narrow**2 + 4 * narrow + 1
    assert sum(p.numel() for p in network.actor.parameters()) == actor
    assert sum(p.numel() for p in network.critic.parameters()) == critic
    assert list(network.weights()) == list(CONFIG.shapes())
