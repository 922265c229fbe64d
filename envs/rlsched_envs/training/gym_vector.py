"""The vector environment of `gymnasium.make_vec`: N clusters in one process, one compiled call per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched_envs.training.actions import FOR_SB3, check_live, checked_dials, spaces
from rlsched_envs.training.dial_env import (
    DEFAULT_POLICY,
    DialFleet,
    SourceArguments,
    sources_of,
    without_dials,
)
from rlsched_envs.training.sources import Drawn

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


class ClusterVectorEnv(VectorEnv[Floats, NDArray[Any], NDArray[Any]]):
    """N independent clusters: `gymnasium.make_vec("rlsched/Cluster-v0", num_envs=N)`.

    The clusters step together, with `AutoresetMode.NEXT_STEP`. See `dial_env.ClusterEnv` for a single cluster
    and for the other arguments.

    Args:
        num_envs: Number of clusters.
        render_mode: Has no effect.

    Raises:
        InputError: as in `ClusterEnv`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium's form

    def __init__(
        self,
        num_envs: int = 1,
        *,
        drawn: Drawn | None = None,
        policy: Policy | str = DEFAULT_POLICY,
        render_mode: str | None = None,
        **jobs: Unpack[SourceArguments],
    ) -> None:
        self.render_mode = render_mode
        self._clusters = DialFleet(
            sources_of(**jobs), num_envs, drawn or Drawn(), without_dials(policy), None
        )
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._has_begun = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Floats, dict[str, Any]]:
        """Start a new episode in all clusters; there are no options.

        Args:
            seed: Seed, or a list with one seed per cluster. Cluster k draws the same windows as a single
                environment with seed `seed` + k, or `seed[k]`. None: the random draws continue.
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
        return self._clusters.observations.copy(), {}

    def step(self, actions: NDArray[Any]) -> tuple[Floats, NDArray[Any], Flags, Flags, dict[str, Any]]:
        """Step the clusters; a cluster whose episode ended in the previous step starts another episode.

        Raises:
            ValueError: the actions have another shape, are not real numbers, or are not finite.
            ResetNeeded: `reset` has not been called.
        """
        fleet = self._clusters
        check_live(np.array([self._has_begun]))
        moved = checked_dials(actions, (self.num_envs, NUM_DIALS))
        began = np.flatnonzero(~fleet.live)
        infos: dict[str, Any] = {}
        lasts: dict[int, Floats] = {}
        for k, info in enumerate(fleet.step(moved, restart=False)):
            if "terminal_observation" in info:
                lasts[k] = info["terminal_observation"]
            for key in FOR_SB3:
                info.pop(key, None)
            infos = self._add_info(infos, info, k)
        rewards, dones = fleet.rewards.astype(np.float64), fleet.dones.copy()
        for k in began.tolist():
            fleet.begin(k)
        seen = self._clusters.observations.copy()
        for k, last in lasts.items():
            seen[k] = last
        return seen, rewards, dones, np.zeros(self.num_envs, np.bool_), infos
