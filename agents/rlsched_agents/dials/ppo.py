"""PPO on the dials: noise that is kept for a whole rollout, and mirrored between two clusters of one window.

Generalised state-dependent exploration (Raffin, Kober, Stulp, CoRL 2021) by Stable-Baselines3. What a
strategy is worth shows over hours of a cluster, so noise that changes from step to step explores nothing. And
the other of a pair is the best baseline there is: half the difference of their returns is what the noise did.
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
        clusters: Simulated side by side, in pairs.
        rollout_steps: Settings of the dials of each between two updates; noise is kept as long.
        rollouts: Updates.
        batch_size: Steps in a minibatch.
        epochs: Passes over a rollout.
        gamma: Discount a step, ten minutes or less.
        gae_lambda: Decay of the advantage estimator.
        learning_rate: Adam's step size.
        target_kl: An update ends where the policy has moved so far.
        width: Of the two hidden layers.
        noise: Standard deviation of the noise on a dial's position, at first.
        pair_weight: What half the difference of a pair's returns counts beside the step's own advantage.
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
    """gSDE whose noise for cluster 2 k + 1 is that for cluster 2 k with the other sign."""

    def sample_weights(self, log_std: torch.Tensor, batch_size: int = 1) -> None:
        """Draw noise for half of the clusters, and mirror it."""
        std = self.get_std(log_std)
        self.weights_dist = Normal(torch.zeros_like(std), std)
        self.exploration_mat = self.weights_dist.rsample()
        drawn = self.weights_dist.rsample((-(-batch_size // 2),))
        self.exploration_matrices = torch.stack([drawn, -drawn], 1).flatten(0, 1)[:batch_size]


class DialPolicy(ActorCriticPolicy):
    """Two hidden layers of tanh, a tanh at the end; its noise is mirrored."""

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        assert self.dist_kwargs is not None
        (dials,) = self.action_space.shape or ()
        self.action_dist = MirroredNoise(dials, **self.dist_kwargs)
        super()._build(lr_schedule)

    def begin_at(self, positions: Floats) -> None:
        """Let the mean be these constant positions of the dials, -1 to 1."""
        net = self.action_net
        assert isinstance(net, torch.nn.Linear)
        with torch.no_grad():
            net.weight.mul_(0.01)
            net.bias.copy_(torch.as_tensor(np.arctanh(np.clip(positions, -0.99, 0.99)), dtype=net.bias.dtype))

    def layers(self) -> list[Floats]:
        """The mean as the matrices of a `Strategy`."""
        linear = [part for part in self.mlp_extractor.policy_net if isinstance(part, torch.nn.Linear)]
        assert isinstance(self.action_net, torch.nn.Linear)
        return [
            np.hstack([part.weight.detach().numpy(), part.bias.detach().numpy()[:, None]]).astype(np.float64)
            for part in (*linear, self.action_net)
        ]


class PairedBuffer(RolloutBuffer):
    """Rollouts whose advantages also say which of a pair fared better."""

    pair_weight = 1.0

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Each step's own advantage, and a step's part of half the difference of the pair's returns."""
        super().compute_returns_and_advantage(last_values, dones)
        total = self.rewards.sum(axis=0)
        half = (total[0::2] - total[1::2]) / 2.0 / self.buffer_size
        scale = self.advantages.std() / max(float(half.std()), 1e-12)
        self.advantages += self.pair_weight * scale * np.stack([half, -half], 1).ravel()


class _Told(BaseCallback):
    """Tells after each rollout how it went; noise is drawn when a rollout begins."""

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
        sources: Where windows are drawn from.
        drawn: What they are like.
        policy: The rule.
        config: Hyper-parameters.
        seed: Of weights, windows and noise.
        start: (D,) constant positions of the dials to begin with, -1 to 1.
        tell: Called after every rollout with its number, the mean reward, and the spread of half the
            difference of pairs, both over a rollout.

    Returns:
        The matrices of a `Strategy`: the mean that was trained is what is served.
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
