"""Bounds of an objective in the judge's costs, the verdict and the card."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.objective import NUM_TERMS, Objective, Term
from rlsched_agents.dials.card import card_text
from rlsched_agents.dials.judging import Costs, Interval, Scored, interval
from rlsched_agents.dials.recipes import SMOKE
from rlsched_agents.dials.verdict import StrategyComparison, Trained

GOAL = Objective(energy=1.0, bounds={"time": 1.02})
WINDOWS = 4


def costs(time: float, energy: float) -> Costs:
    """Costs of four windows with these terms; all weight is on energy."""
    terms, weights = np.zeros((WINDOWS, NUM_TERMS)), np.zeros((WINDOWS, NUM_TERMS))
    terms[:, Term.TIME], terms[:, Term.ENERGY], weights[:, Term.ENERGY] = time, energy, 1.0
    scored = Scored(GOAL, terms, np.zeros((WINDOWS, NUM_TERMS)), weights)
    whole = np.ones(WINDOWS)
    return Costs(time * whole, whole, energy * whole, scored=scored)


def comparison(time: float) -> StrategyComparison:
    def around(ratio: float) -> Interval:
        return interval(np.log(np.full(400, ratio)), ["a", "b"] * 200)

    return StrategyComparison(
        around(0.9),
        around(1.1),
        around(0.9),
        {"t": 0.9},
        terms={"time": around(time), "energy": around(0.9)},
        bounds={"time": 1.02},
    )


def trained(time: float) -> Trained:
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[0, -1] = 0.5
    policy, strategy = Policy("tuned"), Strategy.from_layers(weights)
    return Trained(policy, strategy, "constants", "", {}, {}, comparison(time), {}, ())


@pytest.mark.parametrize(
    ("time", "energy", "expected"), [(1.01, 0.8, 0.8), (1.05, 0.8, 0.8 * (1.05 / 1.02) ** 5)]
)
def test_exceeding_a_bound_raises_the_cost(time: float, energy: float, expected: float) -> None:
    found = costs(time, energy).ln_ratio(costs(1.0, 1.0), np.zeros(WINDOWS))
    assert np.exp(found) == pytest.approx(np.full(WINDOWS, expected))


def test_training_penalties_come_from_all_candidates() -> None:
    (one, other), reference = (costs(1.10, 0.9), costs(0.94, 0.9)), costs(1.0, 1.0)
    penalties = one.training_penalties([other], reference)
    assert penalties is not None
    assert penalties[Term.TIME] > 0.0, "the mean of both is close to the bound"
    penalties = other.training_penalties([other], reference)
    assert penalties is not None
    assert penalties[Term.TIME] == 0.0


def test_a_policy_that_exceeds_a_bound_is_not_confirmed() -> None:
    kept, exceeded = trained(1.01), trained(1.03)
    assert kept.is_better
    assert kept.verdict.startswith("better by 10.0%")
    assert "time 1.010 [1.010, 1.010] (bound 1.02)" in kept.verdict
    assert not exceeded.is_better
    assert exceeded.verdict.startswith("keep what you have: it exceeds the bound of time (")
    assert exceeded.report()["confirmed"]["bounds"] == {"time": 1.02}


def test_card_has_the_objective_and_its_bounds() -> None:
    card = card_text(trained(1.01), SMOKE, [], 0, objective=GOAL)
    assert GOAL.toml.strip() in card
    assert "| time | 1.010 [1.010, 1.010] | 1.02 |" in card
    assert "| energy | 0.900 [0.900, 0.900] | - |" in card
    assert "The objective:" not in card_text(trained(1.01), SMOKE, [], 0)


def test_a_failed_second_set_of_windows_is_not_called_an_exceeded_bound() -> None:
    also = StrategyComparison(*(interval(np.full(400, 0.1), ["a", "b"] * 200) for _ in range(3)), {})
    found = msgspec.structs.replace(trained(1.01), also={"with prices": also})
    assert not found.is_better
    assert found.verdict.startswith("keep what you have: not shown to be better (")
