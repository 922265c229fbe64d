"""Windows with more rows, drawn actions, and observations without copies."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.decide.rows import columns
from rlsched.decide.schema import FEASIBLE_ROWS, NUM_FEATURES, WINDOW_ROWS
from rlsched_agents.ppo.recipes import Recipe
from rlsched_envs.training import batch
from rlsched_envs.training.rows_env import RowsEnv
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.vector import RowsVecEnv
from tests.support.sim.episodes import CONFIG, REFERENCE, reference_rows

WIDE = msgspec.structs.replace(CONFIG, window_rows=64)
DEEP = msgspec.structs.replace(WIDE, warmup_jobs=300, agent_jobs=200, load_low=1.2, nodes_low=2, nodes_high=2)

# ---- rows ----------------------------------------------------------------------------------------


def test_spaces_follow_the_number_of_rows(sources: list[EpisodeSource]) -> None:
    env, single = RowsVecEnv(sources, 2, config=WIDE), RowsEnv(sources=sources, config=WIDE)
    assert env.observation_space.shape == single.observation_space.shape == (64, NUM_FEATURES)
    assert env.action_space == single.action_space
    assert np.asarray(env.reset()).shape == (2, 64, NUM_FEATURES)
    assert single.reset(seed=0)[0].shape == (64, NUM_FEATURES)
    assert env.action_masks().shape == (2, 64)


@pytest.mark.parametrize("rows", [7, 1025])
def test_rows_out_of_range_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"window_rows must be between 8 and 1,024, got {rows}"):
        msgspec.structs.replace(CONFIG, window_rows=rows)


def test_training_uses_the_number_of_rows_that_is_served() -> None:
    with pytest.raises(ValueError, match=r"episode\.window_rows must be 24, as policies are served, got 64"):
        Recipe(episode=WIDE)


def test_wide_windows_keep_their_invariants(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 4, seed=9, config=DEEP)
    windows, real, ended = np.asarray(env.reset()), 0, 0
    for _ in range(600):
        masks = env.action_masks()
        kinds = windows[:, :, [columns.IS_WAIT, columns.IS_JOB, columns.IS_VARIANT]].sum(axis=2)
        used = kinds.sum(axis=1).astype(int)
        assert (kinds == (np.arange(64) < used[:, None])).all(), "real rows first, each of one kind"
        assert not windows[kinds == 0].any()
        assert (masks.sum(axis=1) > 1).all()
        assert not (masks & (kinds == 0)).any()
        feasible = windows[:, :, columns.FEASIBLE] == 1
        assert not (masks[:, 1:] & ~feasible[:, 1:]).any()
        assert (windows[:, :, REFERENCE].sum(axis=1) == 1).all()
        assert masks[np.arange(4), reference_rows(windows)].all()
        assert np.isfinite(windows).all()
        real = max(real, int(used.max()))
        windows, _, dones, _ = env.step(env.sample_actions())
        windows = np.asarray(windows)
        ended += int(dones.sum())
    assert real == 64
    assert ended > 4, "buffers were reused"


def test_more_rows_show_more_of_the_same_queue(sources: list[EpisodeSource]) -> None:
    """Both follow the reference: the same episode, with equal bytes in the first rows that fit."""
    narrow = RowsVecEnv(sources, 3, seed=4, config=msgspec.structs.replace(DEEP, window_rows=WINDOW_ROWS))
    wide = RowsVecEnv(sources, 3, seed=4, config=DEEP)
    few, many = np.asarray(narrow.reset()), np.asarray(wide.reset())
    more = 0
    for _ in range(150):
        for k in range(3):
            fit = min(int((few[k, :, columns.FEASIBLE] * few[k, :, columns.IS_JOB]).sum()), FEASIBLE_ROWS)
            assert few[k, : fit + 1].tobytes() == many[k, : fit + 1].tobytes()
            more += int(many[k].any(axis=1).sum() > WINDOW_ROWS)
        few, rewards, dones, _ = narrow.step(reference_rows(few))
        many, others, also, _ = wide.step(reference_rows(many))
        few, many = np.asarray(few), np.asarray(many)
        assert rewards.tolist() == others.tolist()
        assert dones.tolist() == also.tolist()
    assert more > 100


# ---- drawn actions -------------------------------------------------------------------------------


def test_legal_rows_are_drawn_uniformly_and_no_other_row_is() -> None:
    masks = np.zeros((5, 64), np.bool_)
    for k, legal in enumerate(([63], [0, 1], [0, 5, 63], list(range(7, 39)), list(range(64)))):
        masks[k, legal] = True
    counts, rows, key = np.zeros((5, 64), int), np.zeros(5, np.int64), np.array([3, 0], np.uint64)
    draws = 64_000
    for _ in range(draws):
        batch.sample(masks, key, rows)
        counts[np.arange(5), rows] += 1
    assert key[1] == 5 * draws
    assert not counts[~masks].any()
    for k in range(1, 5):
        legal = int(masks[k].sum())
        squares = ((counts[k][masks[k]] - draws / legal) ** 2).sum() / (draws / legal)
        freedom = legal - 1  # chi-square: mean `freedom`, variance 2 `freedom`
        assert abs(squares - freedom) < 5 * np.sqrt(2 * freedom)


def test_draws_follow_the_seed_and_a_saved_state(sources: list[EpisodeSource]) -> None:
    env, twin, other = (RowsVecEnv(sources, 8, seed=seed, config=CONFIG) for seed in (1, 1, 2))
    for one in (env, twin, other):
        one.reset()
    first = [env.sample_actions().tolist() for _ in range(20)]
    assert first == [twin.sample_actions().tolist() for _ in range(20)]
    assert first != [other.sample_actions().tolist() for _ in range(20)]
    other.set_state(env.get_state())
    for _ in range(20):
        rows = env.sample_actions()
        assert rows.tolist() == other.sample_actions().tolist()
        windows, again = env.step(rows)[0], other.step(rows)[0]
        assert np.asarray(windows).tobytes() == np.asarray(again).tobytes()


def test_rows_beyond_the_window_are_refused(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 2, seed=0, config=CONFIG)
    env.reset()
    for row in (-1, WINDOW_ROWS):
        rows = env.sample_actions()
        rows[1] = row
        with pytest.raises(ValueError, match=f"cluster 1: row {row} is not legal now"):
            env.step(rows)


# ---- without copies ------------------------------------------------------------------------------


def test_observation_stays_valid_until_the_step_after_the_next(sources: list[EpisodeSource]) -> None:
    env = RowsVecEnv(sources, 3, seed=6, config=CONFIG, copy=False)
    copied = RowsVecEnv(sources, 3, seed=6, config=CONFIG)
    last, kept = np.asarray(env.reset()), np.asarray(copied.reset())
    history, ended = [kept], 0
    for _ in range(250):
        rows = env.sample_actions()
        seen, _, dones, infos = env.step(rows)
        again, _, _, others = copied.step(rows)
        assert last.tobytes() == kept.tobytes(), "the previous observation is still valid"
        assert np.asarray(seen).tobytes() == np.asarray(again).tobytes()
        for k in np.flatnonzero(dones):
            assert infos[k]["terminal_observation"].tobytes() == others[k]["terminal_observation"].tobytes()
            assert infos[k]["terminal_observation"].tobytes() == last[k].tobytes()
            ended += 1
        last, kept = np.asarray(seen), np.asarray(again)
        history.append(kept)
    assert ended > 2
    assert len({one.tobytes() for one in history}) == len(history), "copies are unchanged"
