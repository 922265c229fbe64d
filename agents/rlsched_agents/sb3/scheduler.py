"""Policies `sb3:PATH`: a model that Stable-Baselines3 trained on `rlsched/Cluster-v0` sets a rule's dials."""

from __future__ import annotations

from rlsched.decide.policies.files import opened
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.errors import InputError
from rlsched_agents.sb3.dials import strategy_of
from rlsched_agents.sb3.reading import read_model
from rlsched_envs.training.dial_env import DEFAULT_POLICY


def make_sb3(policy: Policy, seed: int) -> RuleScheduler:
    """Return a scheduler with the rule of the model's training. The model's mean action sets its dials.

    The fallback is the same rule with all dials at 0.

    Raises:
        CheckpointError: the model cannot be read, or was not trained on `rlsched/Cluster-v0`.
        InputError: settings are in conflict.
    """
    del seed  # the mean action does not depend on the seed
    policy.check_read("checkpoint")
    checkpoint = policy.settings.checkpoint
    if not checkpoint:
        raise InputError(
            f"policy {policy.name!r}: checkpoint: expected the path of a model, such as sb3:m.zip"
        )
    network, digest = read_model(checkpoint)
    rule = Policy(DEFAULT_POLICY)
    made = RuleScheduler(rule.named(policy.name), strategy_of(network, opened(checkpoint)[0]))
    made.policy_id, made.reference = f"sb3-{digest}", rule
    return made
