"""Settings as data: written settings are read back unchanged."""

from __future__ import annotations

import math

import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.settings import Seconds

TIMES = (0.0, 60, 5400, 129_600, 1_234_567, 90.5, 123_456.78, 1e-5, 1e12, math.inf)


@pytest.mark.parametrize("after_s", TIMES)
def test_times_are_read_back_unchanged(after_s: float) -> None:
    policy = Policy("easy", reserve_after=after_s)
    assert policy.settings.reserve_after == after_s
    assert Policy.parse(policy.toml) == policy
    assert policy.with_settings(order="area").settings.reserve_after == after_s
    assert policy.changed(["order=area"]).settings.reserve_after == after_s


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (90, "90s"), (5400, "90m"), (172_800, "2d"), (1_234_567, "1234567s")]
)
def test_time_has_the_largest_unit_that_divides_it(seconds: float, text: str) -> None:
    assert Seconds(seconds).text == text
    assert Seconds.parse(text) == seconds
