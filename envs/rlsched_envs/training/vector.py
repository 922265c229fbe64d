"""Vector environments for Stable-Baselines3: N clusters, one process, one compiled call per step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES, WINDOW_ROWS
from rlsched_envs.training import batch
from rlsched_envs.training.actions import checked_dials, checked_rows
from rlsched_envs.training.curriculum import Stage
from rlsched_envs.training.dial_env import DEFAULT_POLICY, DialFleet, check_live, spaces, without_dials
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from rlsched_envs.training.windows import Drawn


def row_columns(*, oracle: bool) -> int:
    """Return the number of columns of a window: the actor's, and with `oracle` also the critic's."""
    return NUM_FEATURES + NUM_CRITIC if oracle else NUM_FEATURES


def row_spaces(
    rows: int = WINDOW_ROWS, *, oracle: bool = False
) -> tuple[gym.spaces.Box, gym.spaces.Discrete[np.int64]]:
    """Return (observation space, action space) of a window with `rows` rows."""
    columns = row_columns(oracle=oracle)
    return gym.spaces.Box(-np.inf, np.inf, (rows, columns), np.float32), gym.spaces.Discrete(rows)


class FleetVecEnv(VecEnv):
    """N independent clusters that step together: base class for all kinds of actions.

    Args:
        fleet: The clusters.
        observation_space, action_space: Spaces of a single cluster.
        copy: Whether observations are copies. Without copies, the array that `reset` or `step` returned is
            overwritten two steps later. This is safe for Stable-Baselines3's rollouts, and faster.
    """

    def __init__(
        self,
        fleet: Fleet | DialFleet,
        observation_space: gym.spaces.Space[Any],
        action_space: gym.spaces.Space[Any],
        *,
        copy: bool,
    ) -> None:
        self.render_mode = None  # VecEnv reads it in its constructor
        super().__init__(fleet.dones.size, observation_space, action_space)
        self._fleets, self._copy = fleet, copy
        self._actions: NDArray[Any] = np.zeros(0)

    def reset(self) -> VecEnvObs:
        """Start a new episode in all clusters."""
        for k in range(self.num_envs):
            self._fleets.begin(k)
        return self._seen()

    def _seen(self) -> NDArray[np.float32]:
        return self._fleets.observations.copy() if self._copy else self._fleets.observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Store these actions, one per cluster, for the next `step_wait`.

        Raises:
            ValueError: the actions have another shape or type, or invalid values.
            ResetNeeded: `reset` has not been called.
        """
        check_live(self._fleets.live)
        self._actions = self._checked(actions)

    @abstractmethod
    def _checked(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Validate actions, and convert them for the clusters."""

    def step_wait(self) -> VecEnvStepReturn:
        """Step all clusters. If an episode ends, another starts; `infos` has the results of the ended one."""
        infos = self._fleets.step(self._actions)
        return (self._seen(), self._fleets.rewards.copy(), self._fleets.dones.copy(), infos)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return the attribute of this object, once for each requested environment."""
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
        """Call a method for all clusters at once; returns one result per environment."""
        result = getattr(self, method_name)(*method_args, **method_kwargs)
        return [result[k] for k in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return False for each environment: no cluster is wrapped."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the draws of episodes from the next reset on; None: with a seed from the system."""
        self._fleets.reseed(seed)
        return [seed] * self.num_envs

    def _get_indices(self, indices: VecEnvIndices) -> Iterable[int]:
        return range(self.num_envs) if indices is None else [indices] if isinstance(indices, int) else indices


class RowsVecEnv(FleetVecEnv):
    """N clusters whose jobs are chosen row by row. See `rows_env.RowsEnv` for a single cluster.

    Args:
        sources: Traces to draw episodes from.
        num_envs: Number of clusters.
        seed: Seed of all draws; None: a random seed.
        config: Configuration of episodes.
        copy: As in `FleetVecEnv`.
        oracle: Whether observations also have the columns of the critic, which a broker cannot fill.
    """

    def __init__(
        self,
        sources: Sequence[EpisodeSource],
        num_envs: int,
        *,
        seed: int | None = None,
        config: EpisodeConfig | None = None,
        copy: bool = True,
        oracle: bool = False,
    ) -> None:
        config = config or EpisodeConfig()
        self._fleet, self._columns = Fleet(sources, num_envs, config, seed), row_columns(oracle=oracle)
        super().__init__(self._fleet, *row_spaces(config.window_rows, oracle=oracle), copy=copy)

    def _seen(self) -> NDArray[np.float32]:
        return super()._seen()[:, :, : self._columns]

    def step_wait(self) -> VecEnvStepReturn:
        """Step all clusters; see `FleetVecEnv.step_wait`."""
        seen, rewards, dones, infos = super().step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = info["terminal_observation"][:, : self._columns]
        return seen, rewards, dones, infos

    def enter(self, stage: Stage | None) -> None:
        """Draw the next episodes from this stage of a curriculum; None: from all that `config` allows.

        Running episodes continue unchanged.

        Raises:
            InputError: the stage names an unknown source, or excludes all sources.
        """
        self._fleet.enter(stage)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the (N, K) rows that are legal now."""
        return self._fleet.masks.copy()

    def sample_actions(self) -> NDArray[np.int64]:
        """Draw a legal row for each cluster, (N,), with equal probability and this environment's seed."""
        rows = np.empty(self.num_envs, np.int64)
        self._fleet.sample_rows(rows)
        return rows

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the (N,) rows if all are legal."""
        masks = self._fleet.masks
        rows = checked_rows(actions, (self.num_envs,), masks.shape[1], in_range=False)
        k = batch.first_illegal(masks, rows)
        if k >= 0:
            raise ValueError(
                f"cluster {k}: row {rows[k]} is not legal now; `action_masks()` gives the legal rows: "
                f"{np.flatnonzero(masks[k]).tolist()}"
            )
        return rows

    def get_state(self) -> dict[str, Any]:
        """Return the state of the episodes, for resuming a training run exactly."""
        return self._fleet.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the episodes from a state that `get_state` returned."""
        self._fleet.set_state(state)


class ClusterVecEnv(FleetVecEnv):
    """N clusters with dials to set. See `dial_env.ClusterEnv` for a single cluster.

    Args:
        sources: Traces to draw windows from.
        num_envs: Number of clusters.
        seed: Seed of all draws; None: a random seed.
        drawn: How windows are drawn.
        policy: The rule whose dials are set.
        in_pairs: Whether clusters 2 k and 2 k + 1 run the same windows.
        copy: As in `FleetVecEnv`.
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
        copy: bool = True,
    ) -> None:
        self._dials = DialFleet(
            sources, num_envs, drawn or Drawn(), without_dials(policy), seed, in_pairs=in_pairs
        )
        super().__init__(self._dials, *spaces(), copy=copy)

    def get_state(self) -> list[NDArray[Any]]:
        """Return the state of the windows and of the draws as arrays."""
        return self._dials.get_arrays()

    def set_state(self, state: Sequence[NDArray[Any]]) -> None:
        """Continue from a state that `get_state` returned.

        Raises:
            ValueError: the state belongs to another number of clusters or other windows.
        """
        self._dials.set_arrays(state)

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, D) dial positions as fractions of their ranges; values outside -1 to 1 are clipped."""
        return checked_dials(actions, (self.num_envs, NUM_DIALS))
