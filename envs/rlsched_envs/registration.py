"""Registers the environment with Gymnasium."""

from __future__ import annotations


def register() -> None:
    """Register `rlsched/Cluster-v0`, so that `gymnasium.make` and `make_vec` find it."""
    from gymnasium.envs import registration

    registration.register(
        id="rlsched/Cluster-v0",
        entry_point="rlsched_envs.training.dial_env:ClusterEnv",
        vector_entry_point="rlsched_envs.training.gym_vector:ClusterVectorEnv",
    )
