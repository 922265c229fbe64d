"""Learning from observed pairs: right on data with a known truth, exact in its limits."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.errors import InputError
from rlsched.models import learning
from rlsched.models.learning import (
    STRANGER,
    WIDEST,
    Observed,
    PairKnowledge,
    most_likely,
    seen_factor,
)

ROOT = Path(__file__).resolve().parents[3]
GPU = "v100"


def test_strangers_run_at_the_speed_of_the_population() -> None:
    assert PairKnowledge().predicted_speed("a", "b", GPU) == pytest.approx(1 / (1 + 0.8 * 0.8))


def test_given_factors_are_used_unchanged() -> None:
    known = PairKnowledge()
    known.introduce("a", GPU, 0.5, 0.3)
    known.introduce("b", GPU, 0.9, 1.2)
    assert known.predicted_speed("a", "b", GPU) == pytest.approx(1 / (1 + 0.5 * 1.2))
    assert known.predicted_speed("b", "a", GPU) == pytest.approx(1 / (1 + 0.9 * 0.3))
    assert known.predicted_speed("a", "b", "p100") == pytest.approx(1 / (1 + 0.8 * 0.8))


def test_frequent_pair_is_predicted_as_observed() -> None:
    known = PairKnowledge()
    for _ in range(50):
        known.observe(Observed("a", "b", GPU, 0.35))
    assert known.predicted_speed("a", "b", GPU) == pytest.approx(0.35, rel=0.01)


@given(st.floats(0.05, 0.99))
def test_one_observation_moves_both_workloads_towards_it(speed: float) -> None:
    known = PairKnowledge()
    before = known.predicted_speed("a", "b", GPU)
    known.observe(Observed("a", "b", GPU, speed))
    for workload, partner in (("a", "b"), ("a", "else"), ("else", "b")):
        after = known.predicted_speed(workload, partner, GPU)
        assert min(before, speed) - 1e-9 <= after <= max(before, speed) + 1e-9
        assert (after - before) * (speed - before) >= 0
    assert known.factors("a", GPU).sensitivity_sd <= STRANGER.sensitivity_sd
    assert known.factors("a", GPU).log_pressure == STRANGER.log_pressure  # its pressure was not observed


def test_better_known_workload_moves_less() -> None:
    known = PairKnowledge()
    known.introduce("old", GPU, 0.8, 0.8, sd=0.05)
    known.observe(Observed("new", "old", GPU, 0.3))
    assert known.factors("old", GPU).pressure == pytest.approx(0.8, rel=0.05)
    assert known.factors("new", GPU).sensitivity > 1.5


def test_true_factors_are_found_from_noisy_pairs() -> None:
    """Eight workloads with known factors, observed in random pairs: errors fall to about the noise."""
    rng = np.random.default_rng(7)
    sensitivity, pressure = np.exp(rng.normal(-0.2, 0.6, (2, 8)))
    truth = 1 / (1 + np.outer(sensitivity, pressure))
    known = PairKnowledge()

    def error() -> float:
        return float(
            np.mean(
                [
                    abs(
                        math.log(truth[a, b])
                        + math.log1p(
                            known.factors(str(a), GPU).sensitivity * known.factors(str(b), GPU).pressure
                        )
                    )
                    for a in range(8)
                    for b in range(8)
                ]
            )
        )

    at_first = error()
    for _ in range(300):
        a, b = rng.integers(8, size=2)
        known.observe(Observed(str(a), str(b), GPU, truth[a, b] * math.exp(rng.normal(0, 0.05))))
    assert error() < 0.05 < 0.15 < at_first


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_invalid_speed_is_refused_and_changes_nothing(speed: float) -> None:
    known = PairKnowledge()
    with pytest.raises(InputError, match="'a' next to 'b' must be a positive number"):
        known.observe(Observed("a", "b", GPU, speed))
    assert known.factors("a", GPU) == STRANGER
    assert known.predicted_speed("a", "b", GPU) == PairKnowledge().predicted_speed("a", "b", GPU)


@pytest.mark.parametrize("factors", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_factors_must_be_positive(factors: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="workload 'a' on v100 must be a positive number"):
        PairKnowledge().introduce("a", GPU, *factors)


events = st.builds(
    Observed,
    st.sampled_from("abc"),
    st.sampled_from("abc"),
    st.sampled_from(["v100", "t4"]),
    st.floats(1e-9, 5.0),
)


@settings(deadline=None)
@given(st.lists(events, max_size=40))
def test_after_any_observations_predictions_are_valid(seen: list[Observed]) -> None:
    known = PairKnowledge()
    for event in seen:
        known.observe(event)
    for event in [*seen, Observed("x", "y", GPU, 1.0)]:
        assert 0 < known.predicted_speed(event.workload, event.partner, event.kind) <= 1


def test_pairs_beyond_the_limit_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_PAIRS", 2)
    known = PairKnowledge()
    for partner in ("b", "c", "b", "d"):
        known.observe(Observed("a", partner, GPU, 0.5))
    assert [pair[2] for pair in known._pairs] == ["b", "d"]


@given(st.floats(-4, 4), st.floats(0.001, 1.0), st.floats(0.002, 0.998))
def test_likeliest_product_is_where_the_likelihood_is_flat(
    before: float, variance: float, speed: float
) -> None:
    def cost(z: float) -> float:
        miss = math.log(speed) + math.log1p(math.exp(z))
        return (z - before) ** 2 / variance + (miss / learning.OBSERVATION_SD) ** 2

    z = most_likely(before, variance, math.log(speed))
    assert cost(z) <= min(cost(z - 1e-3), cost(z + 1e-3)) + 1e-6


def test_node_needs_no_compiler_to_learn() -> None:
    """Nodes have no numba: and learn from their own telemetry too."""
    code = "import sys, rlsched.models.learning; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


@pytest.mark.parametrize(("speed", "other"), [(0.5, 1.0), (0.8, 0.4), (0.95, 2.0)])
def test_factor_of_an_observed_pair_explains_its_speed(speed: float, other: float) -> None:
    assert 1.0 / (1.0 + seen_factor(speed, other) * other) == pytest.approx(speed)


def test_factor_of_an_observed_pair_is_limited() -> None:
    """Jobs that do not disturb each other are measured at about 1, and sometimes above."""
    assert seen_factor(1.0, 0.8) == seen_factor(1.07, 0.8) == math.exp(-WIDEST)
    assert seen_factor(1e-9, 0.8) == math.exp(WIDEST)
