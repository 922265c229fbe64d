"""Computes the ranges of observations in training, for the file of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rlsched.decide.dials.strategy import Strategy, dials_of
from rlsched.decide.drift import Familiar
from rlsched.decide.policies.policy import Policy
from rlsched_envs.training.small_clusters import node_size
from rlsched_envs.training.sources import GPU_TYPES, Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv

CLUSTERS: Final = 32
"""Number of clusters that `familiar_to` simulates in parallel, until each cluster has finished a window."""


def familiar_to(
    strategy: Strategy, policy: Policy, sources: Sequence[EpisodeSource], drawn: Drawn, seed: int
) -> Familiar:
    """Return the ranges of cluster sizes and of columns (observed features) in training.

    The range of a column is from its lowest to its highest value when dials are set.

    Args:
        strategy: The strategy that sets the dials.
        policy: The rule whose dials are set.
        sources: Traces that windows are drawn from.
        drawn: How windows are drawn.
        seed: Seed of the draws.
    """
    venv = ClusterVecEnv(sources, CLUSTERS, seed=seed, drawn=drawn, policy=policy)
    layers = strategy.matrices
    seen = np.asarray(venv.reset(), np.float64)
    low, high = seen.min(axis=0), seen.max(axis=0)
    ended = np.zeros(CLUSTERS, np.bool_)
    while not ended.all():
        observed, _, dones, _ = venv.step(dials_of(layers, seen, strategy.output))
        seen, ended = np.asarray(observed, np.float64), ended | dones
        np.minimum(low, seen.min(axis=0), out=low)
        np.maximum(high, seen.max(axis=0), out=high)
    columns = len(strategy.columns)
    size, nodes = node_size(sources), (drawn.nodes_low, drawn.nodes_high)
    return Familiar(
        nodes=nodes,
        gpus=(nodes[0] * size, nodes[1] * size),
        gpu_types=tuple(GPU_TYPES[kind] for kind in drawn.kinds),
    ).with_ranges(strategy.columns, low[:columns], high[:columns])
