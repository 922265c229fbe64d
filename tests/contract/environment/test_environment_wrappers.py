"""Both environments under Gymnasium's wrappers and checkers: each plays an episode to its end."""

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

from rlsched_envs.training.sources import EpisodeSource
from tests.support.sim.kinds import CLUSTER, KINDS, ROWS, Kind, legal, play_out

Wrap = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]
both = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@both
@pytest.mark.filterwarnings(
    "ignore:.*A Box observation space (minimum|maximum) value is -?infinity:UserWarning"
)
@pytest.mark.filterwarnings("ignore:Your observation  has an unconventional shape:UserWarning")
def test_checkers(kind: Kind, sources: list[EpisodeSource]) -> None:
    check_gymnasium(kind.bare(sources))
    check_sb3(kind.make(sources))


# ---- wrappers ------------------------------------------------------------------------------------

FOR_BOTH: dict[str, Wrap] = {
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
}
FOR_DIALS: dict[str, Wrap] = {
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(0.0), np.float32(1.0)),
}
CASES = [
    pytest.param(kind, wrap, id=f"{kind.name}-{name}") for kind in KINDS for name, wrap in FOR_BOTH.items()
]
CASES += [pytest.param(CLUSTER, wrap, id=f"{CLUSTER.name}-{name}") for name, wrap in FOR_DIALS.items()]


@pytest.mark.parametrize(("kind", "wrap"), CASES)
def test_wrappers_play_to_the_end(kind: Kind, wrap: Wrap, sources: list[EpisodeSource]) -> None:
    env = wrap(kind.make(sources))
    first = play_out(env, seed=3)[:2]
    assert len(first[1]) > 2
    play_out(env, seed=None)
    env.close()
    again = wrap(kind.make(sources))
    assert play_out(again, seed=3)[:2] == first, "the same seed, the same episode"
    again.close()
    again.close()


@both
def test_statistics_equal_the_episode(kind: Kind, sources: list[EpisodeSource]) -> None:
    for wrap in (wrappers.RecordEpisodeStatistics, Monitor):
        _, rewards, info = play_out(wrap(kind.make(sources)), seed=1)
        assert info["episode"]["l"] == len(rewards)
        assert info["episode"]["r"] == pytest.approx(sum(rewards), abs=1e-4)
        assert info["schedule"]["reference_jct_mean_s"] > 0.0


@both
def test_autoreset_begins_the_next_episode(kind: Kind, sources: list[EpisodeSource]) -> None:
    env, rng, ended = wrappers.Autoreset(kind.make(sources)), np.random.default_rng(0), 0
    env.reset(seed=0)
    was_done = False
    for _ in range(1_000):
        action = env.action_space.sample() if was_done else legal(env, rng)
        was_done = env.step(action)[2]
        ended += was_done
        if ended == 2:
            break
    assert ended == 2


# ---- copies and seeds ----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
@pytest.mark.parametrize("steps", [0, 9], ids=["at-first", "in-mid-episode"])
def test_copies_continue_identically(kind: Kind, way: str, steps: int, sources: list[EpisodeSource]) -> None:
    env, rng = kind.make(sources), np.random.default_rng(2)
    env.reset(seed=4)
    for _ in range(steps):
        env.step(legal(env, rng))
    other = pickle.loads(pickle.dumps(env)) if way == "pickle" else copy.deepcopy(env)
    seen, episodes = 0, 0
    while episodes < 2:  # including the draw of the next window
        action = legal(env, rng)
        mine, theirs = env.step(action), other.step(action)
        assert mine[0].tobytes() == theirs[0].tobytes()
        assert mine[1:] == theirs[1:]
        seen += 1
        if mine[2]:
            episodes += 1
            assert env.reset()[0].tobytes() == other.reset()[0].tobytes()
    assert seen > 5


@both
def test_copy_without_a_reset_can_be_reset(kind: Kind, sources: list[EpisodeSource]) -> None:
    env = pickle.loads(pickle.dumps(kind.make(sources)))
    assert env.reset(seed=1)[0].tobytes() == kind.make(sources).reset(seed=1)[0].tobytes()


@both
def test_copy_does_not_change_the_original(kind: Kind, sources: list[EpisodeSource]) -> None:
    env, twin = kind.make(sources), kind.make(sources)
    for one in (env, twin):
        one.reset(seed=4)
    other, rng = copy.deepcopy(env), np.random.default_rng(0)
    for _ in range(5):
        other.step(legal(other, rng))
    action = legal(env, rng)
    assert env.step(action)[0].tobytes() == twin.step(action)[0].tobytes()


@both
def test_without_a_seed_windows_differ(kind: Kind, sources: list[EpisodeSource]) -> None:
    firsts = {kind.make(sources).reset()[0].tobytes() for _ in range(3)}
    assert len(firsts) == 3
    env = kind.make(sources)
    assert len({env.reset()[0].tobytes() for _ in range(3)}) == 3, "reset again: another window"
    unseeded = kind.make(sources)
    copies = [unseeded, copy.deepcopy(unseeded), pickle.loads(pickle.dumps(unseeded))]
    assert len({one.reset()[0].tobytes() for one in copies}) == 3, "copied before the first reset"
    assert len({kind.make(sources).reset(seed=5)[0].tobytes() for _ in range(2)}) == 1


# ---- wrong actions, and the order of calls -------------------------------------------------------

WRONG_DIALS: list[tuple[Any, str]] = [
    (np.full(9, np.nan, np.float32), "got nan at 0"),
    (np.array([0, 0, np.inf, 0, 0, 0, 0, 0, 0]), "got inf at 2"),
    (np.zeros(3, np.float32), r"got shape \(3,\)"),
    (np.zeros((1, 9), np.float32), r"got shape \(1, 9\)"),
    (0.5, r"got shape \(\)"),
    (np.array(["a"] * 9), "got dtype <U1"),
    (np.zeros(9, np.complex64), "got dtype complex64"),
    (np.zeros(9, np.bool_), "got dtype bool"),
    (None, "got dtype object: None"),
    ({"action": 1}, "got dtype object"),
    ([[0.0], [0.0, 1.0]], "got something that is not an array"),
]
WRONG_ROWS: list[tuple[Any, str]] = [
    (24, "got 24"),
    (-1, "got -1"),
    (2**63 + 5, f"got {2**63 + 5}"),
    (1.0, "got dtype float64: 1.0"),
    (np.nan, "got dtype float64: nan"),
    (True, "got dtype bool: True"),
    (np.array([1]), r"got shape \(1,\)"),
    (np.array([1, 2]), r"got shape \(2,\)"),
    ("1", "got dtype <U1"),
    (None, "got dtype object: None"),
]
WRONG = [(CLUSTER, *one) for one in WRONG_DIALS] + [(ROWS, *one) for one in WRONG_ROWS]


@pytest.mark.parametrize(("kind", "action", "said"), WRONG)
def test_wrong_actions_are_one_line(kind: Kind, action: Any, said: str, sources: list[EpisodeSource]) -> None:
    env, twin = kind.bare(sources), kind.bare(sources)
    for one in (env, twin):
        one.reset(seed=0)
    with pytest.raises(ValueError, match=f"^action: expected .* to .*, {said}") as found:
        env.step(action)
    assert "\n" not in str(found.value)
    good = legal(env, np.random.default_rng(0))
    assert env.step(good)[0].tobytes() == twin.step(good)[0].tobytes(), "no step was made"


@both
def test_wrong_actions_of_many_are_one_line(kind: Kind, sources: list[EpisodeSource]) -> None:
    many, native = kind.many(sources, 2, seed=0), gym.make_vec(kind.name, 2, sources=sources, **kind.short)
    many.reset()
    native.reset(seed=0)
    wrong: list[tuple[Any, str]]
    if kind.is_rows:
        wrong = [(np.zeros(2), "dtype float64"), (np.zeros(3, int), "shape"), ([True, False], "dtype bool")]
    else:
        nan = np.zeros((2, 9))
        nan[1, 4] = np.nan
        wrong = [
            (nan, r"nan at \(1, 4\)"),
            (np.zeros(9), "shape"),
            (np.zeros((2, 3)), "shape"),
            ("no", "dtype"),
        ]
    for action, said in wrong:
        for step in (many.step, native.step):
            with pytest.raises(ValueError, match=f"^action: expected 2 .*, got {said}"):
                step(action)
    if kind.is_rows:
        with pytest.raises(ValueError, match=r"^action: expected 2 rows from 0 to 23, got 24 for cluster 1"):
            native.step(np.array([0, 24]))


def test_dials_outside_their_ranges_are_clipped(sources: list[EpisodeSource]) -> None:
    env, clipped = CLUSTER.bare(sources), CLUSTER.bare(sources)
    action = np.linspace(-3.0, 3.0, 9)
    for one in (env, clipped):
        one.reset(seed=0)
    for _ in range(5):
        mine, theirs = env.step(action), clipped.step(np.clip(action, -1, 1).astype(np.float32))
        assert mine[0].tobytes() == theirs[0].tobytes()
        assert mine[1] == theirs[1]


@both
def test_steps_outside_an_episode_are_one_line(kind: Kind, sources: list[EpisodeSource]) -> None:
    env, rng = kind.bare(sources), np.random.default_rng(0)
    action = 0 if kind.is_rows else np.zeros(9, np.float32)
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
    env.step(legal(env, rng))
    many, native = kind.many(sources, 2), gym.make_vec(kind.name, 2, sources=sources, **kind.short)
    for step in (many.step, native.step):
        with pytest.raises(ResetNeeded, match="has begun, or the last one has ended"):
            step(np.zeros(2, np.int64) if kind.is_rows else np.zeros((2, 9)))
    for one in (many, native):
        one.reset()
        one.reset()
        one.close()
        one.close()
