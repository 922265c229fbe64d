"""Trains a network that sets dials by PPO of Stable-Baselines3, with special noise.

The noise is generalised state-dependent exploration (gSDE: Raffin, Kober, Stulp, CoRL 2021). It is constant
in a rollout, because a strategy affects costs only after hours of simulated time. The two clusters of a pair
run the same window with opposite noise. Half the difference of their returns is the effect of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import set_random_seed
from torch.distributions import Normal

from rlsched.decide.policies.policy import Policy
from rlsched.objective import DEFAULT, NUM_TERMS, Objective, Term, mean_ratios
from rlsched_agents.dials.evolution import Generation
from rlsched_agents.dials.judging import Floats, Layers
from rlsched_agents.dials.lesson import PpoConfig
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv

FIGURES: Final = ("approx_kl", "explained_variance", "value_loss", "std")
"""Figures of an update that are recorded, by their names in the log of Stable-Baselines3."""
PASSED_ON: Final = 0.3
"""Factor by which `DialPolicy.begin_at` multiplies the inputs of tanh units, so that tanh is nearly linear.
For an original input of 0.5, the error is 0.7 % per layer.
"""


class MirroredNoise(StateDependentNoiseDistribution):
    """gSDE in which cluster 2 k + 1 has the noise of cluster 2 k with the opposite sign."""

    def sample_weights(self, log_std: torch.Tensor, batch_size: int = 1) -> None:
        """Draw noise for half of the clusters. The other half gets the same noise with the opposite sign."""
        std = self.get_std(log_std)
        self.weights_dist = Normal(torch.zeros_like(std), std)
        self.exploration_mat = self.weights_dist.rsample()
        drawn = self.weights_dist.rsample((-(-batch_size // 2),))
        self.exploration_matrices = torch.stack([drawn, -drawn], 1).flatten(0, 1)[:batch_size]


class DialPolicy(ActorCriticPolicy):
    """Policy network with two hidden tanh layers, a tanh output, and the noise of `MirroredNoise`."""

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        assert self.dist_kwargs is not None
        (dials,) = self.action_space.shape or ()
        self.action_dist = MirroredNoise(dials, **self.dist_kwargs)
        super()._build(lr_schedule)

    def begin_at(self, weights: Floats) -> None:
        """Set the weights so that the mean action is nearly the same as the action of a linear strategy.

        The first D units of each hidden layer pass on the strategy's weighted sums, one for each of D dials,
        multiplied by `PASSED_ON`. The other units have no effect yet.

        `weights`: (D, F + 1) weights of the linear strategy. A row has the weights of one dial: one for each
        of F columns (observed features), then the constant.
        """
        first, second = (part for part in self.mlp_extractor.policy_net if isinstance(part, torch.nn.Linear))
        last = self.action_net
        assert isinstance(last, torch.nn.Linear)
        passed = torch.as_tensor(weights, dtype=last.weight.dtype) * PASSED_ON
        dials = len(passed)
        with torch.no_grad():
            first.weight[:dials], first.bias[:dials] = passed[:, :-1], passed[:, -1]
            second.weight[:dials], second.bias[:dials] = torch.eye(dials, second.in_features), 0.0
            last.weight.zero_()
            last.weight[:, :dials], last.bias[:] = torch.eye(dials) / PASSED_ON, 0.0

    @property
    def _parts(self) -> list[torch.nn.Linear]:
        """The three linear layers of the network of the mean action."""
        assert isinstance(self.action_net, torch.nn.Linear)
        hidden = [part for part in self.mlp_extractor.policy_net if isinstance(part, torch.nn.Linear)]
        return [*hidden, self.action_net]

    def layers(self) -> list[Floats]:
        """Return the network of the mean action as the matrices of a `Strategy`."""
        return [
            np.hstack([part.weight.detach().numpy(), part.bias.detach().numpy()[:, None]]).astype(np.float64)
            for part in self._parts
        ]

    def set_layers(self, layers: Layers) -> None:
        """Set the network of the mean action from the matrices of a `Strategy` of the same width."""
        with torch.no_grad():
            for part, layer in zip(self._parts, layers, strict=True):
                part.weight[:] = torch.as_tensor(layer[:, :-1], dtype=part.weight.dtype)
                part.bias[:] = torch.as_tensor(layer[:, -1], dtype=part.bias.dtype)


class PairedBuffer(RolloutBuffer):
    """Rollout buffer whose advantages include the difference between the two clusters of a pair."""

    pair_weight = 1.0

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Compute advantages as Stable-Baselines3 does, and add a value to the advantages of each cluster.

        The value is half the difference between the returns of this cluster and of the other cluster of its
        pair. It is scaled to the standard deviation of the advantages, and multiplied by `pair_weight`.
        """
        super().compute_returns_and_advantage(last_values, dones)
        total = self.rewards.sum(axis=0)
        half = (total[0::2] - total[1::2]) / 2.0 / self.buffer_size
        scale = self.advantages.std() / max(float(half.std()), 1e-12)
        self.advantages += self.pair_weight * scale * np.stack([half, -half], 1).ravel()


class DialPpo:
    """One training run by PPO: each call of `step` is a rollout and an update. The state is a set of arrays.

    The random generators are seeded before each rollout. A training run that stops and continues therefore
    gives exactly the same weights as an uninterrupted one.

    Args:
        sources: Traces that windows are drawn from.
        drawn: How windows are drawn.
        policy: The rule whose dials are set.
        config: Hyperparameters.
        seed: Seed of weights, windows and noise.
        start: (D, F + 1) weights of the linear strategy from which the network starts (`begin_at`); None: the
            network starts from random weights.
        objective: Defines the rewards.

    Attributes:
        number: Number of rollouts and updates done.
    """

    def __init__(
        self,
        sources: Sequence[EpisodeSource],
        drawn: Drawn,
        policy: Policy,
        config: PpoConfig,
        seed: int,
        start: Floats | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.config, self.number, self._seed = config, 0, seed
        self._objective = objective or DEFAULT
        self._means = np.ones(NUM_TERMS)
        self._penalties = self._objective.training_penalties(self._means)
        self._cost = 1.0
        self._clusters = ClusterVecEnv(
            sources,
            config.clusters,
            seed=seed,
            drawn=drawn,
            policy=policy,
            in_pairs=True,
            objective=objective,
            copy=False,
        )
        shape: dict[str, Any] = {"pi": [config.width, config.width], "vf": [config.width, config.width]}
        self._model = PPO(
            DialPolicy,
            self._clusters,
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
        self._model.set_logger(Logger(None, []))  # the model writes no log files
        assert isinstance(self._model.rollout_buffer, PairedBuffer)
        self._model.rollout_buffer.pair_weight = config.pair_weight
        if start is not None:
            self.network.begin_at(start)

    @property
    def network(self) -> DialPolicy:
        """The policy network with its critic."""
        assert isinstance(self._model.policy, DialPolicy)
        return self._model.policy

    @property
    def result(self) -> Layers:
        """The network's mean action, without noise, as the three matrices of a `Strategy`."""
        return self.network.layers()

    def step(self) -> Generation:
        """Simulate one rollout, update the network, and return the figures of this step."""
        set_random_seed(int(np.random.SeedSequence([self._seed, self.number]).generate_state(1)[0]))
        returns = _Returns()
        if self._objective.bounds:
            self._clusters.set_penalties(self._penalties)
        self._model.learn(self._model.n_steps * self.config.clusters, returns, reset_num_timesteps=False)
        self.number += 1
        if returns.saved:
            self._cost = 1.0 - float(np.mean(returns.saved)) / 100.0
            self._means = mean_ratios(np.array(returns.ratios))
            self._penalties = self._objective.training_penalties(self._means)
        logged = self._model.logger.name_to_value
        figures = {name: float(logged[f"train/{name}"]) for name in FIGURES}
        for k in np.flatnonzero(np.isfinite(self._objective.limits)).tolist():
            figures[f"{Term(k).name.lower()}_ratio"] = float(self._means[k])
        return Generation(self.number, self._cost, None, figures)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the weights and the state of optimiser, counters and clusters as arrays."""
        model, policy = self._model, self.network
        found: dict[str, NDArray[Any]] = {
            "counts": np.array([self.number, model.num_timesteps, model._n_updates]),
            "cost": np.array([self._cost]),
            "penalties": self._penalties,
            "means": self._means,
            "seen": np.array(model._last_obs),
            "starts": np.array(model._last_episode_starts),
        }
        for name, weights in policy.state_dict().items():
            found[f"weights/{name}"] = weights.numpy().copy()
        for key, moments in policy.optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                found[f"optimizer/{key}/{name}"] = torch.as_tensor(value).numpy().copy()
        for key, array in enumerate(self._clusters.get_state()):
            found[f"clusters/{key}"] = array
        return found

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that `get_state` returned.

        Raises:
            KeyError, RuntimeError, ValueError: the state is of a training run with other hyperparameters.
        """
        model, policy = self._model, self.network
        parts = {prefix: _members(state, prefix) for prefix in ("weights/", "optimizer/", "clusters/")}
        policy.load_state_dict({name: torch.from_numpy(array) for name, array in parts["weights/"].items()})
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for path, array in parts["optimizer/"].items():
            key, _, name = path.partition("/")
            moments.setdefault(int(key), {})[name] = torch.from_numpy(array)
        optimizer = policy.optimizer.state_dict()
        policy.optimizer.load_state_dict({**optimizer, "state": moments})
        clusters = parts["clusters/"]
        self._clusters.set_state([clusters[str(key)] for key in range(len(clusters))])
        self.number, model.num_timesteps, model._n_updates = (int(count) for count in state["counts"])
        (self._cost,) = state["cost"].tolist()
        self._penalties, self._means = state["penalties"], state["means"]
        model._last_obs, model._last_episode_starts = state["seen"], state["starts"]


def _members(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return a dict of the arrays of `state` whose names begin with `prefix`; its keys lack the prefix."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


class _Returns(BaseCallback):
    """Callback that collects the results of the episodes that end in a rollout.

    Attributes:
        saved: Savings of each episode, per cent of the cost of the reference.
        ratios: For each episode, the ratios of its terms to the reference, in the order of `TERMS`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[float] = []
        self.ratios: list[list[float]] = []

    def _on_step(self) -> bool:
        ended = [info for info in self.locals["infos"] if "episode" in info]
        self.saved += [info["episode"]["r"] for info in ended]
        self.ratios += [list(info["ratios"].values()) for info in ended]
        return True
