"""Many environments in one batch: the reference has no regret, and each equals a single environment."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.decide.rows import columns
from rlsched.decide.schema import NUM_FEATURES, WINDOW_ROWS
from rlsched.errors import InputError
from rlsched_envs.sim.engine import PredictedTimes
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.rows_env import RowsEnv
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.vector import RowsVecEnv
from tests.support.sim.episodes import CONFIG, REFERENCE, TRUE_LOG, random_row, reference_rows


def test_reference_has_exactly_no_regret(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 6, seed=4, config=CONFIG)
    windows, episodes = env.reset(), 0
    while episodes < 18:
        rows = reference_rows(windows)
        assert env.action_masks()[np.arange(6), rows].all(), "the reference is legal"
        windows, rewards, dones, infos = env.step(rows)
        assert (rewards == 0.0).all(), "exactly"
        for k in np.flatnonzero(dones):
            episodes += 1
            assert infos[k]["episode"]["r"] == 0.0
            schedule = infos[k]["schedule"]
            assert schedule["regret_job_s"] == 0.0
            assert schedule["queue_mean_s"] == schedule["reference_queue_mean_s"] > 0
            assert schedule["jct_mean_s"] == schedule["reference_jct_mean_s"]


def test_windows_masks_and_padding(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 4, seed=9, config=CONFIG, oracle=True)
    windows, choose = env.reset(), random_row(1)
    for _ in range(250):
        masks = env.action_masks()
        kinds = windows[:, :, [columns.IS_WAIT, columns.IS_JOB, columns.IS_VARIANT]].sum(axis=2)
        assert set(np.unique(kinds)) <= {0.0, 1.0}
        assert (masks.sum(axis=1) > 1).all(), "no step without a choice"
        assert not (masks & (kinds == 0)).any()
        assert not windows[kinds == 0].any()
        assert (windows[:, :, REFERENCE].sum(axis=1) == 1).all()
        assert masks[np.arange(4), reference_rows(windows)].all()
        critic = np.delete(windows[:, :, NUM_FEATURES:], TRUE_LOG, axis=2)
        assert (critic == np.where(kinds[:, :, None] == 1, critic[:, :1], 0)).all(), (
            "the same in every real row"
        )
        assert np.isfinite(windows).all()
        assert masks.tolist() == np.array(env.env_method("action_masks")).tolist()
        windows, _, dones, infos = env.step(np.array([choose(mask) for mask in masks]))
        for k in np.flatnonzero(dones):
            assert infos[k]["terminal_observation"].shape == windows[k].shape


def test_illegal_rows_are_refused(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 2, seed=0, config=CONFIG)
    env.reset()
    rows = np.array([int(np.flatnonzero(mask)[0]) for mask in env.action_masks()])
    rows[1] = WINDOW_ROWS - 1
    with pytest.raises(ValueError, match=r"cluster 1: row 23 is not legal"):
        env.step(rows)


def test_many_equal_one_each(sources: list[EpisodeSource]) -> None:
    """A batch of four clusters equals four single clusters, from the same random states."""
    many = Fleet(sources, 4, CONFIG, seed=8)
    singles = [Fleet(sources, 1, CONFIG, seed=0) for _ in range(4)]
    for single, draws in zip(singles, many.get_state()["rngs"], strict=True):
        single.set_state(single.get_state() | {"rngs": [draws]})
        single.begin(0)
    for k in range(4):
        many.begin(k)
    chooses = [random_row(k) for k in range(4)]
    episodes = 0
    while episodes < 6:
        rows = np.array([choose(many.masks[k]) for k, choose in enumerate(chooses)])
        infos = many.step(rows)
        for k, single in enumerate(singles):
            info = single.step(rows[k : k + 1])[0]
            assert single.observations[0].tobytes() == many.observations[k].tobytes()
            assert single.masks[0].tolist() == many.masks[k].tolist()
            assert single.rewards[0] == many.rewards[k]
            assert single.dones[0] == many.dones[k]
            assert info.get("schedule") == infos[k].get("schedule")
            episodes += int(many.dones[k])
    assert len({many.observations[k].tobytes() for k in range(4)}) == 4


def test_gymnasium_environment_is_the_first_of_the_vector(sources: list[EpisodeSource]) -> None:
    single, vector = (
        RowsEnv(sources=sources, config=CONFIG),
        RowsVecEnv(sources, 3, seed=11, config=CONFIG),
    )
    window, _ = single.reset(seed=11)
    windows, choose = vector.reset(), random_row(2)
    assert windows[0].tobytes() == window.tobytes()
    for _ in range(40):
        rows = np.array([choose(mask) for mask in vector.action_masks()])
        windows, rewards, dones, _ = vector.step(rows)
        window, reward, terminated, _, _ = single.step(np.int64(rows[0]))
        assert (reward, terminated) == (rewards[0], dones[0])
        if terminated:
            break
        assert window.tobytes() == windows[0].tobytes()
        assert single.action_masks().tolist() == vector.action_masks()[0].tolist()


def test_reseeding_repeats(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 2, seed=1, config=CONFIG)
    first = env.reset().tobytes()
    assert env.reset().tobytes() != first, "another episode"
    env.seed(1)
    assert env.reset().tobytes() == first


def test_trace_without_decisions_is_an_error() -> None:
    """One job of one GPU every hour: no job ever waits."""
    hours = np.arange(200) * 3600.0
    predictions = PredictedTimes(np.full(200, 60.0), np.ones(200))
    idle = EpisodeSource("idle", hours, np.full(200, 60.0), np.ones(200, np.int32), predictions)
    with pytest.raises(InputError, match="no contested decision in 100 windows of idle: raise the load"):
        RowsVecEnv([idle], 1, config=msgspec.structs.replace(CONFIG, load_low=0.1, load_high=0.1)).reset()


def test_episodes_resume_exactly_where_they_were_saved(sources: list[EpisodeSource]) -> None:
    env, other = (
        RowsVecEnv(sources, 3, seed=1, config=CONFIG),
        RowsVecEnv(sources, 3, seed=99, config=CONFIG),
    )
    env.reset()
    other.reset()
    choose = random_row(0)
    for _ in range(30):
        env.step(np.array([choose(mask) for mask in env.action_masks()]))
    other.set_state(env.get_state())
    for _ in range(200):
        assert other.action_masks().tolist() == env.action_masks().tolist()
        rows = np.array([choose(mask) for mask in env.action_masks()])
        (windows, rewards, dones, infos), again = env.step(rows), other.step(rows)
        assert np.asarray(again[0]).tobytes() == np.asarray(windows).tobytes()
        assert again[1].tobytes() == rewards.tobytes()
        assert again[2].tolist() == dones.tolist()
        assert [info.get("schedule") for info in again[3]] == [info.get("schedule") for info in infos]
    with pytest.raises(ValueError):
        RowsVecEnv(sources, 2, config=CONFIG).set_state(env.get_state())
