"""`rlsched signal` as a user runs it: its output, its files and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.energy.series import Series


def said(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """Standard output of a command that succeeds."""
    assert run(["signal", *map(str, args)]) == 0
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def failed(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line of a command with bad input."""
    assert run(["signal", *map(str, args)]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    return done.err


def test_synth_then_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "price.csv.gz"
    line = said(capsys, "synth", "--like", "solar", "--days", 14, "--step", "30m", "--mean", 80, path)
    span = "14.0 d from 2026-01-01 00:00 to 2026-01-15 00:00 UTC, 672 steps of 30.0 min"
    assert line == f"{path}: {span}, solar, mean 80\n"
    assert len(Series.read(path)) == 672
    page = said(capsys, "describe", path)
    assert page.startswith(f"{path}: {span}\n")
    assert re.search(r"lowest at 1[123] .*, highest at (18|19|20) ", page)
    assert re.search(r"correlation with 24 h before 0\.\d\d, with 7 days before -?0\.\d\d", page)
    assert re.search(r"in the cheapest half of each day saves \d\d\.\d % \(a bound: ", page)
    report = json.loads(said(capsys, "describe", path, "--json"))
    assert report["mean"] == pytest.approx(80.0, abs=0.01)
    assert len(report["by_hour"]) == 24


def test_synth_and_describe_a_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plain = tmp_path / "price.csv", tmp_path / "plain.csv"
    said(capsys, "synth", "--like", "wind", "--days", 30, "--forecast-sd", 0.1, path)
    said(capsys, "synth", "--like", "wind", "--days", 30, plain)
    assert Series.read(path).values.tolist() == Series.read(plain).values.tolist()
    assert path.read_text().startswith("utc,value,forecast,forecast_utc\n2026-01-01T00:00,")
    page = said(capsys, "describe", path)
    assert "Forecast to 2026-01-31 00:00 UTC: mean absolute error" in page
    assert re.search(r"12 to 24 h +360 ", page)
    assert re.search(r"24 to 48 h +360 ", page)
    assert "forecast" not in said(capsys, "describe", plain)
    leads = json.loads(said(capsys, "describe", path, "--json"))["forecast"]["by_lead"]
    assert [one["from_h"] for one in leads] == [12.0, 24.0]
    for one in leads:
        assert 0.0 < one["error_mean_abs"] < one["day_before_error_mean_abs"]
    line = said(capsys, "convert", path, tmp_path / "again.csv")
    assert "720 steps of 1.0 h" in line
    assert (tmp_path / "again.csv").read_text() == path.read_text()


def test_begin_may_have_an_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.csv"
    line = said(capsys, "synth", "--like", "wind", "--days", 1, "--begin", "2026-07-01T00:00+02:00", path)
    assert "from 2026-06-30 22:00 to 2026-07-01 22:00 UTC" in line


def test_describe_a_short_constant_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.csv"
    path.write_text("utc,value\n2026-01-01T00,0\n2026-01-01T01,0\n")
    page = said(capsys, "describe", path)
    assert "Coefficient of variation -, correlation with 24 h before -, with 7 days before -" in page
    assert "saves - (a bound" in page


def test_convert_prints_what_it_filled_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("utc,a,b\n2026-01-01T00,1,\n2026-01-01T01,2,1\n2026-01-01T02,3,-\n2026-01-01T03,4,2\n")
    page = said(capsys, "convert", source, out, "--column", "b", "--fill", 1)
    assert page.splitlines() == [
        f"{out}: 3.0 h from 2026-01-01 01:00 to 2026-01-01 04:00 UTC, 3 steps of 1.0 h, "
        f"column 'b' of {source} (plain)",
        "  filled 1 step without a value",
        "  left out 1 step without a value at the ends",
    ]
    assert Series.read(out).values.tolist() == [1.0, 1.0, 2.0]


def test_convert_reports_other_auctions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    rows = [
        f"01/10/2025 0{k}:00 - 01/10/2025 0{k + 1}:00,Sequence {n},{k}\n" for k in range(3) for n in (1, 2)
    ]
    source.write_text("MTU (UTC),Sequence,Day-ahead Price (EUR/MWh)\n" + "".join(rows))
    assert "  left out 3 rows of other auctions\n" in said(capsys, "convert", source, out)


def test_bad_input_is_one_line_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, out = tmp_path / "good.csv", tmp_path / "out.csv"
    good.write_text("utc,value\n2026-01-01T00,1\n2026-01-01T02,1\n2026-01-01T03,1\n")
    for args, expected in [
        (["describe", tmp_path / "none.csv"], "cannot read this series"),
        (["describe", good], "expected steps of 3600 s, got 7200 s"),
        (["convert", good, out, "--from", "plain"], "got one of 1 h from 2026-01-01T01:00 (UTC); `--fill 1`"),
        (["convert", good, tmp_path / "out.txt"], "expected a file to write that ends in .csv or .csv.gz"),
        (["convert", good, out, "--column", "x"], "--column 'x': the columns are 'utc', 'value'"),
        (
            ["synth", "--like", "flat", "--step", "7m", out],
            "--step: expected 1 min or more that divides 24 h",
        ),
        (["synth", "--like", "flat", "--step", "soon", out], "--step: expected a time such as 90s"),
        (
            ["synth", "--like", "flat", "--begin", "soon", out],
            "--begin: expected a time such as 2026-01-01T00:00",
        ),
        (["synth", "--like", "flat", "--begin", "9999-12-31", out], "expected an end before the year 10000"),
        (["synth", "--like", "flat", "--mean", "-1", out], "--mean: expected a number above 0, got -1"),
        (
            ["synth", "--like", "flat", "--forecast-sd", "-1", out],
            "--forecast-sd: expected a number of 0 or more, got -1",
        ),
        (["synth", "--like", "flat", tmp_path / "x"], "expected a file to write that ends in"),
        (["synth", out], "Missing option '--like'"),
    ]:
        error = failed(capsys, *args)
        assert expected in error, args
        assert error.startswith("error: "), args
        assert error.count("\n") == 1, args
    assert sorted(tmp_path.iterdir()) == [good]
