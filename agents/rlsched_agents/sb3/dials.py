"""Converts a PPO model trained on `rlsched/Cluster-v0` to a `Strategy`, which sets the dials of a rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from rlsched.decide.dials.strategy import Strategy
from rlsched.errors import CheckpointError
from rlsched_agents.sb3.reading import read_model


def read_strategy(path: str | Path) -> Strategy:
    """Read a model, and return the strategy that sets the same dials as the model.

    The dials equal the actions of `predict(deterministic=True)`, up to rounding.

    Raises:
        CheckpointError: the model cannot be read, was not trained on `rlsched/Cluster-v0`, or does not have
            the layers of a strategy.
    """
    network, _ = read_model(path)
    return strategy_of(network, path)


def strategy_of(network: ActorCriticPolicy, path: str | Path) -> Strategy:
    """Return the strategy that sets the same dials as a network. `path`: file to name in errors.

    The dials are the mean of the network's Gaussian distribution of actions, clipped, or after tanh with
    `squash_output`.

    Raises:
        CheckpointError: the network does not have the layers of a strategy.
    """
    parts = list(network.mlp_extractor.policy_net)
    layers, between = parts[::2], parts[1::2]
    fits = (
        isinstance(network.pi_features_extractor, FlattenExtractor)
        and all(isinstance(one, nn.Linear) for one in (*layers, network.action_net))
        and all(isinstance(one, nn.Tanh) for one in between)
        and len(layers) == len(between)
        and len(layers) in (0, 2)
    )
    if not fits:
        found = ", ".join(" ".join(str(one).split()) for one in parts)[:200]
        raise CheckpointError(
            f"{path}: expected a policy network with two hidden tanh layers, as MlpPolicy has "
            "(net_arch=[64, 64]), or without hidden layers, got "
            f"{found or type(network.pi_features_extractor).__name__}; to serve another network, write a "
            "class and name it as FILE.py:NAME"
        )
    matrices = [_matrix(one) for one in (*layers, network.action_net)]
    made = Strategy.from_layers(*matrices, output="tanh" if network.squash_output else "clip")
    made.check(str(path))
    return made


def _matrix(layer: nn.Module) -> NDArray[np.float64]:
    """Return the (outputs, inputs + 1) weights of a layer. The last column is the bias."""
    assert isinstance(layer, nn.Linear)
    with torch.inference_mode():
        found: NDArray[np.float64] = torch.hstack([layer.weight, layer.bias[:, None]]).double().numpy()
    return found
