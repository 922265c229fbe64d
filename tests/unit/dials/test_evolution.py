"""Evolution on known costs: it finds their minimum, or reports that there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.turning import RANGES
from rlsched_agents.dials.evolution import Evolution, EvolutionConfig
from rlsched_agents.dials.judging import Costs, Layers, interval

BEST = {"gate_pair": -0.4, "margin": 0.3}


class Bowl:
    """A fake judge: the cost of a window grows with the square of the distance from `BEST`."""

    def __init__(self, *, depth: float = 0.1, noise: float = 0.02) -> None:
        self.settings, self.energy_weight = [None] * 50, np.zeros(50)
        self._depth, self._rng, self._noise = depth, np.random.default_rng(0), noise

    def _cost(self, layers: Layers) -> float:
        position = np.tanh(layers[0][:, -1])
        distance = sum((position[list(RANGES).index(name)] - at) ** 2 for name, at in BEST.items())
        return self._depth * distance + self._noise * float(self._rng.normal())

    def run_pairs(self, pairs: Sequence[tuple[Layers, int]]) -> Costs:
        delay_s = np.array([np.exp(self._cost(layers)) * 2.0 - 1.0 for layers, _ in pairs])
        return Costs(delay_s, np.ones(len(pairs)), np.ones(len(pairs)))

    def run(self, strategies: Sequence[Layers]) -> list[Costs]:
        return [Costs(np.ones(50), np.ones(50), np.ones(50)) for _ in strategies]


CONFIG = EvolutionConfig(generations=40, pairs=100, spread=0.3, step=0.06, columns=())


def test_finds_the_least_cost() -> None:
    evolution = Evolution(Bowl(), CONFIG, 1)
    for _ in range(CONFIG.generations):
        evolution.step()
    found = dict(zip(RANGES, np.tanh(evolution.result[:, -1]).tolist(), strict=True))
    assert found["gate_pair"] == pytest.approx(BEST["gate_pair"], abs=0.2)
    assert found["margin"] == pytest.approx(BEST["margin"], abs=0.2)
    assert evolution.signal > 1.0
    assert not evolution.is_lost


def test_reports_missing_signal() -> None:
    evolution = Evolution(Bowl(depth=0.0), CONFIG, 1)
    while evolution.number < CONFIG.generations and not evolution.is_lost:
        evolution.step()
    assert evolution.is_lost
    assert evolution.number == CONFIG.patience


def test_parameters_without_effect_stay() -> None:
    config = EvolutionConfig(generations=3, pairs=4, dials=("margin",), columns=("free",))
    evolution = Evolution(Bowl(), config, 1)
    for _ in range(3):
        evolution.step()
    moved = np.argwhere(evolution.mean)
    row = list(RANGES).index("margin")
    assert moved.tolist() == [[row, NAMES.index("free")], [row, len(NAMES)]]


def test_resumes_where_it_stopped() -> None:
    whole, first, rest = (Evolution(Bowl(noise=0.0), CONFIG, 3) for _ in range(3))
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    rest.set_state(json.loads(json.dumps(first.get_state())))
    for _ in range(3):
        rest.step()
    np.testing.assert_array_equal(rest.mean, whole.mean)
    assert rest.signal == whole.signal


def test_interval_is_over_groups() -> None:
    values = np.log(np.repeat([0.9, 1.1], 50))
    alone = interval(values, [str(k) for k in range(100)])
    together = interval(values, ["a"] * 50 + ["b"] * 50)
    assert alone.ratio == together.ratio == pytest.approx(np.sqrt(0.99))
    assert together.high - together.low > 3 * (alone.high - alone.low)
    assert (alone.groups, together.groups, alone.better_frac) == (100, 2, 0.5)
