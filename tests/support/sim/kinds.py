"""Both environments, for tests of the wrappers and vector environments of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv, FleetVecEnv, RowsVecEnv
from rlsched_envs.training.windows import Drawn

CONFIG = EpisodeConfig(
    warmup_jobs=40, agent_jobs=40, tail_jobs=20, load_low=1.0, load_high=1.3, nodes_low=2, nodes_high=3
)
DRAWN = Drawn(jobs=40, nodes_low=1, nodes_high=2)
MOST_STEPS = 2_000
"""Upper limit of an episode's steps; these episodes have ten to a hundred."""


class Kind(msgspec.Struct, frozen=True):
    """An environment, and how to make it small.

    Attributes:
        name: Name in Gymnasium.
        short: Settings for short episodes.
        vec_env: The native vector environment for Stable-Baselines3.
    """

    name: str
    short: dict[str, Any]
    vec_env: Callable[..., FleetVecEnv]

    @property
    def is_rows(self) -> bool:
        """Whether actions are rows."""
        return self.name == ROWS.name

    def make(self, sources: list[EpisodeSource]) -> gym.Env[Any, Any]:
        """One environment with Gymnasium's default wrappers."""
        return gym.make(self.name, sources=sources, **self.short)

    def bare(self, sources: list[EpisodeSource]) -> gym.Env[Any, Any]:
        """One environment without wrappers."""
        return self.make(sources).unwrapped

    def many(self, sources: list[EpisodeSource], count: int, **more: Any) -> FleetVecEnv:
        """This many in a native vector environment."""
        return self.vec_env(sources, count, **self.short, **more)


CLUSTER = Kind("rlsched/Cluster-v0", {"drawn": DRAWN}, ClusterVecEnv)
ROWS = Kind("rlsched/Rows-v0", {"config": CONFIG}, RowsVecEnv)
KINDS = (CLUSTER, ROWS)


def legal(env: gym.Env[Any, Any], rng: np.random.Generator) -> Any:
    """A random legal action."""
    if not isinstance(env.action_space, gym.spaces.Discrete):
        return rng.uniform(-1.0, 1.0, env.action_space.shape or ()).astype(np.float32)
    masks: NDArray[np.bool_] = env.get_wrapper_attr("action_masks")()
    return int(rng.choice(np.flatnonzero(masks)))


def play_out(env: gym.Env[Any, Any], *, seed: int | None) -> tuple[list[bytes], list[float], dict[str, Any]]:
    """A whole episode: observations, rewards, and the last info."""
    rng = np.random.default_rng(0)
    first, _ = env.reset(seed=seed)
    seen, rewards = [np.asarray(first).tobytes()], []
    for _ in range(MOST_STEPS):
        observation, reward, terminated, truncated, info = env.step(legal(env, rng))
        seen.append(np.asarray(observation).tobytes())
        rewards.append(float(reward))
        if terminated or truncated:
            return seen, rewards, info
    raise AssertionError(f"no end after {MOST_STEPS} steps")
