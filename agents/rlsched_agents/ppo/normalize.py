"""A VecEnv wrapper that divides rewards by the running standard deviation of the discounted return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn


class ReturnNormalizer(VecEnvWrapper):
    """Scales rewards so that returns have a standard deviation near 1, and clips them.

    Without this scale the critic's loss dominates the global gradient clip and the policy does not learn.
    Observations, masks and the raw returns in `infos[i]["episode"]` pass through unchanged.

    Args:
        venv: The environment to wrap.
        gamma: Discount per decision, as in PPO.
        clip: Largest magnitude of a scaled reward.
    """

    def __init__(self, venv: VecEnv, *, gamma: float, clip: float = 10.0) -> None:
        super().__init__(venv)
        self.gamma = gamma
        self.clip = clip
        self.returns: NDArray[np.float64] = np.zeros(self.num_envs)
        self.spread = RunningMeanStd()

    @property
    def scale(self) -> float:
        """Standard deviation of the discounted return so far, in the reward's unit."""
        return float(np.sqrt(self.spread.var + 1e-8))

    def reset(self) -> VecEnvObs:
        """Restart all episodes. Keeps the learned scale."""
        self.returns[:] = 0.0
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step the wrapped environment and scale its rewards."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self.returns = self.returns * self.gamma + rewards
        self.spread.update(self.returns)
        scaled = np.clip(rewards / self.scale, -self.clip, self.clip).astype(np.float32)
        self.returns[dones] = 0.0
        return observations, scaled, dones, infos

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Return the state for an exact resume."""
        moments = np.array([self.spread.mean, self.spread.var, self.spread.count], dtype=np.float64)
        return {"returns": self.returns.copy(), "moments": moments}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self.returns = np.array(state["returns"], dtype=np.float64)
        mean, var, count = np.asarray(state["moments"], dtype=np.float64)
        self.spread.mean, self.spread.var, self.spread.count = mean, var, count
