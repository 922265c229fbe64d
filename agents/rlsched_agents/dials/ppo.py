"""PPO on the dials, with noise that stays the same for a rollout and is mirrored between paired clusters.

The noise is generalised state-dependent exploration (Raffin, Kober, Stulp, CoRL 2021) of Stable-Baselines3. A
strategy affects costs only after hours of simulated time, so noise that changes at each step explores
nothing. The second cluster of a pair runs the same window and is the best baseline: half the difference of
the two returns is the effect of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from torch.distributions import Normal

from rlsched.decide.policies.policy import Policy
from rlsched_agents.dials.judging import Floats
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv
from rlsched_envs.training.windows import Drawn


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hyper-parameters of PPO on the dials.

    Attributes:
        clusters: Number of clusters simulated in parallel, in pairs.
        rollout_steps: Number of times that each cluster's dials are set between two updates; the noise stays
            the same for this time.
        rollouts: Number of rollouts and updates.
        batch_size: Steps in a minibatch.
        epochs: Passes over a rollout.
        gamma: Discount per step (ten minutes or less).
        gae_lambda: Decay of the advantage estimator.
        learning_rate: Adam's step size.
        target_kl: KL divergence at which an update stops.
        width: Units of each of the two hidden layers.
        noise: Initial standard deviation of the noise on the position of a dial.
        pair_weight: Weight of half the difference between the returns of a pair, relative to the advantage of
            the step.
    """

    clusters: int = 64
    rollout_steps: int = 512
    rollouts: int = 40
    batch_size: int = 4096
    epochs: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.98
    learning_rate: float = 3e-4
    target_kl: float = 0.01
    width: int = 64
    noise: float = 0.3
    pair_weight: float = 1.0


class MirroredNoise(StateDependentNoiseDistribution):
    """gSDE with mirrored noise: cluster 2 k + 1 has the noise of cluster 2 k with the opposite sign."""

    def sample_weights(self, log_std: torch.Tensor, batch_size: int = 1) -> None:
        """Draw noise for half of the clusters, and mirror it."""
        std = self.get_std(log_std)
        self.weights_dist = Normal(torch.zeros_like(std), std)
        self.exploration_mat = self.weights_dist.rsample()
        drawn = self.weights_dist.rsample((-(-batch_size // 2),))
        self.exploration_matrices = torch.stack([drawn, -drawn], 1).flatten(0, 1)[:batch_size]


class DialPolicy(ActorCriticPolicy):
    """Policy network with two hidden tanh layers and a tanh output, with mirrored noise."""

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        assert self.dist_kwargs is not None
        (dials,) = self.action_space.shape or ()
        self.action_dist = MirroredNoise(dials, **self.dist_kwargs)
        super()._build(lr_schedule)

    def begin_at(self, positions: Floats) -> None:
        """Set the mean to these constant positions of the dials, -1 to 1."""
        net = self.action_net
        assert isinstance(net, torch.nn.Linear)
        with torch.no_grad():
            net.weight.mul_(0.01)
            net.bias.copy_(torch.as_tensor(np.arctanh(np.clip(positions, -0.99, 0.99)), dtype=net.bias.dtype))

    def layers(self) -> list[Floats]:
        """Return the mean as the matrices of a `Strategy`."""
        linear = [part for part in self.mlp_extractor.policy_net if isinstance(part, torch.nn.Linear)]
        assert isinstance(self.action_net, torch.nn.Linear)
        return [
            np.hstack([part.weight.detach().numpy(), part.bias.detach().numpy()[:, None]]).astype(np.float64)
            for part in (*linear, self.action_net)
        ]


class PairedBuffer(RolloutBuffer):
    """Rollouts whose advantages include the difference between the clusters of a pair."""

    pair_weight = 1.0

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Add to each step's own advantage a share of half the difference of the pair's returns."""
        super().compute_returns_and_advantage(last_values, dones)
        total = self.rewards.sum(axis=0)
        half = (total[0::2] - total[1::2]) / 2.0 / self.buffer_size
        scale = self.advantages.std() / max(float(half.std()), 1e-12)
        self.advantages += self.pair_weight * scale * np.stack([half, -half], 1).ravel()


class _Told(BaseCallback):
    """Callback that reports each rollout; noise is drawn when a rollout starts."""

    def __init__(self, tell: Callable[[int, float, float], None]) -> None:
        super().__init__()
        self._tell, self._rollouts = tell, 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._rollouts += 1
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        total = buffer.rewards.sum(axis=0)
        pairs = (total[0::2] - total[1::2]) / 2.0
        self._tell(self._rollouts, float(total.mean()), float(pairs.std()))


def train_ppo(
    sources: Sequence[EpisodeSource],
    drawn: Drawn,
    policy: Policy,
    config: PpoConfig,
    seed: int,
    start: Floats,
    tell: Callable[[int, float, float], None],
) -> list[Floats]:
    """Train a network that sets the dials.

    Args:
        sources: Traces that windows are drawn from.
        drawn: How windows are drawn.
        policy: The rule whose dials are set.
        config: Hyper-parameters.
        seed: Seed of weights, windows and noise.
        start: (D,) initial constant positions of the dials, -1 to 1.
        tell: Called after each rollout with its number, the mean reward, and the standard deviation of half
            the difference between the returns of pairs, both for this rollout.

    Returns:
        The matrices of a `Strategy`: the trained mean, without noise.
    """
    venv = ClusterVecEnv(
        sources, config.clusters, seed=seed, drawn=drawn, policy=policy, in_pairs=True, copy=False
    )
    shape: dict[str, Any] = {"pi": [config.width, config.width], "vf": [config.width, config.width]}
    model = PPO(
        DialPolicy,
        venv,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        learning_rate=config.learning_rate,
        target_kl=config.target_kl,
        use_sde=True,
        sde_sample_freq=-1,
        rollout_buffer_class=PairedBuffer,
        policy_kwargs={
            "net_arch": shape,
            "squash_output": True,
            "log_std_init": float(np.log(config.noise / np.sqrt(config.width / 2.0))),
        },
        seed=seed,
        device="cpu",
    )
    assert isinstance(model.policy, DialPolicy)
    assert isinstance(model.rollout_buffer, PairedBuffer)
    model.rollout_buffer.pair_weight = config.pair_weight
    model.policy.begin_at(start)
    model.learn(config.rollouts * config.rollout_steps * config.clusters, callback=_Told(tell))
    return model.policy.layers()
