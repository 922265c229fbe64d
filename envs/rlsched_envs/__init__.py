"""The simulated cluster: the engine (free of gymnasium), the Gymnasium environment, the native vector one."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("gymnasium") is not None:
    from gymnasium.envs.registration import register

    register(id="rlsched/Cluster-v0", entry_point="rlsched_envs.gym_env:ClusterEnv")
