"""PPO on the dials: noise that is mirrored in pairs, and a mean that a strategy file can hold."""

from __future__ import annotations

import numpy as np
import torch

from rlsched.decide.dials.strategy import NUM_DIALS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.ppo import MirroredNoise, PpoConfig, train_ppo
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.windows import Drawn, Windows, draw_setting

SMALL = Drawn(jobs=80, nodes_low=2, nodes_high=2)


def test_noise_is_mirrored_in_pairs() -> None:
    noise = MirroredNoise(NUM_DIALS)
    _, log_std = noise.proba_distribution_net(latent_dim=5, log_std_init=-1.0)
    noise.sample_weights(log_std, batch_size=6)
    found = noise.exploration_matrices
    assert found.shape == (6, 5, NUM_DIALS)
    assert torch.equal(found[0::2], -found[1::2])
    assert not torch.equal(found[0], found[2])


def test_what_is_trained_is_a_strategy_that_runs() -> None:
    source = EpisodeSource.from_trace(*synthesize("helios", 600, 1.0, 32, seed=1))
    config = PpoConfig(clusters=4, rollout_steps=16, rollouts=2, batch_size=32, epochs=1, width=8)
    start, told = np.linspace(-0.5, 0.5, NUM_DIALS), list[int]()
    policy = Policy("tuned")
    layers = train_ppo([source], SMALL, policy, config, 3, start, lambda number, *_: told.append(number))
    assert told == [1, 2]
    strategy = Strategy.from_layers(*layers)
    strategy.check("trained")
    assert [len(layer) for layer in strategy.layers] == [8, 8, NUM_DIALS]
    np.testing.assert_allclose(np.tanh(layers[-1][:, -1]), start, atol=0.05, err_msg="it began there")
    setting = draw_setting(source, SMALL, np.random.default_rng(0))
    assert Windows([setting], [source], SMALL, policy).run(layers).over.all()
