"""Ranges of each observation column in training. The card contains them for the drift guard of a broker."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from rlsched.decide.drift import Familiar
from rlsched.decide.rows.columns import IS_JOB, IS_WAIT
from rlsched.decide.schema import SCHEMA
from rlsched_agents.runtime.card import Card
from rlsched_envs.training.small_clusters import GPU_TYPES, node_size
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource


def met_in(config: EpisodeConfig, sources: Sequence[EpisodeSource]) -> Familiar:
    """Return the ranges of the clusters that episodes are drawn on, without columns."""
    nodes, size = (config.nodes_low, config.nodes_high), node_size(sources)
    return Familiar(
        nodes=nodes,
        gpus=(nodes[0] * size, nodes[1] * size),
        gpu_types=GPU_TYPES if config.modelled_frac > 0 else (),
    )


class SeenRanges(BaseCallback):
    """Minimum and maximum of each column, over the first halves of all decisions.

    Args:
        before: Ranges of the clusters, and, for a resumed run, of its earlier part; None: no ranges are
            written.
    """

    def __init__(self, before: Familiar | None) -> None:
        super().__init__()
        self._before = before
        self._names = [name for name, _ in SCHEMA.features]
        known = before.columns if before is not None else {}
        ranges = np.array([known.get(name, (np.inf, -np.inf)) for name in self._names])
        self._low, self._high = ranges[:, 0].copy(), ranges[:, 1].copy()

    def _on_step(self) -> bool:
        if self._before is None:
            return True
        seen = np.asarray(self.locals["new_obs"])
        rows = seen.reshape(-1, seen.shape[-1])
        first = rows[:, IS_WAIT] + rows[:, IS_JOB] > 0
        if first.any():
            mine = rows[first, : len(self._names)]
            np.minimum(self._low, mine.min(axis=0), out=self._low)
            np.maximum(self._high, mine.max(axis=0), out=self._high)
        return True

    def onto(self, card: Card) -> Card:
        """Return the card with the ranges so far."""
        if self._before is None or not np.isfinite(self._low).all():
            return card
        familiar = self._before.with_ranges(self._names, self._low, self._high)
        return msgspec.structs.replace(card, familiar=familiar)
