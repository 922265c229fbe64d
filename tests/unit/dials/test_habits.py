"""Positions of dials by hour and price: sums by hand, table, picture, and a run on windows."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.card import by_hour
from rlsched_agents.dials.habits import habits_in, habits_of, picture
from rlsched_envs.training.sources import Drawn, EpisodeSource

DEFER = list(RANGES).index("defer")


def strategy() -> Strategy:
    """The dial `defer` follows the price."""
    layer = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    layer[DEFER, NAMES.index("price")] = 1.0
    return Strategy.from_layers(layer)


def seen(*moments: tuple[float, float]) -> NDArray[np.float64]:
    """Observations at these (hour, price relative to the mean)."""
    rows = np.zeros((len(moments), NUM_COLUMNS))
    for row, (hour, price) in zip(rows, moments, strict=True):
        row[NAMES.index("hour_sin")] = np.float32(np.sin(2.0 * np.pi * hour / 24.0))
        row[NAMES.index("hour_cos")] = np.float32(np.cos(2.0 * np.pi * hour / 24.0))
        row[NAMES.index("price")] = np.log(price)
    return rows


def position(*prices: float) -> float:
    return float(np.mean([5.0 * np.tanh(np.log(price)) for price in prices]))


MOMENTS = ((0.0, 1.5), (0.25, 2.0), (6.0, 1.0), (23.75, 0.5), (12.0, 1.1))


def test_means_are_by_hour_and_price() -> None:
    found = habits_in(strategy(), seen(*MOMENTS), 3)
    assert found.counts.sum() == 5
    cells = found.cells[DEFER]
    assert cells[0, 2] == pytest.approx(position(1.5, 2.0), abs=1e-6)
    assert (cells[6, 1], cells[23, 0]) == pytest.approx((0.0, position(0.5)), abs=1e-6)
    assert np.isnan(cells[6, 0])
    assert found.mean()[DEFER] == pytest.approx(position(1.5, 2.0, 1.0, 0.5, 1.1), abs=1e-6)
    others = np.delete(found.cells, DEFER, axis=0)
    assert set(others[~np.isnan(others)].tolist()) == {0.0}


def test_table_has_blocks_of_hours_and_groups_of_prices() -> None:
    found = habits_in(strategy(), seen(*MOMENTS), 3)
    head, rows = found.rows()
    blocks = ["0-3 h", "4-7 h", "8-11 h", "12-15 h", "16-19 h", "20-23 h"]
    assert list(head) == ["dial", *blocks, "low price", "middle price", "high price"]
    high, low, middle = position(1.5, 2.0), position(0.5), position(1.0, 1.1)
    values = (high, 0.0, None, position(1.1), None, low, low, middle, high)
    assert rows[DEFER] == ("`defer`", *("-" if one is None else f"{one:+.2f}" for one in values))
    text = "\n".join(by_hour(found))
    assert "## Dials by hour and price" in text
    assert "over 5 settings in 3 held-out windows" in text
    assert by_hour(None) == []


def test_without_prices_there_are_only_hours() -> None:
    found = habits_in(strategy(), seen((1.0, 1.0), (13.0, 1.0)), 1)
    assert not found.has_prices
    head, _ = found.rows()
    assert head[-1] == "20-23 h"
    assert "## Dials by hour\n" in "\n".join(by_hour(found))


@pytest.mark.parametrize("moments", [MOMENTS, ((1.0, 1.0),)])
def test_picture_has_its_size(moments: tuple[tuple[float, float], ...]) -> None:
    image = pytest.importorskip("matplotlib.image")
    png, width, height = picture(habits_in(strategy(), seen(*moments), 1))
    drawn = image.imread(BytesIO(png))
    assert drawn.shape[:2] == (height, width)
    assert drawn.std() > 0.05


@pytest.mark.slow
def test_windows_are_played_under_the_strategy() -> None:
    """The first dial is high at midnight and low at noon."""
    source = EpisodeSource.from_trace(*synthesize("helios", jobs=2_000, load=1.0, gpus=64, seed=3))
    drawn = Drawn(jobs=150, nodes_low=2, nodes_high=2, kinds=(0,))
    layer = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    layer[0, NAMES.index("hour_cos")] = 1.0
    found = habits_of(Strategy.from_layers(layer), Policy("tuned"), [source], drawn, 0, windows=4)
    most, least = next(iter(RANGES.values())), np.tanh(np.cos(np.pi / 4.0))
    assert most * least < found.mean(hours=slice(0, 3))[0] < most
    assert -most < found.mean(hours=slice(10, 14))[0] < -most * least
