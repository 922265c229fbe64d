"""Tells Gymnasium of `rlsched/Cluster-v0`: `import rlsched` does, where Gymnasium is imported."""

from __future__ import annotations


def register() -> None:
    """Make `gymnasium.make("rlsched/Cluster-v0")` known."""
    from gymnasium.envs import registration

    registration.register(id="rlsched/Cluster-v0", entry_point="rlsched_envs.gym_env:ClusterEnv")
