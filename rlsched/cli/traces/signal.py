"""`rlsched signal`: generates, describes, converts and forecasts prices and carbon of electricity."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rlsched.cli.shared.options import JSON, PATH, seed_option, shown
from rlsched.terminal.show import count, in_words, percent, print_json, print_table

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_BARS = "▁▂▃▄▅▆▇█"
_BOUND = "a bound: the day's values known in advance, and all work able to wait within the day"


@click.group(context_settings=_HELP)
def signal() -> None:
    """Generate, describe, convert and forecast series of electricity prices or carbon intensity.

    A series is a CSV file with the columns utc (start of a step) and value; all steps have the same length.
    It can have forecasts, in the columns forecast and forecast_utc. See docs/how-to/signals.md.

    \b
    Example:
      rlsched signal synth --like solar price.csv
      rlsched signal describe price.csv
      rlsched signal convert DE_2024_hourly.csv carbon.csv.gz
      rlsched signal forecast price.csv with-forecast.csv
    """


@signal.command()
@click.option(
    "--like",
    type=click.Choice(["solar", "wind", "spiky", "flat"]),
    required=True,
    help="Shape of the series. solar: cheap at noon, expensive in the evening; wind: swings over days; "
    "spiky: rare, high spikes of a few hours; flat: constant.",
)
@shown("--days", type=click.IntRange(1, 3660), default=28, metavar="N", help="Length of the series, days.")
@shown(
    "--step",
    default="1h",
    metavar="TIME",
    help="Length of a step, such as 15m; a day must be a whole number of steps.",
)
@shown("--begin", default="2026-01-01", metavar="TIME", help="Start of the first step, UTC.")
@click.option(
    "--mean",
    type=float,
    metavar="X",
    help="Mean of the values, in any unit. [default: solar 50, wind 95, spiky 70, flat 100]",
)
@click.option(
    "--forecast-sd",
    type=float,
    metavar="X",
    help="Also write a forecast of each day, made at 12:00 UTC of the day before. X is the standard "
    "deviation of the forecast's error 24 hours ahead, relative to the mean of the series. The error grows "
    "with the square root of the lead time. [default: no forecast]",
)
@seed_option("Random seed; the same seed gives the same file.")
@click.argument("out", metavar="OUT", type=PATH)
def synth(
    like: str,
    days: int,
    step: str,
    begin: str,
    mean: float | None,
    forecast_sd: float | None,
    seed: int,
    out: Path,
) -> None:
    """Generate a synthetic series of prices or carbon intensity, for trials without data of your own.

    OUT is .csv or .csv.gz. The shapes imitate published properties of markets; no real data is copied. Hours
    of the day are UTC.

    \b
    Example:
      rlsched signal synth --like solar price.csv
      rlsched signal synth --like spiky --days 365 --step 15m --mean 0.08 --seed 3 price.csv.gz
      rlsched signal synth --like wind --forecast-sd 0.1 price.csv
    """
    from rlsched.energy.synth import synthesize, with_forecast

    _check_out(out)
    series = synthesize(like, _time(begin), days, _seconds("--step", step), mean, seed)
    if forecast_sd is not None:
        series = with_forecast(series, forecast_sd, seed)
    series.write(out)
    click.echo(f"{out}: {_span(series)}, {like}, mean {_figure(float(series.values.mean()))}")


@signal.command()
@click.argument("file", metavar="FILE", type=PATH)
@JSON
def describe(file: Path, as_json: bool) -> None:
    """Describe a series: span, distribution, means by hour of the day, and possible savings by waiting.

    FILE has the columns utc and value. Values have the unit of the file. If the file has forecasts, their
    error is printed by lead time.

    \b
    Example:
      rlsched signal describe price.csv
      rlsched signal describe price.csv.gz --json
    """
    from rlsched.energy.describe import describe as report_on
    from rlsched.energy.series import Series

    series = Series.read(file)
    report = report_on(series)
    if as_json:
        print_json(report)
        return
    click.echo(f"{file}: {_span(series)}")
    _print_report(report)


@signal.command()
@click.argument("source", metavar="IN", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@shown(
    "--from",
    "form",
    type=click.Choice(["auto", "electricity-maps", "entsoe", "plain"]),
    default="auto",
    help="Format of IN; with auto, the header of the file determines the format.",
)
@click.option(
    "--column",
    metavar="NAME",
    help="Column of IN that contains the values. [default: life-cycle carbon intensity (electricity-maps), "
    "day-ahead price (entsoe), the only numeric column (plain)]",
)
@shown(
    "--fill",
    type=click.FloatRange(min=0.0, max=8784.0),
    default=0.0,
    metavar="HOURS",
    help="Longest gap to fill, hours. A missing value becomes the value of 24 hours earlier or, if there is "
    "none, the value of the step before.",
)
def convert(source: Path, out: Path, form: str, column: str | None, fill: float) -> None:
    """Convert a public file of prices or carbon intensity to a series.

    IN is CSV, also with gzip: a yearly file of Electricity Maps, day-ahead prices of the ENTSO-E Transparency
    Platform (local time or UTC), or a plain file with a column of times, in UTC or with an offset. OUT is
    .csv or .csv.gz. A gap in IN is an error, unless --fill allows it. The columns forecast and forecast_utc
    of a plain file are kept.

    \b
    Example:
      rlsched signal convert DE_2024_hourly.csv carbon.csv.gz
      rlsched signal convert GUI_ENERGY_PRICES_2024.csv price.csv --fill 2
      rlsched signal convert --from plain --column price_usd_mwh us-tex-erco.csv.gz price.csv.gz
    """
    from rlsched.energy.convert import convert as converted

    _check_out(out)
    done = converted(source, form, column, fill)
    done.series.write(out)
    click.echo(f"{out}: {_span(done.series)}, column {done.column!r} of {source} ({done.form})")
    if done.filled:
        click.echo(f"  filled {count(done.filled, 'step')} without a value")
    if done.left_out:
        click.echo(f"  left out {count(done.left_out, 'step')} without a value at the ends")
    if done.other_auctions:
        click.echo(f"  left out {count(done.other_auctions, 'row')} of other auctions")


@signal.command()
@click.argument("source", metavar="IN", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@shown(
    "--lead",
    default="24h",
    metavar="TIME",
    help="How long before the start of a step with a value its forecast was known, up to 7d; rounded up to "
    "whole steps. 24h covers the time for which policies compute the mean price.",
)
@shown(
    "--ahead",
    default="48h",
    metavar="TIME",
    help="Time after the last value for which steps are forecast, up to 7d. These forecasts are known from "
    "the start of the last step with a value on.",
)
@JSON
def forecast(source: Path, out: Path, lead: str, ahead: str, as_json: bool) -> None:
    """Forecast a series by its past values, and write it with the columns forecast and forecast_utc.

    IN has the columns utc and value, and at least 28 days of values. Its forecasts are replaced. OUT is .csv
    or .csv.gz. A minus sign stands for standard input or output. A forecast depends only on values that were
    known at its time, so it can be compared with the values. Steps of the first 28 days have no forecast.

    \b
    Example:
      rlsched signal forecast price.csv with-forecast.csv
      rlsched signal forecast price.csv with-forecast.csv --lead 6h --json
      fetch-prices | rlsched signal forecast - -
    """
    from rlsched.energy.describe import forecast_errors
    from rlsched.energy.learn import learned
    from rlsched.energy.series import Series
    from rlsched.errors import InputError

    is_piped = str(out) == "-"
    if not is_piped:
        _check_out(out)
    elif as_json:
        raise InputError("--json: expected a file to write as OUT, got standard output")
    lead_s, ahead_s = _seconds("--lead", lead), _seconds("--ahead", ahead)
    series = learned(Series.read("/dev/stdin" if str(source) == "-" else source), lead_s, ahead_s)
    if is_piped:
        click.echo(series.text(), nl=False)
        return
    series.write(out)
    found = forecast_errors(series)
    assert found is not None
    assert series.forecast is not None
    if as_json:
        print_json({"file": str(out), "lead_s": lead_s, "ahead_s": ahead_s, **found})
        return
    click.echo(f"{out}: {_span(series)}")
    ahead_steps = count(len(series.forecast.values) - len(series), "step")
    click.echo(f"  forecast {found['steps']:,} of them, and {ahead_steps} after the last value")
    if found["by_lead"]:
        _print_forecast(found)


def _check_out(out: Path) -> None:
    from rlsched.errors import InputError

    if not out.name.lower().endswith((".csv", ".csv.gz")):
        raise InputError(f"{out}: expected a file to write that ends in .csv or .csv.gz")


def _time(text: str) -> datetime:
    from rlsched.errors import InputError

    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"--begin: expected a time such as 2026-01-01T00:00, got {text!r}") from None


def _seconds(option: str, text: str) -> float:
    from rlsched.errors import InputError
    from rlsched.settings import Seconds

    try:
        return Seconds.parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def _span(series: Any) -> str:
    """Return the span and the steps of a series, as text."""
    return (
        f"{in_words(series.step_s * len(series))} from {series.begins:%Y-%m-%d %H:%M} to "
        f"{series.ends:%Y-%m-%d %H:%M} UTC, {len(series):,} steps of {in_words(series.step_s)}"
    )


def _print_report(report: dict[str, Any]) -> None:
    """Print the report of `energy.describe` as text."""
    names = ("mean", "min", "p5", "p50", "p95", "p99", "max")
    print_table(
        "Values",
        (*names, "below 0"),
        [[*(_figure(report[one]) for one in names), percent(report["below_0_frac"])]],
    )
    hours = [one for one in report["by_hour"] if one is not None]
    low, high = (report["by_hour"].index(end) for end in (min(hours), max(hours)))
    click.echo(
        f"Hours of the day, UTC, 00 to 23: {_bars(report['by_hour'])}  lowest at {low:02d} "
        f"({_figure(min(hours))}), highest at {high:02d} ({_figure(max(hours))})"
    )
    click.echo(
        f"Coefficient of variation {_ratio(report['variation'])}, correlation with 24 h before "
        f"{_ratio(report['autocorrelation_24h'])}, with 7 days before {_ratio(report['autocorrelation_7d'])}"
    )
    saves = percent(report["cheapest_half_saves_frac"])
    click.echo(f"A constant load that runs only in the cheapest half of each day saves {saves} ({_BOUND})")
    if report["forecast"] is not None:
        _print_forecast(report["forecast"])


def _print_forecast(found: dict[str, Any]) -> None:
    """Print the errors of the forecast (`energy.describe.forecast_errors`)."""
    print_table(
        f"Forecast to {found['ends'][:16].replace('T', ' ')} UTC: mean absolute error",
        ("known ahead", "steps", "forecast", "bias", "value 24 h before"),
        [
            [
                _lead(one["from_h"], one["until_h"]),
                f"{one['steps']:,}",
                _figure(one["error_mean_abs"]),
                _figure(one["error_mean"]),
                _figure(one["day_before_error_mean_abs"]),
            ]
            for one in found["by_lead"]
        ],
    )


def _lead(from_h: float, until_h: float | None) -> str:
    return f"{from_h:g} h or more" if until_h is None else f"{from_h:g} to {until_h:g} h"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100.0 or value == 0.0 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bars(values: list[float | None]) -> str:
    """Return one bar character per value, scaled between the lowest and highest value; a space if unknown."""
    known = [one for one in values if one is not None]
    low, range_ = min(known), max(known) - min(known)
    top = len(_BARS) - 1
    return "".join(
        " " if one is None else _BARS[round(top * (one - low) / range_) if range_ > 0.0 else 0]
        for one in values
    )
