"""Training data of the default policy, and one training on it or on other data, from data to checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

import rlsched
from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_agents.ppo.ranges import met_in
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.sources import TrainingData, synthetic_data
from rlsched_agents.ppo.training import RunFiles, TrainingResult, train
from rlsched_agents.ppo.validation import Validator, cut_windows
from rlsched_agents.runtime.card import Card
from rlsched_envs.training.vector import RowsVecEnv

REAL: Final = {"helios_venus": 1.0, "philly": 1.0, "ms_itp_07": 0.5}
"""Real traces and the weight of each in episodes; their predictions are weak (causal means)."""
SYNTHETIC: Final = {"helios": 4.0, "philly": 1.5, "itp": 1.0}
"""Profiles of the generator, and their weights; their predictions are informative."""


@dataclass(frozen=True)
class Lesson:
    """Data for training and judging policies; runs of one lesson differ only in their seed.

    Attributes:
        data: Training parts, and the sources of validation and confirmation windows.
        recipe: Hyper-parameters.
        validate: Runs a policy on the validation windows.
        confirm: Runs a policy on the confirmation windows, which choose nothing; None: too few jobs for that.
    """

    data: Sequence[TrainingData]
    recipe: Recipe
    validate: Validator
    confirm: Validator | None

    @classmethod
    def of(cls, data: Sequence[TrainingData], recipe: Recipe, seed: int) -> Lesson:
        """Cut the windows, with this seed."""
        chooses = [part for one in data for part in one.validation]
        confirms = [part for one in data for part in one.confirmation]
        return cls(
            data,
            recipe,
            Validator(cut_windows(chooses, recipe, seed)),
            Validator(cut_windows(confirms, recipe, seed)) if confirms else None,
        )

    def train(
        self,
        *,
        name: str,
        timesteps: int,
        files: RunFiles,
        seed: int,
        init: Path | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> TrainingResult:
        """Train one policy; arguments without a name here are as in `rlsched_agents.ppo.training.train`.

        Args:
            name: Name of the policy in its card.
        """
        card = Card(
            name=name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            rlsched_version=rlsched.__version__,
            schema_hash="",
            network=self.recipe.network,
            timesteps=0,
            seeds=(seed,),
            traces=tuple(use for one in self.data for use in one.uses),
            familiar=met_in(self.recipe.episode, [one.train for one in self.data]),
        )
        venv = RowsVecEnv(
            [one.train for one in self.data],
            self.recipe.num_envs,
            seed=seed,
            config=self.recipe.episode,
            copy=False,
            oracle=True,
        )
        try:
            return train(
                venv,
                self.recipe,
                timesteps=timesteps,
                files=files,
                seed=seed,
                card=card,
                init=init,
                resume=resume,
                validate=self.validate,
                confirm=self.confirm,
                progress=progress,
            )
        finally:
            venv.close()


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
def read(folder: Path, name: str, without_vc: str = "") -> TrainingData:
    """One real trace, split by time.

    Args:
        folder: Folder of `NAME.csv.gz` and `NAME.cluster.toml`.
        name: Name of the trace.
        without_vc: A VC to leave out entirely: its jobs and its nodes. The predictions of the others then
            contain nothing of them.

    Raises:
        InputError: A file cannot be read, or the trace has no such VC, or only this one.
    """
    trace = Trace.read(folder / f"{name}.csv.gz")
    spec = ClusterSpec.read(folder / f"{name}.cluster.toml")
    if without_vc:
        kept = trace.vc != without_vc
        if kept.all() or not kept.any():
            known = ", ".join(np.unique(trace.vc))
            raise InputError(f"{name}: cannot leave out VC {without_vc!r}; expected one of several: {known}")
        trace = replace(trace.select(kept), name=f"{name} without {without_vc}")
        nodes = tuple(group for group in spec.nodes if group.vc != without_vc)
        spec = ClusterSpec(name=f"{spec.name} without {without_vc}", nodes=nodes)
    return TrainingData.cut(trace, spec)


def weighted(data: TrainingData, weight: float) -> TrainingData:
    """The same data, drawn `weight` times as often as data of weight 1."""
    return replace(data, train=replace(data.train, weight=weight))
