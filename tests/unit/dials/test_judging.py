"""Runs of strategies on windows in several processes: each judge runs its own windows."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.energy.synth import synthesize
from rlsched.workload.synth import synthesize as synthesize_trace
from rlsched_agents.dials.judging import ALL_ZERO, Judge
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.windows import Setting, Windows, WindowsInTurn, draw_setting

DRAWN = Drawn(jobs=60, nodes_low=2, nodes_high=2, thins=True, slack_fracs=(1.0,), energy_weights=(0.3,))


@pytest.fixture(scope="module")
def sources() -> list[EpisodeSource]:
    return [EpisodeSource.from_trace(*synthesize_trace("helios", jobs=1500, load=0.95, gpus=64, seed=1))]


@pytest.fixture(scope="module")
def settings(sources: list[EpisodeSource]) -> list[Setting]:
    """Windows with prices."""
    priced = sources[0].with_prices(synthesize("solar", datetime(2026, 1, 1, tzinfo=UTC), 200, seed=1))
    rng = np.random.default_rng(0)
    return [draw_setting(priced, DRAWN, rng) for _ in range(4)]


@pytest.fixture(scope="module")
def pools(sources: list[EpisodeSource], settings: list[Setting]) -> list[Windows]:
    """Two pools of two windows; the last window has no prices."""
    last = msgspec.structs.replace(settings[3], tariff=None, slack_frac=0.0)
    parts = (settings[:2], [settings[2], last])
    return [Windows(part, sources, DRAWN, Policy("tuned")) for part in parts]


def test_two_judges_run_their_own_windows(pools: list[Windows]) -> None:
    with Judge(pools[:1], workers=1) as first, Judge(pools[1:], workers=1) as second:
        (mine,), (other,) = first.run([ALL_ZERO]), second.run([ALL_ZERO])
    assert np.array_equal(mine.energy_j, pools[0].run(ALL_ZERO).energy_j)
    assert np.array_equal(other.energy_j, pools[1].run(ALL_ZERO).energy_j)


def test_energy_counts_in_a_window_without_prices(pools: list[Windows]) -> None:
    with Judge(pools, workers=1) as judge:
        assert judge.has_prices
        (found,) = judge.run([ALL_ZERO])
    assert found.money is not None
    assert np.array_equal(found.money[:2], pools[0].run(ALL_ZERO).money)
    assert found.money[3] == found.energy_j[3] > 0.0
    assert found.money[2] != found.energy_j[2]


def test_windows_in_turn_give_the_same_results(sources: list[EpisodeSource], settings: list[Setting]) -> None:
    """With and without prices, in any order, under two policies, after a copy to another process."""
    last = msgspec.structs.replace(settings[3], tariff=None, slack_frac=0.0)
    loaded = Windows([*settings[:3], last], sources, DRAWN, Policy("tuned"), assumed_scale=0.7)
    in_turn = WindowsInTurn(pickle.loads(pickle.dumps(loaded.inputs)))
    other = Policy("tuned", share={"min_gain": 0.8})
    for k, policy in ((2, None), (3, None), (0, other), (3, other), (3, None), (1, None), (1, other)):
        one, two = (windows.run(ALL_ZERO, [k], policy) for windows in (loaded, in_turn))
        assert one.tobytes() == two.tobytes()
