"""A vector environment with a known optimum and the shapes of the real one: PPO must solve it in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rlsched.decide.rows.columns import FEASIBLE, IS_JOB, IS_REFERENCE, IS_WAIT, PREDICTED
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES, WINDOW_ROWS

TOY_STEPS = 16
"""Decisions per episode."""


class ToyVecEnv(VecEnv):
    """Windows of random jobs, some of which fit; the best row is the shortest job that fits.

    The reference row is the *longest* job that fits, so the prior is wrong if two jobs fit. Reward: -1 for
    each job that fits and is shorter than the chosen one; for *wait*, minus the number of jobs that fit. The
    best return is 0.

    Args:
        num_envs: Number of parallel episodes.
        seed: Seed of all episodes.
    """

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        columns = NUM_FEATURES + NUM_CRITIC
        super().__init__(
            num_envs,
            spaces.Box(-np.inf, np.inf, (WINDOW_ROWS, columns), np.float32),
            spaces.Discrete(WINDOW_ROWS),
        )
        self._rng = np.random.default_rng(seed)
        self._observations = np.zeros((num_envs, WINDOW_ROWS, columns), np.float32)
        self._masks = np.zeros((num_envs, WINDOW_ROWS), np.bool_)
        self._steps: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._returns = np.zeros(num_envs)
        self._actions = np.zeros(num_envs, np.int64)

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, K) legal rows."""
        return self._masks.copy()

    def reset(self) -> VecEnvObs:
        """Restart all episodes."""
        self._steps[:] = 0
        self._returns[:] = 0
        self._draw()
        return self._observations.copy()

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Take these rows."""
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Rewards of the rows taken, and the next windows."""
        every = np.arange(self.num_envs)
        length = np.where(self._masks, self._observations[:, :, PREDICTED], np.inf)
        length[:, 0] = np.inf
        taken = length[every, self._actions]
        rewards = -(length < taken[:, None]).sum(axis=1).astype(np.float32)
        self._steps += 1
        self._returns += rewards
        dones = self._steps == TOY_STEPS
        infos: list[dict[str, Any]] = [{} for _ in every]
        for i in np.flatnonzero(dones):
            infos[i]["episode"] = {"r": float(self._returns[i]), "l": TOY_STEPS, "t": 0.0}
            infos[i]["schedule"] = {
                "queue_mean_s": 1.0 - float(self._returns[i]),
                "reference_queue_mean_s": 1.0 + 2.0 * TOY_STEPS,
            }
        self._returns[dones] = 0
        self._steps[dones] = 0
        self._draw()
        return self._observations.copy(), rewards, dones, infos

    def _draw(self) -> None:
        """New windows: *wait*, then 3 to 11 jobs, at least one of which fits, then padding."""
        self._observations[:] = 0
        self._masks[:] = False
        for i, jobs in enumerate(self._rng.integers(3, 12, self.num_envs)):
            rows = self._observations[i, : jobs + 1]
            rows[:, PREDICTED:NUM_FEATURES] = self._rng.random((jobs + 1, NUM_FEATURES - PREDICTED))
            rows[0, :] = 0
            rows[0, IS_WAIT] = 1
            rows[1:, IS_JOB] = 1
            fits = self._rng.random(jobs) < 0.6
            fits[self._rng.integers(jobs)] = True
            rows[1:, FEASIBLE] = fits
            rows[1 + np.argmax(np.where(fits, rows[1:, PREDICTED], -1)), IS_REFERENCE] = 1
            rows[:, NUM_FEATURES:] = self._steps[i] / TOY_STEPS
            self._masks[i, 0] = True
            self._masks[i, 1 : jobs + 1] = fits

    def get_state(self) -> dict[str, Any]:
        """All state that the next steps depend on."""
        return {
            "rng": self._rng.bit_generator.state,
            "observations": self._observations.copy(),
            "masks": self._masks.copy(),
            "steps": self._steps.copy(),
            "returns": self._returns.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._rng.bit_generator.state = state["rng"]
        self._observations[:], self._masks[:] = state["observations"], state["masks"]
        self._steps[:], self._returns[:] = state["steps"], state["returns"]

    # ---- the rest of the VecEnv interface ---------------------------------------------------------

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed all future episodes."""
        self._rng = np.random.default_rng(seed)
        return [seed] * self.num_envs

    def close(self) -> None:
        """Nothing to close."""

    def has_attr(self, attr_name: str) -> bool:
        """Whether the environment has an attribute."""
        return hasattr(self, attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute, once for each requested environment."""
        return [getattr(self, attr_name, None) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:  # noqa: ARG002
        """Attributes are fixed."""
        raise AttributeError(f"attribute {attr_name!r} of {type(self).__name__} cannot be set")

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """`action_masks` of the requested environments; it takes no arguments."""
        del method_args, method_kwargs
        if method_name != "action_masks":
            raise AttributeError(f"{type(self).__name__} has no per-environment method {method_name!r}")
        return list(self._masks[list(self._get_indices(indices))])

    def env_is_wrapped(
        self,
        wrapper_class: type[Any],  # noqa: ARG002
        indices: VecEnvIndices = None,
    ) -> list[bool]:
        """No environment is wrapped."""
        return [False for _ in self._get_indices(indices)]
