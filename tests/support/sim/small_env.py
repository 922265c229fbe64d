"""The environment with short episodes, for tests of wrappers and vector environments of other libraries."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv

NAME = "rlsched/Cluster-v0"
DRAWN = Drawn(jobs=40, nodes_low=1, nodes_high=2)
SHORT = {"drawn": DRAWN}
"""Arguments for short episodes."""
MOST_STEPS = 2_000
"""Upper limit of an episode's steps; these episodes have ten to a hundred."""


def make(sources: list[EpisodeSource]) -> gym.Env[Any, Any]:
    """One environment with Gymnasium's default wrappers."""
    return gym.make(NAME, sources=sources, **SHORT)


def bare(sources: list[EpisodeSource]) -> gym.Env[Any, Any]:
    """One environment without wrappers."""
    return make(sources).unwrapped


def many(sources: list[EpisodeSource], count: int, **more: Any) -> ClusterVecEnv:
    """This many in the native vector environment for Stable-Baselines3."""
    return ClusterVecEnv(sources, count, drawn=DRAWN, **more)


def make_vec(sources: list[EpisodeSource], count: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """This many in the native vector environment of Gymnasium."""
    return gym.make_vec(NAME, count, sources=sources, **SHORT)


def dials(env: gym.Env[Any, Any], rng: np.random.Generator) -> NDArray[np.float32]:
    """A random action."""
    drawn: NDArray[np.float32] = rng.uniform(-1.0, 1.0, env.action_space.shape or ()).astype(np.float32)
    return drawn


def play_out(env: gym.Env[Any, Any], *, seed: int | None) -> tuple[list[bytes], list[float], dict[str, Any]]:
    """A whole episode: observations, rewards, and the last info."""
    rng = np.random.default_rng(0)
    first, _ = env.reset(seed=seed)
    seen, rewards = [np.asarray(first).tobytes()], []
    for _ in range(MOST_STEPS):
        observation, reward, terminated, truncated, info = env.step(dials(env, rng))
        seen.append(np.asarray(observation).tobytes())
        rewards.append(float(reward))
        if terminated or truncated:
            return seen, rewards, info
    raise AssertionError(f"no end after {MOST_STEPS} steps")
