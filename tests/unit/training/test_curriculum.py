"""Stages of a curriculum: their ranges, their ends, refused settings; and no stages change nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.ppo.lessons import Lessons
from rlsched_agents.ppo.recipes import RECIPES, load_recipe
from rlsched_envs.training.curriculum import Stage, stage_at
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource, draw_window
from rlsched_envs.training.vector import RowsVecEnv
from tests.support.sim.toy import ToyVecEnv

EPISODE = EpisodeConfig(
    warmup_jobs=40, agent_jobs=60, tail_jobs=20, nodes_low=2, nodes_high=6, load_low=0.9, load_high=1.2
)


@pytest.fixture(scope="module")
def sources() -> list[EpisodeSource]:
    one = EpisodeSource.from_trace(*synthesize("helios", 1500, 0.9, 64, seed=4, predictability="causal"))
    return [one, replace(one, name="philly-like", weight=3.0), replace(one, name="philly")]


def episodes(sources: list[EpisodeSource], stage: Stage | None, count: int = 48) -> tuple[set[int], set[str]]:
    """(numbers of nodes, names of the sources) of the first episodes."""
    venv = RowsVecEnv(sources, count, seed=1, config=EPISODE)
    venv.enter(stage)
    venv.reset()
    names = set(venv._fleet._names)
    return set((venv._fleet._arrays.sim.state.node.status == 0).sum(axis=1).tolist()), names


def test_stages_end_by_the_share_of_the_run_and_the_whole_mixture_follows() -> None:
    stages = (Stage(until_frac=0.25), Stage(until_frac=0.5))
    assert [stage_at(stages, at) for at in (0.0, 0.249, 0.25, 0.4999, 0.5, 1.0, 1.1)] == [0, 0, 1, 1, 2, 2, 2]
    assert stage_at((), 0.0) == 0


def test_stage_narrows_loads_nodes_and_predictions_and_nothing_else(
    sources: list[EpisodeSource],
) -> None:
    stage = Stage(
        until_frac=0.5,
        load_high=0.95,
        nodes_low=3,
        nodes_high=4,
        known_low=0.9,
        known_high=0.9,
        as_made_frac=0.0,
    )
    narrow, rng = stage.narrowed(EPISODE), np.random.default_rng(0)
    windows = [draw_window(sources[0], narrow, rng) for _ in range(30)]
    assert {window.nodes for window in windows} == {3, 4}
    for one in windows:
        load = (one.duration_s * one.gpus).sum() / (one.submit_s[-1] * one.nodes * 8)
        assert 0.89 < load < 0.96
    back = {"load_high": 1.2, "nodes_low": 2, "nodes_high": 6, "known_low": 0, "known_high": 0}
    assert msgspec.structs.replace(narrow, **back, as_made_frac=EPISODE.as_made_frac) == EPISODE


@pytest.mark.slow
def test_environment_draws_from_its_current_stage(sources: list[EpisodeSource]) -> None:
    nodes, names = episodes(sources, None)
    assert nodes == {2, 3, 4, 5, 6}
    assert names == {"helios-like", "philly-like", "philly"}
    stage = Stage(until_frac=1.0, nodes_high=3, sources={"philly": 0.0, "philly-like": 2.0})
    nodes, names = episodes(sources, stage)
    assert nodes == {2, 3}
    assert names == {"helios-like", "philly-like"}, "the longest matching prefix is used"


def test_stage_without_limits_and_an_ended_one_change_no_draw(
    sources: list[EpisodeSource],
) -> None:
    plain, other = (RowsVecEnv(sources, 8, seed=3, config=EPISODE) for _ in range(2))
    other.enter(Stage(until_frac=1.0))
    np.testing.assert_array_equal(plain.reset(), other.reset())
    other.enter(Stage(until_frac=1.0, nodes_high=2, sources={"philly": 0.0}))
    other.enter(None)
    np.testing.assert_array_equal(plain.reset(), other.reset())


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("until_frac = 0.0", "stage 1: expected until_frac above 0 and at most 1, got 0"),
        ("until_frac = 0.5\n[[curriculum]]\nuntil_frac = 0.5", "stage 2: expected until_frac above 0.5"),
        ("until_frac = 0.5\nload_low = 1.3", "stage 1: expected 0 < load_low <= load_high, got 1.3 and 1.15"),
        (
            "until_frac = 0.5\nnodes_high = 40",
            "stage 1: expected nodes_low <= nodes_high within .*nodes_high 16",
        ),
        ("until_frac = 0.5\nnodes_low = 0", "stage 1: expected nodes_low"),
        ("until_frac = 0.5\nknown_low = 0.5", "stage 1: known_low must be at most known_high"),
        ("until_frac = 0.5\nsources = {philly = -1.0}", "stage 1: expected weights of 0 or more"),
        ("until_frac = 0.5\nload = 1.0", "unknown field `load`"),
        ("nodes_high = 5", "missing required field `until_frac`"),
    ],
)
def test_invalid_curriculum_is_one_line(stages: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[episode]\nagent_jobs = 100\n[[curriculum]]\n{stages}\n")
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_stages_that_contradict_the_training_data_are_refused_before_the_run(
    sources: list[EpisodeSource],
) -> None:
    venv = RowsVecEnv(sources, 2, config=EPISODE)
    late = (Stage(until_frac=0.5), Stage(until_frac=0.9, sources={"itp": 2.0}))
    with pytest.raises(InputError, match=r"weights of helios-like, philly, philly-like .* got itp"):
        Lessons(venv, late, 100)
    with pytest.raises(InputError, match="got none above 0"):
        Lessons(venv, (Stage(until_frac=0.5, sources={"": 0.0}),), 100)
    with pytest.raises(InputError, match="an environment that can enter a stage, got ToyVecEnv"):
        Lessons(ToyVecEnv(2), late, 100)


def test_growing_recipe_differs_from_its_model_only_in_the_curriculum() -> None:
    growing = RECIPES["growing"]
    assert len(growing.curriculum) == 2
    assert msgspec.structs.replace(growing, curriculum=()) == RECIPES["reserving"]
    spans = [stage.narrowed(growing.episode) for stage in growing.curriculum] + [growing.episode]
    for one, wider in pairwise(spans):
        assert wider.load_low <= one.load_low < one.load_high <= wider.load_high
        assert one.nodes_high < wider.nodes_high
        assert one.known_low > wider.known_low
        assert one.as_made_frac < wider.as_made_frac
