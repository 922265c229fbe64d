"""Generated series: the promises of each kind, and reproducible bytes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.energy.series import Series
from rlsched.energy.synth import LOWEST, MEANS, SPIKES, synthesize, with_forecast
from rlsched.errors import InputError

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday
YEAR = 365
DIGESTS = {
    "solar": "c17d6c9a3b5fb0f2",
    "wind": "f37be55bf07e42d1",
    "spiky": "fadc8fea5b570c64",
    "flat": "3a3eea3b6c8340bb",
}


def relative(like: str, seed: int, days: int = YEAR, step_s: float = 3600.0) -> np.ndarray:
    values = synthesize(like, BEGINS, days, step_s, None, seed).values
    return values / values.mean()


@pytest.mark.parametrize("like", MEANS)
@pytest.mark.parametrize(
    ("days", "step_s"), [(1, 60.0), (28, 3600.0), (3, 900.0), (2, 86_400.0), (7, 21_600.0)]
)
@pytest.mark.parametrize("mean", [None, 0.08, 1234.0])
def test_every_promise(tmp_path: Path, like: str, days: int, step_s: float, mean: float | None) -> None:
    found = synthesize(like, BEGINS, days, step_s, mean, seed=5)
    expected = MEANS[like] if mean is None else mean
    assert (found.begins, found.step_s, len(found)) == (BEGINS, step_s, days * 86_400 / step_s)
    assert found.values.mean() == pytest.approx(expected, rel=1e-3)
    found.write(tmp_path / "s.csv")
    np.testing.assert_array_equal(Series.read(tmp_path / "s.csv").values, found.values)


@pytest.mark.parametrize("like", MEANS)
def test_the_same_seed_gives_the_same_bytes_on_every_machine(tmp_path: Path, like: str) -> None:
    for name, seed in (("one", 7), ("two", 7), ("other", 8)):
        synthesize(like, BEGINS, 28, seed=seed).write(tmp_path / f"{name}.csv.gz")
    one, two, other = ((tmp_path / f"{name}.csv.gz").read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert (one != other) is (like != "flat")
    synthesize(like, BEGINS, 28, seed=7).write(tmp_path / "s.csv")
    assert hashlib.sha256((tmp_path / "s.csv").read_bytes()).hexdigest()[:16] == DIGESTS[like]


@pytest.mark.parametrize("seed", range(3))
def test_solar_is_cheap_at_noon_and_dear_in_the_evening_every_day(seed: int) -> None:
    found = relative("solar", seed)
    days = found.reshape(YEAR, 24)
    by_hour = days.mean(axis=0)
    assert by_hour.argmin() in (11, 12, 13)
    assert by_hour.argmax() in (18, 19, 20)
    assert (days[:, 19] > days[:, 12]).mean() > 0.98
    assert np.corrcoef(found[:-24], found[24:])[0, 1] > 0.8
    is_weekend = (np.arange(YEAR) + 3) % 7 >= 5
    assert days[is_weekend].mean() < 0.95 * days[~is_weekend].mean()
    assert 0.0 < (found < 0.0).mean() < 0.05
    assert 2.0 < np.percentile(found, 95) < 2.8


@pytest.mark.parametrize("seed", range(3))
def test_wind_swings_over_days_and_falls_slightly_below_0(seed: int) -> None:
    found = relative("wind", seed)
    assert 0.01 < (found < 0.0).mean() < 0.08
    assert found.min() == pytest.approx(LOWEST, rel=0.2)
    assert 1.6 < np.percentile(found, 95) < 2.2
    assert np.corrcoef(found[:-24], found[24:])[0, 1] == pytest.approx(np.exp(-24 / 30), abs=0.15)
    assert abs(np.corrcoef(found[:-168], found[168:])[0, 1]) < 0.3


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("days", "step_s"), [(YEAR, 3600.0), (28, 3600.0), (28, 900.0), (1, 3600.0)])
def test_spiky_is_low_with_rare_spikes(seed: int, days: int, step_s: float) -> None:
    found = relative("spiky", seed, days, step_s)
    is_spike = found > 0.99 * SPIKES[0]
    assert 0 < is_spike.mean() < 0.05
    assert found.max() <= 1.01 * SPIKES[1]
    assert np.median(found) < 0.95
    assert found.min() > 0.0


def test_spikes_come_in_clusters() -> None:
    is_spike = (relative("spiky", 1) > 0.99 * SPIKES[0]).reshape(YEAR, 24)
    of_day = is_spike.sum(axis=1)
    assert of_day[of_day > 0].mean() > 1.5
    assert not is_spike[:, :15].any()


def test_flat_is_constant() -> None:
    assert set(synthesize("flat", BEGINS, 2, mean=7.5).values.tolist()) == {7.5}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"like": "tidal"}, "--like: expected one of solar, wind, spiky, flat, got 'tidal'"),
        ({"mean": 0.0}, "--mean: expected a number above 0"),
        ({"mean": float("nan")}, "--mean: expected a number above 0"),
        ({"mean": float("inf")}, "--mean: expected a number above 0"),
        ({"step_s": 7 * 60.0}, "--step: expected 1 min or more that divides 24 h"),
        ({"step_s": 30.0}, "--step: expected 1 min or more"),
        ({"step_s": 0.0}, "--step: expected 1 min or more"),
        ({"days": 1, "step_s": 86_400.0}, "and 2 steps or more, got 86400 s in 1 days"),
    ],
)
def test_bad_arguments_are_one_line(changed: dict[str, object], said: str) -> None:
    arguments: dict[str, object] = {"like": "wind", "begins": BEGINS, "days": 3} | changed
    with pytest.raises(InputError) as raised:
        synthesize(**arguments)  # type: ignore[arg-type]
    assert said in str(raised.value)


def test_a_forecast_is_known_at_noon_of_the_day_before_and_its_error_grows() -> None:
    begins = datetime(2026, 1, 1, 5, 30, tzinfo=UTC)
    plain = synthesize("wind", begins, 2_000, 1_800.0, mean=80.0, seed=3)
    one = with_forecast(plain, 0.2, seed=3)
    assert one.forecast is not None
    assert np.array_equal(one.values, plain.values)
    start_s = np.arange(len(plain)) * 1_800.0
    lead_h = (start_s - one.forecast.known_s) / 3_600.0
    assert (lead_h.min(), lead_h.max()) == (12.0, 35.5)
    midnight_s = 5.5 * 3_600.0
    assert ((one.forecast.known_s + midnight_s) % 86_400.0 == 43_200.0).all()
    error = (one.forecast.values - one.values) / 80.0
    for at_h in (12.0, 18.0, 24.0, 35.5):
        assert error[lead_h == at_h].std() == pytest.approx(0.2 * np.sqrt(at_h / 24.0), rel=0.08)
    days = error[37:][: 48 * 1_999].reshape(1_999, 48)
    assert np.corrcoef(days[:, 0], days[:, 47])[0, 1] == pytest.approx(np.sqrt(12.0 / 35.5), abs=0.08)
    assert abs(np.corrcoef(days[:-1, 47], days[1:, 0])[0, 1]) < 0.08
    assert with_forecast(plain, 0.0).forecast is not None
    assert np.array_equal(with_forecast(plain, 0.2, seed=3).forecast.values, one.forecast.values)  # type: ignore[union-attr]


@pytest.mark.parametrize("sd", [-0.1, float("nan"), float("inf")])
def test_a_forecast_needs_a_possible_error(sd: float) -> None:
    with pytest.raises(InputError, match="--forecast-sd: expected a number of 0 or more, got"):
        with_forecast(synthesize("flat", BEGINS, 2), sd)
