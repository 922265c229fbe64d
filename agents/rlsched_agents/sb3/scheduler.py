"""Policies `sb3:PATH`, which decide with a Stable-Baselines3 model.

A model that MaskablePPO trained on `rlsched/Rows-v0` chooses jobs, as the network of `ppo` does. A model that
PPO trained on `rlsched/Cluster-v0` sets the dials of that environment's rule.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy

from rlsched.decide.policies.files import opened
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.decide.schema import NUM_FEATURES, WINDOW_ROWS
from rlsched.errors import InputError
from rlsched_agents.runtime.network import NetworkConfig
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_agents.sb3.dials import strategy_of
from rlsched_agents.sb3.reading import read_model
from rlsched_envs.training.dial_env import DEFAULT_POLICY


class ModelScores:
    """Scores of rows by a model's network; implements `runtime.forward.Scores`.

    Args:
        policy: Network of the model.
    """

    def __init__(self, policy: MaskableActorCriticPolicy) -> None:
        self._policy = policy
        self._window = np.zeros((1, WINDOW_ROWS, NUM_FEATURES), np.float32)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return (K,) scores of (K, F) rows: logarithms of the rows' probabilities before the mask."""
        with torch.inference_mode():
            found = self._policy.get_distribution(self._seen(features)).distribution
        assert found is not None
        scores: NDArray[np.float64] = found.logits[0, : len(features)].double().numpy()
        return scores

    def value(self, features: NDArray[np.float32], privileged: NDArray[np.float32]) -> float:
        """Return the critic's value. The critic reads only `features`, as in training."""
        del privileged
        with torch.inference_mode():
            return float(self._policy.predict_values(self._seen(features))[0, 0])

    def _seen(self, features: NDArray[np.float32]) -> torch.Tensor:
        """Return the rows as the environment shows them, with zeros in unused rows."""
        self._window[:] = 0.0
        self._window[0, : len(features)] = features[:, :NUM_FEATURES]
        return torch.from_numpy(self._window)


def make_sb3(policy: Policy, seed: int) -> Scheduler:
    """Return the scheduler of an `sb3` policy, which decides by arg max or by the mean of the actions.

    A model that chooses rows can do what an environment with the default `EpisodeConfig` allows: start jobs
    that fit, and hold jobs back. It does not preempt and makes no reservations; its fallback rule is
    `qssf-backfill`. A model that sets dials sets the dials of `tuned`, which is also its fallback rule.

    Raises:
        CheckpointError: the model cannot be read, or is not for these environments.
        InputError: settings are in conflict.
    """
    policy.check_read("checkpoint", "predictions")
    settings = policy.settings
    if policy.oracle:
        raise InputError(
            f"policy {policy.name!r}: predictions: expected submitted or revised, got oracle; a network does "
            "not get the true run times"
        )
    if settings.checkpoint == "default":
        raise InputError(
            f"policy {policy.name!r}: checkpoint: expected the path of a model, such as sb3:m.zip"
        )
    network, digest = read_model(settings.checkpoint)
    if isinstance(network, ActorCriticPolicy):
        return _of_dials(policy, network, digest)
    revised = settings.predictions == "revised"
    return PpoScheduler(
        {},
        NetworkConfig(),
        name=policy.name,
        policy_id=f"sb3-{digest}" + (" revised" if revised else ""),
        seed=seed,
        permissions=Permissions(),
        revised=revised,
        scores=ModelScores(network),
    )


def _of_dials(policy: Policy, network: ActorCriticPolicy, digest: str) -> RuleScheduler:
    """Return the rule with which the model was trained; the model sets the rule's dials."""
    policy.check_read("checkpoint")
    rule = Policy(DEFAULT_POLICY)
    made = RuleScheduler(rule.named(policy.name), strategy_of(network, opened(policy.settings.checkpoint)[0]))
    made.policy_id, made.reference = f"sb3-{digest}", rule
    return made
