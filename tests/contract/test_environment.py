"""The environment's promises: checkers pass, the reference has no regret, and it sees what a broker sees."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as check_gymnasium
from numpy.typing import NDArray
from stable_baselines3.common.env_checker import check_env as check_sb3

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide import features, schema
from rlsched.decide.actions import Action, Wait
from rlsched.decide.candidates import (
    Window as Rows,
)
from rlsched.decide.candidates import (
    contested,
    first_in_order,
    job_candidates,
    start_action,
    variant_candidates,
)
from rlsched.decide.scheduler import Decision, Information, Order
from rlsched.decide.schema import CRITIC_FEATURES, NUM_CRITIC, NUM_FEATURES, WINDOW_ROWS
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.heuristics.queue_order import RULES, QueueOrder
from rlsched_envs import batch, simulation
from rlsched_envs.engine import Engine, JobTable, Predictions
from rlsched_envs.fleet import Fleet
from rlsched_envs.gym_env import ClusterEnv
from rlsched_envs.sources import EpisodeConfig, EpisodeSource, Window, draw_window
from rlsched_envs.vector import ClusterVecEnv

CONFIG = EpisodeConfig(
    warmup_jobs=40, agent_jobs=60, tail_jobs=30, load_low=0.9, load_high=1.3, nodes_low=2, nodes_high=4
)
REFERENCE = features.IS_REFERENCE
TRUE_LOG = [name for name, _ in CRITIC_FEATURES].index("true_log")
Choice = Callable[[NDArray[np.bool_]], int]


@pytest.fixture(scope="module")
def sources() -> list[EpisodeSource]:
    out = []
    for like in ("helios", "philly"):
        trace, spec = synthesize(like, jobs=1500, load=0.95, gpus=64, seed=1)
        out.append(EpisodeSource.from_trace(trace, spec))
    return out


def random_row(seed: int) -> Choice:
    """A legal row at random; wait less often than by lot, so that episodes move on."""
    rng = np.random.default_rng(seed)

    def choose(mask: NDArray[np.bool_]) -> int:
        rows = np.flatnonzero(mask)
        return int(rows[min(rng.integers(0, rows.size + 1), rows.size - 1)])

    return choose


def reference_rows(windows: NDArray[np.float32]) -> NDArray[np.int64]:
    return windows[:, :, REFERENCE].argmax(axis=1)


# ---- the checkers of others ----------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore:.*A Box observation space (minimum|maximum) value is -?infinity:UserWarning"
)
def test_gymnasium_checker() -> None:
    check_gymnasium(gym.make("rlsched/Cluster-v0").unwrapped)


@pytest.mark.filterwarnings("ignore:Your observation  has an unconventional shape:UserWarning")
def test_stable_baselines3_checker() -> None:
    check_sb3(gym.make("rlsched/Cluster-v0"))


def test_made_by_name_with_arguments(sources: list[EpisodeSource]) -> None:
    env = gym.make("rlsched/Cluster-v0", sources=sources, config=CONFIG)
    window, info = env.reset(seed=3)
    assert window.shape == (WINDOW_ROWS, NUM_FEATURES + NUM_CRITIC)
    assert info == {}
    assert isinstance(env.unwrapped, ClusterEnv)
    assert env.unwrapped.action_masks().sum() > 1


# ---- one environment -----------------------------------------------------------------------------


def play(env: ClusterEnv, seed: int, choose: Choice) -> tuple[list[bytes], list[float], dict[str, Any]]:
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
    one, two = ClusterEnv(sources, CONFIG), ClusterEnv(sources, CONFIG)
    first = play(one, 5, random_row(0))
    assert play(two, 5, random_row(0))[:2] == first[:2]
    assert play(one, 5, random_row(0))[:2] == first[:2], "in an environment that has been used before"
    assert play(two, 6, random_row(0))[0] != first[0]


def test_an_illegal_row_is_replaced_by_the_reference(sources: list[EpisodeSource]) -> None:
    honest, careless = ClusterEnv(sources, CONFIG), ClusterEnv(sources, CONFIG)
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


def test_the_summary_adds_up(sources: list[EpisodeSource]) -> None:
    for seed in range(6):
        _, rewards, info = play(ClusterEnv(sources, CONFIG), seed, random_row(seed))
        episode, schedule = info["episode"], info["schedule"]
        assert episode["l"] == len(rewards)
        assert episode["r"] == pytest.approx(sum(rewards), rel=1e-4, abs=1e-4)
        assert schedule["source"] in {source.name for source in sources}
        assert 0 < schedule["gpu_utilisation_frac"] <= 1
        for kind in ("", "reference_"):
            run_mean_s = schedule[f"{kind}jct_mean_s"] - schedule[f"{kind}queue_mean_s"]
            assert run_mean_s == pytest.approx(schedule["jct_mean_s"] - schedule["queue_mean_s"])


def test_the_data_sheet_gives_the_numbers_of_the_schema() -> None:
    sheet = ClusterEnv.__doc__ or ""
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


# ---- many environments ---------------------------------------------------------------------------


def test_the_reference_has_no_regret_to_the_last_bit(sources: list[EpisodeSource]) -> None:
    env = ClusterVecEnv(sources, 6, seed=4, config=CONFIG)
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
    env = ClusterVecEnv(sources, 4, seed=9, config=CONFIG)
    windows, choose = env.reset(), random_row(1)
    for _ in range(250):
        masks = env.action_masks()
        kinds = windows[:, :, [features.IS_WAIT, features.IS_JOB, features.IS_VARIANT]].sum(axis=2)
        assert set(np.unique(kinds)) <= {0.0, 1.0}
        assert (masks.sum(axis=1) > 1).all(), "never asked where there is nothing to choose"
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
    env = ClusterVecEnv(sources, 2, seed=0, config=CONFIG)
    with pytest.raises(ValueError, match="cluster 0: row 0 is not legal"):
        env.step(np.zeros(2, np.int64))
    env.reset()
    rows = np.array([int(np.flatnonzero(mask)[0]) for mask in env.action_masks()])
    rows[1] = WINDOW_ROWS - 1
    with pytest.raises(ValueError, match=r"cluster 1: row 23 is not legal"):
        env.step(rows)


def test_many_equal_one_each(sources: list[EpisodeSource]) -> None:
    """Four clusters in one batch do what four of one do, from the same states of their draws."""
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


def test_the_gymnasium_environment_is_the_first_of_the_vector(sources: list[EpisodeSource]) -> None:
    single, vector = ClusterEnv(sources, CONFIG), ClusterVecEnv(sources, 3, seed=11, config=CONFIG)
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
    env = ClusterVecEnv(sources, 2, seed=1, config=CONFIG)
    first = env.reset().tobytes()
    assert env.reset().tobytes() != first, "another episode"
    env.seed(1)
    assert env.reset().tobytes() == first


def test_nothing_to_decide_is_an_error() -> None:
    """One job of one GPU every hour: nobody ever waits."""
    hours = np.arange(200) * 3600.0
    stamps = Predictions(np.full(200, 60.0), np.ones(200))
    idle = EpisodeSource("idle", hours, np.full(200, 60.0), np.ones(200, np.int32), stamps)
    with pytest.raises(InputError, match="no contested decision in 100 windows of idle: raise the load"):
        ClusterVecEnv([idle], 1, config=msgspec.structs.replace(CONFIG, load_low=0.1, load_high=0.1)).reset()


# ---- one state, two drivers ----------------------------------------------------------------------


def trace_of(window: Window) -> tuple[Trace, ClusterSpec, Predictions]:
    trace = Trace.from_columns(
        name="window",
        submit_s=window.submit_s,
        duration_s=window.duration_s,
        num_gpus=window.gpus.astype(float),
    )
    return trace, ClusterSpec.uniform(window.nodes, 8), Predictions(window.predicted_s, window.spread)


class Driver:
    """Plays an episode through the `Scheduler` interface: the reference's warm-up, an agent, its tail."""

    name = "driver"
    order: Order = "predicted_gpu_time"
    information: Information = "causal"

    def __init__(self, engine: Engine, choose: Choice, drains: bool) -> None:
        self._engine, self._choose, self._drains = engine, choose, drains
        self._rule = QueueOrder(RULES["qssf-backfill"])
        self._by_rule, self._arrived = True, 0
        self.windows: list[tuple[bytes, list[bool], int]] = []
        self.waits = 0

    def on_instant(self, _: float) -> None:
        """Who decides depends on the arrivals before this instant; the reference knows of no holds."""
        last = CONFIG.warmup_jobs + CONFIG.agent_jobs
        self._by_rule = self._arrived < CONFIG.warmup_jobs or (not self._drains and self._arrived >= last)
        if self._by_rule:
            self._engine.state.arrays.job.held_until_s[:] = -np.inf
        self._arrived = int(self._engine.arrays.progress.tally[simulation.NEXT_ROW])

    def _pick(self, rows: Rows) -> int:
        mask = np.zeros(WINDOW_ROWS, np.bool_)
        mask[: len(rows.legal)] = rows.legal
        self.windows.append((rows.arrays.features.tobytes(), mask.tolist(), rows.reference))
        return self._choose(mask)

    def _act(self, state: ClusterState, partition: int, now_s: float) -> Action:
        if not contested(state, partition):
            return start_action(state, partition, first_in_order(state, partition, now_s))
        jobs = job_candidates(state, partition, now_s)
        legal = np.flatnonzero(jobs.legal)
        row = int(legal[0]) if legal.size == 1 else self._pick(jobs)
        if row == 0:
            self.waits += 1
            return Wait()
        seq = int(jobs.seqs[row])
        ways = variant_candidates(state, partition, seq, now_s)
        if len(ways.seqs) == 1:
            return start_action(state, partition, seq)
        return start_action(state, partition, seq, int(ways.nodes[self._pick(ways)]))

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        if self._by_rule:
            return self._rule.decide(state, partition, now_s, record=record)
        return Decision(action=self._act(state, partition, now_s), source="policy", marks_hold=True)


def loaded(sources: list[EpisodeSource], window: Window, drains: bool) -> Fleet:
    fleet = Fleet(sources, 1, CONFIG, seed=0)
    fleet.load(0, window)
    last = CONFIG.warmup_jobs + CONFIG.agent_jobs
    assert batch.begin_one(fleet._arrays, 0, CONFIG.warmup_jobs, last, int(drains))
    batch.observe_one(fleet._arrays, 0, fleet.observations, fleet.masks)
    return fleet


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5, 6])
def test_scheduler_and_environment_see_the_same_bytes(
    sources: list[EpisodeSource], seed: int, drains: bool
) -> None:
    window = draw_window(sources[seed % 2], CONFIG, np.random.default_rng(seed))
    fleet, choose = loaded(sources, window, drains), random_row(seed)
    seen, info = [], {}
    while not info:
        actor = np.ascontiguousarray(fleet.observations[0, :, :NUM_FEATURES])
        seen.append((actor.tobytes(), fleet.masks[0].tolist(), fleet.reference_row(0)))
        info = fleet.step(np.array([choose(fleet.masks[0])]), restart=False)[0]

    trace, spec, stamps = trace_of(window)
    engine = Engine(trace, spec, predictions=stamps)
    driver = Driver(engine, random_row(seed), drains)
    table = engine.run(driver, on_instant=driver.on_instant)
    assert driver.windows == seen
    assert len(seen) > 10
    assert driver.waits > 0
    outcome = fleet._arrays.sim.progress.outcome
    np.testing.assert_array_equal(table.start_s, outcome.start_s[0])
    np.testing.assert_array_equal(table.end_s, outcome.end_s[0])

    reference = Engine(trace, spec, predictions=stamps).run_rule(RULES["qssf-backfill"])
    agents = slice(CONFIG.warmup_jobs, None)
    schedule = info["schedule"]

    def queue_mean_s(table: JobTable) -> float:
        return float((table.start_s - trace.submit_s)[agents].mean())

    assert schedule["queue_mean_s"] == queue_mean_s(table)
    assert schedule["reference_queue_mean_s"] == queue_mean_s(reference)
    work = float((trace.duration_s * trace.num_gpus).sum())
    capacity = spec.num_gpus * float(table.end_s.max())
    assert schedule["gpu_utilisation_frac"] == pytest.approx(work / capacity)
    regret = float((table.end_s - reference.end_s).sum())
    assert schedule["regret_job_s"] == pytest.approx(regret, rel=1e-9, abs=1e-3), "whoever ended first"
    queued = float((reference.start_s - trace.submit_s)[agents].sum())
    assert info["episode"]["r"] == pytest.approx(-100 * regret / queued, rel=1e-4, abs=1e-4)


# ---- what the actor may not know -----------------------------------------------------------------


def test_truth_moves_the_critic_and_not_the_actor(sources: list[EpisodeSource]) -> None:
    """A job that the reference has started and the agent has not: only the critic knows its run time."""
    told = 0
    for seed in range(8):
        window = draw_window(sources[seed % 2], CONFIG, np.random.default_rng(seed))
        fleet, choose = loaded(sources, window, True), random_row(seed)
        while not fleet.dones[0]:
            fleet.step(np.array([choose(fleet.masks[0])]), restart=False)
        mine = fleet._arrays.sim.progress.outcome.start_s[0].copy()
        row = int((mine - fleet._arrays.reference_start_s[0]).argmax())
        durations = window.duration_s.copy()
        durations[row] = durations[row] + 3600.0 if durations[row] < 60 else 1.0
        other = loaded(sources, msgspec.structs.replace(window, duration_s=durations), True)
        fleet, choose = loaded(sources, window, True), random_row(seed)
        first_end_s = mine[row] + min(durations[row], window.duration_s[row])
        while fleet._arrays.sim.progress.clock[0, simulation.NOW] < first_end_s and not fleet.dones[0]:
            one, two = fleet.observations[0], other.observations[0]
            assert one[:, :NUM_FEATURES].tobytes() == two[:, :NUM_FEATURES].tobytes()
            assert fleet.masks[0].tolist() == other.masks[0].tolist()
            told += int((one[:, NUM_FEATURES:] != two[:, NUM_FEATURES:]).any())
            rows = np.array([choose(fleet.masks[0])])
            fleet.step(rows, restart=False)
            other.step(rows, restart=False)
    assert told > 50


def test_critic_columns_by_their_meaning(sources: list[EpisodeSource]) -> None:
    window = draw_window(sources[0], CONFIG, np.random.default_rng(3))
    fleet, choose = loaded(sources, window, True), random_row(3)
    names = [name for name, _ in CRITIC_FEATURES]
    reference = fleet._arrays.reference_start_s[0]
    progress, gpus = fleet._arrays.sim.progress, window.gpus
    ahead = 0
    while not fleet.dones[0]:
        now_s = progress.clock[0, simulation.NOW]
        arrived = window.submit_s <= now_s
        theirs = int((arrived & (reference > now_s)).sum())
        mine = arrived & ~(progress.outcome.end_s[0] <= now_s)
        runs = mine & (progress.outcome.start_s[0] <= now_s)
        left = (((progress.outcome.start_s[0] + window.duration_s - now_s) * gpus)[runs]).sum()
        queued = ((window.duration_s * gpus)[mine & ~runs]).sum()
        expected = {
            "waiting_beyond_reference": ((mine & ~runs).sum() - theirs) / 32,
            "reference_waiting_log": np.log1p(theirs) / 8,
            "episode_left_frac": 1 - arrived.mean(),
            "true_left_log": np.log1p(left / (8 * window.nodes)) / 15,
            "true_queued_log": np.log1p(queued / (8 * window.nodes)) / 15,
        }
        for hours, name in ((1, "1h"), (6, "6h"), (24, "1d")):
            until_s = now_s + 3600 * hours
            inside = np.minimum(reference, until_s) - np.maximum(window.submit_s, now_s)
            expected[f"reference_in_{name}_log"] = np.log1p(np.maximum(inside, 0).sum() / (3600 * hours)) / 8
        first = fleet.observations[0, 0, NUM_FEATURES:]
        assert {name: first[names.index(name)] for name in expected} == pytest.approx(expected, abs=1e-5)
        slots = fleet._arrays.window.slot[0]
        true_s = np.where(slots >= 0, window.duration_s[progress.ends.row[0][slots]], 0.0)
        assert fleet.observations[0, :, NUM_FEATURES + TRUE_LOG] == pytest.approx(
            np.log1p(true_s) / 12, abs=1e-6
        )
        assert set(names) == {*expected, "true_log"}
        ahead += int(mine.sum() != theirs)
        fleet.step(np.array([choose(fleet.masks[0])]), restart=False)
    assert ahead > 10


def test_episodes_go_on_exactly_where_they_were_saved(sources: list[EpisodeSource]) -> None:
    env, other = (
        ClusterVecEnv(sources, 3, seed=1, config=CONFIG),
        ClusterVecEnv(sources, 3, seed=99, config=CONFIG),
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
        ClusterVecEnv(sources, 2, config=CONFIG).set_state(env.get_state())
