"""`Series`: files in and out, bad files, and integrals over the seconds of a trace."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.energy.series import Series, integrals
from rlsched.errors import InputError

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
STEPS_S = (60.0, 300.0, 420.0, 900.0, 1800.0, 3600.0, 5400.0, 86_400.0)
values_of = st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=60)


def write(folder: Path, text: str, name: str = "s.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def series_of(values: list[float], begins: datetime = BEGINS, step_s: float = 3600.0) -> Series:
    return Series("s", begins, step_s, np.array(values, np.float64))


@settings(max_examples=60, deadline=None)
@given(
    values=values_of,
    step_s=st.one_of(st.sampled_from(STEPS_S), st.integers(1, 86_400).map(float), st.just(1.5)),
    begins=st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)),
    suffix=st.sampled_from([".csv", ".csv.gz"]),
)
def test_write_then_read_gives_the_same(
    values: list[float], step_s: float, begins: datetime, suffix: str
) -> None:
    one = series_of(values, begins.replace(tzinfo=UTC), step_s)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"s{suffix}"
        one.write(path)
        other = Series.read(path)
        first = path.read_bytes()
        other.write(path)
        assert path.read_bytes() == first
    assert (other.begins, other.step_s, other.name) == (one.begins, step_s, str(path))
    np.testing.assert_array_equal(other.values, one.values)
    assert other.ends == one.ends


FORECAST = """utc,value,forecast,forecast_utc
2026-01-01T00:00,80,75,2025-12-31T12:00
2026-01-01T01:00,81.5,,
2026-01-01T02:00,,-3.25,2026-01-01T01:30:15
2026-01-01T03:00,,90,2026-01-01T03:00
"""


def test_a_forecast_is_read_and_written(tmp_path: Path) -> None:
    one = Series.read(write(tmp_path, FORECAST))
    assert one.values.tolist() == [80.0, 81.5]
    assert one.ends == BEGINS + timedelta(hours=2)
    assert one.forecast is not None
    np.testing.assert_array_equal(one.forecast.values, [75.0, np.nan, -3.25, 90.0])
    np.testing.assert_array_equal(one.forecast.known_s, [-43_200.0, np.nan, 5_415.0, 10_800.0])
    one.write(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == FORECAST


def test_times_of_forecasts_may_have_offsets_and_columns_any_order(tmp_path: Path) -> None:
    head = "forecast_utc,value,utc,forecast"
    rows = "2025-12-31T13:00+01:00,1,2026-01-01T00:00,5\n,2,2026-01-01T01:00,\n"
    one = Series.read(write(tmp_path, f"{head}\n{rows}"))
    assert one.forecast is not None
    assert (one.forecast.values[0], one.forecast.known_s[0]) == (5.0, -43_200.0)


def test_blank_columns_of_forecasts_are_no_forecast(tmp_path: Path) -> None:
    text = "utc,value,forecast,forecast_utc\n2026-01-01T00,1,,\n2026-01-01T01,2, ,\n"
    assert Series.read(write(tmp_path, text)).forecast is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2026-01-01T02:00,1,2,", "line 4: forecast_utc: expected a time such as 2026-03-01T14:00, got ''"),
        (
            "2026-01-01T02:00,1,,2026-01-01",
            "line 4: forecast: expected a number, or a blank if forecast_utc is blank too, got ''",
        ),
        (
            "2026-01-01T02:00,1,nan,2026-01-01",
            "line 4: forecast: expected a number, .*, got 'nan'",
        ),
        (
            "2026-01-01T02:00,1,2,2026-01-01T02:01",
            r"line 4: forecast_utc: expected at most the start of the step, 2026-01-01T02:00 \(UTC\), got "
            "'2026-01-01T02:01'; leave forecast and forecast_utc blank if there was no forecast",
        ),
        ("2026-01-01T02:00,,,", "line 4: value: expected a number, got ''"),
        (
            "2026-01-01T02:00,,2,2026-01-01\n2026-01-01T03:00,1,,",
            "line 5: value: expected none, because the step before has only a forecast, got '1'",
        ),
        ("2026-01-01T03:00,,2,2026-01-01", "expected steps of 3600 s, got 7200 s from 2026-01-01T01:00"),
    ],
)
def test_a_bad_forecast_is_one_clear_line(tmp_path: Path, line: str, message: str) -> None:
    head = "utc,value,forecast,forecast_utc\n2026-01-01T00:00,1,,\n2026-01-01T01:00,1,,\n"
    with pytest.raises(InputError, match=message):
        Series.read(write(tmp_path, f"{head}{line}\n"))


def test_a_forecast_needs_both_columns_and_two_values(tmp_path: Path) -> None:
    path = write(tmp_path, "utc,value,forecast\n2026-01-01T00,1,2\n")
    with pytest.raises(InputError, match="columns forecast and forecast_utc together, got only forecast"):
        Series.read(path)
    head, later = "utc,value,forecast,forecast_utc\n2026-01-01T00,1,,\n", "2026-01-01T01,,2,2026-01-01\n"
    path = write(tmp_path, head + later)
    with pytest.raises(InputError, match="expected two rows or more with a value, got 1"):
        Series.read(path)


def test_numbers_are_written_short(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    series_of([94.12, 3.0, -0.5]).write(path)
    assert (
        path.read_text() == "utc,value\n2026-01-01T00:00,94.12\n2026-01-01T01:00,3\n2026-01-01T02:00,-0.5\n"
    )


@pytest.mark.parametrize("day", [datetime(2026, 3, 29), datetime(2026, 10, 25)])
def test_local_time_with_offsets_across_a_change_of_the_clocks(tmp_path: Path, day: datetime) -> None:
    first = (day - timedelta(days=1)).replace(tzinfo=BERLIN).astimezone(UTC)
    times = [(first + timedelta(hours=k)).astimezone(BERLIN) for k in range(72)]
    assert len({at.utcoffset() for at in times}) == 2
    rows = "".join(f"{at.isoformat()},{k}\n" for k, at in enumerate(times))
    found = Series.read(write(tmp_path, f"utc,value\n{rows}"))
    assert (found.begins, found.step_s, len(found)) == (first, 3600.0, 72)
    np.testing.assert_array_equal(found.values, np.arange(72.0))


@pytest.mark.parametrize(
    "text",
    [
        "utc,value\n2026-01-01T00,1\n2026-01-01T01,2\n",
        "\ufeffutc,value\r\n2026-01-01 00:00,1\r\n2026-01-01 01:00,2\r\n",
        "value,note,utc\n1,x,2026-01-01T00:00Z\n2,,2026-01-01T01:00Z\n\n",
        '"utc","value"\n"2026-01-01T01:00+01:00","1"\n2026-01-01T01:00, 2\n',
    ],
)
@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz"])
def test_spellings_of_a_file(tmp_path: Path, text: str, name: str) -> None:
    found = Series.read(write(tmp_path, text, name))
    assert (found.begins, found.step_s, found.values.tolist()) == (BEGINS, 3600.0, [1.0, 2.0])


HEAD = "utc,value\n2026-01-01T00:00,1\n2026-01-01T01:00,2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the columns utc,value, got an empty file"),
        ("time,value\n2026-01-01,1\n", "expected the columns utc,value, got time,value"),
        ("utc,value\n2026-01-01,1\n", "expected two rows or more, got 1"),
        (HEAD + "2026-01-01T03:00,4\n", "expected steps of 3600 s, got 7200 s from 2026-01-01T01:00 (UTC)"),
        (
            "utc,value\n2026-01-01T00,1\n2026-01-01T05,2\n2026-01-01T06,3\n",
            "steps of 3600 s, got 18000 s from 2026-01-01T00:00",
        ),
        (HEAD + "2026-01-01T01:00,4\n", "line 4: expected a time after 2026-01-01T01:00:00+00:00"),
        (HEAD + "2025-12-31T23:00,4\n", "line 4: expected a time after"),
        (HEAD + "2026-01-01T02:00,x\n", "line 4: value: expected a number, got 'x'"),
        (HEAD + "2026-01-01T02:00,\n", "line 4: value: expected a number, got ''"),
        (HEAD + "2026-01-01T02:00\n", "line 4: value: expected a number, got ''"),
        (HEAD + "2026-01-01T02:00,inf\n", "line 4: value: expected a number, got 'inf'"),
        (HEAD + "2026-01-01T02:00,nan\n", "line 4: value: expected a number, got 'nan'"),
        (HEAD + "noon,3\n", "line 4: utc: expected a time such as 2026-03-01T14:00, got 'noon'"),
        (HEAD + "0001-01-01T00:00+05:00,3\n", "line 4: utc: expected a time"),
        ("utc,value\n2026-01-01,1\n2026-01-03,1\n", "expected steps of 1 s to 24 h, got 172800 s"),
        ("utc,value\n9999-12-31T22:00,1\n9999-12-31T23:00,1\n", "before the year 10000"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as raised:
        Series.read(path)
    message = str(raised.value)
    assert said in message
    assert str(path) in message
    assert "\n" not in message


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    whole = gzip.compress(HEAD.encode() * 50)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    for data in (b"no gzip", whole[:-9], bytes(damaged)):
        (tmp_path / "s.csv.gz").write_bytes(data)
        with pytest.raises(InputError, match="expected a gzip file"):
            Series.read(tmp_path / "s.csv.gz")
    (tmp_path / "s.csv").write_bytes(b"utc,value\n\xff\xfe")
    with pytest.raises(InputError, match="expected UTF-8 text"):
        Series.read(tmp_path / "s.csv")
    with pytest.raises(InputError, match="cannot read this series: No such file"):
        Series.read(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot write this series: No such file"):
        series_of([1.0, 2.0]).write(tmp_path / "none" / "s.csv")


# ---- integrals ------------------------------------------------------------------------------------


def numeric(one: Series | None, second_0: datetime, since_s: float, until_s: float) -> float:
    """Integral by a walk over the edges of the series' own steps."""
    if one is None:
        return 0.0
    begins_s = (one.begins - second_0).total_seconds()
    ends_s = begins_s + one.step_s * len(one)
    lately = one.values[-max(round(7 * 86_400 / one.step_s), 1) :].mean()
    total = lately * max(until_s - max(since_s, ends_s), 0.0)
    for k, value in enumerate(one.values.tolist()):
        begin_s = begins_s + k * one.step_s
        total += value * max(min(until_s, begin_s + one.step_s) - max(since_s, begin_s), 0.0)
    return float(total)


@st.composite
def several(draw: st.DrawFn) -> list[Series | None]:
    """One or two series that cover second 0 (`BEGINS`), on grids and offsets of their own."""
    found = list[Series | None]()
    for _ in range(draw(st.integers(1, 2))):
        step_s = draw(st.sampled_from(STEPS_S[:-1]))
        before = draw(st.integers(0, 5))
        off_s = draw(st.sampled_from([0.0, 60.0, 420.0, 1800.0]))
        values = draw(st.lists(st.floats(-1e3, 1e4), min_size=before + 2, max_size=before + 40))
        begins = BEGINS - timedelta(seconds=before * step_s + off_s % step_s)
        found.append(series_of(values, begins, step_s))
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), None)
    return found


@settings(max_examples=150, deadline=None)
@given(
    series=several(),
    times=st.lists(st.one_of(st.floats(0.0, 1e5), st.integers(0, 400).map(lambda k: 300.0 * k)), min_size=2),
    offset_h=st.integers(-11, 11),
)
def test_integrals_equal_a_numeric_integral(
    series: list[Series | None], times: list[float], offset_h: int
) -> None:
    second_0 = BEGINS.astimezone(timezone(timedelta(hours=offset_h)))
    found = integrals(series, second_0, 0.0)
    assert found.from_s <= 0.0
    size = max(float(np.abs(one.values).max()) for one in series if one is not None)
    for since_s, until_s in zip(sorted(times), sorted(times)[1:], strict=False):
        expected = [numeric(one, second_0, since_s, until_s) for one in series]
        tolerance = 1e-9 * max(size, 1.0) * max(until_s, 1.0)
        np.testing.assert_allclose(found.between(since_s, until_s), expected, rtol=1e-9, atol=tolerance)
        parts = found.between(since_s, (since_s + until_s) / 2) + found.between(
            (since_s + until_s) / 2, until_s
        )
        np.testing.assert_allclose(parts, expected, rtol=1e-9, atol=tolerance)


def test_after_its_end_a_series_has_the_mean_of_its_last_7_days() -> None:
    hours = 24 * 10
    values = np.arange(float(hours))
    short, long = series_of(values.tolist()), series_of([5.0] * hours * 2)
    found = integrals([short, None, long], BEGINS, hours * 3600.0)
    end_s = hours * 3600.0
    lately = float(values[-7 * 24 :].mean())
    np.testing.assert_allclose(found.between(end_s, end_s + 10.0), [10 * lately, 0.0, 50.0])
    np.testing.assert_allclose(
        found.between(end_s - 3600.0, end_s + 1e7)[0], 3600.0 * values[-1] + 1e7 * lately
    )


def test_a_longer_series_keeps_its_own_values_after_the_end_of_a_shorter_one() -> None:
    short, long = series_of([1.0, 1.0]), series_of([1.0, 2.0, 3.0, 4.0])
    found = integrals([short, long], BEGINS, 3600.0)
    np.testing.assert_allclose(found.between(3 * 3600.0, 4 * 3600.0), [3600.0, 4 * 3600.0])


@pytest.mark.parametrize(("begins_h", "last_h"), [(1, 1), (0, 3), (-4, 0.5)])
def test_a_series_that_does_not_cover_the_trace_is_refused(begins_h: float, last_h: float) -> None:
    one = series_of([1.0, 2.0], BEGINS + timedelta(hours=begins_h))
    with pytest.raises(InputError, match=r"s: expected values from 2026-01-01T00:00 to .*energy.begins"):
        integrals([one], BEGINS, last_h * 3600.0)


def test_series_without_a_common_grid_are_refused() -> None:
    one = series_of([1.0] * 24 * 400)
    other = series_of([1.0] * 24 * 400, BEGINS - timedelta(seconds=1.000001))
    with pytest.raises(InputError, match="expected steps that share a grid"):
        integrals([one, other], BEGINS, 0.0)
