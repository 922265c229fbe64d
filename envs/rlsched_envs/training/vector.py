"""Vector environment for Stable-Baselines3: N clusters, one process, one compiled call per step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched.objective import DEFAULT, Objective
from rlsched_envs.training.actions import check_live, checked_dials, spaces
from rlsched_envs.training.dial_env import DEFAULT_POLICY, DialFleet, without_dials
from rlsched_envs.training.sources import Drawn, EpisodeSource


class ClusterVecEnv(VecEnv):
    """N independent clusters that step together. See `dial_env.ClusterEnv` for a single cluster.

    Args:
        sources: Traces to draw windows from.
        num_envs: Number of clusters.
        seed: Seed of all draws; None: a random seed.
        drawn: How windows are drawn.
        policy: The rule whose dials are set.
        in_pairs: Whether clusters 2 k and 2 k + 1 run the same windows, so that they can be compared.
        objective: Defines the rewards; a name or a file, as in `dial_env.ClusterEnv`.
        copy: Whether observations are copies. If not, a returned array is overwritten two steps later, which
            is safe for Stable-Baselines3's rollouts.
    """

    def __init__(
        self,
        sources: Sequence[EpisodeSource],
        num_envs: int,
        *,
        seed: int | None = None,
        drawn: Drawn | None = None,
        policy: Policy | str = DEFAULT_POLICY,
        in_pairs: bool = False,
        objective: Objective | str | None = None,
        copy: bool = True,
    ) -> None:
        self.render_mode = None  # VecEnv reads it in its constructor
        super().__init__(num_envs, *spaces())
        self._dials = DialFleet(
            sources,
            num_envs,
            drawn or Drawn(),
            without_dials(policy),
            seed,
            in_pairs=in_pairs,
            objective=Objective.of(objective or DEFAULT),
        )
        self._copy = copy
        self._actions: NDArray[np.float64] = np.zeros(0)

    def reset(self) -> VecEnvObs:
        """Start a new episode in all clusters."""
        for k in range(self.num_envs):
            self._dials.begin(k)
        return self._seen()

    def _seen(self) -> NDArray[np.float32]:
        return self._dials.observations.copy() if self._copy else self._dials.observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Store (N, D) dial positions as fractions of their ranges for the next `step_wait`.

        Values outside -1 to 1 are clipped.

        Raises:
            ValueError: the actions have another shape, are not real numbers, or are not finite.
            ResetNeeded: `reset` has not been called.
        """
        check_live(self._dials.live)
        self._actions = checked_dials(actions, (self.num_envs, NUM_DIALS))

    def step_wait(self) -> VecEnvStepReturn:
        """Step all clusters. If an episode ends, `infos` has its results, and another episode starts."""
        infos = self._dials.step(self._actions)
        return (self._seen(), self._dials.rewards.copy(), self._dials.dones.copy(), infos)

    def set_penalties(self, penalties: NDArray[np.float64]) -> None:
        """Set the (NUM_TERMS,) penalties of the objective's bounds for episodes that start from now on."""
        self._dials.penalties = penalties

    def close(self) -> None:
        """Do nothing; the environment has no resources to release."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return the attribute of this object, repeated for each requested environment."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def has_attr(self, attr_name: str) -> bool:
        """Return whether this object has the attribute."""
        return hasattr(self, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of this object; single clusters have no attributes."""
        del indices
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method that returns one value per cluster; return the requested clusters' values."""
        result = getattr(self, method_name)(*method_args, **method_kwargs)
        return [result[k] for k in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return False for each environment: no cluster is wrapped."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seed from which later episodes are drawn; None: a random seed."""
        self._dials.reseed(seed)
        return [seed] * self.num_envs

    def _get_indices(self, indices: VecEnvIndices) -> Iterable[int]:
        return range(self.num_envs) if indices is None else [indices] if isinstance(indices, int) else indices

    def get_state(self) -> list[NDArray[Any]]:
        """Return the state of the running episodes and of the random draws as arrays."""
        return self._dials.get_arrays()

    def set_state(self, state: Sequence[NDArray[Any]]) -> None:
        """Continue from a state that `get_state` returned.

        Raises:
            ValueError: the state has another number of clusters, or windows of another size.
        """
        self._dials.set_arrays(state)
