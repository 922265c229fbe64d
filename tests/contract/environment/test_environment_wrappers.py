"""The environment under Gymnasium's wrappers and checkers: an episode to its end under each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as check_gymnasium
from stable_baselines3.common.env_checker import check_env as check_sb3
from stable_baselines3.common.monitor import Monitor

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched_envs.training.sources import EpisodeSource
from tests.support.sim.small_env import bare, dials, make, make_vec, many, play_out

Wrap = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


def test_checkers(sources: list[EpisodeSource]) -> None:
    check_gymnasium(bare(sources))
    check_sb3(make(sources))


# ---- wrappers ------------------------------------------------------------------------------------

WRAPS: dict[str, Wrap] = {
    "default": lambda env: env,
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 7),
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "FlattenObservation": wrappers.FlattenObservation,
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 3),
    "OrderEnforcing": wrappers.OrderEnforcing,
    "PassiveEnvChecker": wrappers.PassiveEnvChecker,
    "Monitor": Monitor,
    "several": lambda env: wrappers.NormalizeReward(
        wrappers.NormalizeObservation(
            wrappers.FlattenObservation(wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(env, 50)))
        )
    ),
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(0.0), np.float32(1.0)),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_wrappers_play_to_the_end(wrap: Wrap, sources: list[EpisodeSource]) -> None:
    env = wrap(make(sources))
    first = play_out(env, seed=3)[:2]
    assert len(first[1]) > 2
    play_out(env, seed=None)
    env.close()
    again = wrap(make(sources))
    assert play_out(again, seed=3)[:2] == first, "the same seed, the same episode"
    again.close()
    again.close()


def test_statistics_equal_the_episode(sources: list[EpisodeSource]) -> None:
    for wrap in (wrappers.RecordEpisodeStatistics, Monitor):
        _, rewards, info = play_out(wrap(make(sources)), seed=1)
        assert info["episode"]["l"] == len(rewards)
        assert info["episode"]["r"] == pytest.approx(sum(rewards), abs=1e-4)
        assert info["schedule"]["reference_jct_mean_s"] > 0.0


def test_autoreset_begins_the_next_episode(sources: list[EpisodeSource]) -> None:
    env, rng, ended = wrappers.Autoreset(make(sources)), np.random.default_rng(0), 0
    env.reset(seed=0)
    was_done = False
    for _ in range(1_000):
        action = env.action_space.sample() if was_done else dials(env, rng)
        was_done = env.step(action)[2]
        ended += was_done
        if ended == 2:
            break
    assert ended == 2


# ---- copies and seeds ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
@pytest.mark.parametrize("steps", [0, 9], ids=["at-first", "in-mid-episode"])
def test_copies_continue_identically(way: str, steps: int, sources: list[EpisodeSource]) -> None:
    env, rng = make(sources), np.random.default_rng(2)
    env.reset(seed=4)
    for _ in range(steps):
        env.step(dials(env, rng))
    other = pickle.loads(pickle.dumps(env)) if way == "pickle" else copy.deepcopy(env)
    seen, episodes = 0, 0
    while episodes < 2:  # including the draw of the next window
        action = dials(env, rng)
        mine, theirs = env.step(action), other.step(action)
        assert mine[0].tobytes() == theirs[0].tobytes()
        assert mine[1:] == theirs[1:]
        seen += 1
        if mine[2]:
            episodes += 1
            assert env.reset()[0].tobytes() == other.reset()[0].tobytes()
    assert seen > 5


def test_copy_without_a_reset_can_be_reset(sources: list[EpisodeSource]) -> None:
    env = pickle.loads(pickle.dumps(make(sources)))
    assert env.reset(seed=1)[0].tobytes() == make(sources).reset(seed=1)[0].tobytes()


def test_copy_does_not_change_the_original(sources: list[EpisodeSource]) -> None:
    env, twin = make(sources), make(sources)
    for one in (env, twin):
        one.reset(seed=4)
    other, rng = copy.deepcopy(env), np.random.default_rng(0)
    for _ in range(5):
        other.step(dials(other, rng))
    action = dials(env, rng)
    assert env.step(action)[0].tobytes() == twin.step(action)[0].tobytes()


def test_without_a_seed_windows_differ(sources: list[EpisodeSource]) -> None:
    firsts = {make(sources).reset()[0].tobytes() for _ in range(3)}
    assert len(firsts) == 3
    env = make(sources)
    assert len({env.reset()[0].tobytes() for _ in range(3)}) == 3, "reset again: another window"
    unseeded = make(sources)
    copies = [unseeded, copy.deepcopy(unseeded), pickle.loads(pickle.dumps(unseeded))]
    assert len({one.reset()[0].tobytes() for one in copies}) == 3, "copied before the first reset"
    assert len({make(sources).reset(seed=5)[0].tobytes() for _ in range(2)}) == 1


# ---- wrong actions, and the order of calls -------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    (np.full(NUM_DIALS, np.nan, np.float32), "got nan at 0"),
    (np.array([0, 0, np.inf, *[0] * (NUM_DIALS - 3)]), "got inf at 2"),
    (np.zeros(3, np.float32), r"got shape \(3,\)"),
    (np.zeros((1, NUM_DIALS), np.float32), r"got shape \(1, 11\)"),
    (0.5, r"got shape \(\)"),
    (np.array(["a"] * NUM_DIALS), "got dtype <U1"),
    (np.zeros(NUM_DIALS, np.complex64), "got dtype complex64"),
    (np.zeros(NUM_DIALS, np.bool_), "got dtype bool"),
    (None, "got dtype object: None"),
    ({"action": 1}, "got dtype object"),
    ([[0.0], [0.0, 1.0]], "got something that is not an array"),
]


@pytest.mark.parametrize(("action", "said"), WRONG)
def test_wrong_actions_are_one_line(action: Any, said: str, sources: list[EpisodeSource]) -> None:
    env, twin = bare(sources), bare(sources)
    for one in (env, twin):
        one.reset(seed=0)
    with pytest.raises(ValueError, match=f"^action: expected .* to .*, {said}") as found:
        env.step(action)
    assert "\n" not in str(found.value)
    good = dials(env, np.random.default_rng(0))
    assert env.step(good)[0].tobytes() == twin.step(good)[0].tobytes(), "no step was made"


def test_wrong_actions_of_many_are_one_line(sources: list[EpisodeSource]) -> None:
    envs, native = many(sources, 2, seed=0), make_vec(sources, 2)
    envs.reset()
    native.reset(seed=0)
    nan = np.zeros((2, NUM_DIALS))
    nan[1, 4] = np.nan
    wrong: list[tuple[Any, str]] = [
        (nan, r"nan at \(1, 4\)"),
        (np.zeros(NUM_DIALS), "shape"),
        (np.zeros((2, 3)), "shape"),
        ("no", "dtype"),
    ]
    for action, said in wrong:
        for step in (envs.step, native.step):
            with pytest.raises(ValueError, match=f"^action: expected 2 .*, got {said}"):
                step(action)


def test_dials_outside_their_ranges_are_clipped(sources: list[EpisodeSource]) -> None:
    env, clipped = bare(sources), bare(sources)
    action = np.linspace(-3.0, 3.0, NUM_DIALS)
    for one in (env, clipped):
        one.reset(seed=0)
    for _ in range(5):
        mine, theirs = env.step(action), clipped.step(np.clip(action, -1, 1).astype(np.float32))
        assert mine[0].tobytes() == theirs[0].tobytes()
        assert mine[1] == theirs[1]


def test_steps_outside_an_episode_are_one_line(sources: list[EpisodeSource]) -> None:
    env, rng = bare(sources), np.random.default_rng(0)
    action = np.zeros(NUM_DIALS, np.float32)
    with pytest.raises(ResetNeeded, match="no episode has begun, or the last one has ended; call reset"):
        env.step(action)
    for seed in (0, None):
        play_out(env, seed=seed)
        for _ in range(2):
            with pytest.raises(ResetNeeded, match="the last one has ended"):
                env.step(action)
    env.reset(seed=1)
    first = env.reset(seed=2)[0]
    env.close()
    env.close()
    assert env.reset(seed=2)[0].tobytes() == first.tobytes(), "there is nothing to close"
    env.step(dials(env, rng))
    envs, native = many(sources, 2), make_vec(sources, 2)
    for step in (envs.step, native.step):
        with pytest.raises(ResetNeeded, match="has begun, or the last one has ended"):
            step(np.zeros((2, NUM_DIALS)))
    for one in (envs, native):
        one.reset()
        one.reset()
        one.close()
        one.close()
