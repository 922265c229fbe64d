"""The lower bound of a bill: cheapest hours of a job by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.energy.series import HOUR_S
from studies.policy.price_front import BASE, PRICED, candidates, cheapest

PRICES = np.array([50.0, 40.0, 10.0, 30.0, 20.0, 90.0])


@pytest.mark.parametrize(
    ("since_h", "until_h", "ran_h", "price"),
    [
        (0.0, 6.0, 1.0, 10.0),  # the cheapest hour
        (0.0, 6.0, 3.0, 20.0),  # hours 2, 3 and 4
        (0.0, 6.0, 1.5, (10.0 + 0.5 * 20.0) / 1.5),  # with a pause
        (2.5, 6.0, 1.0, 15.0),  # half of hour 2 has passed
        (0.0, 2.0, 2.0, 45.0),  # no slack
        (0.25, 2.25, 2.0, (0.75 * 50.0 + 40.0 + 0.25 * 10.0) / 2.0),
    ],
)
def test_cheapest_hours_of_a_job(since_h: float, until_h: float, ran_h: float, price: float) -> None:
    assert cheapest(PRICES, since_h * HOUR_S, until_h * HOUR_S, ran_h * HOUR_S) == pytest.approx(price)


def test_candidates_have_the_default_settings_of_priced() -> None:
    policies = candidates()
    assert {BASE, PRICED} < set(policies)
    price, clock = policies[PRICED].settings.price, policies[PRICED].settings.clock
    assert price is not None
    assert clock is not None
    assert (price.defer, price.pause, clock.energy_weight) == (1.0, 1.0, 0.3)
    assert price == policies["weight 0.15, slope 1"].settings.price
