"""Many environments: the vector environments of Gymnasium and of Stable-Baselines3, and the loop of
CleanRL's PPO."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched_envs.training.sources import EpisodeSource
from tests.support.sim.small_env import NAME, SHORT, make, make_vec, many

COUNT = 3
Envs = VectorEnv[Any, Any, Any]


def fns(sources: list[EpisodeSource], count: int = COUNT) -> list[Callable[[], gym.Env[Any, Any]]]:
    return [partial(make, sources) for _ in range(count)]


def drawn_dials(count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(N, D) random actions."""
    drawn: NDArray[np.float32] = rng.uniform(-1.0, 1.0, (count, NUM_DIALS)).astype(np.float32)
    return drawn


def run_steps(envs: Envs, steps: int, seed: int | list[int] | None) -> list[tuple[Any, ...]]:
    """Observations, rewards and ends of this many steps."""
    rng = np.random.default_rng(1)
    first, _ = envs.reset(seed=seed)  # type: ignore[arg-type]  # a list is allowed, and not declared
    out: list[tuple[Any, ...]] = [(first.tobytes(),)]
    for _ in range(steps):
        actions = drawn_dials(envs.num_envs, rng)
        seen, rewards, terminated, truncated, infos = envs.step(actions)
        assert envs.observation_space.contains(seen)
        assert not truncated.any()
        out.append((seen.tobytes(), rewards.tolist(), terminated.tolist(), sorted(infos)))
    return out


# ---- Gymnasium -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [7, [7, 8, 9]], ids=["one-seed", "seeds"])
def test_subprocesses_equal_one_process(seed: int | list[int], sources: list[EpisodeSource]) -> None:
    sync, processes = SyncVectorEnv(fns(sources)), AsyncVectorEnv(fns(sources))
    try:
        first = run_steps(sync, 60, seed)
        assert any(any(one[2]) for one in first[1:]), "an episode has ended, and another begun"
        assert run_steps(processes, 60, seed) == first
        assert run_steps(sync, 60, [7, 8, 9]) == first, "one seed counts up"
    finally:
        processes.close()
        sync.close()


def test_native_vector_environment_is_the_same(sources: list[EpisodeSource]) -> None:
    sync = SyncVectorEnv(fns(sources))
    native = make_vec(sources, COUNT)
    assert native.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert native.single_action_space == sync.single_action_space
    assert run_steps(native, 300, 7) == run_steps(sync, 300, 7)
    assert run_steps(native, 20, [5, 5, 6]) == run_steps(sync, 20, [5, 5, 6])
    with pytest.raises(ValueError, match="seed: expected 3 seeds, one per cluster, got 2"):
        native.reset(seed=[1, 2])


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("copied", [False, True], ids=["made", "copied"])
def test_workers_without_a_seed_differ(vector: Any, copied: bool, sources: list[EpisodeSource]) -> None:
    one = make(sources)
    envs = vector([partial(copy.deepcopy, one) for _ in range(COUNT)] if copied else fns(sources))
    try:
        assert len({seen.tobytes() for seen in envs.reset()[0]}) == COUNT
    finally:
        envs.close()


def test_native_environments_without_a_seed_differ(sources: list[EpisodeSource]) -> None:
    firsts = set()
    for _ in range(2):
        firsts |= {one.tobytes() for one in np.asarray(many(sources, 2).reset())}
        made = make_vec(sources, 2)
        firsts |= {one.tobytes() for one in made.reset()[0]}
    assert len(firsts) == 8


@pytest.mark.parametrize("same_step", [False, True], ids=["next-step", "same-step"])
def test_infos_have_masks(same_step: bool, sources: list[EpisodeSource]) -> None:
    """`info["schedule"]` is a dict of arrays, each with a mask of its environments."""
    mode = AutoresetMode.SAME_STEP if same_step else AutoresetMode.NEXT_STEP
    envs = SyncVectorEnv(
        [partial(wrappers.RecordEpisodeStatistics, make(sources)) for _ in range(COUNT)],
        autoreset_mode=mode,
    )
    rng, ended = np.random.default_rng(0), 0
    envs.reset(seed=0)
    for _ in range(400):
        *_, terminated, _, infos = envs.step(drawn_dials(envs.num_envs, rng))
        where = infos.get("final_info", {}) if same_step else infos
        assert ("_schedule" in where) == terminated.any()
        if not terminated.any():
            continue
        ended += 1
        assert where["_schedule"].tolist() == where["_episode"].tolist() == terminated.tolist()
        schedule = where["schedule"]
        assert (
            schedule["_reference_jct_mean_s"].tolist() == schedule["_source"].tolist() == terminated.tolist()
        )
        assert (schedule["reference_jct_mean_s"][terminated] > 0.0).all()
        assert set(schedule["source"][terminated]) <= {source.name for source in sources}
        assert (where["episode"]["l"][terminated] > 0).all()
    assert ended


VECTOR_WRAPPERS: dict[str, Callable[[Envs], Envs]] = {
    "RecordEpisodeStatistics": wrappers.vector.RecordEpisodeStatistics,
    "NormalizeObservation": wrappers.vector.NormalizeObservation,
    "NormalizeReward": wrappers.vector.NormalizeReward,
    "FlattenObservation": wrappers.vector.FlattenObservation,
    "several": lambda envs: wrappers.vector.NormalizeReward(
        wrappers.vector.NormalizeObservation(wrappers.vector.RecordEpisodeStatistics(envs))
    ),
}


@pytest.mark.parametrize("wrap", VECTOR_WRAPPERS.values(), ids=VECTOR_WRAPPERS)
def test_vector_wrappers(wrap: Callable[[Envs], Envs], sources: list[EpisodeSource]) -> None:
    def played(envs: Envs) -> list[tuple[Any, ...]]:
        return run_steps(wrap(envs), 120, 7)

    native = make_vec(sources, COUNT)
    first = played(native)
    assert any(any(one[2]) for one in first[1:])
    if wrap is not VECTOR_WRAPPERS["RecordEpisodeStatistics"]:
        assert played(SyncVectorEnv(fns(sources))) == first
    native.close()


def test_dials_under_vector_wrappers_of_actions(sources: list[EpisodeSource]) -> None:
    envs = wrappers.vector.ClipAction(make_vec(sources, 2))
    envs.reset(seed=0)
    seen = envs.step(np.full((2, NUM_DIALS), 5.0, np.float32))[0]
    other = make_vec(sources, 2)
    other.reset(seed=0)
    assert seen.tobytes() == other.step(np.ones((2, NUM_DIALS), np.float32))[0].tobytes()


# ---- Stable-Baselines3 ---------------------------------------------------------------------------


def run_sb3_steps(envs: VecEnv, steps: int) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Observations, rewards and ends of this many steps, and the infos of the ended episodes."""
    rng, out, ended = np.random.default_rng(1), [], []
    out.append((np.asarray(envs.reset()).tobytes(),))
    for _ in range(steps):
        seen, rewards, dones, infos = envs.step(drawn_dials(envs.num_envs, rng))
        out.append((np.asarray(seen).tobytes(), rewards.tolist(), dones.tolist()))
        ended += [infos[k] for k in np.flatnonzero(dones)]
    return out, ended


def test_stable_baselines3_subprocesses_equal_one_process(sources: list[EpisodeSource]) -> None:
    made = [partial(Monitor, make(sources)) for _ in range(COUNT)]
    dummy, processes = DummyVecEnv(made), SubprocVecEnv(made, start_method="fork")
    try:
        for envs in (dummy, processes):
            envs.seed(3)
        first, ended = run_sb3_steps(dummy, 60)
        second, also = run_sb3_steps(processes, 60)
        assert second == first
        assert ended
        for one, other in zip(ended, also, strict=True):
            assert one["schedule"] == other["schedule"]
            assert one["episode"]["l"] == other["episode"]["l"] > 0
    finally:
        processes.close()
        dummy.close()


@pytest.mark.slow
def test_stable_baselines3_processes_without_imports(sources: list[EpisodeSource]) -> None:
    """`forkserver`, the default: unpickling imports rlsched, which registers the environment's name."""
    envs = SubprocVecEnv(fns(sources, 2), start_method="forkserver")
    try:
        first = np.asarray(envs.reset())
        assert first[0].tobytes() != first[1].tobytes()
        assert envs.num_envs == 2
    finally:
        envs.close()


SB3_WRAPPERS: dict[str, Callable[[VecEnv], VecEnv]] = {
    "VecNormalize": VecNormalize,
    "VecMonitor": VecMonitor,
    "VecCheckNan": lambda envs: VecCheckNan(envs, raise_exception=True),
    "several": lambda envs: VecNormalize(VecMonitor(envs)),
}


@pytest.mark.parametrize("wrap", SB3_WRAPPERS.values(), ids=SB3_WRAPPERS)
@pytest.mark.parametrize("native", [False, True], ids=["dummy", "native"])
def test_stable_baselines3_wrappers(
    wrap: Callable[[VecEnv], VecEnv], native: bool, sources: list[EpisodeSource]
) -> None:
    envs = wrap(many(sources, COUNT) if native else DummyVecEnv(fns(sources)))
    envs.seed(3)
    first, ended = run_sb3_steps(envs, 80)
    assert len(first) == 81
    assert ended
    for one in ended:
        assert one["terminal_observation"].shape == envs.observation_space.shape
        assert one["schedule"]["reference_jct_mean_s"] > 0.0
        if native or wrap in (VecMonitor, SB3_WRAPPERS["several"]):
            assert one["episode"]["l"] > 0
    envs.close()
    envs.close()


def test_frames_of_dials_can_be_stacked(sources: list[EpisodeSource]) -> None:
    envs = VecFrameStack(many(sources, 2, seed=0), 3)
    assert np.asarray(envs.reset()).shape == (2, 3 * NUM_COLUMNS)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_native_environments_can_be_copied(way: str, sources: list[EpisodeSource]) -> None:
    def copied(one: Any) -> Any:
        return pickle.loads(pickle.dumps(one)) if way == "pickle" else copy.deepcopy(one)

    envs, native = many(sources, 2, seed=5), make_vec(sources, 2)
    rng = np.random.default_rng(0)
    envs.reset()
    native.reset(seed=5)
    for at in range(80):
        if at == 5:
            others, twin = copied(envs), copied(native)
        mine = envs.step(drawn_dials(2, rng))
        also = native.step(actions := drawn_dials(2, rng))
        if at < 5:
            continue
        theirs, twins = others.step(envs._actions), twin.step(actions)
        assert np.asarray(mine[0]).tobytes() == np.asarray(theirs[0]).tobytes()
        assert (mine[1].tolist(), mine[2].tolist()) == (theirs[1].tolist(), theirs[2].tolist())
        assert also[0].tobytes() == twins[0].tobytes()
        assert (also[1].tolist(), also[2].tolist()) == (twins[1].tolist(), twins[2].tolist())


@pytest.mark.filterwarnings("ignore:.*initialised with render_mode='rgb_array':UserWarning")  # its own way
@pytest.mark.parametrize("native", [False, True], ids=["dummy", "native"])
def test_sb3_ppo_learns_dials(native: bool, sources: list[EpisodeSource]) -> None:
    envs = (
        many(sources, 2, seed=1)
        if native
        else make_vec_env(NAME, 2, seed=1, env_kwargs={"sources": sources, **SHORT})
    )
    model = PPO("MlpPolicy", VecNormalize(envs), n_steps=16, batch_size=16, n_epochs=1, device="cpu", seed=0)
    model.learn(192)
    assert model.num_timesteps == 192
    assert model.ep_info_buffer, "the episodes' returns can be logged"


# ---- CleanRL -------------------------------------------------------------------------------------


def cleanrl_env(sources: list[EpisodeSource], gamma: float) -> gym.Env[Any, Any]:
    """`make_env` of CleanRL's `ppo_continuous_action.py`."""
    env = wrappers.RecordEpisodeStatistics(wrappers.FlattenObservation(make(sources)))
    env = wrappers.NormalizeObservation(wrappers.ClipAction(env))
    env = wrappers.TransformObservation(env, lambda seen: np.clip(seen, -10, 10), env.observation_space)
    env = wrappers.NormalizeReward(env, gamma=gamma)
    return wrappers.TransformReward(env, lambda reward: float(np.clip(reward, -10, 10)))


def test_cleanrl_loop(sources: list[EpisodeSource]) -> None:
    envs = SyncVectorEnv([partial(cleanrl_env, sources, 0.99) for _ in range(2)])
    rng, returns = np.random.default_rng(0), []
    following, _ = envs.reset(seed=1)
    for _ in range(300):
        assert following.shape == (2, *envs.single_observation_space.shape)  # type: ignore[misc]
        assert np.isfinite(following).all()
        actions = rng.normal(0.0, 2.0, envs.action_space.shape).astype(np.float32)  # as a Gaussian draws
        following, reward, terminated, truncated, infos = envs.step(actions)
        assert reward.shape == terminated.shape == truncated.shape == (2,)
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
            assert infos["_episode"].tolist() == terminated.tolist()
    assert len(returns) > 2
    envs.close()
