"""The study of the energy dial: its frontiers, and the values read from them."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.decide.dials.turning import RANGES
from rlsched_agents.dials.judging import Costs
from studies.policy.dial_energy import constant, energy_at, frontier


def costs(delay_s: float, energy_j: float) -> Costs:
    return Costs(np.full(2, delay_s), np.full(2, 100.0), np.full(2, energy_j))


def test_constant_moves_only_one_dial() -> None:
    (weights,) = constant(0.5)
    moved = np.tanh(weights[:, -1]) * list(RANGES.values())
    assert dict(zip(RANGES, moved, strict=True)) == {
        name: pytest.approx(0.5 * (name == "gpu_price")) for name in RANGES
    }
    assert not weights[:, :-1].any()


def test_energy_is_read_from_a_frontier_within_its_range() -> None:
    none = costs(0.0, 50.0)
    line = frontier([costs(0.0, 50.0), costs(100.0, 25.0)], none)
    np.testing.assert_allclose(line, [[0.0, 0.0], [np.log(2.0), np.log(0.5)]])
    found = energy_at(np.log([2.0, np.sqrt(2.0), 3.0]), line)
    assert found[:2] == pytest.approx(np.log([0.5, np.sqrt(0.5)]))
    assert np.isnan(found[2])
