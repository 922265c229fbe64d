"""`rlsched/Cluster-v0`: seeds repeat, dials at 0 cost exactly 0, and rewards add up."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched_envs.training.dial_env import ClusterEnv
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv
from rlsched_envs.training.windows import Drawn, Windows, draw_setting

SMALL = Drawn(jobs=250, nodes_low=2, nodes_high=4)
STILL = np.zeros(NUM_DIALS, np.float32)


def play(env: ClusterEnv, seed: int, action: NDArray[np.float32]) -> tuple[list[float], dict[str, Any]]:
    seen, _ = env.reset(seed=seed)
    rewards, done = [], False
    while not done:
        assert env.observation_space.contains(seen)
        seen, reward, done, truncated, info = env.step(action)
        assert not truncated
        rewards.append(reward)
    return rewards, info["schedule"]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_dials_at_0_cost_exactly_0(share: float, weight: float, sources: list[EpisodeSource]) -> None:
    drawn = Drawn(jobs=250, nodes_low=2, nodes_high=4, preemptible_fracs=(share,), energy_weights=(weight,))
    env = ClusterEnv(sources=sources, drawn=drawn)
    for seed in range(3):
        rewards, schedule = play(env, seed, STILL)
        assert set(rewards) == {0.0}
        assert schedule["delay_mean_s"] == schedule["reference_delay_mean_s"]
        assert schedule["energy_j"] == schedule["reference_energy_j"]


def test_returns_equal_the_savings(sources: list[EpisodeSource]) -> None:
    env = ClusterEnv(sources=sources, drawn=msgspec.structs.replace(SMALL, energy_weights=(0.3,)))
    moved = 0
    for seed in range(4):
        rewards, schedule = play(env, seed, np.linspace(-1.0, 1.0, NUM_DIALS, dtype=np.float32))
        time = 1.0 - schedule["jct_mean_s"] / schedule["reference_jct_mean_s"]
        energy = 1.0 - schedule["energy_j"] / schedule["reference_energy_j"]
        assert sum(rewards) == pytest.approx(100.0 * (0.7 * time + 0.3 * energy), abs=1e-3)
        moved += abs(sum(rewards)) > 0.01
    assert moved


def test_same_seed_same_rewards(sources: list[EpisodeSource]) -> None:
    one, two = (ClusterEnv(sources=sources, drawn=SMALL) for _ in range(2))
    action = np.full(NUM_DIALS, 0.5, np.float32)
    first = play(one, 5, action)
    assert play(two, 5, action) == first
    assert play(one, 5, action) == first, "in a used environment"
    assert play(two, 6, action) != first


def test_strategy_decides_alike_in_windows_and_in_the_environment(sources: list[EpisodeSource]) -> None:
    """Training and serving of a strategy agree: the same constant dials, set both ways."""
    policy, action = Policy("tuned"), np.full(NUM_DIALS, 0.4)
    drawn = msgspec.structs.replace(SMALL, kinds=(0,))
    weights = np.zeros((NUM_DIALS, len(NAMES) + 1))
    weights[:, -1] = np.arctanh(action)
    setting = draw_setting(sources[0], drawn, np.random.default_rng([9, 0]))
    found = Windows([setting], sources[:1], drawn, policy).run([weights])[0]
    env = ClusterEnv(sources=sources[:1], drawn=drawn, policy=policy)
    env.reset(seed=9)
    env._fleet._runs.load(0, setting)
    env._fleet._go(np.zeros(1, np.int64), np.zeros((1, NUM_DIALS)))
    done = False
    while not done:
        _, _, done, _, info = env.step(action.astype(np.float64))
    assert info["schedule"]["delay_mean_s"] * drawn.jobs == pytest.approx(found.delay_s, rel=1e-12)


def test_many_step_as_one(sources: list[EpisodeSource]) -> None:
    venv = ClusterVecEnv(sources, 4, seed=1, drawn=SMALL, in_pairs=True)
    seen = venv.reset()
    assert (seen[0] == seen[1]).all()
    assert not (seen[0] == seen[2]).all()
    actions = np.tile(np.linspace(-1.0, 1.0, NUM_DIALS), (4, 1))
    actions[1::2] *= -1.0
    ended = 0
    for _ in range(400):
        _, _, dones, infos = venv.step(actions)
        for k in np.flatnonzero(dones):
            ended += 1
            assert infos[k]["terminal_observation"].shape == (len(NAMES),)
            assert infos[k]["episode"]["l"] > 1
    assert ended
    venv.close()


def test_without_copies_an_observation_is_valid_for_one_more_step(sources: list[EpisodeSource]) -> None:
    venv = ClusterVecEnv(sources, 3, seed=1, drawn=SMALL, copy=False)
    before = np.asarray(venv.reset())
    for _ in range(20):
        kept = before.copy()
        after = np.asarray(venv.step(np.tile(STILL, (3, 1)))[0])
        np.testing.assert_array_equal(before, kept, err_msg="a rollout stores it after the step")
        assert not np.array_equal(after, before)
        before = after


def test_state_in_arrays_continues_the_windows(sources: list[EpisodeSource]) -> None:
    one = ClusterVecEnv(sources, 2, seed=1, drawn=SMALL)
    one.reset()
    moved = np.full((2, NUM_DIALS), 0.3, np.float32)
    for _ in range(30):
        one.step(moved)
    state = one.get_state()
    two = ClusterVecEnv(sources, 2, seed=9, drawn=SMALL)
    two.set_state(state)
    for _ in range(120):  # over ends of windows, so new ones are drawn
        mine, theirs = one.step(moved), two.step(moved)
        for left, right in zip(mine[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(left, right)
    with pytest.raises(ValueError, match="they differ in traces, number of clusters"):
        ClusterVecEnv(sources, 3, seed=1, drawn=SMALL).set_state(state)


def test_observation_has_no_true_run_times(sources: list[EpisodeSource]) -> None:
    """Until a job has ended, observations do not depend on its true run time."""
    drawn = msgspec.structs.replace(SMALL, kinds=(0,))
    setting = draw_setting(sources[0], drawn, np.random.default_rng([4, 0]))

    def loaded(durations: NDArray[np.float64]) -> ClusterEnv:
        env = ClusterEnv(sources=sources[:1], drawn=drawn)
        env.reset(seed=0)
        window = msgspec.structs.replace(setting.window, duration_s=durations)
        env._fleet._runs.load(0, msgspec.structs.replace(setting, window=window))
        env._fleet._go(np.zeros(1, np.int64), np.zeros((1, NUM_DIALS)))
        return env

    true_s = setting.window.duration_s
    env, done = loaded(true_s), False
    while not done:
        done = env.step(STILL)[2]
    ends_s = env._fleet._episodes.sim.progress.outcome.end_s[0]
    row = int(np.argmin(np.where(true_s > 3600.0, np.abs(ends_s - np.median(ends_s)), np.inf)))
    longer_s = true_s.copy()
    longer_s[row] *= 3.0
    one, two, same, told, done = loaded(true_s), loaded(longer_s), 0, 0, False
    while not done:
        seen, _, done, _, _ = one.step(STILL)
        other, *_ = two.step(STILL)
        if one._fleet._episodes.sim.progress.run.now_s[0, 0] < ends_s[row]:
            assert seen.tobytes() == other.tobytes()
            same += 1
        else:
            told += seen.tobytes() != other.tobytes()
            if told:
                break
    assert same > 10
    assert told, "once it has ended, or its prediction has passed"
