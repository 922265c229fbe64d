"""Stable-Baselines3 policy around `CandidateNetwork`: the two heads give logits and values directly."""

from __future__ import annotations

from typing import Any, Self

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableCategorical, MaskableCategoricalDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rlsched_agents.ppo.network import CandidateNetwork
from rlsched_agents.ppo.rows import keep_freed_memory
from rlsched_agents.runtime.network import NetworkConfig


class RowDistribution(MaskableCategoricalDistribution):  # type: ignore[misc]  # sb3_contrib has no types
    """The same distribution without a check of the logits: a non-finite logit makes the draw fail."""

    def proba_distribution(self, action_logits: Tensor) -> Self:
        """Return the distribution of (B, K) logits."""
        logits = action_logits.view(-1, self.action_dim)
        self.distribution = MaskableCategorical(logits=logits, validate_args=False)
        return self


class KeepRows(BaseFeaturesExtractor):
    """Passes (B, K, F + C) observations on unchanged; the default would flatten the rows."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=1)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the observations unchanged."""
        return observations


class CandidatePolicy(MaskableActorCriticPolicy):  # type: ignore[misc]  # sb3_contrib has no types
    """Masked actor-critic policy whose actions are candidate rows.

    Args:
        network: Sizes and prior of the network.
        network_seed: Seed of the network's initial weights.

    The first instance makes the process keep freed memory (`rows.keep_freed_memory`).
    """

    mlp_extractor: CandidateNetwork

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        network: NetworkConfig | None = None,
        network_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self._network = network or NetworkConfig()
        self._network_seed = network_seed
        kwargs |= {"features_extractor_class": KeepRows, "ortho_init": False, "net_arch": []}
        keep_freed_memory()
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = CandidateNetwork(self._network, self._network_seed)

    def _build(self, lr_schedule: Schedule) -> None:
        self._build_mlp_extractor()
        self.action_net = nn.Identity()
        self.value_net = nn.Identity()
        self.action_dist = RowDistribution(int(self.action_space.n))
        self.optimizer: torch.optim.Optimizer = self.optimizer_class(
            self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._get_constructor_parameters()
        for fixed in ("features_extractor_class", "ortho_init", "net_arch"):
            parameters.pop(fixed)
        return parameters | {"network": self._network, "network_seed": self._network_seed}
