"""Ranges seen in training are written into its output: by column, with the clusters."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.decide.schema import SCHEMA
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.training_ranges import familiar_to
from rlsched_agents.ppo.ranges import met_in
from rlsched_agents.ppo.recipes import load_recipe
from rlsched_agents.ppo.training import RunFiles, TrainingResult, train
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.vector import RowsVecEnv
from rlsched_envs.training.windows import Drawn

pytestmark = pytest.mark.slow

RECIPE = load_recipe("smoke")


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*synthesize("helios", 4000, 0.95, 64, seed=4))


def run(folder: Path, source: EpisodeSource, timesteps: int, *, resume: bool = False) -> TrainingResult:
    card = Card(
        name="t", created="", rlsched_version="0", schema_hash="", network=RECIPE.network, timesteps=0,
        seeds=(0,), familiar=met_in(RECIPE.episode, [source]),
    )  # fmt: skip
    files = RunFiles(logdir=folder / "log", out=folder / "out.zip")
    venv = RowsVecEnv([source], RECIPE.num_envs, seed=0, config=RECIPE.episode, oracle=True)
    return train(
        venv, RECIPE, timesteps=timesteps, files=files, seed=0, card=card, resume=resume, progress=False
    )


def test_checkpoint_has_the_ranges_of_its_training_also_after_a_resume(
    tmp_path: Path, source: EpisodeSource
) -> None:
    once = RECIPE.num_envs * RECIPE.rollout_steps
    card = run(tmp_path / "a", source, 2 * once).card
    familiar = card.familiar
    assert familiar is not None
    assert load_checkpoint(tmp_path / "a" / "out.zip").card.familiar == familiar
    nodes = (RECIPE.episode.nodes_low, RECIPE.episode.nodes_high)
    assert familiar.nodes == nodes
    assert familiar.gpus == (nodes[0] * source.gpus_per_node, nodes[1] * source.gpus_per_node)
    columns = familiar.columns
    assert list(columns) == [name for name, _ in SCHEMA.features]
    assert columns["is_wait"] == columns["is_job"] == columns["feasible"] == (0.0, 1.0)
    assert columns["is_variant"] == (0.0, 0.0), "the first half only"
    assert 0.0 <= columns["queue_log"][0] < columns["queue_log"][1]
    assert 0.0 <= columns["free_frac"][0] < columns["free_frac"][1] <= 1.0
    assert "| queue_log | " in card.to_markdown()

    run(tmp_path / "b", source, once)
    half = load_checkpoint(tmp_path / "b" / "log" / "checkpoints" / "last.zip").card.familiar
    assert half is not None
    assert half.columns != columns, "the second half saw more"
    assert run(tmp_path / "b", source, 2 * once, resume=True).card.familiar == familiar


def test_ranges_of_a_strategy_are_observed_with_its_dials_set(source: EpisodeSource) -> None:
    drawn = Drawn(jobs=300, nodes_low=4, nodes_high=6)
    still = Strategy.from_layers(np.zeros((NUM_DIALS, NUM_COLUMNS + 1)))
    familiar = familiar_to(still, Policy("tuned"), [source], drawn, 0)
    assert familiar == familiar_to(still, Policy("tuned"), [source], drawn, 0)
    assert list(familiar.columns) == list(NAMES)
    assert familiar.wrong() == ""
    low, high = familiar.columns["waiting_jobs"]
    assert low < high
    sizes = [np.log(nodes * source.gpus_per_node) / 8 for nodes in (4, 6)]
    assert familiar.columns["gpus"] == pytest.approx(tuple(sizes))
    assert set(familiar.gpu_types) == {"V100", "P100", "A100"}
    lively = Strategy.from_layers(np.random.default_rng(1).normal(0, 2.0, (NUM_DIALS, NUM_COLUMNS + 1)))
    other = familiar_to(lively, Policy("tuned"), [source], drawn, 0)
    assert other != familiar, "observations depend on earlier dials"
    kept = msgspec.structs.replace(lively, familiar=other)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Strategy) == kept
