"""The native vector environments of `gymnasium.make_vec`: N clusters, one process, one call per step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched_envs.training.actions import checked_dials, checked_rows
from rlsched_envs.training.dial_env import (
    DEFAULT_POLICY,
    FOR_SB3,
    DialFleet,
    SourceArguments,
    check_live,
    sources_of,
    spaces,
    without_dials,
)
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig
from rlsched_envs.training.vector import row_columns, row_spaces
from rlsched_envs.training.windows import Drawn

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


class FleetVectorEnv(VectorEnv[Floats, NDArray[Any], NDArray[Any]], ABC):
    """N independent clusters that step together, like the environments of a `SyncVectorEnv`.

    A cluster whose episode has ended starts another episode in the next step. That step ignores the cluster's
    action and has reward 0 (`AutoresetMode.NEXT_STEP`).

    Args:
        fleet: The clusters.
        observation_space, action_space: Spaces of a single cluster.
        render_mode: Stored, but without effect.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium's form

    def __init__(
        self,
        fleet: Fleet | DialFleet,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        render_mode: str | None,
    ) -> None:
        self.render_mode = render_mode
        self._clusters, self.num_envs = fleet, fleet.dones.size
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._has_begun = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Floats, dict[str, Any]]:
        """Start a new episode in all clusters; there are no options.

        Args:
            seed: Cluster k gets the draws of a single environment with seed `seed` + k, or with the k-th seed
                of a list; None: the draws continue.
            options: Ignored.

        Raises:
            ValueError: the list does not have one seed per cluster.
        """
        del options
        seeds = [seed + k for k in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None:
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} seeds, one per cluster, got {len(seeds)}")
            super().reset(seed=seeds[0])
            for k, one in enumerate(seeds):
                if one is not None:
                    self._clusters.reseed_one(k, int(one))
        for k in range(self.num_envs):
            self._clusters.begin(k)
        self._has_begun = True
        return self._seen(), {}

    def step(self, actions: NDArray[Any]) -> tuple[Floats, NDArray[Any], Flags, Flags, dict[str, Any]]:
        """Step the clusters; a cluster whose episode ended in the previous step starts another episode.

        Raises:
            ValueError: the actions have another shape or type, or invalid values.
            ResetNeeded: `reset` has not been called.
        """
        fleet = self._clusters
        check_live(np.array([self._has_begun]))
        taken, illegal = self._checked(actions)
        began = np.flatnonzero(~fleet.live)
        infos: dict[str, Any] = {}
        lasts: dict[int, Floats] = {}
        for k, info in enumerate(fleet.step(taken, restart=False)):
            if "terminal_observation" in info:
                lasts[k] = info["terminal_observation"]
            for key in FOR_SB3:
                info.pop(key, None)
            if illegal is not None and k not in began:
                info["illegal_action"] = bool(illegal[k])
            infos = self._add_info(infos, info, k)
        rewards, dones = fleet.rewards.astype(np.float64), fleet.dones.copy()
        for k in began.tolist():
            fleet.begin(k)
        seen = self._seen()
        for k, last in lasts.items():
            seen[k] = last[..., : seen.shape[-1]]
        return seen, rewards, dones, np.zeros(self.num_envs, np.bool_), infos

    def _seen(self) -> Floats:
        return self._clusters.observations.copy()

    @abstractmethod
    def _checked(self, actions: NDArray[Any]) -> tuple[NDArray[Any], Flags | None]:
        """Return the validated actions, and a mask of the illegal ones; None: actions cannot be illegal."""


class ClusterVectorEnv(FleetVectorEnv):
    """N clusters whose dials are set: `gymnasium.make_vec("rlsched/Cluster-v0", num_envs=N)`.

    See `dial_env.ClusterEnv` for a single cluster and for the other arguments.

    Args:
        num_envs: Number of clusters.

    Raises:
        InputError: as in `ClusterEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        drawn: Drawn | None = None,
        policy: Policy | str = DEFAULT_POLICY,
        render_mode: str | None = None,
        **jobs: Unpack[SourceArguments],
    ) -> None:
        fleet = DialFleet(sources_of(**jobs), num_envs, drawn or Drawn(), without_dials(policy), None)
        super().__init__(fleet, *spaces(), render_mode=render_mode)

    def _checked(self, actions: NDArray[Any]) -> tuple[NDArray[Any], None]:
        return checked_dials(actions, (self.num_envs, NUM_DIALS)), None


class RowsVectorEnv(FleetVectorEnv):
    """N clusters whose jobs are chosen row by row: `gymnasium.make_vec("rlsched/Rows-v0", num_envs=N)`.

    See `rows_env.RowsEnv` for a single cluster and for the other arguments.

    Args:
        num_envs: Number of clusters.

    Raises:
        InputError: as in `RowsEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        config: EpisodeConfig | None = None,
        oracle: bool = False,
        render_mode: str | None = None,
        **jobs: Unpack[SourceArguments],
    ) -> None:
        config = config or EpisodeConfig()
        self._columns = row_columns(oracle=oracle)
        self._fleet = Fleet(sources_of(**jobs), num_envs, config, None)
        spaces_of_one = row_spaces(config.window_rows, oracle=oracle)
        super().__init__(self._fleet, *spaces_of_one, render_mode=render_mode)

    def action_masks(self) -> Flags:
        """Return the (N, K) mask of the rows that are legal now; all rows of a cluster without an episode."""
        return self._fleet.legal_rows()

    def _seen(self) -> Floats:
        return self._fleet.observations[:, :, : self._columns].copy()

    def _checked(self, actions: NDArray[Any]) -> tuple[NDArray[np.int64], Flags]:
        """Return the rows, with the reference's row in place of each illegal row, and a mask of these."""
        fleet = self._fleet
        rows = checked_rows(actions, (self.num_envs,), fleet.masks.shape[1])
        illegal = ~fleet.masks[np.arange(self.num_envs), rows]
        for k in np.flatnonzero(illegal & fleet.live).tolist():
            rows[k] = fleet.reference_row(k)
        return rows, illegal
