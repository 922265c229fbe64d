"""Short episodes, and two deciders for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.rows import columns
from rlsched.decide.schema import CRITIC_FEATURES
from rlsched_envs.training.sources import EpisodeConfig

CONFIG = EpisodeConfig(
    warmup_jobs=40, agent_jobs=60, tail_jobs=30, load_low=0.9, load_high=1.3, nodes_low=2, nodes_high=4
)
REFERENCE = columns.IS_REFERENCE
TRUE_LOG = [name for name, _ in CRITIC_FEATURES].index("true_log")
Choice = Callable[[NDArray[np.bool_]], int]


def random_row(seed: int) -> Choice:
    """A random legal row; wait less often than a uniform draw, so that episodes advance."""
    rng = np.random.default_rng(seed)

    def choose(mask: NDArray[np.bool_]) -> int:
        rows = np.flatnonzero(mask)
        return int(rows[min(rng.integers(0, rows.size + 1), rows.size - 1)])

    return choose


def reference_rows(windows: NDArray[np.float32]) -> NDArray[np.int64]:
    return windows[:, :, REFERENCE].argmax(axis=1)
