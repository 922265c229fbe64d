"""Public files of prices and carbon intensity: forms, changes of the clocks, gaps, and bad files."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.energy.convert import convert
from rlsched.energy.european import EuropeanClock
from rlsched.errors import InputError

PARIS = ZoneInfo("Europe/Paris")
HOUR = timedelta(hours=1)
QUARTER = timedelta(minutes=15)
MAPS = (
    "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),"
    "Carbon intensity gCO₂eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),Data source"
)
MAPS_OF_2022 = (
    "Datetime (UTC),Country,Zone Name,Zone Id,Carbon Intensity gCO₂eq/kWh (direct),"
    "Carbon Intensity gCO₂eq/kWh (LCA),Low Carbon Percentage,Data Source"
)


def write(folder: Path, text: str, name: str = "in.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def refused(path: Path, **given: object) -> str:
    with pytest.raises(InputError) as raised:
        convert(path, **given)  # type: ignore[arg-type]
    message = str(raised.value)
    assert "\n" not in message
    return message


# ---- Electricity Maps -----------------------------------------------------------------------------


@pytest.mark.parametrize("head", [MAPS, MAPS_OF_2022, MAPS_OF_2022.lower(), MAPS.replace("₂", "2")])
@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
def test_electricity_maps(tmp_path: Path, head: str, name: str) -> None:
    rows = "".join(
        f"2024-01-01 {k:02d}:00:00,Germany,Germany,DE,{k},{100 + k},5,entsoe\r\n" for k in range(24)
    )
    path = write(tmp_path, f"\ufeff{head}\r\n{rows}", name)
    found = convert(path)
    assert (found.form, found.filled, found.left_out) == ("electricity-maps", 0, 0)
    assert (found.series.begins, found.series.step_s) == (datetime(2024, 1, 1, tzinfo=UTC), 3600.0)
    np.testing.assert_array_equal(found.series.values, 100 + np.arange(24.0))
    direct = convert(path, column=head.split(",")[4])
    np.testing.assert_array_equal(direct.series.values, np.arange(24.0))


def test_electricity_maps_has_one_zone_and_one_column(tmp_path: Path) -> None:
    row = "2024-01-01 0{}:00:00,Germany,Germany,{},1,2,5,entsoe\n"
    two = write(tmp_path, MAPS + "\n" + row.format(0, "DE") + row.format(0, "FR"))
    assert "Zone id: expected one zone, got DE, FR; give a file of one zone" in refused(two)
    direct = write(tmp_path, "Datetime (UTC),Carbon intensity gCO2eq/kWh (direct)\n2024-01-01 00:00:00,1\n")
    assert "expected one column of carbon intensity over the life cycle, got 0" in refused(direct)
    other = write(tmp_path, "a,b\n1,2\n")
    assert "expected the form electricity-maps, with a column such as" in refused(
        other, form="electricity-maps"
    )


# ---- ENTSO-E --------------------------------------------------------------------------------------


def old_form(times: list[datetime], step: timedelta, zone: ZoneInfo = PARIS) -> str:
    """As exported until 2024: the end of an interval is its start and a step on the same clock."""
    head = '"MTU (CET/CEST)","Day-ahead Price [EUR/MWh]","Currency","BZN|DE-LU"\n'
    shown = [at.astimezone(zone).replace(tzinfo=None) for at in times]
    return head + "".join(
        f'"{at:%d.%m.%Y %H:%M} - {at + step:%d.%m.%Y %H:%M}","{k}","EUR",""\n' for k, at in enumerate(shown)
    )


def new_form(times: list[datetime], step: timedelta, zone: ZoneInfo | None = PARIS) -> str:
    """As exported since 2024: with seconds, and marks on days with a change of the clocks."""
    name = "UTC" if zone is None else "CET/CEST"
    head = f'"MTU ({name})","Area","Sequence","Day-ahead Price (EUR/MWh)","Intraday Price (EUR/MWh)"\n'

    def shown(at: datetime) -> str:
        local = at.astimezone(zone or UTC)
        is_change = zone is not None and (local.month, local.day) in ((3, 26), (10, 29))
        return f"{local:%d/%m/%Y %H:%M:%S}" + (f" ({local.tzname()})" if is_change else "")

    return head + "".join(
        f'"{shown(at)} - {shown(at + step)}","BZN|FR","Without Sequence","{k}",""\n'
        for k, at in enumerate(times)
    )


@pytest.mark.parametrize("day", [datetime(2023, 3, 26), datetime(2023, 10, 29), datetime(2023, 7, 1)])
@pytest.mark.parametrize("step", [HOUR, QUARTER])
@pytest.mark.parametrize("zone", ["old", "new", "utc"])
def test_entsoe_across_a_change_of_the_clocks(
    tmp_path: Path, day: datetime, step: timedelta, zone: str
) -> None:
    first = (day - timedelta(days=1)).replace(tzinfo=PARIS).astimezone(UTC)
    end = (day + timedelta(days=2)).replace(tzinfo=PARIS).astimezone(UTC)
    times = [first + k * step for k in range((end - first) // step)]
    of_day = [at for at in times if at.astimezone(PARIS).date() == day.date()]
    hours = {3: 23, 10: 25, 7: 24}[day.month]
    assert len(of_day) * step == hours * HOUR
    text = {"old": old_form(times, step), "new": new_form(times, step), "utc": new_form(times, step, None)}[
        zone
    ]
    found = convert(write(tmp_path, text))
    assert (found.form, found.filled, found.left_out) == ("entsoe", 0, 0)
    assert (found.series.begins, found.series.step_s) == (first, step.total_seconds())
    np.testing.assert_array_equal(found.series.values, np.arange(float(len(times))))


@settings(max_examples=10, deadline=None)
@given(
    begins=st.datetimes(datetime(2015, 1, 1), datetime(2035, 1, 1)),
    zone=st.sampled_from(
        [("WET/WEST", "Europe/Lisbon"), ("CET/CEST", "Europe/Paris"), ("EET/EEST", "Europe/Athens")]
    ),
)
def test_the_european_clock_equals_the_database_of_zones(begins: datetime, zone: tuple[str, str]) -> None:
    clock, known = EuropeanClock(f"MTU ({zone[0]})"), ZoneInfo(zone[1])
    first = begins.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    times = [first + 3 * k * HOUR for k in range(3000)]  # a year: never in both hours that come twice
    for at in times:
        local = at.astimezone(known)
        if local.fold:
            continue
        shown = local.replace(tzinfo=None)
        found = clock.read(f"{shown:%d.%m.%Y %H:%M} - {shown + HOUR:%d.%m.%Y %H:%M}")
        assert found == (at, 3600.0)


def test_entsoe_hour_that_the_clocks_skip(tmp_path: Path) -> None:
    rows = ["01:00 - 26.03.2023 02:00,1", "02:00 - 26.03.2023 03:00,{}", "03:00 - 26.03.2023 04:00,3"]
    text = "MTU (CET/CEST),Day-ahead Price [EUR/MWh]\n" + "".join(f"26.03.2023 {row}\n" for row in rows)
    found = convert(write(tmp_path, text.format("")))
    assert found.series.values.tolist() == [1.0, 3.0]
    said = refused(write(tmp_path, text.format("2")))
    assert "line 3: MTU (CET/CEST): expected a time that exists, got '26.03.2023 02:00" in said


def test_entsoe_hours_and_quarters_in_one_file(tmp_path: Path) -> None:
    begins = datetime(2025, 9, 30, 20, tzinfo=UTC)
    hours, quarters = new_form([begins, begins + HOUR], HOUR), new_form([begins + 2 * HOUR], QUARTER)
    quarters = quarters.partition("\n")[2].replace('"0"', '"7"')
    found = convert(write(tmp_path, hours + quarters)).series
    assert (found.step_s, found.values.tolist()) == (900.0, [0.0] * 4 + [1.0] * 4 + [7.0])


def test_entsoe_keeps_the_first_auction_of_a_day(tmp_path: Path) -> None:
    head = "MTU (UTC),Area,Sequence,Day-ahead Price (EUR/MWh)\n"
    row = "{0:02d}/10/2025 {1:02d}:00:00 - {0:02d}/10/2025 {2:02d}:00:00,BZN|FR,{3},{4}\n"
    rows = [
        row.format(day, hour, hour + 1, name, value)
        for day, names in ((1, ["Without Sequence"]), (2, ["Sequence 2", "Sequence 1"]))
        for hour in range(22, 23)
        for value, name in enumerate(names)
    ]
    rows += [
        row.format(1, 23, 23, "Without Sequence", 5).replace("01/10/2025 23:00:00,", "02/10/2025 00:00:00,")
    ]
    found = convert(write(tmp_path, head + "".join(rows)), fill_h=48.0)
    assert found.other_auctions == 1
    assert found.series.values[[0, 1, -1]].tolist() == [0.0, 5.0, 1.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MTU (MSK),Day-ahead Price\n1,2\n", "expected one of (UTC), (WET), (CET), (EET) in 'MTU (MSK)'"),
        ("MTU (UTC+1),Day-ahead Price\n1,2\n", "expected one of (UTC), (WET)"),
        ("MTU (UTC),Load [MW]\n1,2\n", "expected the form entsoe, with a column such as 'Day-ahead Price'"),
        ("MTU (UTC),Day-ahead Price\n2023-01-01,2\n", "line 2: MTU (UTC): expected an interval such as"),
        (
            "MTU (UTC),Day-ahead Price\n31.02.2023 00:00 - 31.02.2023 01:00,2\n",
            "line 2: MTU (UTC): expected an",
        ),
        (
            "MTU (UTC),Day-ahead Price\n01.02.2023 02:00 - 01.02.2023 01:00,2\n",
            "line 2: MTU (UTC): expected an",
        ),
        ("MTU (UTC),Day-ahead Price\n01.02.2023 00:00 - 01.02.2023 01:00,x\n", "expected a number, got 'x'"),
        ("MTU (UTC),Area,Day-ahead Price\na,FR,1\na,DE,1\n", "Area: expected one zone, got FR, DE"),
        (
            "MTU (UTC),Day-ahead Price\n" + "01.02.2023 00:00 - 01.02.2023 01:00,2\n" * 2,
            "line 3: expected each step once, got 2023-02-01T00:00 (UTC) again",
        ),
    ],
)
def test_bad_files_of_entsoe(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(write(tmp_path, text))


# ---- plain files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "when,price\n2026-01-01T00,1\n2026-01-01T01,2\n2026-01-01T02,3\n",
        "price;Datetime (UTC);Datetime (local)\n1;2026-01-01 00:00Z;2026-01-01 09:00\n"
        "2;2026-01-01 01:00Z;2026-01-01 10:00\n3;2026-01-01 02:00Z;2026-01-01 11:00\n",
        "zone\ttime\tprice\nDE\t2026-01-01T03:00+01:00\t3\nDE\t2026-01-01T02:00+01:00\t2\n"
        "DE\t2026-01-01T01:00+01:00\t1\n",
    ],
)
def test_plain(tmp_path: Path, text: str) -> None:
    found = convert(write(tmp_path, text))
    assert (found.form, found.column, found.filled) == ("plain", "price", 0)
    assert (found.series.begins, found.series.step_s) == (datetime(2026, 1, 1, tzinfo=UTC), 3600.0)
    assert found.series.values.tolist() == [1.0, 2.0, 3.0]


TWO = "utc,price_usd,carbon\n2026-01-01T00,1,10\n2026-01-01T01,2,20\n"


def test_plain_with_a_chosen_column(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    assert convert(path, column="carbon").series.values.tolist() == [10.0, 20.0]
    assert convert(path, column="Price_USD").column == "price_usd"
    assert "expected one column of numbers, got 'price_usd', 'carbon'; choose one with --column" in refused(
        path
    )
    assert "did you mean price_usd? the columns are 'utc', 'price_usd', 'carbon'" in refused(
        path, column="price"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a header and rows, got nothing"),
        ("utc,price\n", "expected a header and rows, got a header"),
        ("hour,price\n1,2\n2,3\n", "expected a column of times such as 2026-03-01T14:00"),
        ("utc,price\n2026-01-01,high\n", "expected one column of numbers, got none of 'utc', 'price'"),
        (TWO + "2026-01-01T02,1\n", "line 4: expected 3 cells, as in the header, got 2"),
        ("utc,price\n2026-01-01T00,1\nnoon,2\n", "line 3: utc: expected a time such as"),
        ("utc,price\n2026-01-01T00,1\n2026-01-01T00,2\n", "expected two rows or more with different times"),
        ("utc,price\n2026-01-01T00,1\n", "expected two rows or more with different times, got 1 rows"),
        ("utc,price\n2026-01-01,1\n2026-02-01,2\n", "expected steps of 1 s to 24 h, got 744 h"),
        (
            "utc,price\n2026-01-01T00,1\n2026-01-01T01,1\n2026-01-01T01,2\n2026-01-01T02,2\n",
            "line 4: expected each step once, got 2026-01-01T01:00 (UTC) again",
        ),
        (
            "utc,price\n2026-01-01T00,1\n2026-01-01T01,1\n2026-01-01T02,1\n2026-01-01T03:45,2\n",
            "line 5: expected a start and a length in whole steps of 3600 s, got 13500 s",
        ),
        ("utc,price\n2026-01-01T00,1\n2026-01-01T01,inf\n", "line 3: price: expected a number, got 'inf'"),
    ],
)
def test_bad_plain_files(tmp_path: Path, text: str, said: str) -> None:
    message = refused(write(tmp_path, text))
    assert said in message
    assert "in.csv" in message


def test_other_bad_input(tmp_path: Path) -> None:
    assert "cannot read this series: No such file" in refused(tmp_path / "none.csv")
    assert "--from: expected auto, electricity-maps, entsoe, plain" in refused(
        write(tmp_path, TWO), form="csv"
    )
    (tmp_path / "in.csv.gz").write_bytes(b"no gzip")
    assert "expected a gzip file, and it is damaged" in refused(tmp_path / "in.csv.gz")


# ---- gaps -----------------------------------------------------------------------------------------


def hourly(values: list[object]) -> str:
    """A plain file with a row for each value; None: no row."""
    begins = datetime(2026, 1, 1)
    rows = [f"{begins + k * HOUR:%Y-%m-%dT%H:%M},{one}\n" for k, one in enumerate(values) if one is not None]
    return "utc,value\n" + "".join(rows)


@pytest.mark.parametrize("gap", [None, "", "-", "n/e", "N/A", "NaN"])
def test_gaps_are_named_and_filled(tmp_path: Path, gap: object) -> None:
    values: list[object] = list(range(60))
    values[5] = gap
    values[30] = values[31] = values[32] = gap
    path = write(tmp_path, hourly(values))
    assert refused(path).endswith(
        "expected no gaps, got one of 1 h from 2026-01-01T05:00 (UTC), and 1 other such gaps; "
        "`--fill 3` fills all of them"
    )
    said = refused(path, fill_h=2.0)
    assert "expected no gap of more than 2 h, got one of 3 h from 2026-01-02T06:00 (UTC); `--fill 3`" in said
    found = convert(path, fill_h=3.0)
    assert (found.filled, found.left_out) == (4, 0)
    expected = np.arange(60.0)
    expected[5], expected[30:33] = 4.0, [6.0, 7.0, 8.0]
    np.testing.assert_array_equal(found.series.values, expected)


def test_steps_without_a_value_at_the_ends_are_left_out(tmp_path: Path) -> None:
    found = convert(write(tmp_path, hourly(["-", "-", 1, 2, "", ""])), column="value")
    assert (found.left_out, found.series.values.tolist()) == (4, [1.0, 2.0])
    assert found.series.begins == datetime(2026, 1, 1, 2, tzinfo=UTC)
    assert "expected two values or more, got 1" in refused(write(tmp_path, hourly(["", 1, ""])))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=2, max_size=80))
def test_filling_keeps_known_values_and_looks_only_back(
    tmp_path_factory: pytest.TempPathFactory, values: list[int | None]
) -> None:
    values = [1, 2, *values, 3]
    path = write(tmp_path_factory.mktemp("gaps"), hourly(list(values)))
    found = convert(path, fill_h=100.0)
    filled = found.series.values.tolist()
    assert found.filled == values.count(None)
    for k, value in enumerate(values):
        assert filled[k] == (value if value is not None else filled[k - 24] if k >= 24 else filled[k - 1])


@pytest.mark.shared_data
def test_real_files(shared_data: Path) -> None:
    for path in sorted((shared_data / "energy").glob("*-*.csv.gz")):
        name = "marginal_g_kwh" if "marginal" in path.name else "price_usd_mwh"
        found = convert(path, column=name)
        assert found.series.step_s == 3600.0
        assert len(found.series) >= 17_544


# ---- forecasts ------------------------------------------------------------------------------------


def test_forecasts_of_a_plain_file_are_kept(tmp_path: Path) -> None:
    rows = (
        "2026-01-01T01:00+01:00,80,75,2025-12-31T13:00+01:00\n2026-01-01T02:00+01:00,81,n/a,\n"
        "2026-01-01T03:00+01:00,-,90,2026-01-01T00:00Z\n2026-01-01T05:00+01:00,-,91,2026-01-01T00:00Z\n"
    )
    found = convert(write(tmp_path, f"time,price,forecast,forecast_utc\n{rows}"))
    assert (found.column, found.series.values.tolist()) == ("price", [80.0, 81.0])
    assert found.left_out == 2, "the gap after the forecast of the third hour, and the hour after it"
    assert found.series.forecast is not None
    np.testing.assert_array_equal(found.series.forecast.values, [75.0, np.nan, 90.0])
    np.testing.assert_array_equal(found.series.forecast.known_s, [-43_200.0, np.nan, 0.0])


def test_a_forecast_without_its_time_is_a_column_like_others(tmp_path: Path) -> None:
    path = write(tmp_path, "utc,actual,forecast\n2026-01-01T00,1,5\n2026-01-01T01,2,6\n")
    assert "expected one column of numbers, got 'actual', 'forecast'" in refused(path)
    assert convert(path, column="actual").series.forecast is None
    assert convert(path, column="forecast").series.values.tolist() == [5.0, 6.0]


def test_a_forecast_can_be_the_value(tmp_path: Path) -> None:
    text = "utc,a,forecast,forecast_utc\n2026-01-01T00,1,5,2026-01-01\n2026-01-01T01,2,6,2026-01-01\n"
    found = convert(write(tmp_path, text), column="forecast")
    assert (found.series.values.tolist(), found.series.forecast) == ([5.0, 6.0], None)


def test_a_bad_forecast_is_refused(tmp_path: Path) -> None:
    text = "utc,a,forecast,forecast_utc\n2026-01-01T00,1,5,2026-01-02\n2026-01-01T01,2,,\n"
    assert "line 2: forecast_utc: expected at most the start of the step" in refused(write(tmp_path, text))
