"""Forecasts learned from past values: causal, better than the value 24 h earlier, and used by policies."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from rlsched.cli.main import run
from rlsched.energy.describe import forecast_errors
from rlsched.energy.learn import AHEAD_S, DIGITS, LEAD_S, LEAST_S, learned
from rlsched.energy.relative import day_means, relative
from rlsched.energy.series import DAY_S, HOUR_S, Series
from rlsched.energy.synth import synthesize
from rlsched.errors import InputError

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)


def noisy(like: str, days: int, step_s: float = HOUR_S, begins: datetime = BEGINS) -> Series:
    """A generated series with independent errors, which no model can forecast."""
    series = synthesize(like, begins, days, step_s, None, seed=4)
    noise = np.random.default_rng(5).normal(0.0, 0.2 * series.values.mean(), len(series))
    return replace(series, values=series.values + noise)


def forecast_of(
    series: Series, lead_s: float = LEAD_S, ahead_s: float = AHEAD_S
) -> tuple[np.ndarray, np.ndarray]:
    """The values that were forecast, and when they were known."""
    found = learned(series, lead_s, ahead_s).forecast
    assert found is not None
    return found.values, found.known_s


@pytest.mark.parametrize(("lead_s", "step_s"), [(DAY_S, HOUR_S), (6 * HOUR_S, HOUR_S), (36 * HOUR_S, 900.0)])
@pytest.mark.parametrize("day", [30.3, 35.0, 49.0])  # a model is fitted after 28, 35, 42 and 49 days
def test_values_after_its_time_do_not_change_a_forecast(lead_s: float, step_s: float, day: float) -> None:
    series = noisy("spiky", 52, step_s)
    last = round(day * DAY_S / step_s)
    is_later = np.arange(len(series)) > last
    other = replace(series, values=np.where(is_later, 1e6 - 3.0 * series.values, series.values))
    (one, known_s), (changed, _) = forecast_of(series, lead_s), forecast_of(other, lead_s)
    is_made = known_s <= last * step_s
    assert is_made.sum() > (day - 28) * DAY_S / step_s
    np.testing.assert_array_equal(one[is_made], changed[is_made])
    assert not np.array_equal(one[np.isfinite(one)], changed[np.isfinite(one)])


def test_a_forecast_stays_when_later_values_are_added() -> None:
    series = noisy("wind", 60)
    short = replace(series, values=series.values[: 45 * 24])
    (whole, _), (part, known_s) = forecast_of(series), forecast_of(short)
    is_from_past = known_s < (45 * 24 - 1) * HOUR_S
    np.testing.assert_array_equal(part[is_from_past], whole[: len(part)][is_from_past])
    last, at = 45 * 24 - 1, np.arange(45 * 24, 47 * 24)  # all steps after the last value are forecast at once
    assert np.isfinite(part[at]).all()
    assert (known_s[at] == last * HOUR_S).all()


@pytest.mark.parametrize(
    ("like", "days", "step_s", "lead_s", "most"),
    [
        ("solar", 120, HOUR_S, DAY_S, 0.9),
        ("solar", 60, 900.0, DAY_S, 0.95),
        ("solar", 120, HOUR_S, HOUR_S, 0.85),
        ("wind", 365, HOUR_S, DAY_S, 0.9),
        ("spiky", 365, HOUR_S, DAY_S, 0.8),
        ("flat", 60, 5400.0, DAY_S, 0.8),
        ("solar", 365, DAY_S, DAY_S, 1.0),
    ],
)
def test_better_than_the_value_24_h_earlier(
    like: str, days: int, step_s: float, lead_s: float, most: float
) -> None:
    found = forecast_errors(learned(noisy(like, days, step_s), lead_s, AHEAD_S))
    assert found is not None
    (one,) = found["by_lead"]
    assert one["from_h"] <= lead_s / HOUR_S < one["until_h"]
    assert one["error_mean_abs"] < most * one["day_before_error_mean_abs"]


def test_steps_after_the_last_value_are_forecast_well() -> None:
    series, steps = synthesize("solar", BEGINS, 92, seed=1), 90 * 24
    values, _ = forecast_of(replace(series, values=series.values[:steps]))
    ahead, true = values[steps:], series.values[steps:]
    assert np.abs(ahead - true).mean() < 0.5 * np.abs(true.mean() - true).mean()
    near = np.abs(ahead[:3] - true[:3]).mean()
    assert near < 0.2 * true.mean()


@pytest.mark.parametrize(
    ("step_s", "lead_s", "lead"), [(HOUR_S, DAY_S, 24), (7200.0, HOUR_S, 1), (900.0, 1000.0, 2)]
)
def test_the_start_is_blank_and_the_lead_is_whole_steps(step_s: float, lead_s: float, lead: int) -> None:
    values, known_s = forecast_of(noisy("solar", 40, step_s), lead_s, 5 * HOUR_S)
    steps, first = int(40 * DAY_S / step_s), int(LEAST_S / step_s) + lead
    assert len(values) == steps + np.ceil(5 * HOUR_S / step_s)
    assert np.isnan(values[:first]).all()
    assert np.isnan(known_s[:first]).all()
    assert np.isfinite(values[first:]).all()
    np.testing.assert_array_equal(known_s[first:steps], (np.arange(first, steps) - lead) * step_s)


@pytest.mark.parametrize(
    "values", [np.zeros(900), np.full(900, -3.0), np.where(np.arange(900) % 90, 0.0, 500.0)]
)
def test_constant_values_and_rare_spikes(values: np.ndarray) -> None:
    found, _ = forecast_of(Series("s", BEGINS, HOUR_S, values.astype(float)))
    made = found[np.isfinite(found)]
    assert made.size == 900 - 28 * 24 - 24 + 48
    assert values.min() - 1e-3 <= made.min() <= made.max() <= values.max() + 1e-3


def test_spikes_and_values_below_0_leave_forecasts_in_the_range_of_the_past() -> None:
    series = noisy("solar", 100)
    spikes = np.random.default_rng(3).choice(len(series), 40, replace=False)
    values = series.values.copy()
    values[spikes] *= np.where(np.arange(40) % 2, 60.0, -20.0)
    calm, _ = forecast_of(series)
    rough, _ = forecast_of(replace(series, values=values))
    off = np.abs(rough - calm)[np.isfinite(calm)]
    assert np.median(off) < 0.2 * series.values.mean()
    assert values.min() * 1.001 <= np.nanmin(rough) < np.nanmax(rough) <= values.max() * 1.001


def test_what_is_refused() -> None:
    short = noisy("solar", 28)
    with pytest.raises(
        InputError, match=r"expected more than 672 steps with a value \(28 days\) .* got 672;"
    ):
        learned(short, LEAD_S, AHEAD_S)
    for lead_s, ahead_s, option in [
        (0.0, AHEAD_S, "lead"),
        (8 * DAY_S, AHEAD_S, "lead"),
        (LEAD_S, 0.0, "ahead"),
    ]:
        with pytest.raises(InputError, match=f"--{option}: expected a time above 0 and up to 7d"):
            learned(short, lead_s, ahead_s)
    longer = replace(short, values=np.append(short.values, short.values[-1]))
    found = learned(longer, LEAD_S, AHEAD_S)  # only steps after the last value
    errors = forecast_errors(found)
    assert errors is not None
    assert errors["steps"] == 0


def test_ratios_of_policies_use_the_forecast() -> None:
    series = noisy("spiky", 365)
    found = learned(series, LEAD_S, AHEAD_S)
    since, until = 180 * 24, 364 * 24
    ahead = np.stack([day_means(series, 47 * HOUR_S), day_means(series, 0.0), day_means(found, 0.0)])
    true, before, said = ahead[:, since:until]
    assert np.abs(said - true).mean() < 0.9 * np.abs(before - true).mean()
    assert not np.array_equal(relative(found, 0.0)[since:], relative(series, 0.0)[since:])
    # Before the first forecast is known, nothing changes.
    np.testing.assert_array_equal(relative(found, 0.0)[: 28 * 24], relative(series, 0.0)[: 28 * 24])
    # In the last step with a value, as in a live broker, all later steps are forecast.
    assert found.forecast is not None
    expected = np.append(found.forecast.values[len(series) : len(series) + 23], series.values[-1]).mean()
    assert day_means(found, 0.0)[-1] == pytest.approx(expected)


def signal(*args: object) -> int:
    return run(["signal", *map(str, args)])


def test_the_verb_writes_what_describe_and_convert_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out, again = tmp_path / "in.csv", tmp_path / "out.csv.gz", tmp_path / "again.csv.gz"
    series = noisy("solar", 40)
    series.write(source)
    assert signal("forecast", source, out) == 0
    page = capsys.readouterr()
    assert page.err == ""
    assert page.out.startswith(
        f"{out}: 40.0 d from 2026-01-01 00:00 to 2026-02-10 00:00 UTC, 960 steps of 1.0 h\n"
    )
    assert "\n  forecast 264 of them, and 48 steps after the last value\n" in page.out
    assert "Forecast to 2026-02-12 00:00 UTC: mean absolute error" in page.out
    expected = learned(Series.read(source), LEAD_S, AHEAD_S)
    found = Series.read(out)
    assert found.forecast is not None
    assert expected.forecast is not None
    np.testing.assert_array_equal(found.values, series.values)
    np.testing.assert_array_equal(found.forecast.values, expected.forecast.values)
    np.testing.assert_array_equal(found.forecast.known_s, expected.forecast.known_s)
    assert all(float(f"{one:.{DIGITS}g}") == one for one in found.forecast.values[-48:])
    assert signal("convert", out, again) == 0
    assert again.read_bytes() == out.read_bytes()
    capsys.readouterr()
    assert signal("describe", out, "--json") == 0
    described = json.loads(capsys.readouterr().out)["forecast"]
    assert signal("forecast", out, again, "--json") == 0  # forecasts of the input are replaced
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"file": str(again), "lead_s": 86_400.0, "ahead_s": 172_800.0, **described}
    assert again.read_bytes() == out.read_bytes()


def test_a_command_can_pipe(tmp_path: Path) -> None:
    series = noisy("wind", 30, 900.0, BEGINS + timedelta(minutes=45))
    series.write(tmp_path / "in.csv")
    learned(Series.read(tmp_path / "in.csv"), 6 * HOUR_S, HOUR_S).write(tmp_path / "expected.csv")
    args = ["signal", "forecast", "-", "-", "--lead", "6h", "--ahead", "60m"]
    code = f"import sys; from rlsched.cli.main import run; sys.exit(run({args!r}))"
    with (tmp_path / "in.csv").open() as source:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=source, capture_output=True, text=True, check=True
        )
    assert done.stdout == (tmp_path / "expected.csv").read_text()
    assert done.stderr == ""


def test_bad_input_of_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, short, out = tmp_path / "good.csv", tmp_path / "short.csv", tmp_path / "out.csv"
    noisy("solar", 29).write(good)
    noisy("solar", 9).write(short)
    for args, expected in [
        ((tmp_path / "none.csv", out), "cannot read this series"),
        (
            (short, out),
            "expected more than 672 steps with a value (28 days) to learn from, got 216; add earlier",
        ),
        ((good, tmp_path / "out.txt"), "expected a file to write that ends in .csv or .csv.gz"),
        ((good, out, "--lead", "soon"), "--lead: expected a time such as 90s"),
        ((good, out, "--lead", "8d"), "--lead: expected a time above 0 and up to 7d, got 691200 s"),
        ((good, out, "--ahead", "0s"), "--ahead: expected a time above 0 and up to 7d, got 0 s"),
        ((good, "-", "--json"), "--json: expected a file to write as OUT, got standard output"),
    ]:
        assert signal("forecast", *args) == 2, args
        done = capsys.readouterr()
        assert done.out == ""
        assert expected in done.err, args
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [good, short]
    assert signal("forecast", "--help") == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "[default: 24h]" in page
    assert "[default: 48h]" in page
