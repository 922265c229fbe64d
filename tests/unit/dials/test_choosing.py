"""The stage of a training that is chosen, and messages where another stage looks better."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Interval, Layers
from rlsched_agents.dials.training import CONSTANTS, FOLLOWING, Training
from rlsched_agents.dials.verdict import StrategyComparison, Trained

WINDOWS = 60
TUNED = Policy("tuned")


class FakeJudge:
    """A judge that gives the k-th requested strategy the k-th given costs, window by window."""

    def __init__(self, *taken: np.ndarray) -> None:
        self.settings = [SimpleNamespace(group=f"g{k % 12}", source="helios") for k in range(WINDOWS)]
        self.energy_weight = np.zeros(WINDOWS)
        self._taken = [np.ones(WINDOWS), *taken]

    has_prices = False

    def run(self, strategies: Sequence[Layers], policy: Policy | None = None) -> list[Costs]:
        """Costs of the next strategies."""
        assert policy is None or policy == TUNED
        taken, self._taken = self._taken[: len(strategies)], self._taken[len(strategies) :]
        return [Costs(one, np.ones(WINDOWS), np.ones(WINDOWS)) for one in taken]


def chosen(monkeypatch: pytest.MonkeyPatch, *taken: np.ndarray) -> tuple[Any, str, dict[str, Interval]]:
    """Result of choosing between constants and a following strategy with these costs."""
    training = object.__new__(Training)
    monkeypatch.setattr(Training, "_judge", lambda *_: nullcontext(FakeJudge(*taken)))
    return training._choose({CONSTANTS: ALL_ZERO, FOLLOWING: ALL_ZERO}, TUNED)


def test_later_stage_has_to_be_significantly_better(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.1, WINDOWS)
    table, best, passed_over = chosen(monkeypatch, np.full(WINDOWS, 0.9), 0.89 + noise)
    assert table[FOLLOWING].cost.ratio < table[CONSTANTS].cost.ratio
    assert best == CONSTANTS
    assert list(passed_over) == [FOLLOWING]
    assert passed_over[FOLLOWING].ratio < 1.0 <= passed_over[FOLLOWING].high
    _, best, passed_over = chosen(monkeypatch, np.full(WINDOWS, 0.9), np.full(WINDOWS, 0.5))
    assert (best, passed_over) == (FOLLOWING, {})
    _, best, passed_over = chosen(monkeypatch, np.full(WINDOWS, 1.1), np.full(WINDOWS, 1.2))
    assert (best, passed_over) == ("", {})


@pytest.mark.parametrize(
    ("high", "windows", "margin", "accepted", "says"),
    [
        (0.99, 200, 0.0, True, "better by 2.0% [1.0%, 3.0%], confirmed: cost"),
        (0.99, 200, 0.005, True, "better by 2.0% [1.0%, 3.0%], confirmed: cost"),
        (1.004, 200, 0.0, False, "keep what you have: not shown to be better (cost"),
        (1.004, 200, 0.005, True, "not better, and confirmed to cost at most 0.5% more: cost"),
        (1.005, 200, 0.005, False, "keep what you have: not shown to be better (cost"),
        (0.99, 199, 0.0, False, "keep what you have: 199 windows are too few to confirm it, 200 are needed"),
        (1.004, 199, 0.005, False, "keep what you have: 199 windows are too few to confirm it"),
    ],
)
def test_margin_decides_what_is_accepted(
    high: float, windows: int, margin: float, accepted: bool, says: str
) -> None:
    """The interval's upper bound has to be below 1 + margin, on enough windows."""
    cost = Interval(0.98, 0.97, high, 0.5, windows, 12)
    found = Trained(
        policy=TUNED,
        strategy=Strategy.from_layers(*ALL_ZERO),
        stage=CONSTANTS,
        setting="",
        tried={},
        chosen={},
        confirmed=StrategyComparison(cost, cost, cost, {}),
        frozen={},
        stopped=(),
        margin=margin,
    )
    assert found.is_accepted == accepted
    assert found.is_better == (high < 1.0 and windows >= 200)
    assert found.verdict.startswith(says)
    nothing = msgspec.structs.replace(found, confirmed=None)
    assert not nothing.is_accepted
    assert nothing.verdict.startswith("keep what you have: nothing was better")


def test_reason_is_printed_and_energy_is_named() -> None:
    def comparison(ratio: float, low: float, high: float) -> StrategyComparison:
        cost = Interval(ratio, low, high, 0.5, 200, 12)
        return StrategyComparison(cost, cost, msgspec.structs.replace(cost, ratio=0.97), {"helios": ratio})

    found = Trained(
        policy=TUNED,
        strategy=Strategy.from_layers(*ALL_ZERO),
        stage=CONSTANTS,
        setting="",
        tried={
            "share.min_gain=0.3": comparison(0.98, 0.95, 1.01),
            "reserve_after=2h": comparison(1.1, 1.0, 1.2),
        },
        chosen={CONSTANTS: comparison(0.991, 0.983, 1.002), FOLLOWING: comparison(0.987, 0.978, 0.999)},
        confirmed=comparison(0.995, 0.98, 1.01),
        frozen={},
        stopped=(),
        passed_over={FOLLOWING: Interval(0.996, 0.99, 1.003, 0.5, 200, 12)},
    )
    setting, stage = found.why_not
    assert setting.startswith("share.min_gain=0.3 is the best of 2 settings and was not taken: its interval")
    assert stage.startswith("following costs less than constants in the table and was not confirmed: ")
    assert "0.996 [0.990, 1.003]" in stage
    assert ", energy 0.970 [0.980, 1.010] of the settings, 200 windows" in found.verdict
    assert found.report()["why_not"] == found.why_not
    taken = msgspec.structs.replace(found, setting="share.min_gain=0.3", passed_over={})
    assert taken.why_not == []
