"""The environment's promises: checkers pass, seeds repeat, and the summary adds up."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlsched.decide import schema
from rlsched.decide.schema import NUM_FEATURES, WINDOW_ROWS
from rlsched_envs.training.rows_env import RowsEnv
from rlsched_envs.training.sources import EpisodeSource
from tests.support.sim.episodes import CONFIG, REFERENCE, Choice, random_row

# ---- checkers of other libraries ----------------------------------------------------------------


def test_made_by_name_with_arguments(sources: list[EpisodeSource]) -> None:
    env = gym.make("rlsched/Rows-v0", sources=sources, config=CONFIG)
    window, info = env.reset(seed=3)
    assert window.shape == (WINDOW_ROWS, NUM_FEATURES)
    assert info == {}
    assert isinstance(env.unwrapped, RowsEnv)
    assert env.unwrapped.action_masks().sum() > 1


# ---- one environment -----------------------------------------------------------------------------


def play(env: RowsEnv, seed: int, choose: Choice) -> tuple[list[bytes], list[float], dict[str, Any]]:
    window, _ = env.reset(seed=seed)
    seen, rewards = [window.tobytes()], []
    while True:
        mask = env.action_masks()
        assert mask.any()
        window, reward, terminated, truncated, info = env.step(np.int64(choose(mask)))
        assert not truncated
        assert not info["illegal_action"]
        seen.append(window.tobytes())
        rewards.append(reward)
        if terminated:
            return seen, rewards, info


def test_same_seed_same_bytes(sources: list[EpisodeSource]) -> None:
    one, two = (RowsEnv(sources=sources, config=CONFIG) for _ in range(2))
    first = play(one, 5, random_row(0))
    assert play(two, 5, random_row(0))[:2] == first[:2]
    assert play(one, 5, random_row(0))[:2] == first[:2], "in a used environment"
    assert play(two, 6, random_row(0))[0] != first[0]


def test_illegal_row_is_replaced_by_the_reference(sources: list[EpisodeSource]) -> None:
    honest, careless = RowsEnv(sources=sources, config=CONFIG), RowsEnv(sources=sources, config=CONFIG)
    window, _ = honest.reset(seed=2)
    careless.reset(seed=2)
    for _ in range(30):
        row = int(window[:, REFERENCE].argmax())
        illegal = int(np.flatnonzero(~careless.action_masks())[-1])
        window, *_ = honest.step(np.int64(row))
        other, reward, _, _, info = careless.step(np.int64(illegal))
        assert info["illegal_action"]
        assert reward == 0.0
        assert other.tobytes() == window.tobytes()


def test_summary_adds_up(sources: list[EpisodeSource]) -> None:
    for seed in range(6):
        _, rewards, info = play(RowsEnv(sources=sources, config=CONFIG), seed, random_row(seed))
        schedule = info["schedule"]
        assert "episode" not in info, "RecordEpisodeStatistics and Monitor add that"
        assert rewards
        assert schedule["source"] in {source.name for source in sources}
        assert 0 < schedule["gpu_utilisation_frac"] <= 1
        for kind in ("", "reference_"):
            run_mean_s = schedule[f"{kind}jct_mean_s"] - schedule[f"{kind}queue_mean_s"]
            assert run_mean_s == pytest.approx(schedule["jct_mean_s"] - schedule["queue_mean_s"])


def test_data_sheet_equals_the_schema() -> None:
    sheet = RowsEnv.__doc__ or ""
    found = re.findall(r"`([A-Z_]+)` = ([\d.,]*\d)", sheet)
    named = {name: float(number.replace(",", "")) for name, number in found}
    assert named.keys() == {
        "WINDOW_ROWS",
        "NUM_FEATURES",
        "NUM_CRITIC",
        "GUARD_FREE_FRAC",
        "MAX_HOLD_S",
        "HOLD_S",
    }
    assert named == {name: getattr(schema, name) for name in named}
