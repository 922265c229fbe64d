"""`sb3:PATH`: a model of Stable-Baselines3 decides.

One that MaskablePPO trained on `rlsched/Rows-v0` chooses jobs, as the network of `ppo` does. One that PPO
trained on `rlsched/Cluster-v0` sets the dials of the rule of that environment.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy

from rlsched.decide.files import opened
from rlsched.decide.permissions import Permissions
from rlsched.decide.policy import Policy
from rlsched.decide.rows.schema import NUM_FEATURES, WINDOW_ROWS
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError
from rlsched_agents.runtime.network import NetworkConfig
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_agents.sb3.dials import strategy_of
from rlsched_agents.sb3.reading import read_model
from rlsched_envs.dial_env import DEFAULT_POLICY


class ModelScores:
    """What the model makes of rows, as `runtime.forward.Scores`.

    Args:
        policy: Its network.
    """

    def __init__(self, policy: MaskableActorCriticPolicy) -> None:
        self._policy = policy
        self._window = np.zeros((1, WINDOW_ROWS, NUM_FEATURES), np.float32)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """(K,) scores of (K, F) rows: logarithms of probabilities before the mask."""
        with torch.inference_mode():
            found = self._policy.get_distribution(self._seen(features)).distribution
        assert found is not None
        scores: NDArray[np.float64] = found.logits[0, : len(features)].double().numpy()
        return scores

    def value(self, features: NDArray[np.float32], privileged: NDArray[np.float32]) -> float:
        """What the critic expects; it saw in training what a broker sees, and nothing beside that."""
        del privileged
        with torch.inference_mode():
            return float(self._policy.predict_values(self._seen(features))[0, 0])

    def _seen(self, features: NDArray[np.float32]) -> torch.Tensor:
        """The window as the environment shows it: rows that are not used are zero."""
        self._window[:] = 0.0
        self._window[0, : len(features)] = features[:, :NUM_FEATURES]
        return torch.from_numpy(self._window)


def make_sb3(policy: Policy, seed: int) -> Scheduler:
    """The scheduler of a policy whose rule is `sb3`, by arg max, or by the mean of what the model draws.

    A model of rows may do what it could do in an environment with the default `EpisodeConfig`: start jobs
    that fit, and hold them back. It preempts no job and reserves nothing; the rule behind it is
    `qssf-backfill`. A model of dials sets those of `tuned`, and that is the rule behind it.

    Raises:
        CheckpointError: the model cannot be read, or is none for these environments.
        InputError: its settings do not go together.
    """
    policy.check_read("checkpoint", "predictions")
    settings = policy.settings
    if policy.oracle:
        raise InputError(
            f"policy {policy.name!r}: predictions: expected submitted or revised, got oracle; a network is "
            "not fed the true run times"
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
    """The rule that a model of dials was trained with, its dials set by the model."""
    policy.check_read("checkpoint")
    rule = Policy(DEFAULT_POLICY)
    made = RuleScheduler(rule.named(policy.name), strategy_of(network, opened(policy.settings.checkpoint)[0]))
    made.policy_id, made.reference = f"sb3-{digest}", rule
    return made
