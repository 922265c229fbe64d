"""The median of the time that a job still runs, given the time that it has run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched_agents.whatif.continued_state import median_time_left

PREDICTED_S = 1_000.0


def by_integration(ran_s: float, spread: float) -> float:
    """The same for a lognormal around `PREDICTED_S`, by integration of its density above `ran_s`."""
    low = math.log(ran_s / PREDICTED_S) / spread if ran_s > 0.0 else -10.0
    z = np.linspace(low, max(low, 0.0) + 8.0, 200_001)
    density = np.exp((max(low, 0.0) ** 2 - z * z) / 2.0)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    median = float(np.interp(below[-1] / 2.0, below, z))
    return PREDICTED_S * math.exp(spread * median) - ran_s


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("sigmas", [-math.inf, -3.0, -1.0, 0.0, 1.0, 2.0, 3.01, 6.0, 29.0])
def test_median_is_that_of_the_truncated_lognormal(sigmas: float, spread: float) -> None:
    ran_s = PREDICTED_S * math.exp(spread * sigmas)
    expected_s = by_integration(ran_s, spread)
    assert median_time_left(ran_s, PREDICTED_S, spread) == pytest.approx(expected_s, rel=1e-4)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("sigmas", [30.01, 35.0])
def test_far_out_in_the_tail_it_is_near(sigmas: float, spread: float) -> None:
    ran_s = PREDICTED_S * math.exp(spread * sigmas)
    expected_s = by_integration(ran_s, spread)
    assert median_time_left(ran_s, PREDICTED_S, spread) == pytest.approx(expected_s, rel=0.01)


def test_new_job_runs_as_predicted() -> None:
    assert median_time_left(0.0, PREDICTED_S, 1.0) == pytest.approx(PREDICTED_S)


@pytest.mark.parametrize("ran_s", [0.0, 1e-9, 5.0, 1e4, 1e12, 1e100])
@pytest.mark.parametrize("predicted_s", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("spread", [0.0, 0.1, 5.0])
def test_it_is_finite_and_at_least_a_second(ran_s: float, predicted_s: float, spread: float) -> None:
    """Also where the prediction is 0, or certain and wrong."""
    assert 1.0 <= median_time_left(ran_s, predicted_s, spread) < math.inf
