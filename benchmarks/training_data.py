"""Training data of the policy `ppo`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.trace import Trace
from rlsched_agents.dials.training_data import TrainingData, synthetic_data

REAL: Final = {"helios_venus": 1.0, "philly": 1.0, "ms_itp_07": 0.5}
"""Real traces and the weight of each in episodes; their predictions are weak (causal means)."""
SYNTHETIC: Final = {"helios": 4.0, "philly": 1.5, "itp": 1.0}
"""Profiles of the generator, and their weights; their predictions are informative."""


def default_data(folder: Path, seed: int) -> list[TrainingData]:
    """Training data of the default policy: real traces of a folder, and synthetic ones of a seed."""
    real = [weighted(read(folder, name), weight) for name, weight in REAL.items()]
    return [*real, *synthetic(seed)]


def synthetic(seed: int) -> list[TrainingData]:
    """The synthetic traces of a seed, with informative predictions."""
    return [_weighted_synthetic(like, weight, seed) for like, weight in SYNTHETIC.items()]


@cache
def _weighted_synthetic(like: str, weight: float, seed: int) -> TrainingData:
    return weighted(synthetic_data(like, seed, "informative"), weight)


@cache
def read(folder: Path, name: str) -> TrainingData:
    """One real trace, split by time. `folder` has `NAME.csv.gz` and `NAME.cluster.toml`.

    Raises:
        InputError: A file cannot be read.
    """
    return TrainingData.cut(
        Trace.read(folder / f"{name}.csv.gz"), ClusterSpec.read(folder / f"{name}.cluster.toml")
    )


def weighted(data: TrainingData, weight: float) -> TrainingData:
    """Return the data with a weight: episodes are drawn `weight` times as often as from data of weight 1."""
    return replace(data, train=replace(data.train, weight=weight))
