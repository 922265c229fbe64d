"""PPO on the dials: mirrored noise, the network that it starts with, and a state from which it continues."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pytest
import torch

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.judging import Floats
from rlsched_agents.dials.lesson import PpoConfig
from rlsched_agents.dials.ppo import DialPpo, MirroredNoise
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.windows import Drawn, Windows, draw_setting

SMALL = Drawn(jobs=80, nodes_low=2, nodes_high=2)
CONFIG = PpoConfig(clusters=4, rollout_steps=64, rollouts=2, batch_size=64, epochs=1, width=16)


def test_noise_is_mirrored_in_pairs() -> None:
    noise = MirroredNoise(NUM_DIALS)
    _, log_std = noise.proba_distribution_net(latent_dim=5, log_std_init=-1.0)
    noise.sample_weights(log_std, batch_size=6)
    found = noise.exploration_matrices
    assert found.shape == (6, 5, NUM_DIALS)
    assert torch.equal(found[0::2], -found[1::2])
    assert not torch.equal(found[0], found[2])


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*synthesize("helios", 600, 1.0, 32, seed=1))


def trained(source: EpisodeSource, start: Floats | None = None) -> DialPpo:
    return DialPpo([source], SMALL, Policy("tuned"), CONFIG, 3, start)


def test_network_starts_as_the_linear_strategy(source: EpisodeSource) -> None:
    rng = np.random.default_rng(0)
    linear = rng.normal(0.0, 0.05, (NUM_DIALS, NUM_COLUMNS + 1))
    seen = rng.uniform(-1.0, 1.0, (50, NUM_COLUMNS))
    network = seen
    for layer in trained(source, linear).result:
        network = np.tanh(network @ layer[:, :-1].T + layer[:, -1])
    np.testing.assert_allclose(network, np.tanh(seen @ linear[:, :-1].T + linear[:, -1]), atol=0.02)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"width": 8}, "width: expected 11 or more"),
        ({"clusters": 5}, "an even number"),
        ({"batch_size": 3000}, r"a divisor of clusters x rollout_steps = 32768, got 3000"),
    ],
)
def test_config_is_checked(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PpoConfig(**wrong)


def test_training_changes_the_network_to_a_strategy_that_runs(source: EpisodeSource) -> None:
    ppo = trained(source, np.zeros((NUM_DIALS, NUM_COLUMNS + 1)))
    before = ppo.result
    rollouts = [ppo.step() for _ in range(CONFIG.rollouts)]
    assert [one.number for one in rollouts] == [1, 2]
    assert all(np.isfinite(list(one.figures.values())).all() for one in rollouts)
    assert any((one != other).any() for one, other in zip(before, ppo.result, strict=True))
    strategy = Strategy.from_layers(*ppo.result)
    strategy.check("trained")
    assert [len(layer) for layer in strategy.layers] == [CONFIG.width, CONFIG.width, NUM_DIALS]
    setting = draw_setting(source, SMALL, np.random.default_rng(0))
    assert Windows([setting], [source], SMALL, Policy("tuned")).run(ppo.result).over.all()


def test_training_continues_bit_for_bit(source: EpisodeSource) -> None:
    whole, first = trained(source), trained(source)
    for _ in range(3):
        whole.step()
    first.step()
    kept = io.BytesIO()
    np.savez(kept, allow_pickle=False, **first.get_state())
    first.step()  # the copy of the state stays
    kept.seek(0)
    second = trained(source)
    second.set_state(np.load(kept, allow_pickle=False))
    rest = [second.step() for _ in range(2)]
    assert [one.number for one in rest] == [2, 3]
    for one, other in zip(whole.result, second.result, strict=True):
        np.testing.assert_array_equal(one, other)


def test_state_of_another_training_is_refused(source: EpisodeSource) -> None:
    state = trained(source).get_state()
    wider = DialPpo([source], SMALL, Policy("tuned"), msgspec.structs.replace(CONFIG, width=32), 3)
    with pytest.raises(RuntimeError, match="size mismatch"):
        wider.set_state(state)
    more = DialPpo([source], SMALL, Policy("tuned"), msgspec.structs.replace(CONFIG, clusters=8), 3)
    with pytest.raises(ValueError, match="they differ in traces, number of clusters"):
        more.set_state(state)


@pytest.mark.parametrize("steps", [1, 15, 16, 512])
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_any_config_fits_windows_with_prices(steps: int, batches: int) -> None:
    """A minibatch stays a divisor of a rollout, and fields that a recipe sets stay as they are."""
    config = PpoConfig(clusters=6, rollout_steps=steps, batch_size=6 * steps // batches, learning_rate=1e-3)
    priced = config.with_prices()
    assert priced.clusters == 36
    assert (priced.learning_rate, priced.gamma) == (1e-3, 0.998)
    assert PpoConfig().with_prices() == PpoConfig(
        clusters=384, rollout_steps=256, rollouts=10, batch_size=8192, gamma=0.998, gae_lambda=0.99,
        learning_rate=3e-5, noise=0.2,
    )  # fmt: skip
