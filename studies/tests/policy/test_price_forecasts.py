"""The table of errors of learned forecasts."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from rlsched.energy.learn import AHEAD_S, LEAD_S, learned
from rlsched.energy.synth import synthesize
from studies.policy.price_forecasts import JUDGED_DAYS, row


def test_only_the_last_year_counts() -> None:
    series = synthesize("spiky", datetime(2026, 1, 1, tzinfo=UTC), JUDGED_DAYS + 60, seed=2)
    found, first = learned(series, LEAD_S, AHEAD_S).forecast, 60 * 24
    assert found is not None
    errors = found.values[first : len(series)] - series.values[first:]
    before = series.values[first - 24 : -24] - series.values[first:]
    expected = np.array([np.abs(errors).mean(), np.abs(before).mean(), errors.mean()])
    cells = [float(cell) for cell in row(series, LEAD_S).split(" | ")]
    np.testing.assert_allclose(cells[:3], expected, atol=0.051)
    assert len(cells) == 5
